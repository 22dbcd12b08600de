//! The two superblock copies.

use crate::code::Code;
use crate::report::Findings;
use terrace_format::geometry::SUPERBLOCK_COPIES;
use terrace_format::superblock::{Refused, Superblock};
use terrace_media::PmView;
use zerocopy::IntoBytes;

/// The superblock that the check uses, or `None` when the pool cannot be judged: no copy is usable, or a
/// repair was interrupted.
pub fn read(pm: &PmView, findings: &mut Findings) -> Option<Superblock> {
    let superblock = read_repairing(pm, findings)?;
    if superblock.is_repairing() {
        findings.add(Code::RepairInterrupted, || "run check --repair".into());
        return None;
    }
    Some(superblock)
}

/// As [`read`], for repair.
pub fn read_repairing(pm: &PmView, findings: &mut Findings) -> Option<Superblock> {
    let mut sound: Vec<Superblock> = Vec::new();
    let mut refused: Vec<Refused> = Vec::new();
    let mut damaged: Vec<String> = Vec::new();
    for (index, copy) in SUPERBLOCK_COPIES.into_iter().enumerate() {
        let mut bytes = vec![0; size_of::<Superblock>()];
        if let Err(error) = pm.read(copy.offset(), &mut bytes) {
            findings.add(Code::PmUnreadable, || format!("superblock copy {index}: {error}"));
            damaged.push(format!("copy {index}: {error}"));
            continue;
        }
        match Superblock::verify_repairing(&bytes, false) {
            Ok(superblock) => sound.push(superblock),
            Err(why) => {
                damaged.push(format!("copy {index}: {why}"));
                refused.push(why);
            }
        }
    }
    assert_eq!(sound.len() + damaged.len(), SUPERBLOCK_COPIES.len(), "each copy is sound or damaged");
    let all = damaged.join("; ");
    let [first, rest @ ..] = sound.as_slice() else {
        let foreign = |why: &Refused| !matches!(why, Refused::Corrupt(_) | Refused::NotAPool);
        let code = if refused.iter().any(foreign) {
            Code::Unsupported
        } else if refused.len() == 2 && refused.iter().all(|why| *why == Refused::NotAPool) {
            Code::NotAPool
        } else {
            Code::SuperblockLost
        };
        findings.add(code, || all);
        return None;
    };
    if !damaged.is_empty() {
        findings.add(Code::SuperblockCopy, || all);
    }
    if rest.iter().any(|other| other.as_bytes() != first.as_bytes()) {
        findings.add(Code::SuperblocksDiffer, || "copies at blocks 0 and 2".into());
    }
    let (stored, found) = (first.layout.pm_size.get(), pm.size());
    if stored > found {
        findings.add(Code::PmTooSmall, || format!("{stored} bytes in the superblock, {found} in the medium"));
        return None;
    }
    Some(*first)
}
