//! Samples of operations (lines) by contestants (columns).

use super::series::{Series, paired};
use std::fmt::Write as _;

/// A table with the samples of all rounds in its cells.
pub(crate) struct Grid {
    lines: Vec<String>,
    columns: Vec<String>,
    samples: Vec<Series>,
}

impl Grid {
    /// A grid without samples.
    pub fn new(lines: &[&str], columns: &[&str]) -> Grid {
        let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        Grid {
            lines: owned(lines),
            columns: owned(columns),
            samples: vec![Series::default(); lines.len() * columns.len()],
        }
    }

    /// Adds a sample to a cell.
    pub fn push(&mut self, line: usize, column: usize, sample: f64) {
        let at = line * self.columns.len() + column;
        self.samples[at].push(sample);
    }

    fn cell(&self, line: usize, column: usize) -> &Series {
        &self.samples[line * self.columns.len() + column]
    }

    /// Line, column and samples of all cells with samples.
    pub fn cells(&self) -> impl Iterator<Item = (&str, &str, &Series)> {
        let names = self.lines.iter().flat_map(|line| self.columns.iter().map(move |column| (line, column)));
        names
            .zip(&self.samples)
            .filter(|(_, samples)| !samples.is_empty())
            .map(|((line, column), samples)| (line.as_str(), column.as_str(), samples))
    }

    /// The columns divided by the column `base`, round by round, without `base` itself.
    pub fn divided_by(&self, base: &str) -> Grid {
        let names = |names: &[String]| names.to_vec();
        let mut ratios = Grid {
            lines: names(&self.lines),
            columns: names(&self.columns),
            samples: vec![Series::default(); self.samples.len()],
        };
        let Some(base) = self.columns.iter().position(|column| column == base) else { return ratios };
        for line in 0..self.lines.len() {
            for column in (0..self.columns.len()).filter(|column| *column != base) {
                let ratio =
                    paired(self.cell(line, column), self.cell(line, base), |ours, theirs| ours / theirs);
                ratios.samples[line * self.columns.len() + column] = ratio;
            }
        }
        ratios
    }

    /// The medians as a table, without columns without samples.
    pub fn table(&self, number: fn(f64) -> String) -> String {
        let has_samples =
            |column: &usize| (0..self.lines.len()).any(|line| !self.cell(line, *column).is_empty());
        let columns: Vec<usize> = (0..self.columns.len()).filter(has_samples).collect();
        let mut text = String::from("| |");
        columns.iter().for_each(|column| _ = write!(text, " {} |", self.columns[*column]));
        text += "\n|---|";
        columns.iter().for_each(|_| text += "---|");
        text += "\n";
        for (line, name) in self.lines.iter().enumerate() {
            let _ = write!(text, "| {name} |");
            for column in &columns {
                let samples = self.cell(line, *column);
                let median = if samples.is_empty() { "–".to_string() } else { number(samples.median()) };
                let _ = write!(text, " {median} |");
            }
            text += "\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round() {
        let mut grid = Grid::new(&["read", "write"], &["ours", "ext4", "absent"]);
        for (ours, ext4) in [(2.0, 1.0), (12.0, 4.0), (8.0, 2.0)] {
            grid.push(0, 0, ours);
            grid.push(0, 1, ext4);
        }
        grid.push(1, 0, 5.0);
        let table = grid.table(|value| format!("{value:.0}"));
        assert_eq!(table, "| | ours | ext4 |\n|---|---|---|\n| read | 8 | 2 |\n| write | 5 | – |\n");
        let ratios = grid.divided_by("ext4");
        assert_eq!(
            ratios.table(|value| format!("{value:.0}")),
            "| | ours |\n|---|---|\n| read | 3 |\n| write | – |\n"
        );
        assert_eq!(
            ratios.cells().map(|(line, column, _)| (line, column)).collect::<Vec<_>>(),
            [("read", "ours")]
        );
        assert_eq!(grid.divided_by("xfs").cells().count(), 0);
    }
}
