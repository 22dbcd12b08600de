//! A pool whose only file lies on a lower tier, whole, and its mounts in this process. The device is memory. The caller
//! drives background work, in a single thread.

use super::contestant::Contestant;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_engine::{
    BufferOptions, Caller, DeviceClass, Engine, FormatOptions, MountOptions, Movements, NewDevice,
    PolicyKind, PoolMedia, Simulation, Wait, WriteFlags, format, mount_with_map, read_superblock,
};
use terrace_format::{BLOCK_SIZE, Ino, PmOffset};
use terrace_media::PmMedium;
use terrace_media::block::SimulatedDevice;
use terrace_media::pm::{CountedPm, RamPm};
use terrace_runtime::Clock;

/// The root directory.
pub(crate) const ROOT: Ino = Ino(1);
/// The name of the file.
pub(crate) const NAME: &[u8] = b"cold";

const PM_BYTES: u64 = 64 << 20;
/// Bytes of a write, and of writes between demotions.
const WRITE_BYTES: u64 = 1 << 20;
const DEMOTED_BYTES: u64 = 16 << 20;
/// Device blocks beside those of the file: for the end of the device, and for metadata.
const SPARE_BLOCKS: u64 = 16 << 10;
/// Steps of background work, more than there are.
const STEPS: usize = 1 << 20;

/// A pool that is not mounted, and its file.
pub(crate) struct ColdPool {
    media: PoolMedia,
    map: Contestant,
    clock: Arc<dyn Clock>,
    /// The file.
    pub(crate) file: Ino,
    /// Its size.
    pub(crate) bytes: u64,
}

impl ColdPool {
    /// Makes a pool in a new file, and in it a demoted file of some blocks.
    ///
    /// # Errors
    /// When the file exists, or those of the requests.
    pub(crate) fn create(
        path: &Path,
        blocks: u64,
        map: &Contestant,
        clock: &Arc<dyn Clock>,
    ) -> Outcome<ColdPool> {
        let pm = Arc::new(RamPm::create(path, PM_BYTES)?);
        let device = Arc::new(SimulatedDevice::new(blocks + SPARE_BLOCKS));
        let media = PoolMedia { pm, block: vec![device] };
        let options = FormatOptions {
            map: map.kind,
            label: "cold".into(),
            uuid: [1; 16],
            hash_key: [2; 16],
            seal_secret: Some([3; 16]),
            policy: PolicyKind::STATIC,
            data_ordered: false,
            data_checksums: false,
            chunk_blocks: 4096,
            created_ns: 1,
            root: Default::default(),
            devices: vec![NewDevice {
                tier: 1,
                class: DeviceClass::Ssd,
                uuid: [3; 16],
                path: "/tier".into(),
            }],
        };
        format(&media, &options)?;
        let bytes = blocks * BLOCK_SIZE;
        let mut pool = ColdPool { media, map: *map, clock: clock.clone(), file: ROOT, bytes };
        let fs = pool.mount(0)?;
        let caller = Caller { uid: 0, gid: 0 };
        pool.file = fs.mknod(ROOT, NAME, 0o100644, 0, caller, Wait::Allowed)?.ino;
        for at in (0..bytes).step_by(WRITE_BYTES as usize) {
            let length = WRITE_BYTES.min(bytes - at);
            let content = vec![(at / WRITE_BYTES) as u8 | 1; length as usize];
            let mut done = 0;
            while done < content.len() {
                let offset = at + done as u64;
                let flags = WriteFlags::default();
                done += fs.write(pool.file, offset, &content[done..], flags, Wait::Allowed)?;
            }
            if (at + length).is_multiple_of(DEMOTED_BYTES) || at + length == bytes {
                fs.sync_to(1, &mut |_| {})?;
                fs.run_background(STEPS);
            }
        }
        let found = fs.whereabouts(pool.file)?;
        assert!(found.tiers.iter().all(|(tier, bytes)| *tier > 0 || *bytes == 0), "{found:?} is not cold");
        fs.forget(pool.file, 1);
        fs.unmount()?;
        Ok(pool)
    }

    fn mount_on(&self, pm: Arc<dyn PmMedium>, cache_bytes: u64) -> Outcome<Arc<Engine>> {
        let (superblock, _) = read_superblock(&*self.media.pm, true)?;
        let options = MountOptions { buffer: BufferOptions::of(0), cache_bytes, ..MountOptions::default() };
        let media = PoolMedia { pm, block: self.media.block.clone() };
        let fs = mount_with_map(media, superblock, options, self.clock.clone(), self.map.make)?;
        fs.run_background(STEPS);
        Ok(fs)
    }

    /// Mounts the pool with DRAM for clean pages. The scan of the block table has ended.
    ///
    /// # Errors
    /// The mount's.
    pub(crate) fn mount(&self, cache_bytes: u64) -> Outcome<Arc<Engine>> {
        self.mount_on(self.media.pm.clone(), cache_bytes)
    }

    /// The range of PM with the block table, its checksums and the area of the map; pages of a map lie behind it.
    ///
    /// # Errors
    /// The superblock's.
    pub(crate) fn tables(&self) -> Outcome<Range<PmOffset>> {
        let geometry = read_superblock(&*self.media.pm, true)?.0.geometry();
        Ok(geometry.table_offset()..geometry.first_pool_block().offset())
    }

    /// As [`Self::mount`], with a medium that counts.
    ///
    /// # Errors
    /// The mount's.
    pub(crate) fn mount_counted(&self) -> Outcome<(Arc<Engine>, Arc<CountedPm>)> {
        let geometry = read_superblock(&*self.media.pm, true)?.0.geometry();
        let log = geometry.lane_offset(0)..geometry.lane_offset(geometry.lane_count);
        let counted = Arc::new(CountedPm::new(self.media.pm.clone(), log));
        Ok((self.mount_on(counted.clone(), 0)?, counted))
    }
}
