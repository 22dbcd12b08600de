//! Pins: a file or directory is kept on a tier (`terrace pin`).
//!
//! A pin is an extended attribute in a namespace of the file system's own: users can neither set nor read nor list it
//! (`xattr.rs` knows only theirs), and it goes with the inode. A file or directory made in a pinned directory inherits the
//! pin, in the transaction that makes it; a rename changes no pin.
//! Pinned to PM: the policy does not demote such a block, as long as all of them together take at most half of PM (design
//! P1). A block is recognised when it is picked for the first time, and marked in its volatile descriptor, so that it is
//! not picked again and again; beyond half of PM, and when nothing else can be demoted, the mark does not protect, so
//! that a pin is never a reason for ENOSPC (I9).
//! Pinned to a lower tier: writes go to PM as others do, and are moved to that tier soon (`migration/sweep.rs`).

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Need, Op};
use crate::slot::{Inode, log_slot};
use crate::tier_order::standing_in;
use crate::types::Wait;
use crate::write::Staged;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use terrace_blocks::{Descriptor, State};
use terrace_catalog::xattr::{self, SetMode};
use terrace_catalog::{Edit, ShardsWrite};
use terrace_format::address::ROOT_INO;
use terrace_format::inode::{InodeSlot, flag};
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, Corrupt, Ino, PmBlock};
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Names that begin so are the file system's own.
pub(crate) const OWN_NAMESPACE: &[u8] = b"terrace.";
/// The tier, one byte.
const PIN: &[u8] = b"terrace.pin";
/// On the root directory: something was pinned to a lower tier, so that pinned files are looked for in PM.
const SWEPT: &[u8] = b"terrace.swept";

/// No operation of a user claims more PM blocks at once.
const MOST_CLAIMED: u64 = 512;
/// For how long the policy does not look for victims again when all that was left is kept.
const REST: Duration = Duration::from_millis(200);

/// What is known of pins; volatile.
pub(crate) struct Pins {
    /// PM blocks marked as kept, as counted when victims were picked last, and those marked since.
    pub kept: AtomicU64,
    /// A pin was changed or taken away: marks are to be found anew.
    pub changed: AtomicBool,
    /// The policy does not look for victims before this moment, in monotonic nanoseconds.
    rest_until_ns: AtomicU64,
    /// Whether something may be pinned to a lower tier: not known, no, yes.
    below: AtomicU8,
}

const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

impl Pins {
    pub fn new() -> Pins {
        Pins {
            kept: AtomicU64::new(0),
            changed: AtomicBool::new(false),
            below: AtomicU8::new(UNKNOWN),
            rest_until_ns: AtomicU64::new(0),
        }
    }
}

/// An attribute of our own: the leaf that would hold it lies below PM only if it does not.
fn in_pm(found: terrace_wal::Result<Option<Vec<u8>>>) -> terrace_wal::Result<Option<Vec<u8>>> {
    match found {
        Err(terrace_wal::Error::PageBelow(_)) => Ok(None),
        found => found,
    }
}

impl Fs {
    /// The tier that an inode is pinned to. The caller holds its lock.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn pin_of(&self, inode: &Inode) -> FsResult<Option<u8>> {
        if !inode.slot.has(flag::HAS_XATTR) {
            return Ok(None);
        }
        let shard = self.catalog.read(self.catalog.shard_of(inode.ino.0));
        self.decode_pin(inode.ino, in_pm(xattr::get(shard.reader(), inode.ino, PIN))?)
    }

    fn decode_pin(&self, ino: Ino, value: Option<Vec<u8>>) -> FsResult<Option<u8>> {
        match value.as_deref() {
            None => Ok(None),
            Some([tier]) => Ok(Some(standing_in(*tier, self.devices.tiers().iter().map(|tier| tier.0)))),
            Some(other) => {
                let found = format!("{} bytes", other.len());
                Err(Corrupt::new(format!("pin of inode {ino}"), "one byte", found).into())
            }
        }
    }

    /// The tier that a file or directory is pinned to.
    ///
    /// # Errors
    /// ESTALE, EIO.
    pub fn pinned(&self, ino: Ino) -> FsResult<Option<u8>> {
        self.reading(Wait::Allowed, || {
            let _guard = self.locks.read(ino);
            self.pin_of(&self.load_to_read(ino)?)
        })
    }

    /// Adds a pin to the transaction that makes an inode. The caller holds the shard of its number.
    pub(crate) fn stage_pin(
        &self,
        shards: &mut ShardsWrite<'_>,
        staged: &mut Staged<'_>,
        ino: Ino,
        slot: &mut InodeSlot,
        tier: u8,
    ) -> Result<(), Edit> {
        xattr::set(shards, &mut staged.tx, ino, PIN, &[tier], SetMode::Any, 1)?;
        slot.flags = (slot.flags.get() | flag::HAS_XATTR).into();
        Ok(())
    }

    /// The puts of [`Self::stage_pin`], for making room.
    pub(crate) fn pin_puts(ino: Ino) -> Vec<(terrace_format::keys::Key, usize)> {
        xattr::set_puts(ino, PIN, 1)
    }

    /// Pins one inode, or takes its pin away.
    ///
    /// # Errors
    /// ESTALE, EROFS, ENOSPC, EIO.
    pub(crate) fn set_pin(&self, ino: Ino, generation: u32, tier: Option<u8>) -> FsResult<()> {
        if tier.is_some_and(|tier| tier > 0) {
            self.note_pins_below()?;
        }
        let value = tier.map(|tier| [tier]);
        self.change_own(ino, Some(generation), PIN, value.as_ref().map(|value| &value[..]))?;
        self.pins.changed.store(true, Ordering::Release);
        Ok(())
    }

    /// Sets or removes one of the file system's own attributes. What users see of the inode does not change.
    fn change_own(
        &self,
        ino: Ino,
        generation: Option<u32>,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> FsResult<()> {
        let mut op = if value.is_some() { Op::new(Wait::Allowed) } else { Op::reclaiming(Wait::Allowed) };
        self.run(&mut op, self.large_record(), |reservation, _op| -> Attempt<()> {
            let _guard = self.locks.write(ino);
            let inode = self.load(ino)?;
            if generation.is_some_and(|generation| generation != inode.slot.generation.get()) {
                return Err(FsError::Stale.into());
            }
            let mut shards = self.catalog.write(&[self.catalog.shard_of(ino.0)]);
            let mut staged = Staged::new(self, None, false);
            match value {
                Some(value) => {
                    self.blocks.probe()?;
                    xattr::set(&mut shards, &mut staged.tx, ino, name, value, SetMode::Any, value.len())
                        .map_err(|edit| match edit {
                            Edit::Full(_) => {
                                Need::CatalogRooms(xattr::set_puts(ino, name, value.len())).into()
                            }
                            other => crate::op::Fail::from(other),
                        })?;
                }
                None => {
                    let there = inode.slot.has(flag::HAS_XATTR);
                    if !there || !xattr::remove(&mut shards, &mut staged.tx, ino, name)? {
                        return Ok(());
                    }
                }
            }
            staged.unlink_emptied(&mut shards)?;
            let mut slot = inode.slot;
            slot.flags = (slot.flags.get() | flag::HAS_XATTR).into();
            log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
            staged.commit(reservation)?;
            Ok(())
        })
    }

    /// Whether files may be pinned to a lower tier.
    pub(crate) fn are_pins_below(&self) -> FsResult<bool> {
        match self.pins.below.load(Ordering::Acquire) {
            NONE => return Ok(false),
            SOME => return Ok(true),
            _ => {}
        }
        let look = || {
            let _guard = self.locks.read(ROOT_INO);
            let root = self.load(ROOT_INO)?;
            let shard = self.catalog.read(self.catalog.shard_of(ROOT_INO.0));
            let has_own = root.slot.has(flag::HAS_XATTR);
            Ok(has_own && in_pm(xattr::get(shard.reader(), ROOT_INO, SWEPT))?.is_some())
        };
        let found = self.with_pages(Wait::Allowed, look)?;
        let known = if found { SOME } else { NONE };
        // Unless the first such pin came meanwhile.
        let _ = self.pins.below.compare_exchange(UNKNOWN, known, Ordering::AcqRel, Ordering::Acquire);
        Ok(found || self.pins.below.load(Ordering::Acquire) == SOME)
    }

    /// Notes, before the first such pin, that files may be pinned to a lower tier.
    fn note_pins_below(&self) -> FsResult<()> {
        if self.are_pins_below()? {
            return Ok(());
        }
        self.change_own(ROOT_INO, None, SWEPT, Some(&[1]))?;
        self.pins.below.store(SOME, Ordering::Release);
        Ok(())
    }

    /// PM blocks that pins may keep: half of them.
    pub(crate) fn most_kept(&self) -> u64 {
        self.blocks.usage().total / 2
    }

    /// Whether a block that is about to be demoted stays in PM because its file is pinned there. One that is marked
    /// already was picked all the same, and goes.
    pub(crate) fn keeps(&self, pm: PmBlock) -> bool {
        let descriptor = self.blocks.descriptor(pm);
        let draining = self.pressure.is_draining();
        if draining || descriptor.is_kept() || self.pins.kept.load(Ordering::Relaxed) >= self.most_kept() {
            return false;
        }
        descriptor.set_kept(true);
        self.pins.kept.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Whether victims may be blocks that are kept: while PM is emptied, and, when nothing else is left, while users find no
    /// space (I9).
    pub(crate) fn takes_kept(&self, nothing_else: bool) -> bool {
        if self.pressure.is_draining() {
            return true;
        }
        let (marked, usage) = (self.pins.kept.load(Ordering::Relaxed) > 0, self.blocks.usage());
        // A large write claims many blocks at once.
        let short = usage.reserve + MOST_CLAIMED.min(usage.total / 6);
        nothing_else && marked && self.blocks.free_hint() <= short
    }

    /// Whether the policy found nothing but kept blocks a moment ago: looking again at once would find the same (M6).
    pub(crate) fn rests_for_pins(&self, now_ns: u64) -> bool {
        let draining = self.pressure.is_draining();
        !draining && now_ns < self.pins.rest_until_ns.load(Ordering::Relaxed)
    }

    /// Notes that the policy found nothing to demote.
    pub(crate) fn rest_for_pins(&self, now_ns: u64) {
        if self.pins.kept.load(Ordering::Relaxed) > 0 {
            self.pins.rest_until_ns.store(now_ns + REST.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Counts the kept blocks; gives what says whether a block may be a victim. Marks are found anew after a pin was
    /// changed.
    pub(crate) fn count_kept(&self, kept_too: bool) -> impl Fn(&Descriptor) -> bool + use<> {
        let changed = self.pins.changed.swap(false, Ordering::AcqRel);
        let mut kept = 0;
        if changed || self.pins.kept.load(Ordering::Relaxed) > 0 {
            for block in self.blocks.first_block().0..self.blocks.end_block().0 {
                let descriptor = self.blocks.descriptor(PmBlock(block));
                if changed {
                    descriptor.set_kept(false);
                } else if descriptor.is_kept() && descriptor.state() == State::Used {
                    kept += 1;
                }
            }
            self.pins.kept.store(kept, Ordering::Relaxed);
        }
        move |descriptor| kept_too || !descriptor.is_kept()
    }

    /// Bytes in PM of what is pinned there, without the inodes `besides`.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn pinned_bytes(&self, besides: &HashSet<Ino>) -> FsResult<u64> {
        while self.blocks.scan_step()? {}
        let (mut known, mut pinned) = (HashMap::new(), 0);
        for pm in (self.blocks.first_block().0..self.blocks.end_block().0).map(PmBlock) {
            if self.blocks.descriptor(pm).state() == State::Used
                && let Ok(Owner::File { ino, .. }) = self.blocks.owner(pm)
                && !besides.contains(&ino)
            {
                let pin = known.entry(ino).or_insert_with(|| self.pinned(ino).unwrap_or(None));
                pinned += u64::from(*pin == Some(0));
            }
        }
        Ok(pinned * BLOCK_SIZE)
    }
}
