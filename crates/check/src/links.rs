//! Names, link counts, the tree of directories, orphan lists: judged after all slots and keys were read.

use crate::checker::Checker;
use crate::code::Code;
use crate::inode_record::{InodeRecord, Path};
use crate::mapped_block::blocks_of;
use terrace_format::address::ROOT_INO;
use terrace_format::inode::{ORPHAN_LISTS, flag};

impl Checker<'_> {
    /// Compares each inode with its directory entries and its file map.
    pub fn links(&mut self) {
        for at in 0..self.inodes.len() {
            let Some(record) = self.inodes.get(at).cloned() else {
                return;
            };
            self.content(&record);
            if record.is_directory() {
                self.directory(at, &record);
            } else if record.nlink != record.names.count {
                self.report(Code::LinkCount, || {
                    format!("inode {}: {} links, {} names", record.ino, record.nlink, record.names.count)
                });
            } else if record.nlink == 0 && !record.has(flag::ORPHAN) {
                self.report(Code::LinkCount, || format!("inode {}: no name, no orphan", record.ino));
            }
        }
    }

    fn content(&mut self, record: &InodeRecord) {
        let (ino, orphan) = (record.ino, record.has(flag::ORPHAN));
        if record.blocks != record.content.mapped {
            self.report(Code::MapBlockCount, || {
                format!("inode {ino}: {} blocks, {} are mapped", record.blocks, record.content.mapped)
            });
        }
        // The content of an orphan, and the range of an intent, waits for removal.
        let end = blocks_of(record.size).max(record.content.intent_end);
        if record.is_regular() && !orphan && record.content.written_end > end {
            self.report(Code::MapBeyondSize, || {
                format!(
                    "inode {ino}: {} bytes, last written block {}",
                    record.size,
                    record.content.written_end - 1
                )
            });
        }
        if record.is_symlink() && !orphan && record.content.target_bytes != record.size {
            self.report(Code::SymlinkTarget, || {
                format!("inode {ino}: {} bytes of {}", record.content.target_bytes, record.size)
            });
        }
    }

    fn directory(&mut self, at: usize, record: &InodeRecord) {
        let ino = record.ino;
        if record.size != record.names.entries {
            self.report(Code::DirectorySize, || {
                format!("directory {ino}: size {}, {} entries", record.size, record.names.entries)
            });
        }
        if record.has(flag::ORPHAN) {
            if record.names.count > 0 {
                self.report(Code::DirectoryNames, || {
                    format!("orphan directory {ino}: {} names", record.names.count)
                });
            }
            return; // its link count is judged with the orphan lists
        }
        let expected = record.names.subdirectories.saturating_add(2);
        if record.nlink != expected {
            self.report(Code::DirectoryLinks, || {
                format!("directory {ino}: {} links, expected {expected}", record.nlink)
            });
        }
        let root = u64::from(ino) == ROOT_INO.0;
        if record.names.count > u32::from(!root) {
            self.report(Code::DirectoryNames, || format!("directory {ino}: {} names", record.names.count));
        }
        let parent = if root { ino } else { record.names.named_by };
        if (root || record.names.count > 0) && record.parent != parent {
            self.report(Code::DirectoryParent, || {
                format!("directory {ino}: parent {}, named by {parent}", record.parent)
            });
        }
        if !self.reaches_root(at) {
            self.report(Code::DirectoryUnreachable, || format!("directory {ino}"));
        }
    }

    /// Follows parent directories up to the root. Each directory is walked once in all.
    fn reaches_root(&mut self, start: usize) -> bool {
        let mut walked = Vec::new();
        let mut next = Some(start);
        let verdict = loop {
            let Some((at, record)) = next.and_then(|at| Some((at, self.inodes.get_mut(at)?))) else {
                break Path::Bad; // without a name, or named by a free slot
            };
            if record.path != Path::Unknown {
                break if record.path == Path::Good { Path::Good } else { Path::Bad };
            }
            if !record.is_directory() {
                break Path::Bad;
            }
            record.path = Path::Walking;
            walked.push(at);
            if u64::from(record.ino) == ROOT_INO.0 {
                break Path::Good;
            }
            let (names, parent) = (record.names.count, record.names.named_by);
            next = if names > 0 { self.find(parent.into()) } else { None };
        };
        for at in walked {
            if let Some(record) = self.inodes.get_mut(at) {
                assert!(record.path == Path::Walking, "a directory was walked twice");
                record.path = verdict;
            }
        }
        verdict == Path::Good
    }

    /// Follows the orphan lists; then looks for orphans on no list.
    pub fn orphans(&mut self) {
        for list in 0..ORPHAN_LISTS {
            if let Some(head) = self.word(self.geometry.orphan_head(list)) {
                self.orphan_list(list, head);
            }
        }
        for at in 0..self.inodes.len() {
            let Some(record) = self.inodes.get(at) else {
                return;
            };
            let (ino, orphan, listed) = (record.ino, record.has(flag::ORPHAN), record.orphan.listed);
            self.summary.orphans += u64::from(orphan);
            if orphan && !listed {
                self.report(Code::OrphanLost, || format!("inode {ino}"));
            }
        }
    }

    /// Ends: a member is followed only the first time it is seen.
    fn orphan_list(&mut self, list: usize, head: u64) {
        let (mut current, mut previous) = (head, 0u32);
        while current != 0 {
            let Some(record) = self.inode_mut(current) else {
                let code = if previous == 0 { Code::OrphanHead } else { Code::OrphanLink };
                self.report(code, || format!("list {list}: inode {current} after {previous} is not in use"));
                return;
            };
            if record.orphan.listed {
                self.report(Code::OrphanLink, || format!("list {list}: inode {current} again"));
                return;
            }
            record.orphan.listed = true;
            let (ino, nlink, back, next) =
                (record.ino, record.nlink, record.orphan.previous, record.orphan.next);
            let orphan = record.has(flag::ORPHAN);
            if !orphan || nlink != 0 || current % ORPHAN_LISTS as u64 != list as u64 {
                self.report(Code::OrphanMember, || {
                    format!("list {list}: inode {ino}, orphan {orphan}, {nlink} links")
                });
            }
            if back != previous {
                self.report(Code::OrphanLink, || {
                    format!("list {list}: inode {ino} has previous {back}, expected {previous}")
                });
            }
            (current, previous) = (next.into(), ino);
        }
    }
}
