//! Pages in PM whose bytes do not match their checksums, and root words that cannot be read.
//!
//! Invariants: 1. The checksum word of a page is open before the overlay has other bytes of the page, but for a bit that is turned
//! back. 2. Wrong bytes of a page are noted before a structure on it is mended.

use crate::state::Round;
use crate::state::actions::Actions;
use crate::state::witness::is_cold;
use std::collections::BTreeSet;
use terrace_check::overlay::Overlay;
use terrace_check::{Code, PoolView, checksums};
use terrace_format::geometry::ROOTS_BLOCK;
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE};
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_format::superblock::Superblock;
use terrace_format::table::{Owner, PageKind, TABLE_ENTRY_SIZE};
use terrace_format::{BLOCK_SIZE, Geometry, PmBlock, PmOffset};
use zerocopy::IntoBytes;

/// A page of metadata that may have a checksum, and its owner by the block table.
type Metadata = (PmBlock, Option<Owner>);

/// The page with its owner, if it holds metadata.
fn metadata(view: &PoolView, overlay: &Overlay, geometry: &Geometry, page: PmBlock) -> Option<Metadata> {
    let owner = checksums::owner(&view.pm, overlay, geometry, page);
    (is_fixed(geometry, page) || matches!(owner, Some(Owner::Page { .. }))).then_some((page, owner))
}

/// Whether a page has its place by the geometry.
fn is_fixed(geometry: &Geometry, page: PmBlock) -> bool {
    page == ROOTS_BLOCK || geometry.is_table(page) || geometry.is_map_area(page)
}

fn checksummed_pages(geometry: &Geometry) -> impl Iterator<Item = PmBlock> + use<> {
    (0..if geometry.checksummed { geometry.block_count() } else { 0 }).map(PmBlock)
}

/// The pages with wrong bytes.
#[derive(Default)]
pub(crate) struct Healed {
    /// Whether the overlay has changed.
    pub is_changed: bool,
    /// Pages of the block table whose owners the file maps tell, too: [`note_masks`].
    pub of_table: Vec<PmBlock>,
}

/// Turns single wrong bits back, and names all that lies on other pages with wrong bytes that no other structure tells. Comes
/// before structures are judged: a structure that is mended looks sound, and its page has no checksum any more.
pub(crate) fn heal_pages(
    view: &PoolView,
    superblock: &Superblock,
    overlay: &mut Overlay,
    actions: &mut Actions,
) -> Healed {
    let geometry = superblock.geometry();
    let mut healed = Healed::default();
    // The block table tells which of the other pages hold metadata.
    let (fixed, others): (Vec<_>, Vec<_>) =
        checksummed_pages(&geometry).partition(|page| is_fixed(&geometry, *page));
    for page in fixed.into_iter().chain(others) {
        let Some((page, owner)) = metadata(view, overlay, &geometry, page) else { continue };
        let fault = checksums::fault((&view.pm, overlay), &geometry, &superblock.uuid, page);
        if fault != Some(Code::PageChecksum) {
            continue;
        }
        let name = checksums::describe(&geometry, page, owner);
        if turn_bit_back(view, superblock, overlay, page) {
            actions.add(format!("{name}: the one wrong bit is turned back"));
        } else if is_only_witness(view, overlay, &geometry, (page, owner)) {
            note_changed(view, overlay, actions, (page, owner), &name);
            overlay.write(geometry.checksum_word(page), &[0; 8]);
            actions.add(text_of_changed(&name));
        } else {
            healed.of_table.extend(geometry.is_table(page).then_some(page));
            continue;
        }
        healed.is_changed = true;
    }
    healed
}

/// Names files with blocks in PM over cold copies, by pages of the block table with wrong bytes: only their line masks tell which
/// lines are newer than the copies.
pub(crate) fn note_masks(round: &mut Round<'_>, pages: &[PmBlock]) {
    let (geometry, mut inodes) = (round.pool.geometry, BTreeSet::new());
    for page in pages {
        let first = (page.offset().0 - geometry.table_offset().0) / TABLE_ENTRY_SIZE;
        let owners =
            round.owners.decided().iter().skip(first as usize).take((BLOCK_SIZE / TABLE_ENTRY_SIZE) as usize);
        for owner in owners {
            if let Some(Owner::File { ino, block, unwritten: false }) = Owner::decode(*owner)
                && is_cold(round, ino, block)
            {
                inodes.insert(ino);
            }
        }
    }
    for ino in inodes.into_iter().filter_map(|ino| u32::try_from(ino.0).ok()) {
        let text = "lines of its blocks over cold copies may not be the newest";
        round.actions.lose(ino, text.into());
    }
}

fn text_of_changed(name: &str) -> String {
    format!("{name}: its bytes were changed; what no structure tells stays as it is")
}

fn turn_bit_back(view: &PoolView, superblock: &Superblock, overlay: &mut Overlay, page: PmBlock) -> bool {
    let geometry = superblock.geometry();
    let found = checksums::wrong_bit((&view.pm, overlay), &geometry, &superblock.uuid, page);
    if let Some((at, byte)) = found {
        overlay.write(at, &[byte]);
    }
    found.is_some()
}

/// Whether no other structure tells what lies on a page: on inode pages, leaves of the catalog, and the block table where it is
/// the file map.
fn is_only_witness(view: &PoolView, overlay: &Overlay, geometry: &Geometry, (page, owner): Metadata) -> bool {
    match owner {
        _ if geometry.is_table(page) => geometry.map.is_table(),
        Some(Owner::Page { kind: PageKind::InodePage, .. }) => true,
        Some(Owner::Page { kind: PageKind::CatalogPage, .. }) => !is_inner(view, overlay, page),
        _ => false,
    }
}

/// The page of the catalog on a page, if its header can be.
fn catalog_page(view: &PoolView, overlay: &Overlay, page: PmBlock) -> Option<Page> {
    let mut found = Page::new(0);
    overlay.read(&view.pm, page.offset(), found.0.as_mut_slice()).ok()?;
    found.verify_header("").is_ok().then_some(found)
}

/// Whether a page is an inner page of the catalog. A page with a damaged header may be a leaf.
fn is_inner(view: &PoolView, overlay: &Overlay, page: PmBlock) -> bool {
    catalog_page(view, overlay, page).is_some_and(|found| found.level() > 0)
}

/// Opens the checksum words of pages that do not match their checksums. From here on only a page's structure
/// tells which of its parts are sound.
pub(crate) fn open_faulty_pages(
    view: &PoolView,
    superblock: &Superblock,
    overlay: &mut Overlay,
    actions: &mut Actions,
) -> bool {
    let geometry = superblock.geometry();
    let mut opened = false;
    for page in checksummed_pages(&geometry) {
        let Some((page, owner)) = metadata(view, overlay, &geometry, page) else { continue };
        let Some(code) = checksums::fault((&view.pm, overlay), &geometry, &superblock.uuid, page) else {
            continue;
        };
        opened = true;
        let word = geometry.checksum_word(page);
        let name = checksums::describe(&geometry, page, owner);
        if code == Code::PageChecksum {
            if turn_bit_back(view, superblock, overlay, page) {
                actions.add(format!("{name}: the one wrong bit is turned back"));
                continue;
            }
            // The block table is a second witness of a shared map.
            if !geometry.is_map_area(page) {
                note_changed(view, overlay, actions, (page, owner), &name);
            }
        }
        // An unreadable line of checksum words is written whole, so the other pages of the line are open then
        // as well.
        let (place, length) =
            if code == Code::PmUnreadable { (PmOffset(word.0 & !63), 64) } else { (word, 8) };
        overlay.write(place, [0; 64].split_at(length).0);
        actions.add(match code {
            Code::PmUnreadable => format!("{name}: its checksum cannot be read and is removed"),
            Code::ChecksumWord => format!("{name}: its damaged checksum word is removed"),
            _ => text_of_changed(&name),
        });
    }
    opened
}

/// Lists all inodes on a page whose bytes were changed: their metadata may be wrong. Set-id bits on such a
/// page are removed, because no second structure confirms them.
fn note_changed(
    view: &PoolView,
    overlay: &mut Overlay,
    actions: &mut Actions,
    (page, owner): (PmBlock, Option<Owner>),
    name: &str,
) {
    const SET_ID: u32 = 0o6000;
    const DIRECTORY: u32 = 0o04;
    let (kind, datum) = match owner {
        Some(Owner::Page { kind, datum }) => (kind, datum),
        _ => return actions.lose_some(format!("{name}: its bytes were changed")),
    };
    match kind {
        PageKind::MapNode => actions.lose(datum, "a page of its map was changed".into()),
        PageKind::InodePage => {
            for index in 0..SLOTS_PER_PAGE {
                let mut slot = InodeSlot::zeroed();
                let at = page.offset().plus(index * SLOT_SIZE);
                if overlay.read(&view.pm, at, slot.as_mut_bytes()).is_err() || slot.mode.get() == 0 {
                    continue;
                }
                let ino = u64::from(datum) * SLOTS_PER_PAGE + index;
                let text = "its size, mode, owner and times may not be what they were".to_string();
                actions.lose(ino as u32, text);
                // A type that cannot be may become that of a file.
                if slot.mode.get() >> 12 != DIRECTORY && slot.mode.get() & SET_ID != 0 {
                    slot.mode = (slot.mode.get() & !SET_ID).into();
                    overlay.write(at, slot.as_bytes());
                    actions.lose(ino as u32, "its set-id bits are removed".into());
                }
            }
        }
        PageKind::CatalogPage => {
            let leaf = catalog_page(view, overlay, page).filter(|found| found.level() == 0);
            let Some(leaf) = leaf else {
                return actions.lose_some(format!("{name}: its bytes were changed"));
            };
            let inode = |index| u32::try_from(Key::split(leaf.cell(index).ok()?.0)?.0).ok();
            let inodes: BTreeSet<u32> = (0..leaf.count()).filter_map(inode).collect();
            for ino in inodes.into_iter().filter(|ino| *ino != 0) {
                let text =
                    "names in it, its target, its attributes or its cold map may not be what they were";
                actions.lose(ino, text.into());
            }
        }
        _ => actions.lose_some(format!("{name}: its bytes were changed")),
    }
}

/// Unreadable root words count as zeros: the block table still names the pages of their trees.
pub(crate) fn forget_unreadable_roots(view: &PoolView, geometry: &Geometry, overlay: &mut Overlay) -> bool {
    let mut forgotten = false;
    let lines = (0..BLOCK_SIZE).step_by(64);
    for offset in lines.map(|at| ROOTS_BLOCK.offset().plus(at)) {
        if overlay.read(&view.pm, offset, &mut [0; 64]).is_err() {
            overlay.write(offset, &[0; 64]);
            checksums::open(overlay, geometry, offset, 64);
            forgotten = true;
        }
    }
    forgotten
}
