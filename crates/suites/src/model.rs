//! The expected content of the recording writer's directory after a list of operations.

use crate::journal::{Operation, Step};
use std::collections::BTreeMap;

/// Size and number of the slots of each file of the writer: aligned; never aligned; longer than any
/// read-ahead. Together 96 MiB.
pub(crate) const FILES: [(usize, u64); 3] = [(4096, 8192), (12_345, 2000), (40_000, 1000)];
/// Names in use at the same time.
pub(crate) const NAMES: u64 = 200;

/// Length of a named file made by an operation.
pub(crate) fn named_length(number: u64) -> usize {
    (number.wrapping_mul(7919) % 30_000) as usize
}

/// State after operations: which operation made each slot, record and file.
#[derive(Clone, Default)]
pub(crate) struct Model {
    /// For each file and slot the operation that wrote the slot; without an operation the slot is zeros.
    pub slots: [Vec<Option<u64>>; FILES.len()],
    /// Operation and length of each record.
    pub records: Vec<(u64, u64)>,
    /// Name to the operation that made the content.
    pub names: BTreeMap<u64, u64>,
    /// Number of the next operation.
    pub next: u64,
}

impl Model {
    pub fn after(steps: &[Step]) -> Model {
        let mut model = Model::default();
        steps.iter().for_each(|step| model.apply(step));
        model
    }

    pub fn apply(&mut self, step: &Step) {
        let number = step.number;
        self.next = self.next.max(number + 1);
        match &step.operation {
            Operation::Write { file, slot } => {
                let slots = &mut self.slots[*file];
                let at = *slot as usize;
                if slots.len() <= at {
                    slots.resize(at + 1, None);
                }
                slots[at] = Some(number);
            }
            Operation::Truncate { file, slots } => self.slots[*file].resize(*slots as usize, None),
            Operation::Punch { file, slot } => {
                if let Some(slot) = self.slots[*file].get_mut(*slot as usize) {
                    *slot = None;
                }
            }
            Operation::Append { length } => self.records.push((number, *length)),
            Operation::Create { name } => {
                self.names.insert(*name, number);
            }
            Operation::Rename { from, to } => {
                if let Some(content) = self.names.remove(from) {
                    self.names.insert(*to, content);
                }
            }
            Operation::Unlink { name } => {
                self.names.remove(name);
            }
        }
    }
}
