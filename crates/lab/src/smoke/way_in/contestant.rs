//! The contestants of the row, set up for a turn, and the rounds of turns.

use super::disk::Disk;
use super::ground::{Ground, ROW};
use crate::smoke::pool::Pool;
use crate::smoke::report::Report;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_bench::process::{Server, null_server};
use terrace_bench::site::teardown::{Held, Resource, Teardown};
use terrace_fuse::Transport;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Terrace(Transport),
    /// An older program, perhaps without the option for the transport.
    Before,
    Null(Transport),
    Ext4,
    Xfs,
    Tmpfs,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Terrace(Transport::Classic) => "terrace classic",
            Kind::Terrace(_) => "terrace io_uring",
            Kind::Before => "before",
            Kind::Null(Transport::Classic) => "null classic",
            Kind::Null(_) => "null io_uring",
            Kind::Ext4 => "ext4",
            Kind::Xfs => "XFS",
            Kind::Tmpfs => "tmpfs",
        }
    }

    /// Terrace by io_uring and classic, and the older program.
    pub const TERRACE: [Kind; 3] =
        [Kind::Terrace(Transport::Uring), Kind::Terrace(Transport::Classic), Kind::Before];

    /// The kinds of this run: io_uring needs the kernel, the older program an option.
    pub fn present(ground: &Ground<'_>, kinds: &[Kind]) -> Vec<Kind> {
        let is_present = |kind: &Kind| match kind {
            Kind::Terrace(Transport::Uring) | Kind::Null(Transport::Uring) => ground.uring.is_ok(),
            Kind::Before => ground.args.before.is_some(),
            _ => true,
        };
        kinds.iter().copied().filter(is_present).collect()
    }
}

/// Bytes of a contestant's devices.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub pm: u64,
    pub disk: u64,
}

/// A contestant in use; dropping takes it down.
pub(super) struct Contestant {
    pub kind: Kind,
    /// The directory for its files.
    pub root: PathBuf,
    serving: Option<Serving>,
    _disk: Option<Disk>,
}

impl Contestant {
    pub fn start(ground: &Ground<'_>, kind: Kind, room: Room) -> Outcome<Contestant> {
        let _step = ground.teardown.step();
        let on = |disk: Disk| Contestant { kind, root: disk.root.clone(), serving: None, _disk: Some(disk) };
        let by = |serving: Serving| Contestant {
            kind,
            root: serving.root.clone(),
            serving: Some(serving),
            _disk: None,
        };
        Ok(match kind {
            Kind::Terrace(transport) => by(Serving::terrace(ground, kind, room, &mount_option(transport))?),
            Kind::Before => by(Serving::terrace(ground, kind, room, "rw")?),
            Kind::Null(transport) => by(Serving::null(ground, transport)?),
            Kind::Ext4 => on(Disk::ext4(ground, room.disk)?),
            Kind::Xfs => on(Disk::xfs(ground, room.disk)?),
            Kind::Tmpfs => on(Disk::tmpfs(ground, room.disk)?),
        })
    }

    /// The process of the server; a file system of the kernel has none.
    pub fn pid(&self) -> Option<u32> {
        self.serving.as_ref().and_then(|serving| serving.server.as_ref()).map(Server::pid)
    }

    /// Takes it down, with the error of its unmount.
    pub fn stop(mut self, ground: &Ground<'_>) -> Outcome<()> {
        let _step = ground.teardown.step();
        match self.serving.take() {
            Some(serving) => serving.stop(ground),
            None => Ok(()),
        }
    }
}

fn mount_option(transport: Transport) -> String {
    format!("transport={}", transport.name())
}

/// A server in a process of its own, its mount and its pool.
struct Serving {
    root: PathBuf,
    server: Option<Server>,
    held: Vec<Held>,
    _pool: Option<Pool>,
    teardown: Arc<Teardown>,
}

impl Serving {
    fn terrace(ground: &Ground<'_>, kind: Kind, room: Room, options: &str) -> Outcome<Serving> {
        let (args, scratch) = (ground.args, ground.scratch);
        let program: &Path = match kind {
            Kind::Before => args.before.as_deref().ok_or("no older program is given")?,
            _ => &args.terrace,
        };
        let pool = Pool::make_by(program, scratch, "way-in", room.pm, room.disk)?;
        let server = pool.mount_with(scratch, &scratch.mount_point("ours")?, options)?;
        Serving::of(ground, server, Some(pool))
    }

    fn null(ground: &Ground<'_>, transport: Transport) -> Outcome<Serving> {
        let scratch = ground.scratch;
        Serving::of(ground, null_server(scratch, &scratch.mount_point("null")?, transport)?, None)
    }

    fn of(ground: &Ground<'_>, server: Server, pool: Option<Pool>) -> Outcome<Serving> {
        let (root, pid) = (server.mount.clone(), server.pid());
        let mut serving = Serving {
            root: root.clone(),
            server: Some(server),
            held: Vec::new(),
            _pool: pool,
            teardown: ground.teardown.clone(),
        };
        for resource in [Resource::Mount(root), Resource::Process(pid)] {
            serving.held.push(ground.teardown.hold(resource)?);
        }
        Ok(serving)
    }

    fn stop(mut self, ground: &Ground<'_>) -> Outcome<()> {
        self.held.drain(..).for_each(Held::gone);
        match self.server.take() {
            Some(server) => server.stop(ground.scratch),
            None => Ok(()),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let teardown = self.teardown.clone();
        let _step = teardown.step();
        // Before the wait: afterwards the process id may belong to another process.
        self.held.drain(..).for_each(Held::gone);
        drop(self.server.take());
    }
}

/// In every round starts a contestant, gives it to `turn` with its column, and stops it, before the next contestant
/// starts. A failed contestant is reported and takes no further part.
pub(super) fn rounds(
    ground: &Ground<'_>,
    report: &mut Report,
    part: &str,
    (kinds, room): (&[Kind], Room),
    mut turn: impl FnMut(usize, &Contestant) -> Outcome<()>,
) -> Outcome<()> {
    let mut able = vec![true; kinds.len()];
    for round in 0..ground.args.rounds {
        for place in 0..kinds.len() {
            ground.teardown.go_on()?;
            let column = (round + place) % kinds.len();
            let kind = kinds[column];
            if !able[column] {
                continue;
            }
            let done = Contestant::start(ground, kind, room).and_then(|contestant| {
                turn(column, &contestant)?;
                contestant.stop(ground)
            });
            if let Err(error) = done {
                report.skip(ROW, format!("{part}, {}: {error}", kind.name()));
                able[column] = false;
            }
        }
    }
    Ok(())
}
