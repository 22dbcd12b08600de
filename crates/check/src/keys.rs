//! Judges the meaning of catalog keys, in key order (format.md "Keys and values").

use crate::checker::Checker;
use crate::code::Code;
use crate::inode_record::InodeRecord;
use siphasher::sip::SipHasher13;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use terrace_format::FileBlock;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::inode::flag;
use terrace_format::keys::{ColdExtent, Kind, MAX_INTENTS, MAX_KEY, MAX_VALUE};

/// Longest extended attribute.
const MAX_XATTR_BYTES: u64 = 64 << 10;
/// Bits of the name's hash in a cookie; below them lies the collision number.
const COOKIE_HASH_MASK: u64 = (1 << 55) - 1;

/// Parts of an attribute seen so far.
struct XattrRun {
    name: Vec<u8>,
    next: u32,
    total: u64,
    seen: u64,
}

/// State kept between the keys of an inode.
pub struct KeyRun {
    pub shard: u32,
    /// The previous key of the shard.
    pub last: Option<Vec<u8>>,
    ino: Option<u64>,
    /// Fingerprints of the names in the directory.
    names: HashSet<u128>,
    hashers: [RandomState; 2],
    xattr: Option<XattrRun>,
    symlink_next: u32,
    cold_end: u64,
    intents: u32,
}

impl KeyRun {
    pub fn new(shard: u32) -> KeyRun {
        KeyRun {
            shard,
            last: None,
            ino: None,
            names: HashSet::new(),
            hashers: [RandomState::new(), RandomState::new()],
            xattr: None,
            symlink_next: 0,
            cold_end: 0,
            intents: 0,
        }
    }
}

impl Checker<'_> {
    /// Judges one key.
    pub fn key(&mut self, run: &mut KeyRun, key: &[u8], value: &[u8]) {
        let parts = terrace_format::keys::Key::split(key);
        let Some((ino, kind, sub)) = parts.filter(|_| key.len() <= MAX_KEY) else {
            self.report(Code::KeyUnknown, || format!("{key:02x?}"));
            return;
        };
        if ino % u64::from(self.geometry.catalog_shards) != u64::from(run.shard) {
            let shard = run.shard;
            self.report(Code::CatalogShard, || format!("shard {shard}: {key:02x?}"));
        }
        if kind == Kind::Chunk as u8 {
            if let [device] = sub {
                self.chunk_key(ino, *device, value);
            } else {
                self.report(Code::KeyUnknown, || format!("{key:02x?}"));
            }
            return;
        }
        if run.ino != Some(ino) {
            self.end_of_inode(run);
            run.ino = Some(ino);
        }
        let Some(record) = self.inode(ino).cloned() else {
            if self.is_unread(ino) {
                return;
            }
            self.report(Code::KeyInode, || format!("{key:02x?}: no such inode"));
            return;
        };
        let (allowed, needs, numbers) = match kind {
            1 => (record.is_directory(), 0, 8),
            2 => (true, flag::HAS_XATTR, 0),
            3 => (record.is_symlink(), flag::HAS_SYMLINK, 2),
            4 => (record.is_regular(), flag::HAS_COLD, 4),
            5 => (record.is_regular(), flag::HAS_INTENT, 4),
            _ => {
                self.report(Code::KeyUnknown, || format!("{key:02x?}"));
                return;
            }
        };
        if !allowed {
            self.report(Code::KeyInode, || format!("{key:02x?}: mode {:#o}", record.mode));
            return;
        }
        if record.flags & needs != needs {
            self.report(Code::KeyFlag, || format!("{key:02x?}: flags {:#x}", record.flags));
        }
        if numbers > 0 && sub.len() != numbers {
            self.report(Code::KeyUnknown, || format!("{key:02x?}"));
            return;
        }
        if value.len() > MAX_VALUE {
            self.report(Code::KeyValue, || format!("{key:02x?}: {} bytes", value.len()));
        }
        let number = sub.iter().take(8).fold(0u64, |n, byte| n << 8 | u64::from(*byte));
        match kind {
            // The reclaimer removes an orphan's keys a few at a time.
            2 | 3 if record.flags & flag::ORPHAN != 0 => {}
            1 => self.dentry(run, &record, number, value),
            2 => self.xattr(run, ino, sub, value),
            3 => self.symlink(run, ino, number, value),
            4 => self.cold_key(run, &record, key, value),
            _ => self.intent(run, &record, number, value),
        }
    }

    fn dentry(&mut self, run: &mut KeyRun, directory: &InodeRecord, cookie: u64, value: &[u8]) {
        let at = directory.ino;
        self.summary.dentries += 1;
        if let Some(directory) = self.inode_mut(at.into()) {
            directory.names.entries += 1;
        }
        let Some(([i0, i1, i2, i3, kind], name)) = value.split_first_chunk::<5>() else {
            self.report(Code::KeyValue, || format!("directory {at}: entry {value:02x?}"));
            return;
        };
        let target = u32::from_le_bytes([*i0, *i1, *i2, *i3]);
        let shown = || String::from_utf8_lossy(name).into_owned();
        let sound = (1..=255).contains(&name.len()) && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
        if !sound || name == b"." || name == b".." {
            self.report(Code::DentryName, || format!("directory {at}: {:?}", shown()));
        }
        let hash = SipHasher13::new_with_key(&self.superblock.hash_key).hash(name);
        if cookie >> 8 != (hash & COOKIE_HASH_MASK).max(1) {
            self.report(Code::DentryCookie, || {
                format!("directory {at}: {:?} has cookie {cookie:#x}", shown())
            });
        }
        let [first, second] = &run.hashers;
        let print = u128::from(first.hash_one(name)) << 64 | u128::from(second.hash_one(name));
        if !run.names.insert(print) {
            self.report(Code::DentryDuplicate, || format!("directory {at}: {:?}", shown()));
        }
        if self.is_unread(target.into()) {
            return;
        }
        let Some(record) = self.inode_mut(target.into()) else {
            self.report(Code::DentryTarget, || format!("directory {at}: {:?} names inode {target}", shown()));
            return;
        };
        record.names.count = record.names.count.saturating_add(1);
        record.names.named_by = at;
        let (found, is_directory) = (record.file_type(), record.is_directory());
        if found != u32::from(*kind) {
            self.report(Code::DentryType, || {
                format!("directory {at}: {:?} says {kind:#o}, inode {target} is {found:#o}", shown())
            });
        }
        if is_directory && let Some(directory) = self.inode_mut(at.into()) {
            directory.names.subdirectories = directory.names.subdirectories.saturating_add(1);
        }
    }

    fn xattr(&mut self, run: &mut KeyRun, ino: u64, sub: &[u8], value: &[u8]) {
        let (name, part) = match sub.split_last_chunk::<3>() {
            Some((name, [0, high, low])) if (1..=255).contains(&name.len()) && !name.contains(&0) => {
                (name, u32::from(u16::from_be_bytes([*high, *low])))
            }
            _ => {
                self.report(Code::KeyUnknown, || format!("inode {ino}: attribute {sub:02x?}"));
                return;
            }
        };
        if let Some(current) = &mut run.xattr
            && current.name == name
        {
            current.seen += value.len() as u64;
            let consecutive = current.next == part;
            current.next += 1;
            if !consecutive {
                self.report(Code::XattrParts, || format!("inode {ino}: {sub:02x?}"));
            }
            return;
        }
        self.end_of_xattr(run);
        let total = value.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes));
        if part != 0 || total.is_none_or(|total| u64::from(total) > MAX_XATTR_BYTES) {
            self.report(Code::XattrParts, || format!("inode {ino}: {sub:02x?}, total {total:?}"));
            return;
        }
        run.xattr = Some(XattrRun {
            name: name.to_vec(),
            next: 1,
            total: total.unwrap_or(0).into(),
            seen: value.len().saturating_sub(4) as u64,
        });
    }

    fn end_of_xattr(&mut self, run: &mut KeyRun) {
        if let Some(done) = run.xattr.take()
            && done.seen != done.total
        {
            let ino = run.ino.unwrap_or(0);
            self.report(Code::XattrParts, || {
                format!("inode {ino}: {:02x?}: {} of {} bytes", done.name, done.seen, done.total)
            });
        }
    }

    fn symlink(&mut self, run: &mut KeyRun, ino: u64, part: u64, value: &[u8]) {
        if part != u64::from(run.symlink_next) {
            self.report(Code::SymlinkTarget, || format!("inode {ino}: part {part}"));
        }
        run.symlink_next += 1;
        if let Some(record) = self.inode_mut(ino) {
            record.content.target_bytes += value.len() as u64;
        }
    }

    fn cold_key(&mut self, run: &mut KeyRun, record: &InodeRecord, key: &[u8], value: &[u8]) {
        let extent = match ColdExtent::decode(key, value) {
            Ok(extent) => extent,
            Err(corrupt) => {
                self.report(Code::KeyValue, || corrupt.to_string());
                return;
            }
        };
        let FileBlock(first) = extent.first;
        let end = first.saturating_add(extent.length.into());
        if first < run.cold_end {
            let ino = record.ino;
            self.report(Code::ColdOverlap, || format!("inode {ino}, block {first}"));
        }
        run.cold_end = run.cold_end.max(end);
        if end > MAX_FILE_BLOCK.0 + 1 {
            let ino = record.ino;
            self.report(Code::ColdRange, || format!("inode {ino}, block {first}"));
        }
        let shadows = self.shadowed(record, first, extent.length);
        if let Some(record) = self.inode_mut(record.ino.into()) {
            record.content.mapped += u64::from(extent.length.saturating_sub(shadows.any.count_ones()));
            if !extent.unwritten {
                record.content.written_end = record.content.written_end.max(end);
            }
        }
        let whole = if extent.unwritten { shadows.any } else { self.whole_shadows(&shadows) };
        self.cold_extent(record.ino, &extent, whole);
    }

    fn intent(&mut self, run: &mut KeyRun, record: &InodeRecord, first: u64, value: &[u8]) {
        let ino = record.ino;
        self.summary.intents += 1;
        run.intents += 1;
        if run.intents == MAX_INTENTS as u32 + 1 {
            self.report(Code::IntentCount, || format!("inode {ino}"));
        }
        let fields = value
            .split_first_chunk::<4>()
            .and_then(|(generation, end)| Some((*generation, <[u8; 8]>::try_from(end).ok()?)));
        let Some((generation, end)) = fields else {
            self.report(Code::KeyValue, || format!("inode {ino}: intent {value:02x?}"));
            return;
        };
        let (generation, end) = (u32::from_le_bytes(generation), u64::from_le_bytes(end));
        if generation != record.generation {
            let current = record.generation;
            self.report(Code::IntentGeneration, || {
                format!("inode {ino}: {generation}, the inode has {current}")
            });
        }
        if first >= end || end > MAX_FILE_BLOCK.0 + 1 {
            self.report(Code::IntentRange, || format!("inode {ino}: blocks {first} to {end}"));
            return;
        }
        if let Some(record) = self.inode_mut(ino.into()) {
            record.content.intent_end = record.content.intent_end.max(end);
        }
    }

    /// Call after the last key of an inode.
    pub(crate) fn end_of_inode(&mut self, run: &mut KeyRun) {
        self.end_of_xattr(run);
        run.names.clear();
        (run.symlink_next, run.cold_end, run.intents) = (0, 0, 0);
        run.ino = None;
    }
}
