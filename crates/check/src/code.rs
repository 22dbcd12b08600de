//! Registry of check codes: stable numbers, a severity and one sentence each. Numbers are never reused;
//! docs/format.md and `terrace check` print this table.

use serde::{Serialize, Serializer};

/// The weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A state that a crash may leave and the next mount removes. Does not change the exit status.
    Note,
    /// The pool breaks its format or an invariant.
    Error,
    /// The pool, or a part of it, could not be judged.
    Operational,
}

/// A row of [`CODES`].
#[derive(Debug)]
pub struct CodeRow {
    /// The code.
    pub code: Code,
    /// Stable number.
    pub number: u16,
    /// Stable name.
    pub name: &'static str,
    /// See [`Severity`].
    pub severity: Severity,
    /// The meaning of the code.
    pub sentence: &'static str,
    /// The way in which `check --repair` mends it.
    pub repair: &'static str,
}

macro_rules! codes {
    ($($name:ident $number:literal $severity:ident $sentence:literal $repair:literal;)*) => {
        /// Kind of a finding. The number is stable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Code {
            $(#[doc = $sentence] $name = $number,)*
        }

        /// All codes, by number.
        pub const CODES: &[CodeRow] = &[$(CodeRow {
            code: Code::$name,
            number: $number,
            name: stringify!($name),
            severity: Severity::$severity,
            sentence: $sentence,
            repair: $repair,
        },)*];

        impl Code {
            /// The code's row of [`CODES`].
            pub fn row(self) -> &'static CodeRow {
                match self {
                    $(Code::$name => &CodeRow {
                        code: Code::$name,
                        number: $number,
                        name: stringify!($name),
                        severity: Severity::$severity,
                        sentence: $sentence,
                        repair: $repair,
                    },)*
                }
            }
        }
    };
}

codes! {
    NotAPool 101 Operational "No superblock copy has the magic number: not a Terrace pool."
        "nothing";
    Unsupported 102 Operational "The pool has a version or an incompatible feature that this program does not know."
        "nothing";
    SuperblockCopy 103 Error "A superblock copy is damaged; the other is used."
        "rewritten from the other copy";
    SuperblockLost 104 Error "Both superblock copies are damaged; nothing else can be judged."
        "nothing";
    SuperblocksDiffer 105 Error "The two superblock copies are valid but differ; the first is used."
        "the second is rewritten from the first";
    PmTooSmall 106 Error "The PM medium is smaller than the superblock says."
        "nothing";
    DeviceRow 107 Error "A row of the superblock's device table is not possible."
        "nothing";
    RepairInterrupted 108 Error "A repair was interrupted; mount refuses the pool."
        "finished from its journal";
    CheckpointCopy 111 Note "A checkpoint copy is damaged, as a crash may leave it; the other is used."
        "a note; rewritten with any other repair";
    CheckpointLost 112 Error "Both checkpoint copies are damaged; mount refuses the pool."
        "a new one; the lanes are cleared, nothing in them can be proved valid";
    CheckpointsDiffer 113 Error "Two checkpoint copies with the same sequence number differ."
        "a new one after the first copy's records";
    CheckpointClean 114 Error "The checkpoint says clean, but lanes hold valid records."
        "the records are replayed, a new checkpoint";
    CheckpointNumber 115 Error "An LSN, epoch or sequence number of the checkpoint is one that no pool reaches; mount refuses the pool."
        "as CheckpointLost, unless the other copy is possible";
    LaneTail 121 Error "A lane's tail in the checkpoint is not a possible record position; mount refuses the pool."
        "as CheckpointLost, unless the other copy is possible";
    LaneUnreadable 122 Error "A line inside a live lane cannot be read; mount refuses the pool."
        "the records before it are replayed, the lanes cleared";
    RecordTarget 123 Error "A valid record writes outside the roots, the block table, the table of the map and the pool of blocks."
        "that write is left out, the others are replayed";
    RecordLsn 124 Error "Two valid records have the same LSN, or one has an LSN that no pool reaches."
        "replayed in the order of lanes, a new checkpoint";
    RecordUnfinished 125 Note "The data named by a lane's last record does not match it: a write cut off by a crash, undone."
        "a note; undone as by a mount";
    LaneDamaged 126 Error "A record of a lane is damaged, and records behind it or in other lanes show that it was complete; mount refuses the pool."
        "the lane is cut there; the records before it are replayed, and all that is lost is said";
    RecordBit 127 Error "A lane's last record has one wrong bit; all that it changed is in place, and it counts."
        "replayed as by a mount, a new checkpoint";
    RecordInDoubt 128 Note "A lane ends in a record that is valid but for one bit, and not in place: a write cut off by a crash, undone, or a damaged bit, and its change is lost."
        "a note; undone as by a mount";
    PmUnreadable 131 Error "A range of PM cannot be read."
        "metadata is rebuilt from what else knows of it; data stays unreadable";
    PageChecksum 132 Error "A metadata page does not match its checksum; reads of it give EIO."
        "one wrong bit is turned back; else the page is judged by its structure, set-id bits go, and whatever lies on it is named as perhaps changed";
    ChecksumWord 133 Error "The checksum word of a metadata page is damaged; the page counts as open."
        "opened";
    TableOwner 201 Error "An owner word of the block table does not decode."
        "from the maps and trees";
    TableMask 202 Error "The line mask of an owned block is neither all ones nor one that a partial shadow can have."
        "all ones";
    TableFixed 203 Error "A block of the fixed area has another owner in the block table."
        "from the geometry";
    BlockRange 204 Error "A pointer names a block outside the pool of blocks, or carries unknown bits."
        "the pointer goes; the block is looked for in the block table";
    BlockTwice 205 Error "A block is reached from two places."
        "stays where the block table agrees";
    BlockOwner 206 Error "A block is reached from a place that is not its owner in the block table."
        "the table follows the map, unless another block has the owner that the map means; a block that is unwritten by either alone counts as written, and its file is named";
    BlockLeaked 207 Error "A block has an owner in the block table but is not reached from it."
        "goes back to the map that misses it, or becomes free";
    ShadowAlone 208 Error "A partial shadow has no written cold copy under it, which its other lines would come from."
        "all ones; where keys of the catalog were lost, the other lines become zeros first";
    DataChecksum 209 Error "Data of a file in PM does not match its checksum; reads of it give EIO."
        "nothing: reads give EIO until the block is written anew";
    InodeRoot 301 Error "The root word of the inode file is not possible."
        "the tree is built from the block table";
    InodePageCount 302 Error "The number of inode pages in the roots is not possible."
        "counted";
    InodePageMissing 303 Error "A page of the inode file below its page count is not mapped."
        "found in the block table, or a new page";
    InodePageExtra 304 Error "A page of the inode file at or beyond its page count is mapped."
        "counted in, if the block table agrees";
    RootDirectory 305 Error "Inode 1 is not a directory, or inode 0 is in use."
        "made anew; its names lie in the catalog";
    SlotFree 311 Error "A free inode slot still has links, blocks or orphan links."
        "cleared, or in use again when names or blocks speak for it";
    SlotMode 312 Error "An inode's mode has no known file type or unknown bits."
        "the type comes from names, keys or blocks, else freed";
    SlotFlags 313 Error "An inode has unknown flags."
        "unknown flags are cleared";
    SlotSize 314 Error "A file is larger than the largest file size."
        "up to its last block";
    SlotMap 315 Error "An inode that is not a regular file maps blocks."
        "the blocks are given back, or the type follows names and content";
    SlotSpare 316 Error "A field of an inode slot that must be zero is not."
        "cleared";
    MapRoot 401 Error "A file's radix root has an impossible height, or a height without a block."
        "the map is built from the block table";
    MapIndex 402 Error "A radix entry stands for a file block that cannot be: a direct one or one beyond the largest."
        "the entry goes";
    MapBeyondSize 403 Error "A written block lies beyond the end of file and no intent covers it."
        "the size grows to the blocks that both maps confirm; or they go when an intent was lost";
    MapBlockCount 404 Error "The block count of an inode is not the number of blocks mapped in PM or below."
        "counted";
    ExtentRoot 411 Error "A file's extent root has an impossible height or number of extents, or words behind its extents."
        "the map is built from the block table";
    ExtentNode 412 Error "An extent node has an impossible head, a place twice in its order, or keys that do not ascend."
        "the map is built from the block table";
    ExtentSpan 413 Error "An extent cannot be: of no block, beyond the last block of a file, leaf or PM, or over another."
        "the extent goes";
    CuckooEntry 421 Error "An entry of the cuckoo table cannot be: of no file, or its block or run lies outside of file or PM."
        "the entry goes; the block is looked for in the block table";
    CuckooPlace 422 Error "An entry of the cuckoo table lies in neither bucket of its block."
        "moved to a bucket of its block";
    CuckooTwice 423 Error "The cuckoo table has a block of a file twice."
        "the one that the block table confirms stays";
    CuckooRun 424 Error "An entry of the cuckoo table tells another run than its neighbours."
        "the runs of these 16 blocks are told anew";
    CuckooInode 425 Error "An entry of the cuckoo table belongs to an inode that is not in use."
        "the entry goes, unless the inode is made anew";
    CuckooSlot 426 Error "An inode slot holds words of a map although the cuckoo table is the map."
        "cleared";
    HashTwice 431 Error "The block table, which is the file map, has a block of a file twice."
        "one of the two stays";
    HashFar 432 Error "A block lies farther from its home than the map's reach, or is none that a file can have."
        "the reach is raised; an impossible block goes";
    HashReach 433 Error "The reach of the map is not possible."
        "the reach of the blocks that are there";
    HashSlot 434 Error "An inode slot holds words of a map although the block table is the map."
        "cleared";
    ClusterKey 441 Error "A key of the clustered table is none of a piece of a file."
        "the line goes; its blocks are looked for in the block table";
    ClusterValue 442 Error "A line of the clustered table maps a block outside of file, table or PM, or no block at all."
        "the value goes; the block is looked for in the block table";
    ClusterFar 443 Error "A line lies farther from its home than the map's reach."
        "the reach is raised";
    ClusterTwice 444 Error "The clustered table has a piece of a file twice."
        "a line stays, with the blocks that the block table confirms";
    ClusterInode 445 Error "A line of the clustered table belongs to an inode that is not in use."
        "the line goes, unless the inode is made anew";
    ClusterReach 446 Error "The reach of the clustered table is not possible."
        "the reach of the lines that are there";
    ClusterSlot 447 Error "An inode slot holds a map root although the clustered table is the map."
        "cleared";
    CatalogRoot 501 Error "A catalog shard's root word is not possible."
        "the shard is built from the leaves in the block table";
    CatalogPage 502 Error "A catalog page's header is damaged."
        "the shard is built from its other pages";
    CatalogLevel 503 Error "A catalog page's level is not one below its parent's, or an inner page is empty."
        "the shard is built from its other pages";
    CatalogCell 504 Error "A cell of a catalog page is damaged or overlaps another."
        "the shard is built from its other cells";
    CatalogSpace 505 Error "Cells and dead bytes of a catalog page do not add up."
        "the shard is built anew";
    CatalogOrder 506 Error "Keys of a catalog shard are not in order."
        "the shard is built anew";
    CatalogBound 507 Error "A key lies outside the separators of its page."
        "the shard is built anew";
    CatalogFirstKey 508 Error "The first key of an inner catalog page is not empty."
        "the shard is built anew";
    CatalogShard 509 Error "A key lies in a shard that is not its own."
        "the key moves to its shard";
    KeyUnknown 511 Error "A catalog key has an unknown kind or an impossible sub-key."
        "dropped";
    KeyInode 512 Error "A catalog key belongs to an inode that does not exist or cannot have such keys."
        "dropped";
    KeyFlag 513 Error "An inode has catalog keys but not the flag that says so."
        "the flag is set";
    KeyValue 514 Error "A catalog value does not decode or is too long."
        "dropped; cold extents are looked for in group summaries";
    DentryName 521 Error "A directory entry's name is not possible."
        "dropped";
    DentryCookie 522 Error "A directory entry's cookie is not the hash of its name."
        "a new cookie";
    DentryDuplicate 523 Error "A name occurs twice in a directory."
        "the later one is dropped";
    DentryTarget 524 Error "A directory entry names an inode that does not exist."
        "dropped, unless the inode can be made anew";
    DentryType 525 Error "A directory entry's file type is not its inode's."
        "the type of the inode";
    XattrParts 531 Error "The parts of an extended attribute are not consecutive or do not add up to its length."
        "the attribute is dropped";
    SymlinkTarget 532 Error "A symbolic link's target is missing or is not as long as its size says."
        "the size of its parts; without a whole target removed";
    IntentRange 541 Error "A truncation intent's range is empty or too large."
        "dropped";
    IntentGeneration 542 Error "A truncation intent has another generation than its inode."
        "that of the inode, if it expects an intent, else dropped";
    IntentCount 543 Error "An inode has more than four truncation intents."
        "the later ones are dropped";
    LinkCount 601 Error "An inode's link count is not the number of its names."
        "counted; without a name linked in lost+found";
    DirectoryLinks 602 Error "A directory's link count is not two plus its subdirectories."
        "counted";
    DirectoryNames 603 Error "A directory has more than one name, or the root directory has one."
        "one is kept";
    DirectoryParent 604 Error "A directory's parent is not the directory that names it."
        "the directory that names it";
    DirectoryUnreachable 605 Error "A directory is not reachable from the root."
        "linked in lost+found";
    DirectorySize 606 Error "A directory's size is not the number of its entries."
        "counted";
    OrphanHead 611 Error "The head of an orphan list is not an inode number in use."
        "the list is linked anew";
    OrphanMember 612 Error "A member of an orphan list is not an orphan, has links, or belongs to another list."
        "the list is linked anew";
    OrphanLink 613 Error "The links of an orphan list do not agree, or form a loop."
        "the list is linked anew";
    OrphanLost 614 Error "An orphan is on no orphan list."
        "the list is linked anew";
    DeviceAbsent 701 Operational "A device of the pool is absent; what lies on it is not judged."
        "nothing";
    DeviceHeader 702 Error "A device's header is damaged or belongs to another pool or place."
        "rewritten where the device proves to be the one meant, else nothing";
    DeviceTooSmall 703 Error "A device is smaller than its header or the superblock says."
        "nothing";
    DeviceUnreadable 704 Error "A block of a lower-tier device cannot be read."
        "nothing: reads give EIO; metadata there counts as lost if the device gives its header";
    ColdRange 711 Error "A cold extent lies outside its device or its file."
        "dropped";
    ColdOverlap 712 Error "Two cold extents of a file overlap."
        "the later one is cut";
    ColdShared 713 Error "A device block belongs to two cold extents or metadata pages."
        "stays where its checksum matches";
    ColdUnmarked 714 Error "A block of a cold extent or a metadata page is free in its chunk's bitmap."
        "marked";
    ColdChecksum 715 Error "A cold block does not match its checksum."
        "nothing: reads give EIO";
    ChunkRange 721 Error "A chunk key or bitmap bit lies outside its device."
        "dropped";
    ChunkLeaked 722 Error "A block marked in a chunk's bitmap is neither in a cold extent nor a metadata page nor a valid group summary."
        "freed";
    MetadataPlace 731 Error "A metadata page's location on a lower tier is not possible, or a page is there that has to be in PM."
        "the pointer goes: names or attributes that it held are lost";
    MetadataChecksum 732 Error "A metadata page on a lower tier is not the page that its location names; what it held is not judged."
        "the pointer goes: names or attributes that it held are lost";
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(*self as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise() {
        assert!(CODES.windows(2).all(|pair| pair[0].number < pair[1].number));
        assert!(CODES.iter().all(|row| row.code as u16 == row.number));
        assert!(CODES.iter().all(|row| row.code.row().name == row.name));
    }

    /// The documentation holds this table.
    #[test]
    fn documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
        let text = std::fs::read_to_string(path).unwrap();
        for row in CODES {
            let severity = format!("{:?}", row.severity).to_lowercase();
            let line =
                format!("| {} | {} | {severity} | {} | {} |", row.number, row.name, row.sentence, row.repair);
            assert!(text.contains(&line), "docs/format.md misses\n{line}");
        }
    }
}
