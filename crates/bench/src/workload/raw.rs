//! A device without a file system, which shows the bandwidth that reads of files are compared with. It holds
//! only the file of [`super::cold::whole`], from the first block on.

use super::target::{FileTarget, OpenedFile};
use rustix::io::{ReadWriteFlags, pwritev2};
use std::io::{self, IoSlice};
use std::sync::Arc;
use terrace_format::{BLOCK_SIZE, DeviceBlock};
use terrace_media::BlockMedium;
use terrace_media::block::{AlignedBlock, FileDevice};
use terrace_runtime::sync::Mutex;

/// A device as a target.
pub struct RawTarget {
    device: Arc<FileDevice>,
    /// Bytes written so far: the file's size.
    size: Arc<Mutex<u64>>,
}

impl RawTarget {
    pub fn new(device: FileDevice) -> RawTarget {
        RawTarget { device: Arc::new(device), size: Arc::default() }
    }
}

fn nothing<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "a device without files"))
}

impl FileTarget for RawTarget {
    fn make_directory(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn remove_directory(&self, _: &str) -> io::Result<()> {
        nothing()
    }
    fn open(&self, _: &str, _: bool) -> io::Result<Box<dyn OpenedFile>> {
        Ok(Box::new(RawFile { device: self.device.clone(), size: self.size.clone(), blocks: Vec::new() }))
    }
    fn unlink(&self, _: &str) -> io::Result<()> {
        nothing()
    }
    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        nothing()
    }
    fn link(&self, _: &str, _: &str) -> io::Result<()> {
        nothing()
    }
    fn symlink(&self, _: &str, _: &str) -> io::Result<()> {
        nothing()
    }
    fn change_mode(&self, _: &str, _: u32) -> io::Result<()> {
        nothing()
    }
    fn size(&self, _: &str) -> io::Result<u64> {
        Ok(*self.size.lock())
    }
    fn list(&self, _: &str) -> io::Result<Vec<String>> {
        nothing()
    }
    fn settle(&self) -> io::Result<()> {
        self.device.flush().map(|_| ()).map_err(io::Error::other)
    }
}

fn write_through(device: &FileDevice, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = [IoSlice::new(&bytes[done..])];
        match pwritev2(device.file(), &rest, offset + done as u64, ReadWriteFlags::DSYNC)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => done += written,
        }
    }
    Ok(())
}

struct RawFile {
    device: Arc<FileDevice>,
    size: Arc<Mutex<u64>>,
    blocks: Vec<AlignedBlock>,
}

impl RawFile {
    /// The buffer for a range of whole blocks; other ranges are refused.
    fn range(&mut self, bytes: usize, offset: u64) -> io::Result<(DeviceBlock, &mut [AlignedBlock])> {
        let count = bytes / BLOCK_SIZE as usize;
        if !(bytes as u64).is_multiple_of(BLOCK_SIZE) || !offset.is_multiple_of(BLOCK_SIZE) {
            return nothing();
        }
        if self.blocks.len() < count {
            self.blocks.resize_with(count, AlignedBlock::zeroed);
        }
        Ok((DeviceBlock(offset / BLOCK_SIZE), &mut self.blocks[..count]))
    }
}

impl OpenedFile for RawFile {
    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let device = self.device.clone();
        let (first, blocks) = self.range(into.len(), offset)?;
        device.read(first, blocks).map_err(io::Error::other)?;
        for (to, from) in into.chunks_exact_mut(BLOCK_SIZE as usize).zip(blocks) {
            to.copy_from_slice(&from.0);
        }
        Ok(into.len())
    }
    /// A durable write is one call with RWF_DSYNC, whatever the medium would choose.
    fn write_at(&mut self, bytes: &[u8], offset: u64, sync: bool) -> io::Result<()> {
        let device = self.device.clone();
        let (first, blocks) = self.range(bytes.len(), offset)?;
        for (from, to) in bytes.chunks_exact(BLOCK_SIZE as usize).zip(blocks.iter_mut()) {
            to.0.copy_from_slice(from);
        }
        if sync {
            write_through(&device, terrace_media::block::bytes_of(blocks), offset)?;
        } else {
            device.write(first, blocks).map_err(io::Error::other)?;
        }
        let mut size = self.size.lock();
        *size = (*size).max(offset + bytes.len() as u64);
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        self.device.flush().map(|_| ()).map_err(io::Error::other)
    }
    fn size(&mut self) -> io::Result<u64> {
        Ok(*self.size.lock())
    }
    fn set_size(&mut self, _: u64) -> io::Result<()> {
        nothing()
    }
}
