//! Compares a directory of the recording writer with its journal: every acknowledged operation is there, the
//! operation under way at the kill is there whole or not at all, and no other byte has changed.

use crate::content::{bytes, difference};
use crate::journal::{self, Journal, Step};
use crate::model::{FILES, Model, named_length};
use crate::outcome::{Failure, Outcome};
use crate::writer::{file_path, name_path, records_path};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn read(path: &Path) -> Outcome<Vec<u8>> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Content per file, in the order of `paths`.
struct Found {
    slots: Vec<Vec<u8>>,
    records: Vec<u8>,
    names: BTreeMap<u64, Vec<u8>>,
}

impl Found {
    fn read(dir: &Path) -> Outcome<Found> {
        let slots = (0..FILES.len()).map(|file| read(&file_path(dir, file))).collect::<Outcome<_>>()?;
        let mut names = BTreeMap::new();
        let entries = fs::read_dir(dir.join("names")).map_err(|error| format!("names: {error}"))?;
        for entry in entries {
            let name = entry.map_err(|error| format!("names: {error}"))?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix('n')).and_then(|n| n.parse().ok());
            let number: u64 = number.ok_or_else(|| format!("names: unknown entry {name:?}"))?;
            if names.insert(number, read(&name_path(dir, number))?).is_some() {
                return Err(format!("names: n{number} is listed twice"));
            }
        }
        Ok(Found { slots, records: read(&records_path(dir))?, names })
    }

    fn compare(&self, model: &Model) -> Outcome<()> {
        for (file, (size, _)) in FILES.iter().enumerate() {
            compare_slots(file, *size, &self.slots[file], &model.slots[file])?;
        }
        let mut at = 0;
        for (number, length) in &model.records {
            let end = at + *length as usize;
            let found = self.records.get(at..end.min(self.records.len())).unwrap_or(&[]);
            if let Some(difference) = difference(found, &bytes(*number, *length as usize)) {
                return Err(format!("records, byte {at}, operation {number}: {difference}"));
            }
            at = end;
        }
        if at != self.records.len() {
            return Err(format!("records: {} bytes instead of {at}", self.records.len()));
        }
        if !self.names.keys().eq(model.names.keys()) {
            let missing = model.names.keys().find(|name| !self.names.contains_key(*name));
            let extra = self.names.keys().find(|name| !model.names.contains_key(*name));
            return Err(format!("names: missing {missing:?}, not expected {extra:?}"));
        }
        for (name, number) in &model.names {
            if let Some(difference) = difference(&self.names[name], &bytes(*number, named_length(*number))) {
                return Err(format!("names/n{name}, operation {number}: {difference}"));
            }
        }
        Ok(())
    }
}

fn compare_slots(file: usize, size: usize, found: &[u8], slots: &[Option<u64>]) -> Outcome<()> {
    if found.len() != slots.len() * size {
        return Err(format!("slots-{file}: {} bytes instead of {}", found.len(), slots.len() * size));
    }
    for (index, (found, slot)) in found.chunks(size).zip(slots).enumerate() {
        let expected = slot.map_or_else(|| vec![0; size], |number| bytes(number, size));
        if let Some(difference) = difference(found, &expected) {
            let at = index * size;
            return Err(format!("slots-{file}, slot {index} at byte {at}, operation {slot:?}: {difference}"));
        }
    }
    Ok(())
}

/// Decides whether the operation under way was kept or undone, and adds the answer to the journal.
pub(crate) fn run(dir: &Path, path: &Path) -> Outcome<()> {
    let (steps, open) = journal::read(path)?;
    let without = Model::after(&steps);
    let Some(step) = open else {
        return Found::read(dir)?.compare(&without);
    };
    let mut with = without.clone();
    with.apply(&step);
    let found = Found::read(dir)?;
    let kept = decide(&found, &without, &with, &step)?;
    Journal::open(path)?.decided(step.number, kept)
}

fn decide(found: &Found, without: &Model, with: &Model, step: &Step) -> Outcome<bool> {
    let Err(not_done) = found.compare(without) else { return Ok(false) };
    let Err(not_undone) = found.compare(with) else { return Ok(true) };
    let Step { number, operation } = step;
    let failure: Failure = format!(
        "neither before nor after operation {number} ({operation:?}):\n  without it: {not_done}\n  with it: \
         {not_undone}"
    );
    Err(failure)
}
