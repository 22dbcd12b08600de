//! State shared by the phases, and PM reads that report what cannot be read.

use crate::bitmap::{Dense, Sparse};
use crate::code::Code;
use crate::overlay::Overlay;
use crate::report::{Findings, Summary};
use crate::{Devices, Options};
use std::collections::BTreeSet;
use terrace_format::inode::{DIRECT_BLOCKS, InodeSlot};
use terrace_format::superblock::Superblock;
use terrace_format::{BLOCK_SIZE, Geometry, PmOffset};

/// What one lower-tier device holds, gathered from the catalog.
#[derive(Default)]
pub(crate) struct DeviceState {
    /// Blocks of the device, as the superblock says.
    pub blocks: u64,
    /// Blocks that can be read now; 0 when the device is absent or foreign.
    pub readable: u64,
    /// Blocks of cold extents and metadata pages.
    pub extents: Sparse,
    /// Blocks marked in chunk bitmaps.
    pub marked: Sparse,
}

/// What is kept of an inode in use.
#[derive(Default, Clone)]
pub(crate) struct InodeRecord {
    pub ino: u32,
    pub mode: u32,
    pub nlink: u32,
    pub flags: u32,
    pub generation: u32,
    pub parent: u32,
    pub orphan_next: u32,
    pub orphan_previous: u32,
    pub size: u64,
    pub blocks: u64,
    pub direct: [u32; DIRECT_BLOCKS as usize],
    pub root: u64,
    /// Blocks mapped in PM or below, each once.
    pub mapped: u64,
    /// One past the last written block, in PM or below.
    pub written_end: u64,
    /// Largest end of an intent.
    pub intent_end: u64,
    /// Directory entries that name it.
    pub names: u32,
    /// The directory that names it (the last one seen).
    pub named_by: u32,
    /// Directory entries in it that name directories.
    pub subdirectories: u32,
    /// Directory entries in it.
    pub entries: u64,
    /// Bytes of the symlink target found in the catalog.
    pub target_bytes: u64,
    /// Found on an orphan list.
    pub listed: bool,
    /// The path to the root was followed: not yet, now, good, bad.
    pub path: Path,
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
    pub fn from_slot(ino: u32, slot: &InodeSlot) -> InodeRecord {
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
    pub fn file_type(&self) -> u32 {
        self.mode >> 12
    }
    pub fn is_directory(&self) -> bool {
        self.file_type() == 0o04
    }
    pub fn is_regular(&self) -> bool {
        self.file_type() == 0o10
    }
    pub fn is_symlink(&self) -> bool {
        self.file_type() == 0o12
    }
    pub fn has(&self, bit: u32) -> bool {
        self.flags & bit != 0
    }
}

/// A radix node read from PM.
pub(crate) type Node = Vec<u64>;

pub(crate) struct Checker<'a> {
    pub devices: &'a Devices,
    pub options: Options<'a>,
    pub superblock: Superblock,
    pub geometry: Geometry,
    pub overlay: Overlay,
    pub findings: Findings,
    pub summary: Summary,
    /// PM blocks reached from their owner.
    pub reached: Dense,
    /// Partial shadows that have a written cold copy.
    pub over_cold: Dense,
    /// Inodes in use, by number.
    pub inodes: Vec<InodeRecord>,
    pub cold: Vec<DeviceState>,
    /// A metadata page below could not be read: what is missing may be there.
    pub unread: bool,
    /// Such pages of the inode file.
    pub unread_inodes: BTreeSet<u64>,
    progress: (u64, u64),
}

impl<'a> Checker<'a> {
    pub fn new(
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
    pub fn run(&mut self) {
        let pages = self.word(self.geometry.inode_pages()).unwrap_or(0);
        let shards = u64::from(self.geometry.catalog_shards);
        let regions = self.geometry.block_count().div_ceil(crate::blocks::REGION);
        self.progress.1 = pages.min(self.geometry.block_count()) + shards + regions;
        self.device_headers();
        self.fixed_checksums();
        self.inode_file();
        self.catalog();
        // Who counts what is missing would find too little of everything.
        if !self.unread {
            self.links();
            self.orphans();
            self.chunks();
        }
        self.block_table();
    }

    /// A unit of work is done.
    pub fn step(&mut self) {
        self.progress.0 = (self.progress.0 + 1).min(self.progress.1);
        if let Some(tell) = self.options.progress {
            tell(self.progress.0, self.progress.1);
        }
    }

    pub fn report(&mut self, code: Code, detail: impl FnOnce() -> String) {
        self.findings.add(code, detail);
    }

    /// Reads PM as it will be after recovery; reports what cannot be read.
    pub fn read(&mut self, offset: PmOffset, into: &mut [u8]) -> bool {
        match self.overlay.read(&*self.devices.pm, offset, into) {
            Ok(()) => true,
            Err(error) => {
                self.report(Code::PmUnreadable, || error.to_string());
                false
            }
        }
    }

    pub fn word(&mut self, offset: PmOffset) -> Option<u64> {
        let mut word = [0; 8];
        self.read(offset, &mut word).then(|| u64::from_le_bytes(word))
    }

    /// A block of the pool; the caller has checked its number.
    pub fn block(&mut self, block: u64) -> Option<Box<[u8; BLOCK_SIZE as usize]>> {
        let mut bytes = Box::new([0; BLOCK_SIZE as usize]);
        let offset = PmOffset(block.checked_mul(BLOCK_SIZE)?);
        self.read(offset, bytes.as_mut_slice()).then_some(bytes)
    }

    /// A radix node; the caller has checked its number.
    pub fn node(&mut self, block: u64) -> Option<Node> {
        let bytes = self.block(block)?;
        let words = bytes.as_chunks::<8>().0.iter();
        Some(words.map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// Where an inode in use stands in `inodes`.
    pub fn find(&self, ino: u64) -> Option<usize> {
        let ino = u32::try_from(ino).ok()?;
        self.inodes.binary_search_by_key(&ino, |record| record.ino).ok()
    }

    pub fn inode(&self, ino: u64) -> Option<&InodeRecord> {
        self.inodes.get(self.find(ino)?)
    }

    pub fn inode_mut(&mut self, ino: u64) -> Option<&mut InodeRecord> {
        let at = self.find(ino)?;
        self.inodes.get_mut(at)
    }
}
