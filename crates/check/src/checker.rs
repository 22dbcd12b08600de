//! State shared by the phases, and reads of PM that report unreadable lines.

use crate::bitmap::{Dense, Sparse};
use crate::code::Code;
use crate::overlay::Overlay;
use crate::report::{Findings, Summary};
use crate::{Devices, Options};
use std::collections::BTreeSet;
use terrace_format::inode::{DIRECT_BLOCKS, InodeSlot};
use terrace_format::superblock::Superblock;
use terrace_format::{BLOCK_SIZE, Geometry, PmOffset};

/// The used blocks of a lower-tier device, gathered from the catalog.
#[derive(Default)]
pub(crate) struct DeviceState {
    /// Blocks of the device, as the superblock says.
    pub(crate) blocks: u64,
    /// Blocks that can be read now; 0 when the device is absent or foreign.
    pub(crate) readable: u64,
    /// Blocks of cold extents and metadata pages.
    pub(crate) extents: Sparse,
    /// Blocks marked in chunk bitmaps.
    pub(crate) marked: Sparse,
}

/// The facts gathered about an inode in use.
#[derive(Default, Clone)]
pub(crate) struct InodeRecord {
    pub(crate) ino: u32,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) flags: u32,
    pub(crate) generation: u32,
    pub(crate) parent: u32,
    pub(crate) orphan_next: u32,
    pub(crate) orphan_previous: u32,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) direct: [u32; DIRECT_BLOCKS as usize],
    pub(crate) root: u64,
    /// Blocks mapped in PM or below, each once.
    pub(crate) mapped: u64,
    /// End of the last written block, in PM or below.
    pub(crate) written_end: u64,
    /// Largest end of an intent.
    pub(crate) intent_end: u64,
    /// Directory entries that name the inode.
    pub(crate) names: u32,
    /// The directory that names the inode (the last directory, if several do).
    pub(crate) named_by: u32,
    /// Entries of this directory that name directories.
    pub(crate) subdirectories: u32,
    /// Entries of this directory.
    pub(crate) entries: u64,
    /// Bytes of the symlink target found in the catalog.
    pub(crate) target_bytes: u64,
    /// Found on an orphan list.
    pub(crate) listed: bool,
    /// The path to the root was followed: not yet, now, good, bad.
    pub(crate) path: Path,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    #[default]
    Unknown,
    Walking,
    Good,
    Bad,
}

impl InodeRecord {
    pub(crate) fn from_slot(ino: u32, slot: &InodeSlot) -> InodeRecord {
        InodeRecord {
            ino,
            mode: slot.mode.get(),
            nlink: slot.nlink.get(),
            flags: slot.flags.get(),
            generation: slot.generation.get(),
            parent: slot.parent_or_rdev.get(),
            orphan_next: slot.orphan_next.get(),
            orphan_previous: slot.orphan_previous.get(),
            size: slot.size.get(),
            blocks: slot.blocks.get(),
            direct: slot.direct.map(|pointer| pointer.get()),
            root: slot.root.get(),
            ..InodeRecord::default()
        }
    }
    pub(crate) fn file_type(&self) -> u32 {
        self.mode >> 12
    }
    pub(crate) fn is_directory(&self) -> bool {
        self.file_type() == 0o04
    }
    pub(crate) fn is_regular(&self) -> bool {
        self.file_type() == 0o10
    }
    pub(crate) fn is_symlink(&self) -> bool {
        self.file_type() == 0o12
    }
    pub(crate) fn has(&self, bit: u32) -> bool {
        self.flags & bit != 0
    }
}

/// A radix node read from PM.
pub type Node = Vec<u64>;

pub(crate) struct Checker<'a> {
    pub(crate) devices: &'a Devices,
    pub(crate) options: Options<'a>,
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) overlay: Overlay,
    pub(crate) findings: Findings,
    pub(crate) summary: Summary,
    /// PM blocks reached from their owner.
    pub(crate) reached: Dense,
    /// Partial shadows that have a written cold copy.
    pub(crate) over_cold: Dense,
    /// Inodes in use, by number.
    pub(crate) inodes: Vec<InodeRecord>,
    pub(crate) cold: Vec<DeviceState>,
    /// A metadata page below could not be read: missing keys and slots may be on it.
    pub(crate) unread: bool,
    /// Unreadable pages of the inode file below, by index.
    pub(crate) unread_inodes: BTreeSet<u64>,
    progress: (u64, u64),
}

impl<'a> Checker<'a> {
    pub(crate) fn new(
        devices: &'a Devices,
        options: Options<'a>,
        superblock: Superblock,
        overlay: Overlay,
        findings: Findings,
        summary: Summary,
    ) -> Checker<'a> {
        let geometry = superblock.geometry();
        Checker {
            devices,
            options,
            superblock,
            geometry,
            overlay,
            findings,
            summary,
            reached: Dense::new(geometry.block_count()),
            over_cold: Dense::new(if superblock.has_partial_shadows() { geometry.block_count() } else { 0 }),
            inodes: Vec::new(),
            cold: Vec::new(),
            unread: false,
            unread_inodes: BTreeSet::new(),
            progress: (0, 0),
        }
    }

    /// All phases.
    pub(crate) fn run(&mut self) {
        let pages = self.word(self.geometry.inode_pages()).unwrap_or(0);
        let shards = u64::from(self.geometry.catalog_shards);
        let regions = self.geometry.block_count().div_ceil(crate::blocks::REGION);
        self.progress.1 = pages.min(self.geometry.block_count()) + shards + regions;
        self.device_headers();
        self.fixed_checksums();
        self.inode_file();
        self.catalog();
        // With keys and slots unread, counts would be too low and give false errors.
        if !self.unread {
            self.links();
            self.orphans();
            self.chunks();
        }
        self.block_table();
    }

    /// Reports that a unit of work is done.
    pub(crate) fn step(&mut self) {
        self.progress.0 = (self.progress.0 + 1).min(self.progress.1);
        if let Some(tell) = self.options.progress {
            tell(self.progress.0, self.progress.1);
        }
    }

    pub(crate) fn report(&mut self, code: Code, detail: impl FnOnce() -> String) {
        self.findings.add(code, detail);
    }

    /// Reads PM as it will be after recovery; reports unreadable lines.
    pub(crate) fn read(&mut self, offset: PmOffset, into: &mut [u8]) -> bool {
        match self.overlay.read(&*self.devices.pm, offset, into) {
            Ok(()) => true,
            Err(error) => {
                self.report(Code::PmUnreadable, || error.to_string());
                false
            }
        }
    }

    pub(crate) fn word(&mut self, offset: PmOffset) -> Option<u64> {
        let mut word = [0; 8];
        self.read(offset, &mut word).then(|| u64::from_le_bytes(word))
    }

    /// A block of the pool; the caller has checked its number.
    pub(crate) fn block(&mut self, block: u64) -> Option<Box<[u8; BLOCK_SIZE as usize]>> {
        let mut bytes = Box::new([0; BLOCK_SIZE as usize]);
        let offset = PmOffset(block.checked_mul(BLOCK_SIZE)?);
        self.read(offset, bytes.as_mut_slice()).then_some(bytes)
    }

    /// A radix node; the caller has checked its number.
    pub(crate) fn node(&mut self, block: u64) -> Option<Node> {
        let bytes = self.block(block)?;
        let words = bytes.as_chunks::<8>().0.iter();
        Some(words.map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// The index of an inode in `inodes`.
    pub(crate) fn find(&self, ino: u64) -> Option<usize> {
        let ino = u32::try_from(ino).ok()?;
        self.inodes.binary_search_by_key(&ino, |record| record.ino).ok()
    }

    pub(crate) fn inode(&self, ino: u64) -> Option<&InodeRecord> {
        self.inodes.get(self.find(ino)?)
    }

    pub(crate) fn inode_mut(&mut self, ino: u64) -> Option<&mut InodeRecord> {
        let at = self.find(ino)?;
        self.inodes.get_mut(at)
    }
}
