//! The error of a run: begin and end of the error, and work beside a stalled device.

use crate::bounds;
use crate::drivers::faults::kinds::Kind;
use crate::world::World;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use terrace_engine::{Engine, FsError, Wait, WriteFlags};
use terrace_media::block::{Begins, SimulatedDevice, Times};
use terrace_media::pm::Access;
use terrace_media::{BlockMedium, PmMedium};
use terrace_reference::{Id, Op, Stamp, data};
use terrace_runtime::{Clock, interleave};

/// A file that no act touches; all its blocks are in PM.
pub(super) const WITNESS: Id = Id(12);

/// Operations on the witness in the middle of one stalled act.
const MOST_AMID: u64 = 3;

fn device(world: &World) -> Arc<SimulatedDevice> {
    Arc::clone(&world.pool.media.devices[0])
}

pub(super) fn inject(world: &World, kind: Kind, after: u64) {
    let (pm, device) = (&world.pool.media.pm, device(world));
    let (size, blocks) = (pm.size(), device.blocks());
    let fail = |operation, errno, times| device.fail_next(operation, 0..blocks, errno, times);
    match kind {
        Kind::PmRead => pm.poison_for(0..size, Access::Reads, Times::OnceAfter(after)),
        Kind::PmStore => pm.poison_for(0..size, Access::Stores, Times::OnceAfter(after)),
        Kind::PmReadForGood => pm.poison_for(0..size, Access::Reads, Times::WearsOutAfter(after)),
        Kind::PmStoreForGood => pm.poison_for(0..size, Access::Stores, Times::WearsOutAfter(after)),
        Kind::Once(operation, errno) => fail(operation, errno, Times::OnceAfter(after)),
        Kind::ForGood(operation) => fail(operation, libc::EIO, Times::AlwaysAfter(after)),
        Kind::Worn(operation) => fail(operation, libc::EIO, Times::WearsOutAfter(after)),
        Kind::Gone(operation) => device.begin_after(operation, after, Begins::Gone),
        Kind::Stalls(operation) => device.begin_after(operation, after, Begins::Stall),
        Kind::Lies => device.lie_about_flush(true),
    }
}

pub(super) fn has_struck(world: &World, kind: Kind) -> bool {
    match kind {
        Kind::Lies => true,
        _ if kind.is_of_pm() => world.pool.media.pm.error_count() > 0,
        _ => device(world).error_count() > 0,
    }
}

pub(super) fn end_fault(world: &World) {
    world.pool.media.pm.clear_poison();
    let device = device(world);
    device.clear_failures();
    device.unstall();
    device.come_back(None);
    device.lie_about_flush(false);
}

/// Writes, syncs and reads data in PM at once in the middle of a stalled operation of the device (I10).
/// Answers the operations done.
pub(super) fn amid_stalls(world: &World, fs: &Arc<Engine>) -> Rc<RefCell<Vec<(Op, Stamp)>>> {
    let done: Rc<RefCell<Vec<(Op, Stamp)>>> = Rc::default();
    let (amid, fs, device, ino) = (Rc::clone(&done), Arc::clone(fs), device(world), world.known.ino(WITNESS));
    let clock = Arc::clone(&world.pool.clock);
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
