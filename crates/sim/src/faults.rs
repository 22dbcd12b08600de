//! Every kind of medium error at every kind of access of every operation, and the demands then:
//! - the caller gets EIO (or ENOSPC from a device without space), and the operation has left one of the
//!   states that a failed operation may leave (C9);
//! - while the error lasts every read gives the right bytes or EIO, and a read that needs no access to the
//!   medium succeeds (I8, I10); fsync succeeds, except that it fails for every descriptor once PM takes no
//!   more changes (I5);
//! - status shows the device or PM;
//! - acknowledged changes are there after a loss of power at this moment and after an orderly remount; the
//!   error harms no other data, and the pool works again when the medium does.
//!
//! Descriptors have no errors of their own to be told once: no acknowledged write waits for a write-back, so
//! an error of a device delays a movement and loses no data.

use crate::action::{Action, Entry};
use crate::acts::{Act, COLD, D, DRAM, F, H, LINK, SMALL, make_different, settling, waiting_first};
use crate::bounds;
use crate::config::Config;
use crate::happen::{DUE, apply};
use crate::media::{Media, Setup};
use crate::run::Wrong;
use crate::systematic::prepared;
use crate::world::{Shared, World};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::rc::Rc;
use std::sync::Arc;
use terrace_engine::{
    Atime, Engine, FsError, MountOptions, Movements, Simulation, Wait, WriteFlags, read_superblock,
};
use terrace_media::block::{Begins, Operation, SimulatedDevice, Times};
use terrace_media::pm::Access;
use terrace_media::{BlockMedium, PmMedium};
use terrace_reference::{After, BLOCK, CrashState, Id, Op, Seek, Stamp, data};
use terrace_runtime::{Clock, interleave, thread};

/// A kind of error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A range of PM cannot be read, once.
    PmRead,
    /// A range of PM cannot be stored to, once.
    PmStore,
    /// A range of PM cannot be read any more.
    PmReadForGood,
    /// A range of PM cannot be stored to any more.
    PmStoreForGood,
    /// The device fails once in this operation, with this errno.
    Once(Operation, i32),
    /// The device fails in every such operation after a moment.
    ForGood(Operation),
    /// Blocks of the device wear out: after a moment such operations fail on them.
    Worn(Operation),
    /// The device is gone after an operation, and comes back.
    Gone(Operation),
    /// The device stalls in an operation, and later goes on.
    Stalls(Operation),
    /// Flushes succeed without making writes durable; then power fails.
    Lies,
}

/// All kinds.
pub const KINDS: [Kind; 20] = [
    Kind::PmRead,
    Kind::PmStore,
    Kind::PmReadForGood,
    Kind::PmStoreForGood,
    Kind::Once(Operation::Read, libc::EIO),
    Kind::Once(Operation::Write, libc::EIO),
    Kind::Once(Operation::Write, libc::ENOSPC),
    Kind::Once(Operation::Flush, libc::EIO),
    Kind::ForGood(Operation::Read),
    Kind::ForGood(Operation::Write),
    Kind::ForGood(Operation::Flush),
    Kind::Worn(Operation::Read),
    Kind::Worn(Operation::Write),
    Kind::Gone(Operation::Read),
    Kind::Gone(Operation::Write),
    Kind::Gone(Operation::Flush),
    Kind::Stalls(Operation::Read),
    Kind::Stalls(Operation::Write),
    Kind::Stalls(Operation::Flush),
    Kind::Lies,
];

impl Kind {
    fn is_of_pm(self) -> bool {
        self.access().is_some()
    }

    /// The accesses of PM that fail.
    fn access(self) -> Option<Access> {
        match self {
            Kind::PmRead | Kind::PmReadForGood => Some(Access::Reads),
            Kind::PmStore | Kind::PmStoreForGood => Some(Access::Stores),
            _ => None,
        }
    }
}

/// Counts of runs and of their results.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tried {
    /// Runs in which an access met the error.
    pub struck: u64,
    /// Runs in which the operation failed.
    pub failed: u64,
    /// Runs after which the pool took no change until the next mount.
    pub stopped: u64,
    /// Operations on data in PM in the middle of a stalled operation of the device.
    pub amid_stall: u64,
    /// Reads that met damage, after a lying flush.
    pub damaged: u64,
    /// Failed fsyncs of data that waited in DRAM.
    pub not_durable: u64,
}

impl AddAssign for Tried {
    fn add_assign(&mut self, other: Tried) {
        self.struck += other.struck;
        self.failed += other.failed;
        self.stopped += other.stopped;
        self.amid_stall += other.amid_stall;
        self.damaged += other.damaged;
        self.not_durable += other.not_durable;
    }
}

/// The acts of `systematic`, and acts that it leaves out because they change nothing that a crash can lose.
pub fn acts() -> Vec<Act> {
    let act = |name, action| Act { name, action, touches: Vec::new() };
    let op = |name, op| act(name, Action::Op(op));
    let read = |id, length| Op::Read { id, offset: 0, length };
    let mut all = crate::acts::acts();
    all.extend([
        op("read", read(F, 10_000)),
        op("read cold", read(COLD, 20_000)),
        op("lookup", Op::Lookup { directory: D, name: b"g".to_vec() }),
        op("getattr", Op::GetAttributes { id: F }),
        op("readdir", Op::ReadDirectory { id: D, after: After::Start, limit: 100, plus: true }),
        op("readlink", Op::ReadLink { id: LINK }),
        op("getxattr", Op::GetXattr { id: H, name: b"user.a".to_vec() }),
        op("listxattr", Op::ListXattr { id: H }),
        op("seek", Op::Seek { id: COLD, offset: 0, what: Seek::Hole }),
        op("open and truncate", Op::Open { id: F, truncate: true }),
        // More data than PM has room for: blocks are demoted in the middle of the write.
        op(
            "write over the size of PM",
            Op::Write { id: F, offset: 0, length: 420 * BLOCK, seed: 9, kill_set_id: false, sync: false },
        ),
        act(PROMOTION, Action::Background(20)),
    ]);
    all
}

/// The act before which two reads touch cold blocks.
const PROMOTION: &str = "promotion";

/// A file that no act touches; all its blocks are in PM.
const WITNESS: Id = Id(12);
/// Operations on the witness in the middle of one stalled act.
const MOST_AMID: u64 = 3;

/// Tries one kind of error at the accesses of an act: at each of the first eight, then at ever fewer.
/// Accesses of PM come in bursts, so they are chosen like this in each class of place and length.
///
/// # Errors
/// A description of the demand that was not met.
pub fn explore(act: &Act, kind: Kind, wrong: Wrong) -> Result<Tried, String> {
    let places = |known: &Shared, setup: &Setup| match kind {
        Kind::Lies => Some(vec![0]),
        _ => kind.access().map(|access| places(known, act, access, setup)),
    };
    explore_by(SMALL, kind, act.name, wrong, places, |known, after, setup| {
        run(known, act, kind, after, setup)
    })
}

/// The acts to try while writes wait in DRAM ([`waiting_first`]): acts that make the writes durable, and
/// operations after them.
pub fn acts_upon_waiting() -> Vec<Act> {
    let names = [
        "fsync",
        "demotion",
        "unmount and mount",
        "overwrite a block with O_SYNC",
        "append across blocks",
        "truncate down",
        "punch inside",
        "read",
        "read cold",
        "unlink the last, with data",
    ];
    let all = acts();
    let named = names.iter().filter_map(|name| all.iter().find(|act| act.name == *name).cloned());
    let mut all: Vec<Act> = settling().into_iter().chain(named).collect();
    all.iter_mut().for_each(make_different);
    all
}

/// As [`explore`], with writes that wait in DRAM. A failed write-back loses no data while the daemon lives,
/// and no fsync succeeds before its data is durable (I5).
///
/// # Errors
/// A description of the demand that was not met.
pub fn explore_waiting(act: &Act, kind: Kind, wrong: Wrong) -> Result<Tried, String> {
    let places =
        |known: &Shared, setup: &Setup| kind.access().map(|access| places(known, act, access, setup));
    let name = format!("{} upon what waits", act.name);
    explore_by(DRAM, kind, &name, wrong, places, |known, after, setup| run(known, act, kind, after, setup))
}

/// As [`explore`], for the mount after a loss of power.
///
/// # Errors
/// A description of the demand that was not met.
pub fn explore_mount(kind: Kind) -> Result<Tried, String> {
    let places = |_: &Shared, _: &Setup| (kind == Kind::Lies).then(|| vec![0]);
    explore_by(SMALL, kind, "mount", Wrong::default(), places, |known, after, setup| {
        run_mount(known, kind, after, setup)
    })
}

fn explore_by(
    config: Config,
    kind: Kind,
    name: &str,
    wrong: Wrong,
    places: impl Fn(&Shared, &Setup) -> Option<Vec<u64>>,
    run: impl Fn(&Shared, u64, &Setup) -> Option<Tried>,
) -> Result<Tried, String> {
    thread::set_index(0);
    bounds::only_count();
    let mut tried = Tried::default();
    let setup = Setup::default();
    let known = crate::caught(|| prepared(config, &setup, wrong))?;
    let listed = crate::caught(|| places(&known, &setup))?;
    let last = listed.is_none().then_some(u64::MAX);
    for after in listed.unwrap_or_default().into_iter().chain(sparse(last.unwrap_or(0))) {
        let one = crate::caught(|| run(&known, after, &setup));
        bounds::only_count();
        let one = one.map_err(|error| format!("{name}, {kind:?} after {after} accesses: {error}"))?;
        let Some(one) = one else {
            // This access was listed, and the run did not meet the error.
            return if last.is_some() {
                Ok(tried)
            } else {
                Err(format!("{name}, {kind:?}: no access {after}"))
            };
        };
        tried += one;
    }
    Ok(tried)
}

/// The first numbers below `end`, then ever fewer.
fn sparse(end: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(0), |number| Some(number + 1 + number / 8))
        .take_while(move |number| *number < end)
}

/// The numbers of PM accesses before the error: a sample of each class.
fn places(known: &Shared, act: &Act, access: Access, setup: &Setup) -> Vec<u64> {
    let world = begin(known, setup);
    let pm = Arc::clone(&world.borrow().media.pm);
    let (superblock, _) = read_superblock(&*pm, true).unwrap();
    let pool = superblock.geometry().first_pool_block().offset().0;
    pm.start_trace();
    perform(&world, act).unwrap_or_else(|error| panic!("fails without a fault: {error}"));
    let mut classes: BTreeMap<(bool, u64), Vec<u64>> = BTreeMap::new();
    let trace = pm.take_trace();
    for (index, (_, range)) in trace.iter().filter(|(found, _)| *found == access).enumerate() {
        let class = (range.start < pool, (range.end - range.start).next_power_of_two());
        classes.entry(class).or_default().push(index as u64);
    }
    let chosen = classes.values().flat_map(|all| {
        let some = sparse(all.len() as u64).map(|index| all[index as usize]);
        some.chain(all.last().copied())
    });
    let mut chosen: Vec<u64> = chosen.collect();
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// A single run; `None` if no access met the error.
fn run(known: &Shared, act: &Act, kind: Kind, after: u64, setup: &Setup) -> Option<Tried> {
    let world = begin(known, setup);
    let fs = Arc::clone(world.borrow().fs());
    let mut states = states_of(&world.borrow(), &act.action);
    inject(&world.borrow(), kind, after);
    let amid = amid_stalls(&world.borrow(), &fs);
    let result = perform(&world, act);
    bounds::only_count();
    if !has_struck(&world.borrow(), kind) {
        return None;
    }
    let mut tried = Tried { struck: 1, failed: u64::from(result.is_err()), ..Tried::default() };
    let ended = matches!(act.action, Action::Remount);
    let stopped = fs.is_stopped() && !(ended && result.is_ok());
    match &result {
        Ok(()) => _ = states.drain(..states.len() - 1),
        // A later piece, or a change after a failed checkpoint of the background (C9).
        Err(error) if stopped && error.errno() == libc::EROFS => {}
        Err(error) => assert_errno(kind, error),
    }
    for (op, when) in amid.take() {
        tried.amid_stall += 1;
        states.iter_mut().for_each(|state| _ = state.tree.perform(&op, when));
    }
    assert!(!stopped || kind.is_of_pm(), "no change is taken any more");
    tried.stopped = u64::from(stopped);
    if !fs.is_stopped() || stopped {
        assert_shown(&fs, kind);
    }
    let mut world = world.borrow_mut();
    if kind == Kind::Lies {
        drop(fs);
        tried.damaged = after_a_lie(&mut world, &states);
        return Some(tried);
    }
    if !ended {
        assert_no_wrong_bytes(&world, &fs, &states, kind);
        tried.not_durable = assert_fsync(&world, &fs, &mut states);
        fs.run_background(20);
        assert_no_wrong_bytes(&world, &fs, &states, kind);
    }
    let stopped = fs.is_stopped();
    drop(fs);
    let moment = world.media.now();
    end_fault(&world);
    // Odd runs lose power now: undecided stores are lost, kept, or kept in part. Even runs continue.
    if stopped || ended || after % 2 == 1 {
        let image = [0, 1, 4 * after + 2][(after / 2 % 3) as usize];
        let media = Media::after(&moment, image, setup);
        world.look_at_and_leave(media, &states);
    } else {
        leave(&mut world, &states);
    }
    Some(tried)
}

/// The mounted pool with background work at rest, and waiting writes if its configuration has them.
fn begin(known: &Shared, setup: &Setup) -> Shared {
    let media = {
        let known = known.borrow();
        Media::from_images(known.media.pm.visible_image(), known.media.device_images(), setup)
    };
    let world = known.borrow().fork(media);
    world.borrow_mut().begin_quiet();
    if world.borrow().config.buffers() {
        for act in waiting_first() {
            apply(&world, &Entry { action: act.action, seed: 0 });
        }
    }
    world
}

fn some_time(world: &World) -> Stamp {
    let from = world.now();
    Stamp { from, to: from + 1_000_000_000 }
}

fn states_of(world: &World, action: &Action) -> Vec<CrashState> {
    match action {
        Action::Op(op) => world.states_of(op, some_time(world)),
        Action::Sync | Action::SyncDown | Action::Remount => {
            world.state_now().into_iter().chain(world.state_written_back()).collect()
        }
        _ => world.state_now(),
    }
}

fn device(world: &World) -> Arc<SimulatedDevice> {
    Arc::clone(&world.media.devices[0])
}

fn inject(world: &World, kind: Kind, after: u64) {
    let (pm, device) = (&world.media.pm, device(world));
    let (size, blocks) = (pm.size(), device.blocks());
    let fail = |operation, errno, times| device.fail_next(operation, 0..blocks, errno, times);
    match kind {
        Kind::PmRead => pm.poison_for(0..size, Access::Reads, Times::After(after)),
        Kind::PmStore => pm.poison_for(0..size, Access::Stores, Times::After(after)),
        Kind::PmReadForGood => pm.poison_for(0..size, Access::Reads, Times::Stays(after)),
        Kind::PmStoreForGood => pm.poison_for(0..size, Access::Stores, Times::Stays(after)),
        Kind::Once(operation, errno) => fail(operation, errno, Times::After(after)),
        Kind::ForGood(operation) => fail(operation, libc::EIO, Times::From(after)),
        Kind::Worn(operation) => fail(operation, libc::EIO, Times::Stays(after)),
        Kind::Gone(operation) => device.begin_after(operation, after, Begins::Gone),
        Kind::Stalls(operation) => device.begin_after(operation, after, Begins::Stall),
        Kind::Lies => device.lie_about_flush(true),
    }
}

fn has_struck(world: &World, kind: Kind) -> bool {
    match kind {
        Kind::Lies => true,
        _ if kind.is_of_pm() => world.media.pm.error_count() > 0,
        _ => device(world).error_count() > 0,
    }
}

fn end_fault(world: &World) {
    world.media.pm.clear_poison();
    let device = device(world);
    device.clear_failures();
    device.unstall();
    device.come_back(None);
    device.lie_about_flush(false);
}

/// Writes, syncs and reads data in PM at once in the middle of a stalled operation of the device (I10).
/// Answers the operations done.
fn amid_stalls(world: &World, fs: &Arc<Engine>) -> Rc<RefCell<Vec<(Op, Stamp)>>> {
    let done: Rc<RefCell<Vec<(Op, Stamp)>>> = Rc::default();
    let (amid, fs, device, ino) = (Rc::clone(&done), Arc::clone(fs), device(world), world.ino(WITNESS));
    let clock = Arc::clone(&world.clock);
    interleave::set_hook(Some(Rc::new(move |point| {
        bounds::passed(point);
        let count = amid.borrow().len() as u64;
        if point != "device:stalled" || count == MOST_AMID {
            return;
        }
        let op = Op::Write {
            id: WITNESS,
            offset: 0,
            length: 5000,
            seed: 70 + count,
            kill_set_id: false,
            sync: true,
        };
        // Noted before the write: a stalled operation inside the write must not come here again.
        let from = clock.monotonic_ns() as i64;
        amid.borrow_mut().push((op, Stamp { from, to: from + 1_000_000 }));
        let (errors, bytes) = (device.error_count(), data(5000, 70 + count));
        let flags = WriteFlags { sync: true, kill_set_id: false, pages: false };
        let written = fs.write(ino, 0, &bytes, flags, Wait::Never);
        if matches!(written, Err(FsError::WouldBlock)) && is_pm_full(&fs) {
            amid.borrow_mut().pop();
            return;
        }
        assert_eq!(written.unwrap(), bytes.len(), "write amid a stall");
        fs.fsync(ino, false, Wait::Never).unwrap();
        let mut found = vec![0; bytes.len()];
        assert_eq!(fs.read(ino, 0, &mut found, Wait::Never).unwrap(), bytes.len(), "read amid a stall");
        assert!(found == bytes, "wrong bytes amid a stall");
        assert_eq!(device.error_count(), errors, "what is in PM waited for the device");
    })));
    done
}

/// Whether PM has only its reserve left: then a write has to wait (I10).
fn is_pm_full(fs: &Engine) -> bool {
    let tiers = fs.status().unwrap().tiers;
    tiers[0].capacity_bytes - tiers[0].used_bytes <= 32 * 4096
}

/// Runs the act on the engine alone.
fn perform(world: &Shared, act: &Act) -> Result<(), FsError> {
    let fs = Arc::clone(world.borrow().fs());
    match &act.action {
        Action::Op(op) => {
            let call = world.borrow().call(op);
            call.run(&fs, Wait::Allowed).map(|_| ())
        }
        Action::Sync => fs.sync(),
        Action::SyncDown => fs.sync_to(1, &mut |_| {}).map(drop),
        Action::Remount => fs.unmount(),
        Action::WriteBack => {
            world.borrow().clock.advance(DUE);
            fs.run_background(100);
            Ok(())
        }
        _ => {
            let ino = world.borrow().ino(COLD);
            let touches = if act.name == PROMOTION { 2 } else { 0 };
            let read = |_| fs.read(ino, 0, &mut [0; 20_000], Wait::Allowed).map(|_| ());
            let done = (0..touches).try_for_each(read);
            fs.run_background(20);
            done
        }
    }
}

fn assert_errno(kind: Kind, error: &FsError) {
    let errno = error.errno();
    let space = kind == Kind::Once(Operation::Write, libc::ENOSPC) && errno == libc::ENOSPC;
    assert!(errno == libc::EIO || space, "{error}: errno {errno}");
}

/// Status shows the failed medium, and no other.
fn assert_shown(fs: &Engine, kind: Kind) {
    let status = fs.status().unwrap();
    let (pm, below) = (&status.tiers[0].devices[0], &status.tiers[1].devices[0]);
    let degraded = |bad: bool| if bad { "degraded" } else { "ok" };
    assert_eq!(pm.health, degraded(kind.is_of_pm()), "PM in status");
    assert_eq!(below.health, degraded(!kind.is_of_pm() && kind != Kind::Lies), "the device in status");
    assert_eq!(status.healthy, kind == Kind::Lies);
    assert!(kind == Kind::Lies || pm.reason.is_some() || below.reason.is_some(), "no reason in status");
}

/// Regular files that exist in every state, with their contents.
fn files(states: &[CrashState]) -> Vec<(Id, Vec<Vec<u8>>)> {
    let content = |state: &CrashState, id: Id| {
        let content = state.tree.node(id).ok()?.content()?;
        // A file with far offsets has little more than holes behind this.
        let mut bytes = vec![0; content.size().min(1 << 20) as usize];
        content.read(0, &mut bytes);
        Some(bytes)
    };
    let Some(last) = states.last() else { return Vec::new() };
    let with_contents = |(id, _)| {
        let contents: Option<Vec<Vec<u8>>> = states.iter().map(|state| content(state, id)).collect();
        Some((id, contents?))
    };
    last.tree.nodes().filter_map(with_contents).collect()
}

/// Reads all files: each read gives the right bytes or EIO. Answers the number of EIOs.
fn assert_no_wrong_bytes(world: &World, fs: &Engine, states: &[CrashState], kind: Kind) -> u64 {
    let mut failed = 0;
    for (id, contents) in files(states) {
        let ino = world.ino(id);
        if ino.0 == 0 {
            continue; // made by the act, and its number is unknown
        }
        let longest = contents.iter().map(Vec::len).max().unwrap_or(0);
        for offset in (0..longest).step_by(16 << 10) {
            let mut found = vec![0xaa; (16 << 10).min(longest - offset)];
            let part = |bytes: &[u8]| {
                let end = bytes.len().min(offset + found.len());
                bytes.get(offset..end).unwrap_or_default().to_vec()
            };
            let expected: Vec<Vec<u8>> = contents.iter().map(|bytes| part(bytes)).collect();
            match fs.read(ino, offset as u64, &mut found, Wait::Allowed) {
                Ok(count) => {
                    let right = expected.iter().any(|bytes| *bytes == found[..count]);
                    assert!(right, "{id:?}: wrong bytes at {offset}, {count} of them, while the error lasts");
                }
                Err(error) => {
                    failed += 1;
                    assert_eq!(error.errno(), libc::EIO, "{id:?}: read at {offset}: {error}");
                    let needs = kind.is_of_pm() || fs.whereabouts(ino).unwrap().tiers[1].1 > 0;
                    assert!(needs, "{id:?}: {error} although all of it is in PM");
                }
            }
        }
    }
    failed
}

/// Calls fsync twice for each file, as two descriptors do. After a success the file's data counts as durable.
/// Answers the number of files whose fsync failed because a write-back failed.
fn assert_fsync(world: &World, fs: &Engine, states: &mut [CrashState]) -> u64 {
    let mut failed = 0;
    for (id, _) in files(states) {
        let both =
            [fs.fsync(world.ino(id), false, Wait::Allowed), fs.fsync(world.ino(id), true, Wait::Allowed)];
        let answers = both.map(|synced| synced.map_err(|error| error.errno()));
        let waits = |state: &CrashState| state.tree.node(id).is_ok_and(|node| node.unwritten.is_some());
        let may_fail = !fs.is_stopped() && world.config.buffers() && states.iter().any(waits);
        if may_fail && answers.iter().any(Result::is_err) {
            let told = |answer: &Result<(), i32>| matches!(answer, Ok(()) | Err(libc::EIO | libc::ENOSPC));
            assert!(answers.iter().all(told), "{id:?}: fsync: {answers:?}");
            failed += 1;
        } else {
            let expected = if fs.is_stopped() { Err(libc::EIO) } else { Ok(()) };
            assert_eq!(answers, [expected; 2], "{id:?}: fsync");
        }
        if answers.iter().any(Result::is_ok) {
            states.iter_mut().for_each(|state| state.tree.written_back(id, u64::MAX));
        }
    }
    failed
}

/// Demotes all files by lying flushes, then power fails: metadata is sound, and checksums find damaged data.
/// Answers the number of reads that met damage.
fn after_a_lie(world: &mut World, states: &[CrashState]) -> u64 {
    // Demotes also the files that the act left in PM.
    let _ = world.fs().sync_to(1, &mut |_| {});
    let (moment, setup) = (world.media.now(), world.media.setup().clone());
    world.may_be_damaged = true;
    let mut damaged = 0;
    // The device has kept no writes, all writes, or some writes.
    for image in [1, 5, 11] {
        let other = world.fork(Media::after(&moment, image, &setup));
        let mut other = other.borrow_mut();
        other.begin_quiet();
        other.settle(states);
        damaged += assert_no_wrong_bytes(&other, other.fs(), &other.state_now(), Kind::Lies);
        other.unmount_and_check();
        let now = other.state_now();
        let media = Media::after(&other.media.now(), 1, &setup);
        other.look_at_and_leave(media, &now);
    }
    damaged
}

/// Compares while mounted and after the next mount.
fn leave(world: &mut World, states: &[CrashState]) {
    world.settle(states);
    // A failed movement is tried again after some time (M6).
    world.clock.advance(DUE);
    world.fs().run_background(10_000);
    world.compare_all();
    // All writes were due for write-back, and the media are well.
    if world.config.buffers() {
        let media = Media::after(&world.media.now(), 0, &world.media.setup().clone());
        let now = world.state_now();
        return world.look_at_and_leave(media, &now);
    }
    world.unmount_and_check();
    let media = Media::after(&world.media.now(), 1, &world.media.setup().clone());
    let now = world.state_now();
    world.look_at_and_leave(media, &now);
}

/// A mount after a loss of power meets an error: it fails or gives a sound pool, and so does the next mount.
fn run_mount(known: &Shared, kind: Kind, after: u64, setup: &Setup) -> Option<Tried> {
    let world = begin(known, setup);
    let op = Op::Write { id: WITNESS, offset: 0, length: 9000, seed: 71, kill_set_id: false, sync: true };
    let states = states_of(&world.borrow(), &Action::Op(op.clone()));
    let fs = Arc::clone(world.borrow().fs());
    let call = world.borrow().call(&op);
    call.run(&fs, Wait::Allowed).unwrap();
    drop(fs);
    let mut world = world.borrow_mut();
    let media = Media::after(&world.media.now(), 3, setup);
    world.media = media;
    inject(&world, kind, after);
    let clock: Arc<dyn Clock> = world.clock.clone();
    let options = MountOptions { atime: Atime::Never, ..MountOptions::default() };
    let mounted = read_superblock(&*world.media.pm, true).map_err(|error| error.to_string());
    let mounted = mounted.and_then(|(superblock, _)| {
        let mounted = Engine::mount(world.media.pool(), superblock, options, clock);
        mounted.map_err(|error| error.to_string())
    });
    let struck = has_struck(&world, kind);
    let tried = Tried { struck: 1, failed: u64::from(mounted.is_err()), ..Tried::default() };
    if let Ok(fs) = &mounted {
        let last = &states[states.len() - 1..];
        if !fs.is_stopped() {
            assert_no_wrong_bytes(&world, fs, last, Kind::PmRead);
        }
    }
    drop(mounted);
    end_fault(&world);
    let media = Media::after(&world.media.now(), after % 2, setup);
    world.look_at_and_leave(media, &states[states.len() - 1..]);
    struck.then_some(tried)
}
