//! The repair journal (docs/format.md "Repair journal"): all in-place changes are first written to free
//! blocks, and a mark in the superblock names them; so after a crash at any point the next repair finishes
//! the work.
//!
//! Order: new pages and journal, `order`; superblock copy A marked, `order`; copy B marked, `order`; changes,
//! copy B plain, `order`; copy A plain, `order`; the caller persists at the end. So copy B is marked only
//! while copy A is marked, and one copy is sound at every instant.

use crate::state::Round;
use crate::state::actions::Stuck;
use terrace_check::overlay::Overlay;
use terrace_format::checksum::crc32c;
use terrace_format::geometry::SUPERBLOCK_COPIES;
use terrace_format::superblock::Superblock;
use terrace_format::version::REPAIRING;
use terrace_format::{BLOCK_SIZE, Geometry, PmBlock, PmOffset};
use terrace_media::{MediaError, PmMedium};
use zerocopy::IntoBytes;

/// Magic number of a journal block.
const MAGIC: [u8; 8] = *b"TERRJRN0";
/// Magic number and next block.
const HEADER_BYTES: usize = 16;
/// Bytes of the content in one block.
const PAYLOAD_BYTES: usize = BLOCK_SIZE as usize - HEADER_BYTES;
/// Header of an entry: offset, length, kind.
const ENTRY_HEADER_BYTES: usize = 16;
const KIND_BYTES: u32 = 0;
const KIND_ZEROS: u32 = 1;

/// Changes in place, encoded.
#[derive(Default)]
pub(crate) struct Changes {
    content: Vec<u8>,
}

impl Changes {
    fn entry(&mut self, offset: PmOffset, length: u32, kind: u32) {
        assert!(length > 0, "a change of no byte at {offset}");
        self.content.extend_from_slice(&offset.0.to_le_bytes());
        self.content.extend_from_slice(&length.to_le_bytes());
        self.content.extend_from_slice(&kind.to_le_bytes());
    }
    fn bytes(&mut self, offset: PmOffset, bytes: &[u8]) {
        self.entry(offset, bytes.len() as u32, KIND_BYTES);
        self.content.extend_from_slice(bytes);
    }
    pub fn zeros(&mut self, mut offset: PmOffset, end: PmOffset) {
        while offset < end {
            let length = (end.0 - offset.0).min(1 << 20);
            self.entry(offset, length as u32, KIND_ZEROS);
            offset = offset.plus(length);
        }
    }

    /// Collects the lines of the overlay that differ from PM and lie in used blocks. Lines of new pages need
    /// no journal.
    pub fn collect(&mut self, round: &Round<'_>, overlay: &Overlay) -> Result<(), Stuck> {
        for (offset, bytes, written) in overlay.lines() {
            let block = offset.block().0;
            let is_fresh = round.fresh.taken().contains(&block);
            if round.pool.in_pool(block) && (round.owners.is_open(block) || is_fresh) {
                continue;
            }
            let mut line = [0; 64];
            match round.pool.view.pm.read(offset, &mut line) {
                Ok(()) => {}
                Err(_) if written == u64::MAX => {}
                Err(error) => return Err(Stuck(format!("{error}: what is left of it is needed"))),
            }
            let before = line;
            for (at, (place, byte)) in line.iter_mut().zip(bytes).enumerate() {
                if written >> at & 1 == 1 {
                    *place = *byte;
                }
            }
            if line != before || round.pool.view.pm.read(offset, &mut [0; 64]).is_err() {
                self.bytes(offset, &line);
            }
        }
        Ok(())
    }
}

/// Offset, length, bytes or `None` for zeros.
type Entry<'a> = (PmOffset, u64, Option<&'a [u8]>);

/// Splits content into entries.
fn entries(content: &[u8]) -> Option<Vec<Entry<'_>>> {
    let mut found = Vec::new();
    let mut rest = content;
    while !rest.is_empty() {
        let (head, tail) = rest.split_first_chunk::<ENTRY_HEADER_BYTES>()?;
        let (offset, more) = head.split_first_chunk::<8>()?;
        let (length, kind) = more.split_first_chunk::<4>()?;
        let length = u64::from(u32::from_le_bytes(*length));
        let offset = PmOffset(u64::from_le_bytes(*offset));
        match u32::from_le_bytes(kind.try_into().ok()?) {
            KIND_BYTES => {
                let (bytes, tail) = tail.split_at_checked(length as usize)?;
                found.push((offset, length, Some(bytes)));
                rest = tail;
            }
            KIND_ZEROS => {
                found.push((offset, length, None));
                rest = tail;
            }
            _ => return None,
        }
    }
    Some(found)
}

fn apply(pm: &dyn PmMedium, content: &[u8]) -> Result<(), MediaError> {
    for (offset, length, bytes) in entries(content).unwrap_or_default() {
        match bytes {
            Some(bytes) => pm.write(offset, bytes)?,
            None => zero(pm, offset, length)?,
        }
    }
    Ok(())
}

fn zero(pm: &dyn PmMedium, offset: PmOffset, length: u64) -> Result<(), MediaError> {
    let mut at = 0;
    while at < length {
        let take = (length - at).min(BLOCK_SIZE);
        pm.write_streaming(offset.plus(at), [0; BLOCK_SIZE as usize].split_at(take as usize).0)?;
        at += take;
    }
    Ok(())
}

/// A line can neither be read nor written. `healed`: an unreadable line before it was written and holds zeros
/// now.
struct Unhealed {
    healed: bool,
    why: Stuck,
}

/// Puts zeros over unreadable target lines: their content is lost already, and a line that cannot be written
/// either is found before the first change.
fn heal(pm: &dyn PmMedium, content: &[u8]) -> Result<(), Unhealed> {
    let mut healed = false;
    for (offset, length, _) in entries(content).unwrap_or_default() {
        let mut at = 0;
        while at < length {
            let (take, place) = ((length - at).min(64), offset.plus(at));
            let mut line = [0; 64];
            if pm.read(place, line.split_at_mut(take as usize).0).is_err() {
                let zeros = [0; 64];
                let written = pm.write(place, zeros.split_at(take as usize).0);
                let stuck = |error| Stuck(format!("{error}: can neither be read nor written"));
                written.map_err(|error| Unhealed { healed, why: stuck(error) })?;
                healed = true;
            }
            at += take;
        }
    }
    Ok(())
}

/// The superblock as it is without a repair under way.
pub(crate) fn plain(superblock: &Superblock) -> Superblock {
    let mut plain = *superblock;
    plain.features.incompatible = (plain.features.incompatible.get() & !REPAIRING).into();
    (plain.journal.block, plain.journal.bytes, plain.journal.crc) = (0.into(), 0.into(), 0.into());
    plain.seal();
    plain
}

/// Writes a copy of the superblock, then orders. So no in-place change is durable before both marks, and no
/// mark is removed before all changes are durable.
fn write_copy(pm: &dyn PmMedium, copy: usize, superblock: &Superblock) -> Result<(), MediaError> {
    if let Some(place) = SUPERBLOCK_COPIES.get(copy) {
        pm.write(place.offset(), superblock.as_bytes())?;
    }
    pm.order();
    Ok(())
}

/// The bytes of a copy; `None` when they cannot be read.
fn read_copy(pm: &dyn PmMedium, copy: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; size_of::<Superblock>()];
    pm.read(SUPERBLOCK_COPIES.get(copy)?.offset(), &mut bytes).ok()?;
    Some(bytes)
}

fn is_sound(pm: &dyn PmMedium, copy: usize) -> bool {
    read_copy(pm, copy).is_some_and(|bytes| Superblock::verify_repairing(&bytes, false).is_ok())
}

/// Makes both copies the plain superblock where they are not. A damaged copy is written first, else copy B.
pub(crate) fn mend_superblocks(pm: &dyn PmMedium, superblock: &Superblock) -> Result<bool, MediaError> {
    let plain = plain(superblock);
    let order = if is_sound(pm, 0) { [1, 0] } else { [0, 1] };
    let mut mended = false;
    for copy in order {
        if read_copy(pm, copy).is_none_or(|bytes| bytes != plain.as_bytes()) {
            write_copy(pm, copy, &plain)?;
            mended = true;
        }
    }
    Ok(mended)
}

/// Writes new pages and the journal, publishes it, makes the changes, and takes the mark away.
pub(crate) fn commit(pm: &dyn PmMedium, round: &mut Round<'_>, changes: &Changes) -> Result<(), Stuck> {
    let broken = |error: MediaError| Stuck(format!("{error}; run the repair again"));
    for block in round.fresh.taken().clone() {
        if let Some(bytes) = round.pool.block(block).filter(|_| !round.owners.is_open(block)) {
            pm.write_streaming(PmBlock(block).offset(), bytes.as_slice()).map_err(broken)?;
        }
    }
    let pieces: Vec<&[u8]> = changes.content.chunks(PAYLOAD_BYTES).collect();
    let Round { pool, owners, fresh, .. } = round;
    let blocks = pieces.iter().map(|_| fresh.allocate_unowned(pool, owners));
    let blocks = blocks.collect::<Result<Vec<u64>, Stuck>>()?;
    assert_eq!(blocks.len(), pieces.len(), "each piece of the journal has a block");
    assert!(blocks.iter().all(|block| owners.is_open(*block)), "the journal lies in used blocks");
    let next = blocks.iter().skip(1).copied().chain([0]);
    for ((block, next), piece) in blocks.iter().zip(next).zip(pieces) {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&next.to_le_bytes());
        bytes.extend_from_slice(piece);
        assert!(bytes.len() as u64 <= BLOCK_SIZE, "a piece longer than a block");
        bytes.resize(BLOCK_SIZE as usize, 0);
        pm.write_streaming(PmBlock(*block).offset(), &bytes).map_err(broken)?;
    }
    let plain = plain(&round.pool.superblock);
    let mut marked = plain;
    marked.features.incompatible = (marked.features.incompatible.get() | REPAIRING).into();
    marked.journal.block = blocks.first().copied().unwrap_or(0).into();
    marked.journal.bytes = (changes.content.len() as u64).into();
    marked.journal.crc = crc32c(&changes.content).into();
    marked.seal();
    assert!(marked.is_repairing() && !plain.is_repairing(), "the marks do not tell a repair");
    // The next repair finishes each marked journal that is whole. No checksum covers the new pages, so they
    // are ordered before the mark.
    pm.order();
    // Before copy A is written, copy B must be sound: a crash may tear copy A.
    if is_sound(pm, 0) && read_copy(pm, 1).is_none_or(|bytes| bytes != plain.as_bytes()) {
        write_copy(pm, 1, &plain).map_err(broken)?;
    }
    write_copy(pm, 0, &marked).map_err(broken)?;
    write_copy(pm, 1, &marked).map_err(broken)?;
    // Lines are healed only under the marks: without them a mount would take the zeros for free blocks.
    if let Err(Unhealed { healed, why }) = heal(pm, &changes.content) {
        if !healed {
            write_copy(pm, 1, &plain).map_err(broken)?;
            write_copy(pm, 0, &plain).map_err(broken)?;
        }
        return Err(why);
    }
    apply(pm, &changes.content).map_err(broken)?;
    write_copy(pm, 1, &plain).map_err(broken)?;
    write_copy(pm, 0, &plain).map_err(broken)
}

/// Finishes an interrupted repair. False when its journal is not whole: then only the marks are removed.
pub(crate) fn finish(pm: &dyn PmMedium, superblock: &Superblock) -> Result<bool, MediaError> {
    let content = read(pm, superblock);
    // Stores of a killed repair (new pages, marks) may not be durable yet: the changes must not be durable
    // before them.
    pm.order();
    if let Some(content) = &content {
        apply(pm, content)?;
        // If copy B has no mark, the next store removes the mark of copy A: the changes must be durable
        // before.
        pm.order();
    }
    mend_superblocks(pm, superblock)?;
    Ok(content.is_some())
}

fn read(pm: &dyn PmMedium, superblock: &Superblock) -> Option<Vec<u8>> {
    let geometry: Geometry = superblock.geometry();
    let pool = geometry.first_pool_block().0..geometry.block_count();
    let length = usize::try_from(superblock.journal.bytes.get()).ok()?;
    let mut next = superblock.journal.block.get();
    let mut content = Vec::new();
    // Ends: every block adds to the content, which the pool bounds.
    while content.len() < length && (content.len() as u64) < geometry.pm_size && pool.contains(&next) {
        let mut bytes = [0; BLOCK_SIZE as usize];
        pm.read(PmBlock(next).offset(), &mut bytes).ok()?;
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (link, payload) = rest.split_first_chunk::<8>()?;
        if *magic != MAGIC {
            return None;
        }
        next = u64::from_le_bytes(*link);
        content.extend_from_slice(payload.get(..(length - content.len()).min(PAYLOAD_BYTES))?);
    }
    let whole = content.len() == length && crc32c(&content) == superblock.journal.crc.get();
    let inside = |(offset, bytes, _): &Entry<'_>| {
        offset.0.checked_add(*bytes).is_some_and(|end| end <= geometry.pm_size)
    };
    let sound = whole && entries(&content).is_some_and(|found| found.iter().all(inside));
    sound.then_some(content)
}
