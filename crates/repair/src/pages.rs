//! Pages in PM whose bytes do not match their checksums, and root words that cannot be read.
//!
//! Invariant: the checksum word of a page is open before the overlay has other bytes of the page.

use crate::state::actions::Actions;
use std::collections::BTreeSet;
use terrace_check::overlay::Overlay;
use terrace_check::{Code, PoolView, checksums};
use terrace_format::geometry::ROOTS_BLOCK;
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE};
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_format::superblock::Superblock;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, Geometry, PmBlock, PmOffset};
use zerocopy::IntoBytes;

/// Opens the checksum words of pages that do not match their checksums. From here on only a page's structure
/// tells which of its parts are sound.
pub(crate) fn open_faulty_pages(
    view: &PoolView,
    superblock: &Superblock,
    overlay: &mut Overlay,
    actions: &mut Actions,
) -> bool {
    let geometry = superblock.geometry();
    let pages = 0..if geometry.checksummed { geometry.block_count() } else { 0 };
    let mut opened = false;
    for page in pages.map(PmBlock) {
        let owner = checksums::owner(&view.pm, overlay, &geometry, page);
        let is_fixed = page == ROOTS_BLOCK || geometry.is_table(page) || geometry.is_map_area(page);
        if !is_fixed && !matches!(owner, Some(Owner::Page { .. })) {
            continue;
        }
        let Some(code) = checksums::fault((&view.pm, overlay), &geometry, &superblock.uuid, page) else {
            continue;
        };
        opened = true;
        let word = geometry.checksum_word(page);
        let name = checksums::describe(&geometry, page, owner);
        if code == Code::PageChecksum {
            if let Some((at, byte)) =
                checksums::wrong_bit((&view.pm, overlay), &geometry, &superblock.uuid, page)
            {
                overlay.write(at, &[byte]);
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
            _ => format!("{name}: its bytes were changed; what no structure tells stays as it is"),
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
                if slot.is_regular() && slot.mode.get() & SET_ID != 0 {
                    slot.mode = (slot.mode.get() & !SET_ID).into();
                    overlay.write(at, slot.as_bytes());
                    actions.lose(ino as u32, "its set-id bits are removed".into());
                }
            }
        }
        PageKind::CatalogPage => {
            let mut leaf = Page::new(0);
            let is_read = overlay.read(&view.pm, page.offset(), leaf.0.as_mut_slice()).is_ok();
            if !is_read || leaf.verify_header(name).is_err() || leaf.level() > 0 {
                return actions.lose_some(format!("{name}: its bytes were changed"));
            }
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
