//! Figures, the table and the JSON file.

use super::args::Args;
use super::grid::Grid;
use super::series::Series;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use terrace_bench::failure::Outcome;
use terrace_bench::failure::say;
use terrace_bench::machine::Machine;

/// The bound that a figure must meet.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Must {
    AtMost(f64),
    AtLeast(f64),
    /// Only reported.
    Nothing,
}

#[derive(Debug, Serialize)]
struct Figure {
    row: String,
    what: String,
    unit: &'static str,
    median: f64,
    min: f64,
    max: f64,
    must: Option<String>,
    met: Option<bool>,
    /// Printed as a cell of a grid.
    #[serde(skip)]
    in_grid: bool,
    /// The 10th percentile: for latencies, the time of an undisturbed operation.
    lower_tenth: f64,
}

#[derive(Debug, Serialize)]
struct Skipped {
    row: String,
    reason: String,
}

impl Figure {
    fn of(row: String, what: String, unit: &'static str, samples: &Series) -> Figure {
        Figure {
            row,
            what,
            unit,
            median: samples.median(),
            min: samples.min(),
            max: samples.max(),
            must: None,
            met: None,
            in_grid: false,
            lower_tenth: samples.quantile(0.1),
        }
    }
}

/// All figures of a run.
#[derive(Serialize)]
pub(crate) struct Report {
    output_version: u32,
    machine: Machine,
    rounds: usize,
    figures: Vec<Figure>,
    skipped: Vec<Skipped>,
    notes: Vec<String>,
    /// Printed in place of their figures.
    #[serde(skip)]
    grids: Vec<String>,
}

const BEGIN: &str = "<!-- smoke begin -->";
const END: &str = "<!-- smoke end -->";
const HEADING: &str = "\
| row | what | unit | median | lower tenth | lowest | highest | must | |
|---|---|---|---|---|---|---|---|---|
";

impl Report {
    pub fn new(machine: Machine, rounds: usize) -> Report {
        Report {
            output_version: 1,
            machine,
            rounds,
            figures: Vec::new(),
            skipped: Vec::new(),
            notes: Vec::new(),
            grids: Vec::new(),
        }
    }

    /// Adds a figure and prints it.
    pub fn figure(
        &mut self,
        row: impl Into<String>,
        what: impl Into<String>,
        unit: &'static str,
        samples: &Series,
        must: Must,
    ) {
        let mut figure = Figure::of(row.into(), what.into(), unit, samples);
        let (must, met) = match must {
            Must::AtMost(limit) => (Some(format!("≤ {limit}")), Some(figure.median <= limit)),
            Must::AtLeast(limit) => (Some(format!("≥ {limit}")), Some(figure.median >= limit)),
            Must::Nothing => (None, None),
        };
        (figure.must, figure.met) = (must, met);
        eprintln!("  {}", line(&figure));
        self.figures.push(figure);
    }

    /// Adds a figure for each cell of a grid that has samples, and prints the medians as a table.
    pub fn grid(&mut self, row: &str, title: &str, unit: &'static str, grid: &Grid) {
        for (line, column, samples) in grid.cells() {
            let what = format!("{title}: {line}: {column}");
            let figure = Figure::of(row.to_string(), what, unit, samples);
            self.figures.push(Figure { in_grid: true, ..figure });
        }
        let table = format!("{title}, {unit}\n\n{}", grid.table(number));
        eprintln!("{table}");
        self.grids.push(table);
    }

    /// Adds a sentence that belongs to the figures.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        eprintln!("  {text}");
        self.notes.push(text);
    }

    /// A row, or a part of one, that could not be measured.
    pub fn skip(&mut self, row: impl Into<String>, reason: impl Into<String>) {
        let (row, reason) = (row.into(), reason.into());
        eprintln!("  row {row} skipped: {reason}");
        self.skipped.push(Skipped { row, reason });
    }

    /// Prints the table, writes the files; true when every measured figure meets its bound.
    pub fn finish(&self, args: &Args) -> Outcome<bool> {
        let table = self.table();
        say(table.as_str())?;
        if let Some(parent) = args.json.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&args.json, serde_json::to_string_pretty(self)? + "\n")?;
        if let Some(page) = &args.docs {
            let text = fs::read_to_string(page)?;
            let (before, rest) = text.split_once(BEGIN).ok_or("the page has no mark for the table")?;
            let (_, after) = rest.split_once(END).ok_or("the page has no mark for the table's end")?;
            fs::write(page, format!("{before}{BEGIN}\n{table}{END}{after}"))?;
        }
        Ok(self.figures.iter().all(|figure| figure.met != Some(false)))
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{}; {} rounds\n", self.machine, self.rounds);
        let in_lines = self.figures.iter().filter(|figure| !figure.in_grid).collect::<Vec<_>>();
        if !in_lines.is_empty() {
            text += HEADING;
        }
        for figure in in_lines {
            let met = figure.met.map_or("", |met| if met { "met" } else { "**missed**" });
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {met} |",
                figure.row,
                figure.what,
                figure.unit,
                number(figure.median),
                number(figure.lower_tenth),
                number(figure.min),
                number(figure.max),
                figure.must.as_deref().unwrap_or("reported")
            );
        }
        for grid in &self.grids {
            let _ = write!(text, "\n{grid}");
        }
        for skipped in &self.skipped {
            let _ = writeln!(text, "\nRow {} not measured: {}.", skipped.row, skipped.reason);
        }
        for note in &self.notes {
            let _ = writeln!(text, "\n{note}");
        }
        text
    }
}

fn line(figure: &Figure) -> String {
    let met = match figure.met {
        Some(false) => " MISSED",
        _ => "",
    };
    format!(
        "{}: {} {} (lower tenth {}, {} to {}){}{met}",
        figure.what,
        number(figure.median),
        figure.unit,
        number(figure.lower_tenth),
        number(figure.min),
        number(figure.max),
        figure.must.as_ref().map(|must| format!(", must {must}")).unwrap_or_default()
    )
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}
