//! The outcome of a repair.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use terrace_check::{Code, Report};

/// The outcome of a repair.
#[derive(Debug, Clone, Default)]
pub struct Repair {
    /// Findings before the repair.
    pub found: Report,
    /// Findings after the repair.
    pub left: Report,
    /// The changes made, in sentences.
    pub actions: Vec<String>,
    /// Files that are changed or may be changed: path, and the loss of each.
    pub lost: Vec<String>,
    /// Whether the repair wrote to a medium.
    pub written: bool,
    /// Why the repair could not be done.
    pub failure: Option<String>,
}

impl Repair {
    /// The bits of fsck(8): 1 repaired, 4 errors left or users' data not brought back, 8 the repair or a part
    /// of the check could not be done.
    pub fn exit_status(&self) -> i32 {
        let done = i32::from(self.written) | if self.lost.is_empty() { 0 } else { 4 };
        done | self.left.exit_status() | if self.failure.is_some() { 8 } else { 0 }
    }

    /// Codes that were found and are not left.
    pub fn repaired(&self) -> Vec<Code> {
        let found: BTreeSet<Code> = self.found.findings.iter().map(|finding| finding.code).collect();
        found.into_iter().filter(|code| !self.left.has(*code)).collect()
    }
}

impl Serialize for Repair {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Repair", 9)?;
        out.serialize_field("output_version", &terrace_check::OUTPUT_VERSION)?;
        out.serialize_field("exit_status", &self.exit_status())?;
        out.serialize_field("written", &self.written)?;
        out.serialize_field("failure", &self.failure)?;
        out.serialize_field("repaired", &self.repaired())?;
        out.serialize_field("actions", &self.actions)?;
        out.serialize_field("lost", &self.lost)?;
        out.serialize_field("found", &self.found)?;
        out.serialize_field("left", &self.left)?;
        out.end()
    }
}
