//! A search for victims that a writer overtakes.

use std::panic::Location;
use std::sync::{Arc, mpsc};
use terrace_blocks::{Purpose, State};
use terrace_engine::{Engine, FormatOptions, MountOptions, Movements, PolicyKind, PoolMedia};
use terrace_format::map_kind::MapKind;
use terrace_format::table::Owner;
use terrace_format::{Ino, PmBlock, PmOffset};
use terrace_media::pm::RecordedPm;
use terrace_media::{MediaError, PmMedium, Promise};
use terrace_migration::planner::{Round, demotion_round};
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread;
use terrace_store::parts::pressure::WORKERS;
use terrace_testkit::{ROOT, SimulatedPool, create, format_options, write};

type Hook = Box<dyn FnOnce() + Send>;

/// PM that calls a hook at the next load of a word.
struct HookedPm {
    inner: Arc<RecordedPm>,
    hook: Mutex<Option<(PmOffset, Hook)>>,
}

impl PmMedium for HookedPm {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn promise(&self) -> Promise {
        self.inner.promise()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        self.inner.read(offset, into)
    }
    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        let hook = self.hook.lock().take_if(|(at, _)| *at == offset);
        if let Some((_, hook)) = hook {
            hook();
        }
        self.inner.load_u64(offset)
    }
    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.inner.write(offset, bytes)
    }
    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.inner.write_streaming(offset, bytes)
    }
    fn write_back(&self, offset: PmOffset, length: u64) {
        self.inner.write_back(offset, length);
    }
    fn order_at(&self, at: &'static Location<'static>) {
        self.inner.order_at(at);
    }
    fn persist_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        self.inner.persist_at(at)
    }
}

/// The last used block of which the search knows nothing but its owner, a page of metadata.
fn last_page(fs: &Engine) -> PmBlock {
    let blocks = fs.store.persistent.blocks();
    let is_page = |block: &PmBlock| {
        blocks.descriptor(*block).state() == State::Used
            && matches!(blocks.owner(*block), Ok(Owner::Page { .. }))
    };
    (blocks.first_block().0..blocks.end_block().0).rev().map(PmBlock).find(is_page).unwrap()
}

/// A block of the file that the block table puts before `end`.
fn block_before(fs: &Engine, ino: Ino, end: PmBlock) -> u64 {
    let blocks = fs.store.persistent.blocks();
    let of_file = |block: u64| match blocks.owner(PmBlock(block)) {
        Ok(Owner::File { ino: of, block, .. }) if of == ino => Some(block.0),
        _ => None,
    };
    (blocks.first_block().0..end.0).find_map(of_file).unwrap()
}

/// Where the block table is the map, a claim chooses its block late. A writer takes it where a search for victims has been
/// already: the search finds nothing, and at its end nothing is promised. It once answered that no block can be demoted, and
/// another writer got ENOSPC over a block that could be.
#[test]
fn a_search_notices_a_claim_used_behind_it() {
    let options =
        FormatOptions { map: MapKind::HashfsLinear, policy: PolicyKind::ANTICACHE, ..format_options(1) };
    let pool = SimulatedPool::formatted(2 << 20, 4096, &options);
    let pm = Arc::new(HookedPm { inner: Arc::clone(&pool.pm), hook: Mutex::new(None) });
    let media = PoolMedia { pm: Arc::clone(&pm) as Arc<dyn PmMedium>, block: vec![pool.device.clone()] };
    let fs = pool.mount_media(media, MountOptions::default()).unwrap();
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 0, &[1; 64 * 4096]).unwrap();
    let blocks = fs.store.persistent.blocks();
    let page = last_page(&fs);
    let block = block_before(&fs, ino, page);
    fs.sync_to(1, &mut |_| {}).unwrap();
    fs.store.persistent.wal().checkpoint().unwrap();
    blocks.drain_quarantine();
    assert_eq!(demotion_round(&fs.migration, 100, WORKERS).unwrap(), Round::Nothing);
    // The search asks for the owner of this page again, behind most blocks.
    blocks.descriptor(page).touch_read(0);
    let (begin, begins) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let (tell, claimed) = mpsc::channel();
    let writes = Arc::clone(&fs);
    let writer = thread::spawn("writer", move || {
        let claim = writes.store.persistent.blocks().claim(1, Purpose::User).unwrap();
        tell.send(()).unwrap();
        begins.recv().unwrap();
        write(&writes, ino, block * 4096, &[2; 4096]).unwrap();
        drop(claim);
        end.send(()).unwrap();
    });
    let writer = writer.unwrap();
    claimed.recv().unwrap();
    assert_eq!(blocks.promised(), 1);
    let hook: Hook = Box::new(move || {
        begin.send(()).unwrap();
        ended.recv().unwrap();
    });
    *pm.hook.lock() = Some((entry_of(&fs, page), hook));
    let round = demotion_round(&fs.migration, 100, WORKERS).unwrap();
    let missed = pm.hook.lock().take().is_some();
    assert!(!missed, "the search did not load the entry of block {page}");
    writer.join().unwrap();
    assert_eq!(blocks.promised(), 0);
    assert_eq!(block_before(&fs, ino, page), block, "the writer's block lies where the search had been");
    assert_eq!(round, Round::BlocksClaimedByOthers);
    assert_eq!(demotion_round(&fs.migration, 100, WORKERS).unwrap(), Round::Progress);
    assert_eq!(demotion_round(&fs.migration, 100, WORKERS).unwrap(), Round::Nothing);
}

/// The address of a block's entry in the block table.
fn entry_of(fs: &Engine, block: PmBlock) -> PmOffset {
    fs.store.persistent.wal().geometry().table_entry(block)
}
