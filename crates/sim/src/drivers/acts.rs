//! The acts of the systematic explorer: single operations, a small pool with a file in each state for them to
//! work on, and pairs of acts that touch the same inode or name.

use crate::action::Action;
use crate::config::{Buffer, Config, Tree};
use crate::kinds::BASE;
use terrace_engine::MoveRequest;
use terrace_placement::Home;
use terrace_reference::{Allocate, BLOCK, Change, Id, New, Op, ROOT, SetTime, XattrMode};

/// A step of a case.
#[derive(Debug, Clone)]
pub struct Act {
    /// The name of the step in messages.
    pub name: &'static str,
    /// The action of the step.
    pub action: Action,
    /// Inodes and names that the action touches.
    pub(crate) touches: Vec<(Id, Option<&'static str>)>,
}

pub(crate) const D: Id = Id(2);
const EMPTY: Id = Id(3);
const SUB: Id = Id(4);
pub(crate) const COLD: Id = Id(5);
pub(crate) const F: Id = Id(6);
const G: Id = Id(7);
pub(crate) const H: Id = Id(8);
pub(crate) const LINK: Id = Id(9);
const BIG: Id = Id(10);
/// Files that fill the first page of the inode file: one more inode needs a new page.
const FILLERS: std::ops::Range<u64> = 11..32;
const NEW: Id = Id(40);

/// The pool of all cases: small, so that comparing is quick.
pub const SMALL: Config = Config {
    name: "systematic",
    device_blocks: 1025,
    threshold_percent: 80,
    relatime: false,
    tree: Tree { most_blocks: 300, ..BASE.tree },
    ..BASE
};

fn make(id: Id, directory: Id, name: &str, new: New) -> Action {
    Action::Op(Op::Make { id, directory, name: name.into(), new, owner: (0, 0) })
}

fn write(id: Id, offset: u64, length: usize, seed: u64) -> Action {
    Action::Op(Op::Write { id, offset, length, seed, kill_set_id: false, sync: false })
}

fn change(id: Id, change: Change) -> Action {
    Action::Op(Op::SetAttributes { id, change })
}

fn size(id: Id, size: u64) -> Action {
    change(id, Change { size: Some(size), ..Change::default() })
}

fn punch(id: Id, offset: u64, length: u64) -> Action {
    Action::Op(Op::Fallocate { id, offset, length, mode: Allocate::PunchHole })
}

fn rename(from: (Id, &str), to: (Id, &str)) -> Action {
    Action::Op(Op::Rename { from: (from.0, from.1.into()), to: (to.0, to.1.into()), no_replace: false })
}

fn remove(directory: Id, name: &str, as_directory: bool) -> Action {
    Action::Op(Op::Remove { directory, name: name.into(), as_directory })
}

fn xattr(id: Id, length: usize, seed: u64) -> Action {
    Action::Op(Op::SetXattr { id, name: b"user.a".to_vec(), length, seed, mode: XattrMode::Any })
}

/// Names so long that the next name of this length splits a page of the catalog.
fn filler(id: u64) -> String {
    format!("{id}-{}", "filler".repeat(24))
}

/// The tree that each case begins with.
pub(crate) fn populate() -> Vec<Action> {
    let mut all = vec![
        make(D, ROOT, "d", New::Directory(0o755)),
        make(EMPTY, ROOT, "empty", New::Directory(0o755)),
        make(SUB, D, "sub", New::Directory(0o755)),
        make(COLD, ROOT, "cold", New::Regular(0o644)),
        write(COLD, 0, 20_000, 1),
        Action::SyncDown,
        // A partial shadow.
        write(COLD, 8192 + 512, 512, 6),
        make(F, ROOT, "f", New::Regular(0o644)),
        write(F, 0, 10_000, 2),
        make(G, D, "g", New::Regular(0o4755)),
        write(G, 0, 5000, 3),
        Action::Op(Op::Link { id: G, directory: ROOT, name: b"hard".to_vec() }),
        make(H, D, "h", New::Regular(0o600)),
        xattr(H, 700, 4),
        make(LINK, ROOT, "link", New::Symlink(b"d/g".to_vec())),
        make(BIG, ROOT, "big", New::Regular(0o644)),
        write(BIG, 0, 90 * BLOCK + 10, 5),
    ];
    all.extend(FILLERS.map(|id| make(Id(id), D, &filler(id), New::Regular(0o600))));
    all.push(Action::Op(Op::Fsync { id: F }));
    all
}

/// A step with the inodes and names that it touches.
fn act(name: &'static str, touches: &[(Id, Option<&'static str>)], action: Action) -> Act {
    Act { name, action, touches: touches.to_vec() }
}

/// An inode that a step touches.
fn of(id: Id) -> (Id, Option<&'static str>) {
    (id, None)
}

/// A name in a directory that a step touches.
fn at(id: Id, name: &'static str) -> (Id, Option<&'static str>) {
    (id, Some(name))
}

/// All steps. A search tries them in this order.
pub fn acts() -> Vec<Act> {
    [acts_on_names(), acts_on_attributes(), acts_of_writes(), acts_on_sizes(), acts_of_background()].concat()
}

/// Steps that make, remove and rename names.
fn acts_on_names() -> Vec<Act> {
    vec![
        act("create", &[at(ROOT, "new")], make(NEW, ROOT, "new", New::Regular(0o644))),
        act("mkdir", &[at(D, "new"), of(D)], make(NEW, D, "new", New::Directory(0o755))),
        act(
            "create with a split",
            &[at(D, "long"), of(D)],
            make(NEW, D, &"long".repeat(60), New::Regular(0o644)),
        ),
        act("mknod", &[at(ROOT, "new")], make(NEW, ROOT, "new", New::Special(0o010600, 0))),
        act("symlink", &[at(ROOT, "s")], make(NEW, ROOT, "s", New::Symlink(vec![b'x'; 1500]))),
        act(
            "link",
            &[at(D, "f2"), of(F)],
            Action::Op(Op::Link { id: F, directory: D, name: b"f2".to_vec() }),
        ),
        act("unlink one of two", &[at(ROOT, "hard"), of(G)], remove(ROOT, "hard", false)),
        act("unlink the last, with data", &[at(ROOT, "f"), of(F)], remove(ROOT, "f", false)),
        act("unlink the last, cold", &[at(ROOT, "cold"), of(COLD)], remove(ROOT, "cold", false)),
        act("unlink with xattr", &[at(D, "h"), of(H)], remove(D, "h", false)),
        act("unlink symlink", &[at(ROOT, "link"), of(LINK)], remove(ROOT, "link", false)),
        act("unlink many blocks", &[at(ROOT, "big"), of(BIG)], remove(ROOT, "big", false)),
        act("rmdir", &[at(ROOT, "empty"), of(EMPTY)], remove(ROOT, "empty", true)),
        act(
            "rename in one directory",
            &[at(ROOT, "f"), at(ROOT, "z"), of(F)],
            rename((ROOT, "f"), (ROOT, "z")),
        ),
        act("rename across", &[at(ROOT, "f"), at(D, "z"), of(F), of(D)], rename((ROOT, "f"), (D, "z"))),
        act(
            "rename over a file",
            &[at(ROOT, "f"), at(D, "h"), of(F), of(H), of(D)],
            rename((ROOT, "f"), (D, "h")),
        ),
        act(
            "rename over a linked file",
            &[at(ROOT, "f"), at(ROOT, "hard"), of(F), of(G)],
            rename((ROOT, "f"), (ROOT, "hard")),
        ),
        act("rename a directory", &[at(D, "sub"), of(SUB), of(D)], rename((D, "sub"), (ROOT, "moved"))),
        act(
            "rename over a directory",
            &[at(D, "sub"), at(ROOT, "empty"), of(SUB), of(EMPTY), of(D)],
            rename((D, "sub"), (ROOT, "empty")),
        ),
    ]
}

/// Steps that change attributes, and attributes of users.
fn acts_on_attributes() -> Vec<Act> {
    let all = |mode, uid, mtime| Change { mode, uid, mtime, ..Change::default() };
    vec![
        act("chmod", &[of(F)], change(F, all(Some(0o4711), None, None))),
        act("chown", &[of(D)], change(D, all(None, Some(7), None))),
        act("utimens", &[of(G)], change(G, all(None, None, Some(SetTime::At(-7))))),
        act(
            "size and others",
            &[of(F)],
            change(F, Change { size: Some(5), mtime: Some(SetTime::At(77)), ..Change::default() }),
        ),
        act("setxattr new", &[of(F)], xattr(F, 1000, 9)),
        act("setxattr longer", &[of(H)], xattr(H, 1400, 9)),
        act("setxattr shorter", &[of(H)], xattr(H, 1, 9)),
        act("removexattr", &[of(H)], Action::Op(Op::RemoveXattr { id: H, name: b"user.a".to_vec() })),
    ]
}

/// Writes.
fn acts_of_writes() -> Vec<Act> {
    vec![
        act("write a new block", &[of(F)], write(F, 40_960, BLOCK, 9)),
        act("overwrite a block", &[of(F)], write(F, 4096, BLOCK, 9)),
        act("overwrite two blocks", &[of(F)], write(F, 0, 2 * BLOCK, 9)),
        act("overwrite many blocks", &[of(BIG)], write(BIG, 0, 20 * BLOCK, 9)),
        act("append in the last block", &[of(F)], write(F, 10_000, 100, 9)),
        act("append across blocks", &[of(F)], write(F, 10_000, 9000, 9)),
        act("unaligned overwrite", &[of(F)], write(F, 4000, 200, 9)),
        act("sparse, past a partial block", &[of(F)], write(F, 100_000, 10, 9)),
        act("far, new map nodes", &[of(F)], write(F, 600 * 4096, 5000, 9)),
        act("over a cold block, whole", &[of(COLD)], write(COLD, 4096, BLOCK, 9)),
        act("over a cold block, part", &[of(COLD)], write(COLD, 5000, 100, 9)),
        act("over a cold block, lines", &[of(COLD)], write(COLD, 4096 + 512, 512, 9)),
        act("lines added to a partial block", &[of(COLD)], write(COLD, 8192 + 2048, 192, 9)),
        act("lines over others of a partial block", &[of(COLD)], write(COLD, 8192 + 256, 512, 9)),
        act("part of a line of a partial block", &[of(COLD)], write(COLD, 8192 + 600, 100, 9)),
        act("append to a cold block", &[of(COLD)], write(COLD, 20_000, 3000, 9)),
        act(
            "write with O_SYNC and set-id",
            &[of(G)],
            Action::Op(Op::Write { id: G, offset: 1, length: 3, seed: 9, kill_set_id: true, sync: true }),
        ),
        act(
            "overwrite a block with O_SYNC",
            &[of(F)],
            Action::Op(Op::Write {
                id: F,
                offset: 0,
                length: BLOCK,
                seed: 9,
                kill_set_id: false,
                sync: true,
            }),
        ),
        act("write in three pieces", &[of(BIG)], write(BIG, 0, 140 * BLOCK, 9)),
    ]
}

/// Truncations, holes and allocations.
fn acts_on_sizes() -> Vec<Act> {
    vec![
        act("truncate down", &[of(F)], size(F, 4500)),
        act("truncate to nothing", &[of(F)], size(F, 0)),
        act("truncate up in the block", &[of(F)], size(F, 11_000)),
        act("truncate cold", &[of(COLD)], size(COLD, 4500)),
        act("truncate up, cold", &[of(COLD)], size(COLD, 100_000)),
        act("truncate by intent", &[of(BIG)], size(BIG, 5000)),
        act("punch inside", &[of(F)], punch(F, 1000, 7000)),
        act("punch in one block", &[of(F)], punch(F, 1000, 70)),
        act("punch cold", &[of(COLD)], punch(COLD, 1000, 9000)),
        act("punch by intent", &[of(BIG)], punch(BIG, 5000, 300_000)),
        act("punch blocks by intent", &[of(BIG)], punch(BIG, 2 * BLOCK as u64, 80 * BLOCK as u64)),
        act(
            "allocate in the file",
            &[of(F)],
            Action::Op(Op::Fallocate { id: F, offset: 0, length: 60_000, mode: Allocate::KeepSize }),
        ),
        act(
            "allocate and extend",
            &[of(F)],
            Action::Op(Op::Fallocate { id: F, offset: 5000, length: 100_000, mode: Allocate::Extend }),
        ),
    ]
}

/// Movements, syncs and the end of a mount.
fn acts_of_background() -> Vec<Act> {
    vec![
        act("demotion", &[of(F), of(G), of(BIG), of(COLD), of(H)], Action::SyncDown),
        act("background", &[of(F), of(G), of(BIG), of(COLD), of(H), of(LINK)], Action::Background(20)),
        act("fsync", &[of(F)], Action::Op(Op::Fsync { id: F })),
        act("unmount and mount", &[of(F), of(COLD)], Action::Remount),
        // The last step of a case: no step can follow it.
        act("unmount", &[], Action::Unmount),
    ]
}

/// The steps of one case: the last is crashed.
pub type Case = Vec<Act>;

/// Every step alone, then every pair that touches the same inode or name.
pub fn cases() -> (Vec<Case>, Vec<Case>) {
    let all = acts();
    let singles = all.iter().map(|act| vec![act.clone()]).collect();
    let mut pairs = Vec::new();
    for first in &all {
        for second in &all {
            if first.touches.iter().any(|what| second.touches.contains(what)) {
                let mut second = second.clone();
                make_different(&mut second);
                pairs.push(vec![first.clone(), second]);
            }
        }
    }
    (singles, pairs)
}

/// The pool of [`waiting`]: writes wait in DRAM.
pub const DRAM: Config =
    Config { name: "systematic-dram", home: Some(Home::Block), buffer: Buffer::BELOW, ..SMALL };

/// Writes wait in DRAM for write-back into PM.
pub const LAZY: Config =
    Config { name: "systematic-lazy", home: Some(Home::Pm), buffer: Buffer::ALWAYS, ..SMALL };

/// Pairs of a write that waits in DRAM and a later act: its write-back, a sync, or an operation on the same
/// file. On the pools [`DRAM`] and [`LAZY`].
pub fn waiting() -> Vec<Case> {
    let all = acts();
    let waits = |act: &&Act| matches!(act.action, Action::Op(Op::Write { sync: false, .. }));
    let settles = settling();
    let mut pairs = Vec::new();
    for first in all.iter().filter(waits) {
        let touching = |second: &&Act| first.touches.iter().any(|what| second.touches.contains(what));
        for second in settles.iter().chain(all.iter().filter(touching)) {
            let mut second = second.clone();
            make_different(&mut second);
            pairs.push(vec![first.clone(), second]);
        }
    }
    pairs
}

/// Writes that together leave each kind of waiting bytes: over PM, past its end, over a cold block, and in
/// new blocks of another file.
pub fn waiting_first() -> Vec<Act> {
    let names =
        ["unaligned overwrite", "append across blocks", "over a cold block, part", "overwrite many blocks"];
    acts().into_iter().filter(|act| names.contains(&act.name)).collect()
}

/// Acts that make waiting writes durable.
pub fn settling() -> Vec<Act> {
    let act = |name, action| Act { name, action, touches: Vec::new() };
    vec![act("write-back", Action::WriteBack), act("sync", Action::Sync)]
}

/// The pool of [`by_hand`]: two tiers of two devices each.
pub const TIERS: Config = Config {
    name: "systematic-tiers",
    device_blocks: 513,
    more_devices: &[(1, 257), (2, 513), (2, 257)],
    by_hand: true,
    ..SMALL
};

/// Requested movements and tier pins: alone, after each other, and before and after writes. On the pool
/// [`TIERS`].
pub fn by_hand() -> Vec<Case> {
    let hand = |name, id, action| Act {
        name,
        action: Action::Hand { id, action, finish: true },
        touches: vec![(id, None)],
    };
    let mut all = acts();
    let mut named = |name: &str| all.swap_remove(all.iter().position(|act| act.name == name).unwrap());
    let down = |id| hand("to tier 2", id, MoveRequest::Migrate { to: 2 });
    let (lines, part) = (named("over a cold block, lines"), named("over a cold block, part"));
    vec![
        vec![down(COLD)],
        vec![down(BIG)],
        vec![hand("to tier 1", F, MoveRequest::Migrate { to: 1 })],
        vec![hand("into PM", COLD, MoveRequest::Migrate { to: 0 })],
        vec![hand("pinned to PM", COLD, MoveRequest::Pin { tier: 0 })],
        vec![hand("a directory pinned to tier 2", D, MoveRequest::Pin { tier: 2 })],
        vec![hand("pinned", D, MoveRequest::Pin { tier: 1 }), hand("unpinned", D, MoveRequest::Unpin)],
        vec![hand("pinned", D, MoveRequest::Pin { tier: 1 }), make_in(D)],
        vec![down(BIG), hand("up to tier 1", BIG, MoveRequest::Migrate { to: 1 })],
        vec![down(COLD), lines.clone()],
        vec![lines, down(COLD)],
        vec![part, down(COLD)],
        vec![down(COLD), named("punch cold")],
        vec![down(COLD), named("truncate cold")],
        vec![down(ROOT), hand("all to tier 1", ROOT, MoveRequest::Migrate { to: 1 })],
    ]
}

fn make_in(directory: Id) -> Act {
    let action = make(NEW, directory, "new", New::Regular(0o644));
    Act { name: "create", action, touches: Vec::new() }
}

/// Gives the second step of a pair another inode or other content than the first.
pub fn make_different(second: &mut Act) {
    match &mut second.action {
        Action::Op(Op::Make { id, .. }) => *id = Id(NEW.0 + 1),
        Action::Op(Op::Write { seed, .. }) => *seed += 1,
        _ => {}
    }
}
