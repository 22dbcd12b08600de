//! The daemon's answers: each request becomes a call of the engine, and its result becomes JSON.
//!
//! Invariant: no call into the file system runs once the gate is closed: requests hold the gate for reading, and closing
//! takes it for writing.

use super::Request;
use crate::names::Names;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_engine::{Engine, FsError, MoveRequest, Movements};
use terrace_format::Ino;
use terrace_format::superblock::Superblock;
use terrace_fuse::RingFigures;
use terrace_runtime::sync::{Mutex, RwLock};
use terrace_transport::Served;

/// More paths than the file system lists movements.
const MOST_MOVE_PATHS: usize = 2048;

/// A result, or the reason for a refusal.
pub(super) type Reply = Result<Value, String>;

/// Gives the figures of the rings that requests come by.
pub(super) type Rings = Box<dyn Fn() -> Option<RingFigures> + Send + Sync>;

/// The mounted pool as clients ask for it.
pub(super) struct Answers {
    served: RwLock<Option<Arc<Served>>>,
    superblock: Superblock,
    describe: Value,
    rings: Rings,
    names: Arc<Names>,
    /// The paths of requested movements as users gave them, by the number of the movement.
    move_paths: Mutex<BTreeMap<u64, String>>,
}

fn text(error: FsError) -> String {
    error.to_string()
}

fn to_json(value: impl serde::Serialize) -> Reply {
    serde_json::to_value(value).map_err(|error| error.to_string())
}

impl Answers {
    /// `describe` and the figures of `rings` are merged into the status.
    pub(super) fn new(
        served: Arc<Served>,
        superblock: Superblock,
        describe: Value,
        rings: Rings,
        names: Arc<Names>,
    ) -> Answers {
        let served = RwLock::new(Some(served));
        Answers { served, superblock, describe, rings, names, move_paths: Mutex::new(BTreeMap::new()) }
    }

    /// Refuses further requests, and waits for requests under way.
    pub(super) fn close(&self) {
        *self.served.write() = None;
    }

    /// Tier by number or by a class that only one tier has.
    fn tier(&self, name: &str) -> Result<u8, String> {
        crate::pool::tier_named(self.superblock.device_rows(), name)
    }

    /// Answers a request to the file system; `progress` gets the blocks that are left.
    pub(super) fn answer(&self, request: &Request, progress: &mut dyn FnMut(u64)) -> Reply {
        let gate = self.served.read();
        let Some(served) = gate.as_ref() else { return Err("the mount is ending".to_string()) };
        let fs = served.fs();
        match request {
            Request::Ping => Ok(json!({ "connection": self.describe["connection"] })),
            Request::Status => self.status(served),
            Request::Where { ino } => to_json(fs.whereabouts(Ino(*ino)).map_err(text)?),
            Request::Iostat => to_json(fs.io_report().map_err(text)?),
            Request::Move { ino, action, tier, dry_run, path } => {
                let begun = self.begin_move(fs, Ino(*ino), action, tier.as_deref(), *dry_run)?;
                if let (Some(id), Some(path)) = (begun.as_u64(), path) {
                    self.remember_path(id, path);
                }
                Ok(begun)
            }
            Request::Moved { id } => match fs.request_report(*id) {
                Some(report) => to_json(report),
                None => Err(format!("no move {id}")),
            },
            Request::Sync => fs.sync().map(|()| Value::Null).map_err(text),
            Request::SyncTo { tier } => {
                let written = fs.sync_to(self.tier(tier)?, progress).map_err(text)?;
                Ok(json!({ "written_meanwhile_bytes": written }))
            }
            Request::SyncPlan { tier } => {
                let tier = tier.as_deref().map_or(Ok(0), |tier| self.tier(tier))?;
                let mut plan = to_json(fs.plan_sync_to(tier).map_err(text)?)?;
                plan["tier"] = tier.into();
                Ok(plan)
            }
            Request::End | Request::Stop => Ok(Value::Null),
        }
    }

    /// The file system's status, with the parts that only the daemon knows.
    fn status(&self, served: &Served) -> Reply {
        let mut status = to_json(served.fs().status().map_err(text)?)?;
        if let (Some(status), Some(describe)) = (status.as_object_mut(), self.describe.as_object()) {
            status.extend(describe.clone());
        }
        let recovery = status["recovery"]["warnings"].as_array().cloned().unwrap_or_default();
        if let Some(warnings) = status["warnings"].as_array_mut() {
            warnings.extend(recovery);
        }
        if let Some(RingFigures { entries, away, replaced }) = (self.rings)() {
            status["rings"] = json!({ "entries": entries, "away": away, "replaced": replaced });
        }
        let (kept_bytes, most_kept_bytes) = served.cache().kept_bytes();
        let parameters = &mut status["parameters"];
        parameters["kernel_cache_bytes"] = most_kept_bytes.into();
        parameters["kernel_cached_bytes"] = kept_bytes.into();
        // The file system knows the medium of tier 0, not its path.
        let pool = self.describe["pool"].clone();
        if let Some(device) = status.pointer_mut("/tiers/0/devices/0") {
            device["path"] = pool;
        }
        self.name_moves(&mut status);
        self.names.tell(&mut status);
        Ok(status)
    }

    /// Remembers the path of a movement as the user gave it.
    fn remember_path(&self, id: u64, path: &str) {
        let mut paths = self.move_paths.lock();
        paths.insert(id, path.to_string());
        if paths.len() > MOST_MOVE_PATHS {
            paths.pop_first();
        }
    }

    /// Adds the path to each movement, and forgets the paths of movements that are no longer listed. A
    /// movement that begins meanwhile has a higher number.
    fn name_moves(&self, status: &mut Value) {
        let Some(moves) = status["moves"].as_array_mut() else { return };
        let mut paths = self.move_paths.lock();
        if let Some(first) = moves.iter().filter_map(|one| one["id"].as_u64()).min() {
            *paths = paths.split_off(&first);
        }
        for one in moves {
            one["path"] = one["id"].as_u64().and_then(|id| paths.get(&id)).cloned().into();
        }
    }

    /// Begins a requested movement, or reports the effect that it would have.
    fn begin_move(&self, fs: &Engine, ino: Ino, action: &str, tier: Option<&str>, dry_run: bool) -> Reply {
        let tier = tier.map(|tier| self.tier(tier)).transpose()?;
        let action = match (action, tier) {
            ("migrate", Some(to)) => MoveRequest::Migrate { to },
            ("pin", Some(tier)) => MoveRequest::Pin { tier },
            ("unpin", None) => MoveRequest::Unpin,
            _ => return Err(format!("unknown move '{action}'; is the daemon of another version?")),
        };
        if !dry_run {
            return fs.request_move(ino, action).map(Into::into).map_err(text);
        }
        let plan = fs.plan_move(ino, action).map_err(|error| match error {
            // The same text as the movement itself would give.
            FsError::NotPermitted => "pinned to another tier; unpin it first".to_string(),
            other => text(other),
        })?;
        let mut plan = to_json(plan)?;
        plan["tier"] = tier.into();
        Ok(plan)
    }
}
