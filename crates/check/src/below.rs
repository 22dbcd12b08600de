//! Metadata pages on lower tiers (format.md "Metadata pages below"): found by their tagged locations, read,
//! and judged by their seals.

use crate::checker::Checker;
use crate::code::Code;
use crate::pool_view::PoolView;
use std::fmt::Display;
use terrace_format::below::{Below, Identity, unseal};
use terrace_format::device::FIRST_CHUNK_BLOCK;
use terrace_format::inode::SLOTS_PER_PAGE;
use terrace_format::superblock::Superblock;
use terrace_media::block::AlignedBlock;

/// A page's bytes.
pub type Bytes = Box<[u8; terrace_format::BLOCK_SIZE as usize]>;

/// The content of the device block to which a location points.
pub enum Found {
    /// The page, in the form that it has in PM.
    Page(Bytes),
    /// No page with the seal that belongs there; the text says why.
    Other(String),
    /// The block cannot be read; `None` when its device is absent.
    Unreadable(Option<String>),
    /// The location is not on a lower tier of this pool.
    Nowhere,
}

/// Whether a word can be the location of a page below in this pool.
pub fn place_of(superblock: &Superblock, word: u64) -> Option<Below> {
    let place = Below::decode(word).filter(|_| superblock.has_metadata_below())?;
    let row = superblock.device_rows().get(usize::from(place.device.0))?;
    (place.block >= FIRST_CHUNK_BLOCK && place.block.0 < row.blocks.get()).then_some(place)
}

/// Reads the page that a location names.
pub fn read(pool: &PoolView, superblock: &Superblock, word: u64, identity: Identity) -> Found {
    let Some(place) = place_of(superblock, word) else {
        return Found::Nowhere;
    };
    let Some(medium) = pool.block.get(usize::from(place.device.0)).and_then(Option::as_ref) else {
        return Found::Unreadable(None);
    };
    if place.block.0 >= medium.blocks() {
        return Found::Unreadable(None);
    }
    let mut block = [AlignedBlock::zeroed()];
    if let Err(error) = medium.read(place.block, &mut block) {
        return Found::Unreadable(Some(error.to_string()));
    }
    let [AlignedBlock(bytes)] = &mut block;
    match unseal(bytes, &superblock.seal_key(), identity, word) {
        Ok(()) => Found::Page(Box::new(*bytes)),
        Err(corrupt) => Found::Other(corrupt.to_string()),
    }
}

impl Checker<'_> {
    /// Reads a page below and counts its device block as used. Reports damage and gives `None`; then keys and
    /// slots that the page may have held are not judged.
    pub fn below(&mut self, word: u64, identity: Identity, site: &dyn Display) -> Option<Bytes> {
        self.summary.metadata_below += 1;
        if let Some(place) = place_of(&self.superblock, word)
            && let Some(state) = self.cold.get_mut(usize::from(place.device.0))
            && !state.extents.insert(place.block.0)
        {
            let (device, block) = (place.device, place.block);
            self.report(Code::ColdShared, || format!("device {device}, block {block}: again {site}"));
        }
        match read(self.pool, &self.superblock, word, identity) {
            Found::Page(page) => return Some(page),
            Found::Other(found) => self.report(Code::MetadataChecksum, || format!("{site}: {found}")),
            Found::Unreadable(Some(error)) => {
                self.report(Code::DeviceUnreadable, || format!("{site}: {error}"));
            }
            Found::Unreadable(None) => {} // reported with the header
            Found::Nowhere => self.report(Code::MetadataPlace, || format!("{site}: {word:#x}")),
        }
        self.unread = true;
        if let Identity::Inodes { index } = identity {
            self.unread_inodes.insert(index);
        }
        None
    }

    /// Whether an inode cannot be judged, because its inode page below could not be read.
    pub(crate) fn is_unread(&self, ino: u64) -> bool {
        self.unread_inodes.contains(&(ino / SLOTS_PER_PAGE))
    }
}
