//! Placement of writes: which home a write gets (design 5), and what the predictors learn from what is done.
//!
//! [`Fs::choose_home`] only looks; [`Fs::note_write`] changes what it looks at, once for each write that was
//! committed, so that an attempt that starts again is not counted twice. Both are called under the exclusive inode
//! lock and get the inode as it was before the write. They touch a few words of fixed tables: no lock, no allocation.

use crate::files::{FileState, Lessons};
use crate::fs::Fs;
use crate::slot::Inode;
use crate::types::{BlockRange, WriteFlags};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_placement::decision::{Room, WriteSeen, write_home};
use terrace_placement::write_size::Entry;
use terrace_placement::{Home, prior};
use terrace_runtime::sync::atomic::Ordering;

impl Fs {
    #[inline]
    fn steers(&self) -> bool {
        self.steers.load(Ordering::Relaxed)
    }

    /// Lets predictors and temperature rest or work: for benches that measure what they cost a request in one and the same
    /// pool, while nothing migrates: a block keeps the times, and the mark, that it had. Under a policy that has no predictors
    /// nothing changes.
    pub fn let_predictors_rest(&self, rest: bool) {
        let rests = self.policy.steers_writes() && rest;
        self.steers.store(self.policy.steers_writes() && !rest, Ordering::Relaxed);
        self.stamps.store(!rests, Ordering::Relaxed);
    }

    /// The time that blocks used now get; `None` while a bench lets temperature rest.
    #[inline]
    pub(crate) fn stamp(&self) -> Option<u32> {
        self.stamps.load(Ordering::Relaxed).then(|| self.tick.load(Ordering::Relaxed))
    }

    /// A request begins that predictors will learn from.
    #[inline]
    pub(crate) fn expect_use(&self, ino: Ino) {
        if self.steers() {
            self.files.expect(ino);
        }
    }

    /// What PM has left for new data.
    fn room(&self) -> Room {
        let hardly = self.pressure.throttle_below() / 4;
        // Just after the mount what was scanned stands for the rest.
        let known = self.pressure.usable_blocks().saturating_sub(self.blocks.unknown_hint());
        Room::of(self.blocks.free_hint(), known, hardly, &self.parameters)
    }

    /// Whether predictors are asked for the home of a write to `range`.
    #[inline]
    pub(crate) fn has_choice(&self, range: BlockRange) -> bool {
        self.steers()
            && match self.room() {
                Room::Hardly => true,
                Room::Some => range.count() * BLOCK_SIZE >= self.parameters.large_min,
                Room::Plenty => false,
            }
    }

    /// The home of a write to `range`. The caller holds the inode lock.
    pub(crate) fn choose_home(&self, inode: &Inode, range: BlockRange, flags: WriteFlags) -> Home {
        if flags.sync || self.devices.list.is_empty() {
            return Home::Pm;
        }
        if let Some(home) = self.home {
            return home;
        }
        if !self.has_choice(range) {
            return Home::Pm;
        }
        let Some(file) = self.files.get(inode.ino, inode.slot.generation.get()) else {
            return Home::Pm;
        };
        let entry = self.entry_after(inode, range, file);
        let (synchronicity, room) = (file.judged(&self.relatives), self.room());
        let seen = WriteSeen { durable: flags.sync, synchronicity, entry, room };
        write_home(&seen, &self.parameters)
    }

    /// The entry that a write to `range` of a file will leave.
    fn entry_after(&self, inode: &Inode, range: BlockRange, file: &FileState) -> Entry {
        let bytes = range.count() * BLOCK_SIZE;
        if bytes < self.parameters.large_min {
            return Entry::after_short(file.run(), (range.first.0, bytes));
        }
        let of = (inode.ino, inode.slot.generation.get(), inode.size());
        Entry::after(self.entries.before(of, range, file.run()), bytes, &self.parameters)
    }

    /// `bytes` were written to the blocks of `range`. The caller holds the inode lock; `inode` is from before.
    #[inline]
    pub(crate) fn note_write(
        &self,
        inode: &Inode,
        range: BlockRange,
        bytes: u64,
        flags: WriteFlags,
        home: Home,
    ) {
        if self.steers() {
            self.learn_write(inode, range, bytes, flags, home);
        }
    }

    #[inline]
    fn learn_write(&self, inode: &Inode, range: BlockRange, bytes: u64, flags: WriteFlags, home: Home) {
        let (ino, generation) = (inode.ino, inode.slot.generation.get());
        let size = inode.size().max(range.end.0 * BLOCK_SIZE);
        let tick = self.tick.load(Ordering::Relaxed);
        let file = self.files.enter(ino, generation, size, tick, &self.tally);
        let entry = if range.count() * BLOCK_SIZE < self.parameters.large_min {
            if file.has_entries() {
                self.entries.forget(ino, generation, range);
            }
            Entry::after_short(file.run(), (range.first.0, range.count() * BLOCK_SIZE))
        } else {
            self.leave_entry(inode, range, file)
        };
        let blocks = range.count().min(u64::from(u32::MAX)) as u32;
        file.note_write((bytes, blocks), (entry, range.end.0), flags.sync, self.lessons(tick));
        match home {
            Home::Pm => self.flows.note_write(ino, bytes, 0),
            Home::Block => self.flows.note_write(ino, 0, bytes),
        }
    }

    /// Notes the entry of a write to `range` that is long enough to have one.
    fn leave_entry(&self, inode: &Inode, range: BlockRange, file: &FileState) -> Entry {
        let entry = self.entry_after(inode, range, file);
        self.entries.put(inode.ino, inode.slot.generation.get(), range, entry);
        file.set_has_entries();
        entry
    }

    /// `bytes` were read, `dram_bytes` of them from copies of lower tiers in DRAM. The caller holds the inode lock,
    /// shared at least.
    #[inline]
    pub(crate) fn note_read(&self, inode: &Inode, bytes: u64, dram_bytes: u64) {
        if self.steers() {
            let tick = self.tick.load(Ordering::Relaxed);
            let generation = inode.slot.generation.get();
            self.files.enter(inode.ino, generation, inode.size(), tick, &self.tally).note_read(bytes);
            self.flows.note_read(inode.ino, bytes.saturating_sub(dram_bytes), dram_bytes);
        }
    }

    /// A file was fsynced.
    #[inline]
    pub(crate) fn note_fsync(&self, ino: Ino) {
        if self.steers() {
            self.files.note_fsync(ino, self.lessons(self.tick.load(Ordering::Relaxed)));
        }
    }

    /// Nobody has a file open any more.
    pub(crate) fn note_close(&self, ino: Ino) {
        if self.steers() {
            self.files.note_close(ino, self.lessons(self.tick.load(Ordering::Relaxed)));
        }
    }

    /// A file or directory was made in a directory. The caller holds both locks.
    pub(crate) fn note_made(&self, directory: &Inode, name: &[u8], made: &Inode) {
        if !self.steers() {
            return;
        }
        let above = Ino(u64::from(directory.slot.parent_or_rdev.get()));
        if made.slot.is_directory() {
            self.relatives.directory_made(made.ino, directory.ino, above);
        } else if made.slot.is_regular() {
            let tick = self.tick.load(Ordering::Relaxed);
            let directory = (directory.ino, directory.slot.generation.get());
            let relatives = self.relatives.file_made(directory, above, prior::family(name));
            let file = self.files.enter(made.ino, made.slot.generation.get(), 0, tick, &self.tally);
            file.note_made(relatives);
        }
    }

    fn lessons(&self, tick: u32) -> Lessons<'_> {
        Lessons { parameters: &self.parameters, tally: &self.tally, relatives: &self.relatives, tick }
    }
}
