//! The journal of the recording writer, on another file system: a line before each operation, and a second
//! line when the operation was acknowledged. `B number operation…` before, `A number` after. For an operation
//! that was under way at a kill the verification adds `K number` (kept) or `U number` (undone). Each line is
//! one write(2), so a killed writer leaves whole lines, or a cut line at the end.

use crate::outcome::Outcome;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// A change that is made durable before it counts as acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Write a whole slot of a file.
    Write { file: usize, slot: u64 },
    /// Cut or extend a file to a number of slots.
    Truncate { file: usize, slots: u64 },
    /// Make a hole of a slot.
    Punch { file: usize, slot: u64 },
    /// Append a record.
    Append { length: u64 },
    /// Make a file with content.
    Create { name: u64 },
    /// Rename a file, over another or not.
    Rename { from: u64, to: u64 },
    /// Remove a file.
    Unlink { name: u64 },
}

/// An operation with its number; the content is computed from the number.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub number: u64,
    pub operation: Operation,
}

impl Operation {
    fn words(&self) -> String {
        match self {
            Operation::Write { file, slot } => format!("write {file} {slot}"),
            Operation::Truncate { file, slots } => format!("truncate {file} {slots}"),
            Operation::Punch { file, slot } => format!("punch {file} {slot}"),
            Operation::Append { length } => format!("append {length} 0"),
            Operation::Create { name } => format!("create {name} 0"),
            Operation::Rename { from, to } => format!("rename {from} {to}"),
            Operation::Unlink { name } => format!("unlink {name} 0"),
        }
    }

    fn parse(kind: &str, a: u64, b: u64) -> Option<Operation> {
        let file = a as usize;
        Some(match kind {
            "write" => Operation::Write { file, slot: b },
            "truncate" => Operation::Truncate { file, slots: b },
            "punch" => Operation::Punch { file, slot: b },
            "append" => Operation::Append { length: a },
            "create" => Operation::Create { name: a },
            "rename" => Operation::Rename { from: a, to: b },
            "unlink" => Operation::Unlink { name: a },
            _ => return None,
        })
    }
}

/// The journal, open for adding.
pub(crate) struct Journal {
    file: File,
}

impl Journal {
    pub fn open(path: &Path) -> Outcome<Journal> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Journal { file: file.map_err(|error| format!("{}: {error}", path.display()))? })
    }
    fn line(&mut self, line: String) -> Outcome<()> {
        self.file.write_all(line.as_bytes()).map_err(|error| format!("journal: {error}"))
    }
    pub fn begin(&mut self, step: &Step) -> Outcome<()> {
        self.line(format!("B {} {}\n", step.number, step.operation.words()))
    }
    pub fn acknowledged(&mut self, number: u64) -> Outcome<()> {
        self.line(format!("A {number}\n"))
    }
    pub fn decided(&mut self, number: u64, kept: bool) -> Outcome<()> {
        self.line(format!("{} {number}\n", if kept { "K" } else { "U" }))
    }
}

/// The operations that were acknowledged or kept, in order, and the operation under way at the end.
pub(crate) fn read(path: &Path) -> Outcome<(Vec<Step>, Option<Step>)> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.map_err(|error| format!("{}: {error}", path.display()))?,
    };
    let mut steps = Vec::new();
    let mut open: Option<Step> = None;
    for line in text.split_inclusive('\n') {
        let bad = || format!("{}: bad line '{}'", path.display(), line.trim_end());
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).ok_or_else(bad);
        match words.first() {
            Some(&"B") if open.is_none() => {
                let kind = words.get(2).ok_or_else(bad)?;
                let operation = Operation::parse(kind, number(3)?, number(4)?).ok_or_else(bad)?;
                open = Some(Step { number: number(1)?, operation });
            }
            Some(&("A" | "K" | "U")) if open.as_ref().is_some_and(|step| Ok(step.number) == number(1)) => {
                if words[0] != "U" {
                    steps.extend(open.take());
                }
                open = None;
            }
            _ => return Err(bad()),
        }
    }
    Ok((steps, open))
}
