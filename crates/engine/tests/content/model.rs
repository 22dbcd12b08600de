//! A model of files written into DRAM, and of the content that a crash may leave of them.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{
    Allocate, Engine, FsResult, MountOptions, Movements, SetAttributes, Simulation, Wait, WriteFlags,
};
use terrace_format::Ino;
use terrace_testkit::{SimulatedPool, buffered, fill, read_all, try_create};

const W: Wait = Wait::Allowed;

/// The content of a file, and the contents that a crash may leave of it.
#[derive(Clone)]
struct File {
    ino: Ino,
    now: Vec<u8>,
    /// All values that a byte has had since it was last durable, one bit for each value; values are below 64.
    had: Vec<u64>,
    /// Smallest and largest size since then.
    sizes: (u64, u64),
}

impl File {
    fn note(&mut self) {
        if self.had.len() < self.now.len() {
            self.had.resize(self.now.len(), 0);
        }
        for (had, now) in self.had.iter_mut().zip(&self.now) {
            *had |= 1 << now;
        }
        let size = self.now.len() as u64;
        self.sizes = (self.sizes.0.min(size), self.sizes.1.max(size));
    }

    fn durable(&mut self) {
        self.had = self.now.iter().map(|byte| 1 << byte).collect();
        self.sizes = (self.now.len() as u64, self.now.len() as u64);
    }

    fn resize(&mut self, size: usize) {
        self.now.resize(size, 0);
        self.note();
    }

    fn put(&mut self, offset: usize, data: &[u8]) {
        if self.now.len() < offset + data.len() {
            // The gap before the written bytes reads as zeros.
            if self.now.len() < offset {
                self.now.resize(offset, 0);
                let had = self.had.len();
                self.had.resize(had.max(offset), 0);
                let from = self.sizes.1.min(offset as u64) as usize;
                self.had[from.min(offset)..offset].iter_mut().for_each(|had| *had |= 1);
            }
            self.now.resize(offset + data.len(), 63);
        }
        self.now[offset..offset + data.len()].copy_from_slice(data);
        self.note();
    }

    /// Data that is durable although earlier bytes of the file are still in DRAM: after a crash these may be
    /// zeros.
    fn put_durable(&mut self, offset: usize, data: &[u8]) {
        self.put(offset, data);
        self.had[..offset].iter_mut().for_each(|had| *had |= 1);
    }

    fn assert_allowed(&self, found: &[u8], what: &str) {
        let (least, most) = self.sizes;
        let size = found.len() as u64;
        assert!((least..=most).contains(&size), "{what}: {size} bytes, not {least} to {most}");
        for (at, byte) in found.iter().enumerate() {
            let had = self.had[at];
            assert!(*byte < 64 && had & 1 << byte != 0, "{what}: byte {at} is {byte}, had {had:#b}");
        }
    }
}

/// The source of random operations, and the expected files.
pub struct Model {
    random: SmallRng,
    files: Vec<File>,
    next: u8,
    crash_at: u64,
}

const FILES: usize = 3;
const BYTES: usize = 24 * 4096;

impl Model {
    /// A run: operations until power fails, then a comparison of the files that are left.
    pub fn run(seed: u64) -> FsResult<()> {
        let pool = SimulatedPool::new(2 << 20, 512);
        let buffer = if seed.is_multiple_of(3) { 16 * 4096 } else { 4 << 20 };
        let data_ordered = Some(seed % 4 == 1);
        let options = MountOptions { group_bytes: 8 * 4096, data_ordered, ..buffered(buffer) };
        let fs = pool.mount_with(options.clone());
        let mut model =
            Model { random: SmallRng::seed_from_u64(seed), files: Vec::new(), next: 1, crash_at: 0 };
        for index in 0..FILES {
            let ino = try_create(&fs, &format!("f{index}"))?;
            model.files.push(File { ino, now: Vec::new(), had: Vec::new(), sizes: (0, 0) });
        }
        model.crash_at = pool.events.now() + model.random.random_range(1..1500);
        pool.pm.set_crash_at(Some(model.crash_at));
        let crashed = loop {
            model.step(&fs, &pool)?;
            if let Some(crashed) = pool.crash_then(seed) {
                break crashed;
            }
        };
        let after = crashed.mount_with(options);
        for (index, file) in model.files.iter().enumerate() {
            file.assert_allowed(&read_all(&after, file.ino)?, &format!("seed {seed}, file {index}"));
        }
        crashed.assert_clean_after(&after)?;
        // The mount that did not crash has lost no byte.
        fs.unmount()?;
        let fs = pool.mount_with(buffered(4 << 20));
        for file in &model.files {
            assert_eq!(read_all(&fs, file.ino)?, file.now, "seed {seed}");
        }
        pool.assert_clean_after(&fs)
    }

    fn byte(&mut self) -> u8 {
        self.next = self.next % 62 + 1;
        self.next
    }

    fn place(&mut self, index: usize) -> (usize, usize) {
        let size = self.files[index].now.len();
        let offset = match self.random.random_range(0..4) {
            0 => self.random.random_range(0..BYTES),
            1 => self.random.random_range(0..BYTES / 4096) * 4096,
            _ => size,
        };
        let length = match self.random.random_range(0..3) {
            0 => 4096,
            1 => self.random.random_range(1..200),
            _ => self.random.random_range(1..20_000),
        };
        (offset.min(BYTES), length)
    }

    fn step(&mut self, fs: &Arc<Engine>, pool: &SimulatedPool) -> FsResult<()> {
        let index = self.random.random_range(0..FILES);
        let ino = self.files[index].ino;
        let (offset, length) = self.place(index);
        match self.random.random_range(0..20) {
            0..8 => {
                let data = fill(length, self.byte());
                self.files[index].put(offset, &data);
                assert_eq!(fs.write(ino, offset as u64, &data, WriteFlags::default(), W)?, length);
            }
            8 => {
                let length = length.min(3000);
                let data = fill(length, self.byte());
                self.files[index].put_durable(offset, &data);
                let sync = WriteFlags { sync: true, ..Default::default() };
                fs.write(ino, offset as u64, &data, sync, W)?;
                if self.has_crashed(pool) {
                    return Ok(());
                }
                let file = &mut self.files[index];
                file.had[offset..offset + length].iter_mut().for_each(|had| *had = 1 << data[0]);
                file.sizes.0 = file.sizes.0.max((offset + length) as u64);
            }
            9..11 => {
                let size = self.random.random_range(0..BYTES);
                let size = if self.random.random() { size } else { size / 4096 * 4096 };
                self.files[index].resize(size);
                let change = SetAttributes { size: Some(size as u64), ..Default::default() };
                fs.setattr(ino, &change, W)?;
            }
            11 => {
                let file = &mut self.files[index];
                let end = (offset + length).min(file.now.len());
                if offset < end {
                    file.now[offset..end].fill(0);
                }
                file.note();
                fs.fallocate(ino, offset as u64, length as u64, Allocate::PunchHole, W)?;
            }
            12 => fs.fallocate(ino, offset as u64, length as u64, Allocate::KeepSize, W)?,
            13..15 => {
                fs.fsync(ino, false, W)?;
                if !self.has_crashed(pool) {
                    self.files[index].durable();
                }
            }
            15 => {
                pool.clock.advance(Duration::from_secs(self.random.random_range(1..20)));
                fs.run_background(3);
            }
            16 => {
                fs.run_background(20);
            }
            17 if self.random.random_range(0..4) == 0 => _ = fs.sync_to(1, &mut |_| {})?,
            _ => {
                let file = &self.files[index];
                assert_eq!(read_all(fs, ino)?, file.now);
                assert_eq!(fs.getattr(ino)?.size, file.now.len() as u64);
            }
        }
        Ok(())
    }

    /// Whether power has failed: later writes cannot become durable.
    fn has_crashed(&self, pool: &SimulatedPool) -> bool {
        pool.events.now() > self.crash_at
    }
}
