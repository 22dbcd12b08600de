//! The bytes of a simulated PM, as a crash test handles them by the thousand: pages, and groups of pages, are shared
//! between copies until one of them is written, and a hash of the whole content is kept up to date.
//!
//! Invariants: the last group is filled up with pages of zeros; the hash is the exclusive or of a hash per line, a line of
//! zeros counts as 0; so it depends on the content alone, not on the order of stores. Used by `recorded` and `crash_image`
//! only; the lengths are whole lines.

use std::sync::Arc;
use terrace_format::address::LINE_SIZE;

const PAGE_BYTES: usize = 4096;
const LINE_BYTES: usize = LINE_SIZE as usize;

/// A copy of an image counts its groups, not its pages: 32 for 2 MiB.
const GROUP_PAGES: usize = 16;

type Page = [u8; PAGE_BYTES];
type Group = [Arc<Page>; GROUP_PAGES];

/// Bytes of a simulated PM. Cheap to clone.
#[derive(Clone)]
pub struct PmImage {
    groups: Vec<Arc<Group>>,
    length: usize,
    hash: u64,
}

impl PmImage {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True of an image without bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// A hash of the content. Images that differ share it by accident only (64 bits).
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// All bytes, to look at or to damage on purpose.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.pages().flat_map(|page| page.iter().copied()).collect();
        bytes.truncate(self.length);
        bytes
    }

    /// Copies bytes out; false, with nothing copied, when they are out of bounds.
    #[must_use]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        if !self.holds(offset, into.len()) {
            return false;
        }
        let mut at = offset as usize;
        let mut rest = into;
        while !rest.is_empty() {
            let within = at % PAGE_BYTES;
            let (piece, tail) = rest.split_at_mut((PAGE_BYTES - within).min(rest.len()));
            if let Some(from) =
                self.page(at / PAGE_BYTES).and_then(|page| page.get(within..within + piece.len()))
            {
                piece.copy_from_slice(from);
            }
            at += piece.len();
            rest = tail;
        }
        true
    }

    /// Stores bytes; false, with nothing stored, when they are out of bounds.
    #[must_use]
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> bool {
        if !self.holds(offset, bytes.len()) {
            return false;
        }
        let mut at = offset as usize;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = at % LINE_BYTES;
            let (piece, tail) = rest.split_at((LINE_BYTES - within).min(rest.len()));
            self.edit_line((at / LINE_BYTES) as u64, |line| {
                if let Some(place) = line.get_mut(within..within + piece.len()) {
                    place.copy_from_slice(piece);
                }
            });
            at += piece.len();
            rest = tail;
        }
        true
    }

    /// The content of a line; zeros out of bounds.
    pub(crate) fn line(&self, line: u64) -> [u8; LINE_BYTES] {
        let mut bytes = [0; LINE_BYTES];
        let _ = self.read(line * LINE_SIZE, &mut bytes);
        bytes
    }

    /// Changes a line.
    pub(crate) fn edit_line(&mut self, line: u64, edit: impl FnOnce(&mut [u8; LINE_BYTES])) {
        let at = line as usize * LINE_BYTES;
        let page = page_mut(&mut self.groups, at / PAGE_BYTES);
        let Some(bytes) =
            page.and_then(|page| page.get_mut(at % PAGE_BYTES..)?.first_chunk_mut::<LINE_BYTES>())
        else {
            return;
        };
        self.hash ^= line_hash(line, bytes);
        edit(bytes);
        self.hash ^= line_hash(line, bytes);
    }

    fn pages(&self) -> impl Iterator<Item = &Arc<Page>> {
        self.groups.iter().flat_map(|group| group.iter())
    }

    fn page(&self, number: usize) -> Option<&Arc<Page>> {
        self.groups.get(number / GROUP_PAGES)?.get(number % GROUP_PAGES)
    }

    fn holds(&self, offset: u64, length: usize) -> bool {
        offset.checked_add(length as u64).is_some_and(|end| end <= self.length as u64)
    }
}

/// A page of these groups alone.
fn page_mut(groups: &mut [Arc<Group>], number: usize) -> Option<&mut Page> {
    let group = Arc::make_mut(groups.get_mut(number / GROUP_PAGES)?);
    Some(Arc::make_mut(group.get_mut(number % GROUP_PAGES)?))
}

impl From<Vec<u8>> for PmImage {
    /// Rounded up to a line.
    fn from(bytes: Vec<u8>) -> PmImage {
        let zeros = Arc::new([0; PAGE_BYTES]);
        let (mut pages, mut hash) = (Vec::new(), 0);
        for (number, chunk) in bytes.chunks(PAGE_BYTES).enumerate() {
            if chunk.iter().all(|byte| *byte == 0) {
                pages.push(Arc::clone(&zeros));
                continue;
            }
            let mut page = [0; PAGE_BYTES];
            for (to, from) in page.iter_mut().zip(chunk) {
                *to = *from;
            }
            for (index, line) in page.as_chunks::<LINE_BYTES>().0.iter().enumerate() {
                hash ^= line_hash((number * PAGE_BYTES / LINE_BYTES + index) as u64, line);
            }
            pages.push(Arc::new(page));
        }
        let page = |number: usize| Arc::clone(pages.get(number).unwrap_or(&zeros));
        let group = |number: usize| Arc::new(std::array::from_fn(|index| page(number * GROUP_PAGES + index)));
        let groups: Vec<_> = (0..pages.len().div_ceil(GROUP_PAGES)).map(group).collect();
        let length = bytes.len().next_multiple_of(LINE_BYTES);
        assert!(length <= groups.len() * GROUP_PAGES * PAGE_BYTES, "{length} bytes of {} pages", pages.len());
        PmImage { groups, length, hash }
    }
}

impl PartialEq for PmImage {
    fn eq(&self, other: &PmImage) -> bool {
        let same = |(a, b): (&Arc<Page>, &Arc<Page>)| Arc::ptr_eq(a, b) || a == b;
        self.length == other.length && self.pages().zip(other.pages()).all(same)
    }
}

impl Eq for PmImage {}

impl std::fmt::Debug for PmImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PmImage({} bytes, {:#018x})", self.length, self.hash)
    }
}

/// The part of an image's hash that one line adds.
pub(crate) fn line_hash(line: u64, bytes: &[u8; LINE_BYTES]) -> u64 {
    if *bytes == [0; LINE_BYTES] {
        return 0;
    }
    let mut hash = line.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for word in bytes.as_chunks::<8>().0 {
        hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29);
    }
    (hash ^ (hash >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_the_content_alone() {
        let mut a = PmImage::from(vec![0; 9000]);
        assert_eq!((a.len(), a.hash()), (9024, 0));
        let b = a.clone();
        assert!(a.write(4090, b"across two pages"));
        assert!(!a.write(9020, b"outside"));
        assert_ne!(a, b);
        let again = PmImage::from(a.to_vec());
        assert_eq!(again, a);
        assert_eq!(again.hash(), a.hash());
        let mut found = [0; 16];
        assert!(a.read(4090, &mut found));
        assert_eq!(&found, b"across two pages");
        assert!(a.write(4090, &[0; 16]));
        assert_eq!(a.hash(), b.hash());
        assert_eq!(a, b);
    }
}
