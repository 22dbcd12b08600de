//! The acts that meet errors, and their run on the engine alone.

use crate::action::Action;
use crate::actions::background::DUE;
use crate::drivers::acts::{Act, COLD, D, F, H, LINK, make_different, settling};
use crate::world::Shared;
use std::sync::Arc;
use terrace_engine::{FsError, Movements, Simulation, Wait};
use terrace_reference::{After, BLOCK, Op, Seek};

/// The acts of `systematic`, and acts that it leaves out because they change nothing that a crash can lose.
pub fn acts() -> Vec<Act> {
    let act = |name, action| Act { name, action, touches: Vec::new() };
    let op = |name, op| act(name, Action::Op(op));
    let read = |id, length| Op::Read { id, offset: 0, length };
    let mut all = crate::drivers::acts::acts();
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

/// Runs the act on the engine alone.
pub(super) fn perform(world: &Shared, act: &Act) -> Result<(), FsError> {
    let fs = Arc::clone(world.borrow().pool.fs());
    match &act.action {
        Action::Op(op) => {
            let call = world.borrow().known.call(op);
            call.run(&fs, Wait::Allowed).map(|_| ())
        }
        Action::Sync => fs.sync(),
        Action::SyncDown => fs.sync_to(1, &mut |_| {}).map(drop),
        Action::Remount => fs.unmount(),
        Action::WriteBack => {
            world.borrow().pool.clock.advance(DUE);
            fs.run_background(100);
            Ok(())
        }
        _ => {
            let ino = world.borrow().known.ino(COLD);
            let touches = if act.name == PROMOTION { 2 } else { 0 };
            let read = |_| fs.read(ino, 0, &mut [0; 20_000], Wait::Allowed).map(|_| ());
            let done = (0..touches).try_for_each(read);
            fs.run_background(20);
            done
        }
    }
}
