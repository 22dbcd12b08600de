//! Compares a directory of the recording writer with its journal: every acknowledged operation is there, the
//! operation under way at the kill is there whole or not at all, and no other byte has changed.
//!
//! With lazy writes a write under way may be torn (docs/semantics.md, C31): in each aligned 8 bytes it is there or not, and a
//! file has grown by a prefix. A torn write is completed, so that the next comparison knows its content.

use crate::content::{bytes, difference};
use crate::journal::{self, Journal, Operation, Step};
use crate::model::{FILES, Model, named_length};
use crate::outcome::{Failure, Outcome};
use crate::writer::{file_path, name_path, records_path};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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

/// The bytes of a file with slots.
fn slots_of(model: &Model, file: usize) -> Vec<u8> {
    let size = FILES[file].0;
    model.slots[file]
        .iter()
        .flat_map(|slot| slot.map_or_else(|| vec![0; size], |step| bytes(step, size)))
        .collect()
}

/// The bytes of the file of records.
fn records_of(model: &Model) -> Vec<u8> {
    model.records.iter().flat_map(|(step, length)| bytes(*step, *length as usize)).collect()
}

/// Whether each aligned 8 bytes are from before or after, and the length lies between.
fn is_mixture(found: &[u8], before: &[u8], after: &[u8]) -> bool {
    let (least, most) = (before.len().min(after.len()), before.len().max(after.len()));
    let word = |at: usize, of: &[u8]| of.get(at..of.len().min(at + 8)).unwrap_or(&[]).to_vec();
    (least..=most).contains(&found.len())
        && (0..found.len()).step_by(8).all(|at| {
            let found = word(at, found);
            // The last word may have been longer before, or is longer after.
            word(at, before).starts_with(&found) || word(at, after).starts_with(&found)
        })
}

/// Completes a write under way that is torn. False: it is no write, or its file is no mixture.
fn complete(dir: &Path, found: &Found, (without, with): (&Model, &Model), step: &Step) -> Outcome<bool> {
    let (path, is_torn, content, at): (PathBuf, bool, Vec<u8>, usize) = match &step.operation {
        Operation::Write { file, slot } => {
            let (size, before, after) = (FILES[*file].0, slots_of(without, *file), slots_of(with, *file));
            let is_torn = is_mixture(&found.slots[*file], &before, &after);
            (file_path(dir, *file), is_torn, bytes(step.number, size), *slot as usize * size)
        }
        Operation::Append { length } => {
            let (before, after) = (records_of(without), records_of(with));
            let is_torn = is_mixture(&found.records, &before, &after);
            (records_path(dir), is_torn, bytes(step.number, *length as usize), before.len())
        }
        _ => return Ok(false),
    };
    let failed = |error| format!("{}: {error}", path.display());
    if is_torn {
        let file = fs::File::options().write(true).open(&path).map_err(failed)?;
        file.write_all_at(&content, at as u64).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        println!("operation {} was torn", step.number);
    }
    Ok(is_torn)
}

/// Decides whether the operation under way was kept or undone, and adds the answer to the journal. `may_tear`: writes wait in
/// DRAM.
pub(crate) fn run(dir: &Path, path: &Path, may_tear: bool) -> Outcome<()> {
    let (steps, open) = journal::read(path)?;
    let without = Model::after(&steps);
    let Some(step) = open else {
        return Found::read(dir)?.compare(&without);
    };
    let mut with = without.clone();
    with.apply(&step);
    let found = Found::read(dir)?;
    let kept = match decide(&found, &without, &with, &step) {
        Err(_) if may_tear && complete(dir, &found, (&without, &with), &step)? => {
            Found::read(dir)?.compare(&with).map(|()| true)
        }
        decided => decided,
    }?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixture_has_words_of_before_and_after_and_a_prefix_of_growth() {
        let (before, after) = ([1; 20], [2; 40]);
        let mut found = before.to_vec();
        found[8..16].fill(2);
        assert!(is_mixture(&found, &before, &after));
        found[9] = 1;
        assert!(!is_mixture(&found, &before, &after), "a torn word");
        assert!(is_mixture(&after[..30], &before, &after));
        assert!(!is_mixture(&before[..19], &before, &after), "shorter than before");
        assert!(!is_mixture(&[0; 30], &before, &after), "zeros");
    }
}
