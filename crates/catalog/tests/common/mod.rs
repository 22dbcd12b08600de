//! A small pool on PM that is a vector, for the catalog's tests.
#![allow(dead_code, clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_catalog::Catalog;
use terrace_format::{Geometry, PmOffset};
use terrace_media::{MediaError, PmMedium, Promise};
use terrace_runtime::sync::Mutex;
use terrace_wal::Wal;

pub struct VecPm(Mutex<Vec<u8>>, u64);

impl VecPm {
    pub fn new(size: u64) -> Arc<VecPm> {
        Arc::new(VecPm(Mutex::new(vec![0; size as usize]), size))
    }
    fn range(&self, offset: PmOffset, length: u64) -> Result<std::ops::Range<usize>, MediaError> {
        match offset.0.checked_add(length) {
            Some(end) if end <= self.1 => Ok(offset.0 as usize..end as usize),
            _ => Err(MediaError::Pm { offset, length }),
        }
    }
    pub fn with<R>(&self, f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        f(&mut self.0.lock())
    }
}

impl PmMedium for VecPm {
    fn size(&self) -> u64 {
        self.1
    }
    fn promise(&self) -> Promise {
        Promise::None
    }
    fn describe(&self) -> String {
        "vector".into()
    }
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        let range = self.range(offset, into.len() as u64)?;
        into.copy_from_slice(&self.0.lock()[range]);
        Ok(())
    }
    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        let range = self.range(offset, bytes.len() as u64)?;
        self.0.lock()[range].copy_from_slice(bytes);
        Ok(())
    }
    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.write(offset, bytes)
    }
    fn write_back(&self, _offset: PmOffset, _length: u64) {}
    fn order_at(&self, _: &'static std::panic::Location<'static>) {}
    fn persist_at(&self, _: &'static std::panic::Location<'static>) -> Result<(), MediaError> {
        Ok(())
    }
}

pub const UUID: [u8; 16] = [7; 16];

pub fn geometry(size: u64) -> Geometry {
    Geometry::choose(size, 16).unwrap()
}

pub fn format(pm: &Arc<dyn PmMedium>) {
    Wal::format(Arc::clone(pm), UUID, geometry(pm.size())).unwrap();
}

pub fn mount(pm: &Arc<dyn PmMedium>) -> terrace_wal::Result<Catalog> {
    open(pm, geometry(pm.size()))
}

fn open(pm: &Arc<dyn PmMedium>, geometry: Geometry) -> terrace_wal::Result<Catalog> {
    let (wal, _) = Wal::open(Arc::clone(pm), UUID, geometry)?;
    Ok(Catalog::new(Arc::new(BlockPool::new(Arc::new(wal)))))
}

/// A new pool with chunks of so many blocks.
pub fn pool_of_chunks(chunk_blocks: u32) -> (Arc<dyn PmMedium>, Arc<Catalog>) {
    let pm: Arc<dyn PmMedium> = VecPm::new(16 << 20);
    let geometry = Geometry::choose(pm.size(), chunk_blocks).unwrap();
    Wal::format(Arc::clone(&pm), UUID, geometry).unwrap();
    let catalog = open(&pm, geometry).unwrap();
    (pm, Arc::new(catalog))
}

/// Repeats an operation until its leaf has room: the loop every caller runs.
pub fn apply<R>(
    catalog: &Catalog,
    shards: &[u32],
    mut operation: impl FnMut(
        &mut terrace_catalog::ShardsWrite<'_>,
        &mut terrace_wal::Tx,
    ) -> Result<R, terrace_catalog::Edit>,
) -> Result<R, terrace_catalog::Edit> {
    for _ in 0..100 {
        let reservation = catalog.wal().reserve(catalog.wal().max_record())?;
        let mut guard = catalog.write(shards);
        let mut tx = terrace_wal::Tx::new();
        let mut freed = terrace_catalog::Freed::default();
        match operation(&mut guard, &mut tx) {
            Ok(result) => {
                guard.unlink_emptied(&mut tx, &mut freed)?;
                let lsn = catalog.wal().commit(reservation, &tx)?;
                freed.committed(catalog.blocks(), lsn);
                return Ok(result);
            }
            Err(terrace_catalog::Edit::Full(shortage)) => {
                drop(guard);
                drop(reservation);
                catalog.make_room_for(&shortage, terrace_blocks::Purpose::User)?;
            }
            Err(other) => return Err(other),
        }
    }
    unreachable!("no room after a hundred rounds")
}
