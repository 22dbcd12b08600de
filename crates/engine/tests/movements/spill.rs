//! Spills: a lower tier that is nearly full relocates its coldest files to the next tier. Which files, how
//! many, where it stops; a target that is full, fails or hangs; files that are pinned meanwhile; a crash at
//! any moment. On simulated media.

use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{
    Atime, DeviceClass, Engine, FsResult, MigrationReport, MountOptions, MoveRequest, Movements, NewDevice,
    Parameters, PolicyKind, PoolMedia, SetAttributes, Simulation, Wait, format, read_superblock,
};
use terrace_format::{DeviceBlock, Ino};
use terrace_media::block::{AlignedBlock, DeviceImage, Operation, SimulatedDevice, Times};
use terrace_media::{BlockMedium, MediaError};
use terrace_runtime::sync::Mutex;
use terrace_runtime::{Clock, Next, Step, SystemClock, thread};
use terrace_testkit::{
    ROOT, TwoTierImages, TwoTierPool, assert_content, bytes_on, create, find, format_options, mkdir, pattern,
    write,
};

const W: Wait = Wait::Allowed;
const BLOCK: u64 = 4096;
/// Blocks of a file.
const SIZE: u64 = 20;

/// Options under which the policy demotes no block; cold files may spill.
fn still() -> MountOptions {
    MountOptions { policy: Some(PolicyKind::ANTICACHE), threshold_percent: Some(99), ..Default::default() }
}

/// Options under which the policy demotes until a tenth of PM is used.
fn demoting() -> MountOptions {
    MountOptions { threshold_percent: Some(10), ..still() }
}

fn content(index: usize) -> Vec<u8> {
    pattern((SIZE * BLOCK) as usize, index as u8)
}

/// Does all background work, then lets 100 ms pass, `rounds` times.
fn pass(pool: &TwoTierPool, fs: &Arc<Engine>, rounds: u32) {
    for _ in 0..rounds {
        fs.run_background(1000);
        pool.clock.advance(Duration::from_millis(100));
    }
}

/// The background step of spills.
fn step_of(fs: &Arc<Engine>) -> Box<dyn Step> {
    let mut steps = fs.background_steps().into_iter().map(|(step, _)| step);
    steps.find(|step| step.name() == "terrace-spill").unwrap()
}

/// Drives the step of spills for `for_s` seconds, and fails if it spins.
#[track_caller]
fn spill(pool: &TwoTierPool, fs: &Arc<Engine>, for_s: u64) {
    let mut step = step_of(fs);
    for _ in 0..for_s * 10 {
        assert!((0..200).any(|_| step.step() != Next::Again), "it spins");
        pool.clock.advance(Duration::from_millis(100));
    }
}

fn report(fs: &Engine) -> MigrationReport {
    fs.status().unwrap().migration
}

/// Blocks in use on a tier, and its capacity.
fn used(fs: &Engine, tier: usize) -> (u64, u64) {
    let found = &fs.status().unwrap().tiers[tier];
    (found.used_bytes / BLOCK, found.capacity_bytes / BLOCK)
}

fn over_the_mark(fs: &Engine) -> bool {
    let (used, all) = used(fs, 1);
    used * 100 > all * 95
}

/// Makes the files of `range`, each of [`SIZE`] blocks, a minute apart.
fn make(pool: &TwoTierPool, fs: &Arc<Engine>, range: Range<usize>) -> Vec<Ino> {
    range
        .map(|index| {
            let ino = create(fs, ROOT, &format!("f{index}"));
            write(fs, ino, 0, &content(index)).unwrap();
            pool.clock.advance(Duration::from_secs(60));
            ino
        })
        .collect()
}

/// A pool with tier 1, of 255 blocks, above its mark: twelve files and a shorter one lie there, and no file
/// has spilled yet.
fn overfull(second: u64, options: MountOptions) -> (TwoTierPool, Arc<Engine>, Vec<Ino>) {
    let pool = TwoTierPool::new(4 << 20, 256, second);
    let fs = pool.mount_with(options);
    if second < 100 {
        // A file takes all of tier 2.
        let other = create(&fs, ROOT, "other");
        write(&fs, other, 0, &vec![3; ((second - 1) * BLOCK) as usize]).unwrap();
        pool.migrate_all(&fs, other, 2);
    }
    let mut files = make(&pool, &fs, 0..12);
    let last = create(&fs, ROOT, "last");
    write(&fs, last, 0, &content(12)[..8 * BLOCK as usize]).unwrap();
    fs.sync_to(1, &mut |_| {}).unwrap();
    files.push(last);
    assert!(over_the_mark(&fs) && files.iter().all(|ino| bytes_on(&fs, *ino)[2] == 0));
    (pool, fs, files)
}

#[track_caller]
fn assert_contents(fs: &Engine, files: &[Ino]) {
    for (index, ino) in files.iter().enumerate() {
        let expected = if index == 12 { content(12)[..8 * BLOCK as usize].to_vec() } else { content(index) };
        assert_content(fs, *ino, &expected);
    }
}

/// Unmounts, checks, mounts again and compares.
fn assert_sound(pool: &TwoTierPool, fs: Arc<Engine>, files: &[Ino]) {
    fs.unmount().unwrap();
    drop(fs);
    pool.assert_clean();
    let fs = pool.mount_with(still());
    assert_contents(&fs, files);
}

/// Demotion fills tier 1 again and again. Tier 1 relocates the files used longest ago, except pinned ones,
/// stays under its mark, and status and iostat count the spills.
#[test]
fn a_tier_filled_by_demotion_spills_the_files_used_longest_ago() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 513, 2048);
    let fs = pool.mount_with(demoting());
    let mut files = Vec::new();
    let mut kept = Vec::new();
    for index in 0..40 {
        files.extend(make(&pool, &fs, index..index + 1));
        pass(&pool, &fs, 3);
        if index == 3 || index == 4 {
            // The first file is pinned to tier 1, which spills. The second is pinned to PM, after its
            // demotion to tier 1.
            let tier = if index == 3 { 1 } else { 0 };
            fs.sync_to(1, &mut |_| {})?;
            let pin = fs.request_move(files[index], MoveRequest::Pin { tier })?;
            pool.finish(&fs, pin);
            kept.push(files[index]);
        }
        if index == 12 {
            // The first file is used again, so it is younger than every file made so far.
            write(&fs, files[0], 0, &content(0)[..1])?;
        }
    }
    pass(&pool, &fs, 50);
    assert!(!over_the_mark(&fs), "{:?}", used(&fs, 1));
    assert!(used(&fs, 1).0 * 100 > used(&fs, 1).1 * 80, "more went than had to: {:?}", used(&fs, 1));
    let places: Vec<[u64; 3]> =
        files.iter().map(|ino| bytes_on(&fs, *ino).map(|bytes| bytes / BLOCK)).collect();
    // The files in the order of their last use.
    let mut order: Vec<usize> = (1..40).collect();
    order.insert(12, 0);
    order.retain(|index| !kept.contains(&files[*index]));
    let below: Vec<bool> = order.iter().map(|index| places[*index][2] > 0).collect();
    let spilled = below.iter().filter(|below| **below).count();
    assert!(spilled >= 8 && below[..spilled].iter().all(|below| *below), "{below:?} {places:?}");
    assert_eq!(places[3], [0, SIZE, 0], "it was pinned there");
    assert_eq!(places[4][2], 0, "it was pinned to PM");
    let (found, seen) = (report(&fs), fs.io_report()?);
    let on_two: u64 = places.iter().map(|[_, _, two]| two).sum();
    assert!(
        found.spilled_bytes >= on_two * BLOCK && found.spilled_bytes <= found.moved_below_bytes,
        "{found:?}"
    );
    assert!(seen.spilled_bytes == found.spilled_bytes && found.spill_reason.is_none(), "{found:?}");
    // The tier has come to rest.
    pass(&pool, &fs, 50);
    let after: Vec<_> = files.iter().map(|ino| bytes_on(&fs, *ino).map(|bytes| bytes / BLOCK)).collect();
    assert!(after == places && report(&fs).spilled_bytes == found.spilled_bytes);
    for (index, ino) in files.iter().enumerate() {
        assert_content(&fs, *ino, &content(index));
    }
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// Files that are colder, but lie on the next tier already, do not hide the coldest files of this tier.
#[test]
fn files_on_the_next_tier_are_passed_over() -> FsResult<()> {
    let pool = TwoTierPool::new(16 << 20, 256, 4096);
    let fs = pool.mount_with(still());
    let directory = mkdir(&fs, ROOT, "gone");
    for index in 0..2100 {
        let ino = create(&fs, directory, &format!("g{index}"));
        write(&fs, ino, 0, &[index as u8; BLOCK as usize])?;
    }
    pool.migrate_all(&fs, directory, 2);
    let files = make(&pool, &fs, 0..13);
    fs.sync_to(1, &mut |_| {})?;
    assert!(over_the_mark(&fs));
    spill(&pool, &fs, 20);
    assert!(!over_the_mark(&fs) && bytes_on(&fs, files[0])[2] > 0, "{:?}", report(&fs));
    fs.unmount()?;
    Ok(())
}

/// More blocks are pinned to the tier than its low mark. Once the tier is under its high mark, the spill
/// ends. The clock hand went round for ever, and blocks demoted to the tier spilled to the next one at once.
#[test]
fn a_tier_with_more_than_its_low_mark_pinned_rests_below_its_high_mark() -> FsResult<()> {
    let (pool, fs, mut files) = overfull(1024, still());
    files[..12].iter().for_each(|ino| by_hand(&fs, *ino, MoveRequest::Pin { tier: 1 }));
    pool.clock.advance(Duration::from_secs(60));
    // The spill stops in the middle of its round.
    let mut step = step_of(&fs);
    assert!((0..200).any(|_| {
        step.step();
        !over_the_mark(&fs)
    }));
    files.pop();
    let fresh = create(&fs, ROOT, "fresh");
    write(&fs, fresh, 0, &[9; BLOCK as usize])?;
    fs.sync_to(1, &mut |_| {})?;
    assert!(!over_the_mark(&fs) && used(&fs, 1).0 > 12 * SIZE, "{:?}", used(&fs, 1));
    spill(&pool, &fs, 60);
    assert_eq!(bytes_on(&fs, fresh), [0, BLOCK, 0], "it may stay");
    assert_sound(&pool, fs, &files);
    Ok(())
}

/// A file read since the mount is not cold, even if no access time shows the read.
#[test]
fn files_read_lately_spill_last() -> FsResult<()> {
    let options = MountOptions {
        policy: Some(PolicyKind::PREDICTIVE),
        atime: Atime::Never,
        parameters: Parameters { touches: 100, ..Parameters::default() },
        ..Default::default()
    };
    let (pool, fs, files) = overfull(1024, options);
    pool.clock.advance(Duration::from_secs(60));
    tell_time(&fs);
    assert_content(&fs, files[0], &content(0));
    spill(&pool, &fs, 3);
    let below = |index: usize| bytes_on(&fs, files[index])[2];
    assert_eq!((below(0), below(2)), (0, 0));
    assert!(below(1) > 0);
    assert_sound(&pool, fs, &files);
    Ok(())
}

/// Lets the mount see the time.
fn tell_time(fs: &Arc<Engine>) {
    let steps = fs.background_steps();
    steps.into_iter().filter(|(step, _)| step.name() == "terrace-clock").for_each(|(mut step, _)| {
        step.step();
    });
}

/// A full next tier gives a reason in status, and attempts with growing pauses until there is room.
#[test]
fn a_full_target_is_a_reason_and_not_a_loop() -> FsResult<()> {
    let (pool, fs, files) = overfull(17, still());
    let mut step = step_of(&fs);
    let before = pool.devices[1].counters();
    let again = (0..1000).filter(|_| step.step() == Next::Again).count();
    assert!(again < 10, "called again {again} times");
    let found = report(&fs);
    assert_eq!(
        (found.spill_failures, found.spill_reason.as_deref()),
        (1, Some("tier 1: no slower tier has room"))
    );
    spill(&pool, &fs, 600);
    // The attempts come after pauses of 1, 2, 4 ... 128 s.
    let failures = report(&fs).spill_failures;
    assert!((8..=11).contains(&failures), "{failures} attempts in ten minutes");
    assert_eq!(pool.devices[1].counters(), before);
    assert_contents(&fs, &files);
    let other = find(&fs, "other");
    fs.unlink(ROOT, b"other", W)?;
    fs.forget(other, 1);
    fs.run_background(100);
    spill(&pool, &fs, 130);
    let found = report(&fs);
    // The spill stops where the next tier would have too little room for other uses.
    assert!(found.spilled_bytes >= 8 * BLOCK && bytes_on(&fs, files[0])[2] > 0, "{found:?}");
    assert_sound(&pool, fs, &files);
    Ok(())
}

/// A next tier that fails writes or flushes also gives a reason and pauses; no block is lost, and no file has
/// a location there.
#[test]
fn spills_pause_while_the_target_fails() -> FsResult<()> {
    for operation in [Operation::Write, Operation::Flush] {
        let (pool, fs, files) = overfull(1024, still());
        pool.devices[1].fail_next(operation, 0..u64::MAX, 5, Times::Forever);
        let begin = pool.devices[1].counters().writes;
        spill(&pool, &fs, 600);
        let found = report(&fs);
        let writes = pool.devices[1].counters().writes - begin;
        assert!((4..=11).contains(&found.spill_failures) && writes < 20, "{writes} writes, {found:?}");
        assert!(found.spill_reason.is_some_and(|reason| reason.starts_with("tier 1: ")));
        assert!(files.iter().all(|ino| bytes_on(&fs, *ino)[2] == 0));
        assert_contents(&fs, &files);
        pool.devices[1].clear_failures();
        spill(&pool, &fs, 200);
        let found = report(&fs);
        assert!(!over_the_mark(&fs) && found.spill_reason.is_none(), "{found:?}");
        assert_sound(&pool, fs, &files);
    }
    Ok(())
}

/// A tier that cannot be read relocates no file, with attempts no more frequent than for a failing target.
#[test]
fn an_unreadable_tier_spills_no_file_and_gives_a_reason() -> FsResult<()> {
    let (pool, fs, files) = overfull(1024, still());
    pool.devices[0].fail_next(Operation::Read, 0..u64::MAX, 5, Times::Forever);
    spill(&pool, &fs, 600);
    let found = report(&fs);
    assert!((4..=11).contains(&found.spill_failures) && found.spilled_bytes == 0, "{found:?}");
    assert!(found.spill_reason.is_some_and(|reason| reason.contains("tier1")));
    pool.devices[0].clear_failures();
    spill(&pool, &fs, 200);
    assert!(!over_the_mark(&fs));
    assert_sound(&pool, fs, &files);
    Ok(())
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if done() {
            return;
        }
        SystemClock::default().sleep(Duration::from_millis(1));
    }
    panic!("{what}");
}

/// A device that gives no answer is asked for no more; and a device that hangs during a relocation holds up
/// no foreground request (I10).
#[test]
fn a_hanging_device_holds_up_no_foreground_request() -> FsResult<()> {
    let (pool, fs, files) = overfull(1024, still());
    pool.migrate_all(&fs, files[5], 2);
    let last = create(&fs, ROOT, "filler");
    write(&fs, last, 0, &content(13))?;
    fs.sync_to(1, &mut |_| {})?;
    assert!(over_the_mark(&fs));
    pool.devices[1].stall();
    let (reader, file) = (Arc::clone(&fs), files[5]);
    let asks = thread::spawn("asks", move || assert_content(&reader, file, &content(5))).unwrap();
    wait_until("nobody reads", || pool.devices[1].waiting() == 1);
    pool.clock.advance(Duration::from_secs(6));
    spill(&pool, &fs, 60);
    let found = report(&fs);
    assert!(found.spill_reason.is_some_and(|reason| reason.contains("give no answer")));
    assert_eq!((pool.devices[1].waiting(), found.spilled_bytes), (1, 0));
    pool.devices[1].unstall();
    asks.join().unwrap();
    // The device hangs during a relocation.
    pool.clock.advance(Duration::from_secs(200));
    pool.devices[1].stall();
    let mover = Arc::clone(&fs);
    let moves = thread::spawn("moves", move || {
        let mut step = step_of(&mover);
        for _ in 0..20 {
            step.step();
        }
    });
    wait_until("nothing is moved", || pool.devices[1].waiting() == 1);
    // Meanwhile the files of the relocation are written and synced.
    for (index, ino) in files.iter().enumerate().filter(|(index, _)| *index != 5) {
        fs.write(*ino, 0, &content(index)[..BLOCK as usize], Default::default(), Wait::Never)?;
        fs.fsync(*ino, false, Wait::Never)?;
    }
    assert_eq!(pool.devices[1].waiting(), 1, "the stall ended before the writes did");
    pool.devices[1].unstall();
    moves.unwrap().join().unwrap();
    assert_contents(&fs, &files);
    assert_sound(&pool, fs, &files);
    Ok(())
}

/// Spills do not take blocks of the space reservation for dirty pages.
#[test]
fn spills_leave_the_space_reservation_of_dirty_pages() -> FsResult<()> {
    let options = MountOptions { home: Some(terrace_placement::Home::Block), ..still() };
    let (pool, fs, files) = overfull(120, options);
    let free = |fs: &Engine| (1..=2).map(|tier| used(fs, tier)).map(|(used, all)| all - used).sum::<u64>();
    let dirty = create(&fs, ROOT, "dirty");
    // The dirty pages reserve all free blocks but ten.
    let bytes = pattern(((free(&fs) - 10) * BLOCK) as usize, 77);
    write(&fs, dirty, 0, &bytes)?;
    assert_eq!(fs.status()?.dram.dirty_bytes, bytes.len() as u64);
    spill(&pool, &fs, 20);
    let found = report(&fs);
    assert_eq!(
        (found.spilled_bytes, found.spill_reason.as_deref()),
        (0, Some("tier 1: no slower tier has room"))
    );
    fs.fsync(dirty, false, W)?;
    assert_content(&fs, dirty, &bytes);
    assert_sound(&pool, fs, &files);
    Ok(())
}

/// Under a policy that never demotes, no file spills either. The marks are mount parameters.
#[test]
fn spills_obey_policy_and_marks() -> FsResult<()> {
    let never = |options: MountOptions| {
        let (pool, fs, files) = overfull(1024, options);
        spill(&pool, &fs, 10);
        let found = report(&fs);
        assert_eq!((found.spilled_bytes, found.spill_failures, found.spill_reason), (0, 0, None));
        assert_sound(&pool, fs, &files);
    };
    never(MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() });
    let mut options = still();
    options.parameters.spill.high_percent = 100;
    never(options.clone());
    (options.parameters.spill.high_percent, options.parameters.spill.low_percent) = (60, 30);
    let (pool, fs, files) = overfull(1024, options);
    let parameters = fs.status()?.parameters;
    assert_eq!((parameters.flow.spill_high_percent, parameters.flow.spill_low_percent), (60, 30));
    spill(&pool, &fs, 10);
    let (used, all) = used(&fs, 1);
    assert!(used * 100 <= all * 30 && used * 100 > all * 25, "{used} of {all}");
    assert_sound(&pool, fs, &files);
    Ok(())
}

/// The next tier is above its own mark, and cannot spill because every block on it is pinned there. Files of
/// the first tier go past it to the third, and its status gives the reason why it stays full.
#[test]
fn a_tier_above_its_own_mark_is_passed_over() -> FsResult<()> {
    let devices = [DeviceImage::zeroed(256), DeviceImage::zeroed(256)];
    let pool = TwoTierPool::from_images(TwoTierImages { pm: vec![0; 4 << 20].into(), devices });
    let third = Arc::new(SimulatedDevice::new(512));
    let [first, second] = pool.devices.clone();
    let media =
        || PoolMedia { pm: pool.pm.clone(), block: vec![first.clone(), second.clone(), third.clone()] };
    let mut options = format_options(1);
    options.devices.extend([2u8, 3].map(|tier| NewDevice {
        tier,
        class: DeviceClass::Hdd,
        uuid: [tier; 16],
        path: format!("/{tier}").into(),
    }));
    format(&media(), &options).unwrap();
    let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
    let fs = Engine::mount(media(), superblock, still(), pool.clock.clone())?;
    let kept = create(&fs, ROOT, "kept");
    let bytes = pattern((248 * BLOCK) as usize, 99);
    write(&fs, kept, 0, &bytes)?;
    let pin = fs.request_move(kept, MoveRequest::Pin { tier: 2 })?;
    pool.finish(&fs, pin);
    assert_eq!(bytes_on(&fs, kept), [0, 0, 248 * BLOCK]);
    let files = make(&pool, &fs, 0..12);
    let last = create(&fs, ROOT, "last");
    write(&fs, last, 0, &content(12)[..8 * BLOCK as usize])?;
    fs.sync_to(1, &mut |_| {})?;
    assert!(over_the_mark(&fs));
    spill(&pool, &fs, 20);
    assert!(!over_the_mark(&fs));
    let on_third = |ino: &Ino| fs.whereabouts(*ino).unwrap().tiers[3].1;
    assert!(files.iter().all(|ino| bytes_on(&fs, *ino)[2] == 0) && on_third(&files[0]) > 0);
    assert_eq!(bytes_on(&fs, kept), [0, 0, 248 * BLOCK]);
    let reason = report(&fs).spill_reason.unwrap_or_default();
    assert!(reason.starts_with("tier 2: ") && reason.contains("pinned") && !reason.contains(';'), "{reason}");
    assert_content(&fs, kept, &bytes);
    for (index, ino) in files.iter().enumerate() {
        assert_content(&fs, *ino, &content(index));
    }
    fs.unmount()?;
    Ok(())
}

type Hook = Box<dyn FnOnce() + Send>;

/// A device that calls a hook before its next flush.
struct Interposed {
    inner: Arc<SimulatedDevice>,
    hook: Mutex<Option<Hook>>,
}

impl BlockMedium for Interposed {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        self.inner.read(first, into)
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        self.inner.write(first, from)
    }
    fn flush_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        let hook = self.hook.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        self.inner.flush_at(at)
    }
    fn error_count(&self) -> u64 {
        self.inner.error_count()
    }
}

/// Changes of a file while a group of it is being relocated.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    Pin,
    /// A write of some lines, which makes a partial shadow over the cold copy.
    Lines,
    /// New content of some blocks, demoted to another location of the same tier.
    Elsewhere,
    Truncate,
    Remove,
}

/// Requests a movement and drives it to its end.
fn by_hand(fs: &Engine, ino: Ino, action: MoveRequest) {
    let job = fs.request_move(ino, action).unwrap();
    while !fs.request_report(job).unwrap().state.has_ended() {
        fs.request_step();
    }
}

impl Change {
    fn happens(self, fs: &Engine, ino: Ino) {
        match self {
            Change::Pin => by_hand(fs, ino, MoveRequest::Pin { tier: 1 }),
            Change::Lines => write(fs, ino, 0, b"newer").unwrap(),
            Change::Elsewhere => {
                write(fs, ino, 0, &content(40)[..3 * BLOCK as usize]).unwrap();
                by_hand(fs, ino, MoveRequest::Migrate { to: 1 });
                assert_eq!(bytes_on(fs, ino), [0, SIZE * BLOCK, 0]);
            }
            Change::Truncate => {
                let shorter = SetAttributes { size: Some(3 * BLOCK), ..Default::default() };
                fs.setattr(ino, &shorter, W).unwrap();
            }
            Change::Remove => {
                fs.unlink(ROOT, b"f0", W).unwrap();
                fs.forget(ino, 1);
            }
        }
    }

    /// The content of the file after the change.
    fn expected(self) -> Vec<u8> {
        let mut expected = content(0);
        match self {
            Change::Lines => expected[..5].copy_from_slice(b"newer"),
            Change::Elsewhere => {
                expected[..3 * BLOCK as usize].copy_from_slice(&content(40)[..3 * BLOCK as usize]);
            }
            Change::Truncate => expected.truncate(3 * BLOCK as usize),
            Change::Pin | Change::Remove => {}
        }
        expected
    }
}

/// A file changes during its relocation: a new pin is obeyed, the newest content is kept, and the space of
/// unused copies is given back.
#[test]
fn changes_during_a_spill_win() -> FsResult<()> {
    for change in [Change::Pin, Change::Lines, Change::Elsewhere, Change::Truncate, Change::Remove] {
        let (pool, fs, files) = overfull(1024, still());
        fs.unmount()?;
        drop(fs);
        let device = Arc::new(Interposed { inner: pool.devices[1].clone(), hook: Mutex::new(None) });
        let media = PoolMedia { pm: pool.pm.clone(), block: vec![pool.devices[0].clone(), device.clone()] };
        let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
        let fs = Engine::mount(media, superblock, still(), pool.clock.clone())?;
        fs.run_background(2);
        assert!(over_the_mark(&fs));
        let (changer, first) = (Arc::clone(&fs), files[0]);
        *device.hook.lock() = Some(Box::new(move || change.happens(&changer, first)));
        let mut step = step_of(&fs);
        let flushed = (0..100).any(|_| {
            step.step();
            device.hook.lock().is_none()
        });
        assert!(flushed, "nothing was flushed");
        let compare = |fs: &Engine| {
            if change != Change::Remove {
                assert_content(fs, first, &change.expected());
            }
            for (index, ino) in files.iter().enumerate().skip(1).take(11) {
                assert_content(fs, *ino, &content(index));
            }
        };
        compare(&fs);
        fs.run_background(1000);
        spill(&pool, &fs, 20);
        compare(&fs);
        if change == Change::Pin {
            assert_eq!(bytes_on(&fs, first), [0, SIZE * BLOCK, 0], "it was pinned on its way");
        }
        assert!(!over_the_mark(&fs), "{change:?}");
        fs.unmount()?;
        drop(fs);
        pool.assert_clean();
    }
    Ok(())
}

/// Power fails at any moment of a spill: every file has its content, on either tier, and the pool is sound.
#[test]
fn a_crash_amid_a_spill_leaves_old_or_new_locations() {
    let (base, names) = {
        let (pool, fs, files) = overfull(512, still());
        fs.unmount().unwrap();
        (pool.images(), files.len())
    };
    let find_all = |fs: &Engine| {
        let mut files: Vec<Ino> = (0..names - 1).map(|index| find(fs, &format!("f{index}"))).collect();
        files.push(find(fs, "last"));
        files
    };
    let run = |crash_at: Option<u64>| {
        let pool = TwoTierPool::from_images(base.clone());
        pool.clock.advance(Duration::from_secs(3600));
        let fs = pool.mount_with(still());
        while fs.status().is_err() {}
        let begin = pool.events.now();
        pool.events.set_crash_at(crash_at.map(|event| begin + event));
        spill(&pool, &fs, 2);
        assert!(!over_the_mark(&fs));
        let events = pool.events.now() - begin;
        (pool, events)
    };
    let (_, events) = run(None);
    assert!(events > 10, "{events}");
    let mut places = BTreeSet::new();
    for event in 0..events {
        let (pool, _) = run(Some(event));
        let pm = pool.pm.take_snapshot().unwrap();
        let devices = pool.devices.each_ref().map(|device| device.take_snapshot().unwrap());
        for seed in 0..4 {
            let pm = match seed {
                0 => pm.image_oldest(),
                1 => pm.image_newest(),
                seed => pm.image_random(seed + event),
            };
            let devices = devices.each_ref().map(|device| match seed {
                0 => device.image_none(),
                1 => device.image_all(),
                seed => device.image_random(seed + event),
            });
            let crashed = TwoTierPool::from_images(TwoTierImages { pm, devices });
            crashed.clock.advance(Duration::from_secs(7200));
            let fs = crashed.mount_with(still());
            let files = find_all(&fs);
            assert_contents(&fs, &files);
            places.insert(files.iter().map(|ino| bytes_on(&fs, *ino)[2]).sum::<u64>());
            fs.run_background(20);
            spill(&crashed, &fs, 2);
            assert!(!over_the_mark(&fs));
            assert_contents(&fs, &files);
            fs.unmount().unwrap();
            drop(fs);
            crashed.assert_clean();
        }
    }
    assert!(places.contains(&0) && places.len() > 2, "{places:?}");
}
