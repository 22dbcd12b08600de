//! The losses of a repair, listed by path for the user: fsck(8) calls such errors uncorrected.

use crate::find::{cells, inode_pages};
use crate::state::Round;
use crate::state::actions::Actions;
use crate::state::catalog::split_dentry;
use crate::state::fresh::Fresh;
use std::collections::BTreeMap;
use terrace_check::report::Findings;
use terrace_check::{PoolView, log};
use terrace_format::keys::{Key, Kind};
use terrace_format::superblock::Superblock;

const ROOT: u32 = 1;
/// Directories above a file at most.
const MAX_DEPTH: usize = 4096;

/// The losses of each inode, under a path that the inode has after the repair.
pub(crate) fn by_path(view: &PoolView, superblock: &Superblock, actions: &mut Actions) -> Vec<String> {
    let lost = actions.take_lost();
    if lost.is_empty() {
        return Vec::new();
    }
    let (geometry, pm) = (superblock.geometry(), &view.pm);
    let log = log::for_repair(pm, &superblock.uuid, &geometry, &mut Findings::default());
    let (mut ignored, mut fresh) = (Actions::default(), Fresh::default());
    let mut round = Round::new(view, *superblock, (log.overlay, log.next.lsn), &mut ignored, &mut fresh);
    inode_pages::salvage_inode_file(&mut round);
    cells::salvage_catalog(&mut round);
    let mut names: BTreeMap<u32, (u32, String)> = BTreeMap::new();
    for (key, value) in &round.catalog.cells {
        let Some((directory, kind, _)) = Key::split(key) else { continue };
        if let (true, Some((target, _, name))) = (kind == Kind::Dentry as u8, split_dentry(value)) {
            let name = String::from_utf8_lossy(name).into_owned();
            names.entry(target).or_insert((directory as u32, name));
        }
    }
    let line = |(ino, text): (Option<u32>, String)| match ino {
        None => text,
        Some(ino) => match path(&names, ino) {
            Some(path) => format!("{path} (inode {ino}): {text}"),
            None => format!("inode {ino}, which has no name: {text}"),
        },
    };
    lost.into_iter().map(line).collect()
}

fn path(names: &BTreeMap<u32, (u32, String)>, ino: u32) -> Option<String> {
    let (mut at, mut parts) = (ino, Vec::new());
    while at != ROOT {
        let (directory, name) = names.get(&at).filter(|_| parts.len() < MAX_DEPTH)?;
        parts.push(name.as_str());
        at = *directory;
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}
