//! A result as text, and as files: ROW.json and ROW.svg.

use super::outcome::Result;
use super::plot;
use super::row::NO_SHAPE;
use crate::failure::Outcome;
use crate::site::UNLIMITED;
use crate::stats::short;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

impl Result {
    /// Writes ROW.json and ROW.svg into a directory; gives the path of ROW.json.
    ///
    /// # Errors
    /// Errors of the directory.
    pub fn write(&self, directory: &Path) -> Outcome<PathBuf> {
        fs::create_dir_all(directory)?;
        let json = directory.join(format!("{}.json", self.row.id));
        fs::write(&json, serde_json::to_string_pretty(self)? + "\n")?;
        plot::draw(self, &directory.join(format!("{}.svg", self.row.id)))?;
        Ok(json)
    }

    /// The results as text, in the form of docs/evaluation.md.
    pub fn table(&self) -> String {
        let (row, conditions) = (&self.row, &self.conditions);
        let mut text = format!(
            "## {}\n{}\n\n{}; {} rounds\n",
            self.title(),
            row.sentence,
            conditions.machine,
            conditions.rounds
        );
        self.add_figures(&mut text);
        self.add_verdicts(&mut text);
        self.add_notes(&mut text);
        text
    }

    fn add_figures(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n| series | {} | median | lowest | highest | |\n|---|---|---|---|---|---|",
            self.axis
        );
        for figure in self.figures.iter().filter(|figure| figure.median.is_some()) {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} |",
                figure.series,
                figure.at,
                short(figure.median),
                short(figure.lowest),
                short(figure.highest),
                figure.unit
            );
        }
    }

    fn add_verdicts(&self, text: &mut String) {
        if !self.verdicts.is_empty() {
            text.push_str("\n| claim | of | at | | 95 % | must | |\n|---|---|---|---|---|---|---|\n");
        }
        for verdict in &self.verdicts {
            let of = match verdict.theirs.as_str() {
                "" => verdict.ours.clone(),
                theirs => format!("{} ÷ {theirs}", verdict.ours),
            };
            for place in &verdict.places {
                let ratio = &place.ratio;
                let held = match place.held {
                    Some(_) if self.conditions.quick => "(quick: means nothing)",
                    Some(true) => "held",
                    Some(false) => "**not held**",
                    None => "",
                };
                let _ = writeln!(
                    text,
                    "| {} | {of} | {} | {} | {} to {} | {} | {held} |",
                    verdict.text,
                    place.at,
                    short(Some(ratio.mean)),
                    short(ratio.low),
                    short(ratio.high),
                    verdict.must
                );
            }
        }
    }

    fn add_notes(&self, text: &mut String) {
        for (name, value) in &self.derived {
            let _ = writeln!(text, "\n{name}: {value}.");
        }
        for missing in &self.not_measured {
            let _ = writeln!(text, "\nNot measured: {}: {}.", missing.what, missing.reason);
        }
        if let Some(reason) = &self.conditions.page_cache.reason {
            if reason != UNLIMITED {
                let _ = writeln!(text, "\nThe page cache was not limited: {reason}.");
            }
        } else if let Some(reason) = &self.conditions.page_cache.dirty_reason {
            let _ = writeln!(text, "\nDirty pages were not limited: {reason}.");
        }
        for note in &self.notes {
            let _ = writeln!(text, "\n{note}");
        }
        if self.row.shape != NO_SHAPE {
            let _ = writeln!(text, "\nPublished: {}. Shape: {}.", self.row.published, self.row.shape);
        }
    }
}
