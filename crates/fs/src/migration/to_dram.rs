//! Read migration into DRAM ([TPFS] sections 4 and 5.3): while DRAM bandwidth idles, blocks of read-dominated files go down
//! to a block tier, and a copy of each stays in DRAM.
//!
//! The move is a demotion like any other (M1, M2). The copy is taken from PM under the inode lock in which the
//! cold extent is installed, and kept only if it has the checksum that the extent names. One bounded piece per
//! step, and only while less than half of the cache is in use (design 7): what is demoted must not push out what is read
//! from below.

use super::copy::Copied;
use super::plan::{LEAVING, Victim};
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::slot::Inode;
use smallvec::SmallVec;
use terrace_cache::Page;
use terrace_format::checksum::crc32c;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_media::block::AlignedBlock;
use terrace_placement::Idle;
use terrace_placement::decision::{ReadRule, read_rule};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// Most blocks moved in one step.
const PIECE: u64 = 512;
/// Not worth moving for fewer.
const LEAST: u64 = 16;

/// What status tells of it.
#[derive(Default)]
pub(crate) struct Kept {
    blocks: AtomicU64,
    /// When copies were first wanted: nanoseconds since mount, plus one; 0 is never.
    first: AtomicU64,
}

impl Kept {
    pub(crate) fn wanted(&self, since_mount_ns: u64) {
        let first = since_mount_ns.saturating_add(1);
        let _ = self.first.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes that a copy of a block stayed.
    pub(crate) fn note_kept(&self) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed) * BLOCK_SIZE
    }

    pub(crate) fn first_seconds(&self) -> Option<f64> {
        let first = self.first.load(Ordering::Relaxed);
        first.checked_sub(1).map(|since_mount_ns| since_mount_ns as f64 / 1e9)
    }
}

/// A copy of a block that leaves PM.
pub(super) struct Copy {
    block: FileBlock,
    page: Page,
    /// It takes the place of an older one.
    renews: bool,
}

impl Fs {
    /// Whether a file's blocks are better in DRAM than in PM: read-dominated, and PM does not idle.
    pub(crate) fn belongs_in_dram(&self, inode: &Inode) -> bool {
        self.flows.idle() != Idle::Pm && self.is_read_dominated(inode)
    }

    /// Whether it was read more than twice over since it was last written ([TPFS] read frequency).
    pub(crate) fn is_read_dominated(&self, inode: &Inode) -> bool {
        let file = || self.files.get(inode.ino, inode.slot.generation.get());
        self.policy.follows_reads()
            && file().is_some_and(|file| file.reads().is_dominated(inode.size(), self.parameters.read_times))
    }

    /// Blocks of which a copy may stay in DRAM: until half of the cache is in use.
    fn room_for_copies(&self) -> u64 {
        (self.cache.budget_bytes() / 2).saturating_sub(self.cache.bytes()) / BLOCK_SIZE
    }

    /// Moves a piece, if the policy and equation (2) ask for it and DRAM has room.
    pub(super) fn to_dram_round(&self) {
        let rule = read_rule(true, true, self.flows.idle());
        if !self.policy.follows_reads() || rule != ReadRule::ToDram || self.devices.list.is_empty() {
            return;
        }
        let room = self.room_for_copies();
        if self.read_only || room < LEAST {
            return;
        }
        // Taken out: no lock is held while a device is written.
        let mut cursor = std::mem::take(&mut *self.migration.to_dram.lock());
        if let Some((ino, generation, from)) =
            cursor.file.take().or_else(|| self.next_read_dominated(&mut cursor))
        {
            match self.sink(ino, generation, from, room.min(PIECE)) {
                Ok(next) => cursor.file = next.map(|next| (ino, generation, next)),
                Err(error) => tracing::debug!("migration of inode {ino} into DRAM: {error}"),
            }
        }
        *self.migration.to_dram.lock() = cursor;
    }

    /// Moves at most `most` of a file's PM blocks at or behind `from` that were read; where to go on.
    fn sink(&self, ino: Ino, generation: u32, from: FileBlock, most: u64) -> FsResult<Option<FileBlock>> {
        let Some((victims, next)) = self.read_blocks(ino, generation, from, most)? else { return Ok(None) };
        if !victims.is_empty() {
            self.kept_copies.wanted(self.clock.monotonic_ns().saturating_sub(self.mounted_ns));
            // Not before all are found: after an error nobody would give the marked ones back.
            victims.iter().for_each(|victim| self.blocks.descriptor(victim.pm).touch_read(LEAVING));
            self.pressure.begin_group(victims.len());
            self.move_group(&victims)?;
        }
        Ok(next)
    }

    #[allow(clippy::type_complexity)] // what was found, and where to go on
    fn read_blocks(
        &self,
        ino: Ino,
        generation: u32,
        from: FileBlock,
        most: u64,
    ) -> FsResult<Option<(Vec<Victim>, Option<FileBlock>)>> {
        let _guard = self.locks.read(ino);
        let inode = match self.load_regular(ino) {
            Err(FsError::Stale) => return Ok(None),
            inode => inode?,
        };
        if inode.slot.generation.get() != generation || !self.belongs_in_dram(&inode) {
            return Ok(None);
        }
        let end = FileBlock(inode.size().div_ceil(BLOCK_SIZE));
        let (mut victims, mut at) = (Vec::new(), from);
        for _ in 0..most {
            let Some((block, mapping)) = self.next_mapped(&inode, at, end)? else {
                return Ok(Some((victims, None)));
            };
            let descriptor = self.blocks.descriptor(mapping.block);
            if !mapping.unwritten && descriptor.read() > 0 {
                victims.push(Victim { ino, block, pm: mapping.block });
            }
            at = block.plus(1);
        }
        Ok(Some((victims, Some(at))))
    }

    /// Of which blocks that are about to be installed DRAM has a copy that somebody asked for. Called before their versions
    /// change; the caller holds the inode lock.
    pub(super) fn held_in_dram<'b, 'c: 'b>(
        &self,
        inode: &Inode,
        part: impl Iterator<Item = &'b Copied<'c>>,
    ) -> SmallVec<[bool; 32]> {
        let any = self.cache.bytes() > 0;
        let version = |block| self.cold_versions.get(inode.ino, block);
        let held = |block| any && self.cache.holds(inode.page_key(block), version(block));
        part.map(|copied| held(copied.candidate.block)).collect()
    }

    /// Copies of what is about to be installed: of blocks that DRAM `held` an older copy of, which somebody asked for; and of
    /// all, if the file is read-dominated and half of the cache is not in use, whatever idles at this moment: it leaves PM,
    /// and what went without a copy because PM idled just then was read from the device ever after. The caller holds the
    /// inode lock.
    pub(super) fn copies_for_dram<'b, 'c: 'b>(
        &self,
        inode: &Inode,
        part: impl Iterator<Item = &'b Copied<'c>>,
        held: &[bool],
    ) -> Vec<Copy> {
        let mut room = self.room_for_copies();
        if room == 0 || !self.is_read_dominated(inode) {
            room = 0;
        } else {
            self.kept_copies.wanted(self.clock.monotonic_ns().saturating_sub(self.mounted_ns));
        }
        let copy = |(copied, held): (&Copied<'c>, &bool)| {
            if !held {
                room = room.checked_sub(1)?;
            }
            let mut block = AlignedBlock::zeroed();
            self.pm.read(copied.candidate.pm.offset(), &mut block.0).ok()?;
            // What was merged on the way down is not what PM holds.
            let same = !copied.candidate.unwritten && crc32c(&block.0) == copied.crc;
            let page = same.then(|| Page::copy(&block.0))?;
            Some(Copy { block: copied.candidate.block, page, renews: *held })
        };
        part.zip(held).filter_map(copy).collect()
    }

    /// Keeps them, once their extent is installed. The caller still holds the inode lock.
    pub(super) fn keep_copies(&self, inode: &Inode, copies: Vec<Copy>) {
        let now = self.clock.monotonic_ns();
        for Copy { block, page, renews } in copies {
            let (key, version) = (inode.page_key(block), self.cold_versions.get(inode.ino, block));
            if renews {
                self.cache.renew(key, version, page);
            } else {
                self.kept_copies.note_kept();
                self.cache.insert(key, version, page, true, now);
            }
        }
    }
}
