//! The inode file and its slots.

use crate::checker::Checker;
use crate::code::Code;
use crate::file_map::walk_file_map;
use crate::inode_record::InodeRecord;
use crate::radix_map::Tree;
use terrace_format::BLOCK_SIZE;
use terrace_format::address::{MAX_FILE_SIZE, MAX_INO, ROOT_INO};
use terrace_format::below::{Identity, is_below};
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE, flag, unpack_root};
use terrace_format::table::{Owner, PageKind};
use zerocopy::FromBytes;

impl Checker<'_> {
    /// Walks the inode file, every slot, and the map of every file.
    pub fn inode_file(&mut self) {
        let Some(count) = self.word(self.geometry.inode_pages()) else {
            return;
        };
        let below = self.superblock.device_rows().iter().map(|row| row.blocks.get());
        let below = below.fold(0, u64::saturating_add);
        let room = self.geometry.block_count();
        let room = if self.superblock.has_metadata_below() { room.saturating_add(below) } else { room };
        let most = (MAX_INO.0 / SLOTS_PER_PAGE + 1).min(room);
        if count == 0 || count > most {
            self.report(Code::InodePageCount, || format!("{count} pages"));
        }
        let Some(word) = self.word(self.geometry.inode_root()) else {
            return;
        };
        let (height, root) = unpack_root(word);
        if height == 0 || u64::from(height) > Tree::MAX_HEIGHT || !self.in_pool(root) {
            self.report(Code::InodeRoot, || format!("{word:#x}"));
            return;
        }
        let mut next = 0;
        let tree = Tree::InodeFile;
        self.walk_tree(tree, root, u64::from(height), &mut |checker, index, entry| {
            if index >= count {
                checker.report(Code::InodePageExtra, || format!("page {index} of {count}: {entry:#x}"));
            } else if index > next {
                checker.missing_pages(next, index);
            }
            next = index + 1;
            checker.inode_page(index, entry);
            checker.step();
        });
        if next < count {
            self.missing_pages(next, count);
        }
        if !self.inode(ROOT_INO.0).is_some_and(InodeRecord::is_directory) {
            self.report(Code::RootDirectory, || "inode 1 is not a directory".into());
        }
        if self.inode(0).is_some() {
            self.report(Code::RootDirectory, || "inode 0 is in use".into());
        }
    }

    fn missing_pages(&mut self, from: u64, to: u64) {
        self.report(Code::InodePageMissing, || format!("pages {from} to {}", to - 1));
    }

    fn inode_page(&mut self, index: u64, entry: u64) {
        if self.superblock.has_metadata_below() && is_below(entry) {
            let site = format_args!("inode page {index}");
            if let Some(bytes) = self.below(entry, Identity::Inodes { index }, &site) {
                self.slots(index, &bytes);
            }
            return;
        }
        // Without the feature a tag makes a number out of range.
        let Ok(datum) = u32::try_from(index) else {
            return; // cannot happen: the tree's height bounds the index
        };
        let owner = Owner::Page { kind: PageKind::InodePage, datum };
        if !self.claim(entry, owner, &format_args!("inode page {index}")) {
            return;
        }
        if let Some(bytes) = self.block(entry) {
            self.slots(index, &bytes);
        }
    }

    fn slots(&mut self, index: u64, bytes: &[u8; BLOCK_SIZE as usize]) {
        for (ino, bytes) in (index * SLOTS_PER_PAGE..).zip(bytes.as_chunks::<{ SLOT_SIZE as usize }>().0) {
            let Ok(slot) = InodeSlot::read_from_bytes(bytes) else {
                continue;
            };
            self.slot(ino, &slot);
        }
    }

    fn slot(&mut self, ino: u64, slot: &InodeSlot) {
        let mode = slot.mode.get();
        let links = (slot.orphan_next.get(), slot.orphan_previous.get());
        if slot.is_free() {
            let mapped = slot.root.get() != 0 || slot.direct.iter().any(|pointer| pointer.get() != 0);
            let counted = slot.nlink.get() != 0 || slot.blocks.get() != 0;
            if mapped || counted || links != (0, 0) || slot.has(flag::ORPHAN) {
                self.report(Code::SlotFree, || format!("inode {ino}: {slot:?}"));
            }
            return;
        }
        if ino > MAX_INO.0 {
            self.report(Code::SlotMode, || format!("inode {ino}: in use beyond the largest number"));
            return;
        }
        let known_type = matches!(mode >> 12, 0o01 | 0o02 | 0o04 | 0o06 | 0o10 | 0o12 | 0o14);
        if !known_type {
            self.report(Code::SlotMode, || format!("inode {ino}: mode {mode:#o}"));
        }
        if slot.flags.get() & !flag::ALL != 0 {
            let flags = slot.flags.get();
            self.report(Code::SlotFlags, || format!("inode {ino}: flags {flags:#x}"));
        }
        if slot.spare.get() != 0 {
            self.report(Code::SlotSpare, || format!("inode {ino}: spare {}", slot.spare));
        }
        let mut record = InodeRecord::from_slot(ino as u32, slot);
        if record.is_regular() {
            self.summary.bytes = self.summary.bytes.saturating_add(record.size);
            if record.size > MAX_FILE_SIZE {
                self.report(Code::SlotSize, || format!("inode {ino}: {} bytes", record.size));
            }
        } else if record.root != 0 || record.direct.iter().any(|pointer| *pointer != 0) {
            self.report(Code::SlotMap, || format!("inode {ino}: mode {mode:#o}"));
        }
        walk_file_map(self, &mut record);
        self.summary.inodes += 1;
        self.summary.directories += u64::from(record.is_directory());
        // The walk visits pages by rising index, each once; `find` depends on it.
        assert!(self.inodes.last().is_none_or(|last| last.ino < record.ino), "inodes out of order");
        self.inodes.push(record);
    }
}
