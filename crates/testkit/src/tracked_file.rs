//! A pool with one file, and the content expected of the file.

use crate::calls::{CALLER, ROOT};
use crate::simulated_pool::SimulatedPool;
use std::sync::Arc;
use terrace_engine::{Allocate, Engine, FsResult, MountOptions, Movements, SetAttributes, Wait, WriteFlags};
use terrace_format::{BLOCK_SIZE, Ino};

const W: Wait = Wait::Allowed;
const SYNC: WriteFlags = WriteFlags { sync: true, kill_set_id: false, pages: false };

/// A mounted pool with the file "file". The changes by its methods change `expected` too; a test that changes the
/// file by other calls changes `expected` itself.
pub struct TrackedFile {
    /// The pool.
    pub pool: SimulatedPool,
    /// Its mount.
    pub fs: Arc<Engine>,
    /// The file.
    pub ino: Ino,
    /// The content that the file must have.
    pub expected: Vec<u8>,
}

impl TrackedFile {
    /// A new file with the given content, made under the given options.
    pub fn new(pool: SimulatedPool, options: MountOptions, content: &[u8]) -> FsResult<TrackedFile> {
        let fs = pool.mount_with(options);
        let ino = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
        let mut file = TrackedFile { pool, fs, ino, expected: Vec::new() };
        if !content.is_empty() {
            file.write(0, content)?;
        }
        Ok(file)
    }

    /// A file that was demoted before the pool was mounted again with the given options: DRAM has no page of it.
    pub fn cold(pool: SimulatedPool, options: MountOptions, content: &[u8]) -> FsResult<TrackedFile> {
        let file = TrackedFile::new(pool, MountOptions::default(), content)?;
        file.fs.sync_to(1, &mut |_| {})?;
        file.mounted_again(options)
    }

    /// Unmounts, and mounts with other options.
    pub fn mounted_again(mut self, options: MountOptions) -> FsResult<TrackedFile> {
        self.mount_again(options)?;
        Ok(self)
    }

    /// As [`Self::mounted_again`], in place.
    pub fn mount_again(&mut self, options: MountOptions) -> FsResult<()> {
        self.fs.unmount()?;
        self.fs = self.pool.mount_with(options);
        self.fs.lookup(ROOT, b"file")?;
        Ok(())
    }

    /// Writes with O_SYNC.
    pub fn write(&mut self, offset: usize, data: &[u8]) -> FsResult<()> {
        self.fs.write(self.ino, offset as u64, data, SYNC, W)?;
        let end = offset + data.len();
        self.expected.resize(self.expected.len().max(end), 0);
        self.expected[offset..end].copy_from_slice(data);
        Ok(())
    }

    /// Cuts or extends the file.
    pub fn set_size(&mut self, size: usize) -> FsResult<()> {
        self.fs.setattr(self.ino, &SetAttributes { size: Some(size as u64), ..Default::default() }, W)?;
        self.expected.resize(size, 0);
        Ok(())
    }

    /// Punches a hole.
    pub fn punch(&mut self, from: usize, to: usize) -> FsResult<()> {
        self.fs.fallocate(self.ino, from as u64, (to - from) as u64, Allocate::PunchHole, W)?;
        let end = to.min(self.expected.len());
        self.expected[from..end].fill(0);
        Ok(())
    }

    /// The bytes of a range, as many as the file has.
    pub fn read(&self, offset: usize, length: usize) -> FsResult<Vec<u8>> {
        let mut content = vec![0xaa; length];
        let count = self.fs.read(self.ino, offset as u64, &mut content, W)?;
        content.truncate(count);
        Ok(content)
    }

    /// Fails the test unless the file has the expected content: read as a whole, by blocks, and by parts of
    /// blocks, because small reads take other ways through the code.
    #[track_caller]
    pub fn assert_content(&self) {
        assert_eq!(self.fs.getattr(self.ino).unwrap().size, self.expected.len() as u64, "size");
        let found = self.read(0, self.expected.len() + 1).unwrap();
        let differs = found.iter().zip(&self.expected).position(|(found, expected)| found != expected);
        assert_eq!((found.len(), differs), (self.expected.len(), None), "length, first byte that differs");
        for length in [BLOCK_SIZE as usize, 300] {
            for (index, part) in self.expected.chunks(length).enumerate() {
                let found = self.read(index * length, part.len()).unwrap();
                assert!(found == part, "{length} bytes from {}", index * length);
            }
        }
    }
}
