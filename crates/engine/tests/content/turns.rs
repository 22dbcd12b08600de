//! Long requests are done in turns, and the work that one user can make the daemon do under locks is bounded.

use terrace_engine::{
    Allocate, Engine, FsError, FsResult, Progress, Seek, SetAttributes, Simulation, Wait, WriteFlags,
    XattrMode,
};
use terrace_testkit::{ROOT, SimulatedPool, buffered, create, write};

const W: Wait = Wait::Allowed;
const BLOCK: u64 = 4096;
/// Blocks of the long file, and the most blocks that one transaction of these pools preallocates.
const LONG: u64 = 1 << 15;
const CHUNK: u64 = 16;

/// Takes turns until the request ends; gives how many it took.
fn count_turns<T>(mut turn: impl FnMut(&mut Progress) -> FsResult<T>) -> FsResult<(T, usize)> {
    let mut progress = Progress::default();
    for turns in 1.. {
        match turn(&mut progress) {
            Err(FsError::Unfinished) => {}
            ended => return ended.map(|value| (value, turns)),
        }
    }
    unreachable!()
}

fn allocate(fs: &Engine, ino: terrace_format::Ino, how: Allocate) -> FsResult<usize> {
    let range = (0, LONG * BLOCK);
    Ok(count_turns(|progress| fs.fallocate_turn(ino, range, how, progress, Wait::Never))?.1)
}

/// fallocate, truncate and punch of 8 GiB ran whole on the thread that took the request, for hundreds of
/// milliseconds: the requests of all other users waited.
#[test]
fn fallocate_punch_and_truncate_end_after_many_turns() -> FsResult<()> {
    let pool = SimulatedPool::new(16 << 20, 2 * LONG);
    let fs = pool.mount();
    fs.run_background(1000);
    let ino = create(&fs, ROOT, "long");
    let free = fs.statfs(W)?.free;
    let least = (LONG / CHUNK / 64) as usize;
    let turns = allocate(&fs, ino, Allocate::Extend)?;
    assert!(turns >= least, "fallocate in {turns} turns");
    let made = fs.getattr(ino)?;
    assert_eq!((made.size, made.blocks), (LONG * BLOCK, LONG * 8));
    let turns = allocate(&fs, ino, Allocate::Extend)?;
    assert!(turns >= 2, "a look at what is allocated already in {turns} turns");
    let turns = allocate(&fs, ino, Allocate::PunchHole)?;
    assert!(turns >= 2, "punch in {turns} turns");
    assert_eq!(fs.getattr(ino)?.blocks, 0);
    allocate(&fs, ino, Allocate::Extend)?;
    let change = SetAttributes { size: Some(0), mode: Some(0o600), ..Default::default() };
    let (cut, turns) = count_turns(|progress| fs.setattr_turn(ino, &change, progress, Wait::Never))?;
    assert!(turns >= 2, "truncate in {turns} turns");
    assert_eq!((cut.size, cut.blocks, cut.mode & 0o777), (0, 0, 0o600));
    assert!(free - fs.statfs(W)?.free < 64, "nothing of it is left but metadata");
    fs.unmount()?;
    pool.assert_clean();
    Ok(())
}

/// Another request changes the file between two turns: the next turn goes on with the changed file.
#[test]
fn a_file_may_change_between_the_turns_of_a_request() -> FsResult<()> {
    let pool = SimulatedPool::new(16 << 20, 2 * LONG);
    let fs = pool.mount();
    fs.run_background(1000);
    let ino = create(&fs, ROOT, "long");
    let mut other = 0;
    let range = (0, LONG * BLOCK);
    count_turns(|progress| {
        other += 1;
        write(&fs, ino, other * 64 * BLOCK, &[7; 100])?;
        fs.fallocate_turn(ino, range, Allocate::KeepSize, progress, Wait::Never)
    })?;
    assert_eq!(fs.getattr(ino)?.blocks, LONG * 8);
    let mut written = 0;
    // A write into a range that a truncation is still removing ends the removal first, in turns if it may not
    // wait.
    let change = SetAttributes { size: Some(0), ..Default::default() };
    count_turns(|progress| {
        let cut = fs.setattr_turn(ino, &change, progress, Wait::Never);
        if written == 0 {
            let refused = fs.write(ino, (LONG - 8) * BLOCK, &[9; 100], WriteFlags::default(), Wait::Never);
            assert!(matches!(refused, Err(FsError::WouldBlock)), "{refused:?}");
            write(&fs, ino, (LONG - 8) * BLOCK, &[9; 100])?;
            written = 1;
        }
        cut
    })?;
    assert_eq!(fs.getattr(ino)?.blocks, 8);
    let mut found = [0; 100];
    fs.read(ino, (LONG - 8) * BLOCK, &mut found, W)?;
    assert_eq!(found, [9; 100]);
    fs.unmount()?;
    pool.assert_clean();
    Ok(())
}

/// SEEK_DATA and SEEK_HOLE searched the whole file under one lock.
#[test]
fn a_look_for_data_or_a_hole_comes_in_turns() -> FsResult<()> {
    let pool = SimulatedPool::new(32 << 20, 2 * LONG);
    let fs = pool.mount();
    fs.run_background(1000);
    let ino = create(&fs, ROOT, "long");
    fs.fallocate(ino, 0, LONG * BLOCK, Allocate::Extend, W)?;
    let look =
        |offset: u64, what| count_turns(|progress| fs.seek_turn(ino, offset, what, progress, Wait::Never));
    assert!(matches!(look(0, Seek::Data), Err(FsError::NoDataThere)));
    write(&fs, ino, (LONG - 1) * BLOCK, &[7; 4096])?;
    let (data, turns) = look(5, Seek::Data)?;
    assert_eq!(data, (LONG - 1) * BLOCK);
    assert!(turns >= 2, "a look over {LONG} blocks in {turns} turns");
    assert_eq!(look(5, Seek::Hole)?, (5, 1));
    // A long run of data in PM, and one block more than a turn looks at.
    for block in 0..3000 {
        write(&fs, ino, block * BLOCK, &[3; 4096])?;
    }
    let (hole, turns) = look(0, Seek::Hole)?;
    assert_eq!(hole, 3000 * BLOCK);
    assert!(turns >= 3, "{turns} turns");
    assert_eq!(fs.seek(ino, 3000 * BLOCK, Seek::Data)?, (LONG - 1) * BLOCK);
    Ok(())
}

/// 40,000 attributes of one inode made each listxattr take 57 ms under its locks. The kernel cannot return a
/// list longer than 64 KiB at all, so names past that are refused.
#[test]
fn names_of_attributes_end_at_64_kib() -> FsResult<()> {
    let pool = SimulatedPool::new(32 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "file");
    let set = |name: &str, value: &[u8]| fs.setxattr(ino, name.as_bytes(), value, XattrMode::Any, W);
    let name = |number: usize| format!("user.{number:05}");
    let most = 65536 / 11;
    for number in 0..most {
        set(&name(number), b"1")?;
    }
    let full = set(&name(most), b"1").unwrap_err();
    assert_eq!(full.errno(), libc::ENOSPC);
    assert_eq!(fs.getxattr(ino, name(most).as_bytes()).unwrap_err().errno(), libc::ENODATA);
    let (names, turns) = count_turns(|progress| fs.listxattr_turn(ino, progress, Wait::Never))?;
    assert_eq!(names.len(), most * 11);
    assert!(turns >= 4, "{most} names in {turns} turns");
    let listed = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    assert!(listed.zip(0..most).all(|(found, number)| found == name(number).as_bytes()));
    // Existing attributes can change, also to values of many parts; removing one attribute makes room for
    // another.
    set(&name(3), &[5; 5000])?;
    assert_eq!(fs.listxattr(ino)?, names);
    fs.removexattr(ino, name(7).as_bytes(), W)?;
    set(&name(most), b"1")?;
    assert_eq!(set(&name(7), b"1").unwrap_err().errno(), libc::ENOSPC);
    assert_eq!(fs.setxattr(ino, b"user.new", b"", XattrMode::Replace, W).unwrap_err().errno(), libc::ENODATA);
    // The next mount counts the attributes anew; a file with the inode number of a removed one has none.
    fs.unmount()?;
    let fs = pool.mount();
    assert_eq!(fs.listxattr(ino)?.len(), most * 11);
    let again = |name: &str| fs.setxattr(ino, name.as_bytes(), b"1", XattrMode::Any, W);
    assert_eq!(again("user.more!").unwrap_err().errno(), libc::ENOSPC);
    fs.unmount()?;
    pool.assert_clean();
    Ok(())
}

/// Each of several writers at the same time found the same room in DRAM and took it all: twenty times as many
/// dirty bytes as `buffer=` allows waited for a lower tier.
#[test]
fn writers_at_the_same_time_do_not_share_the_same_room() -> FsResult<()> {
    const BUFFER: u64 = 4 << 20;
    let pool = SimulatedPool::new(16 << 20, LONG);
    let fs = pool.mount_with(buffered(BUFFER));
    fs.run_background(100);
    let files: Vec<_> = (0..16).map(|number| create(&fs, ROOT, &number.to_string())).collect();
    let most = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for ino in &files {
            let (fs, most) = (&fs, &most);
            scope.spawn(move || {
                for round in 0..8 {
                    write(fs, *ino, round << 20, &vec![7; 1 << 20]).unwrap();
                    most.fetch_max(
                        fs.status().unwrap().dram.dirty_bytes,
                        std::sync::atomic::Ordering::Relaxed,
                    );
                }
            });
        }
    });
    let most = most.into_inner();
    assert!(most > 0 && most <= BUFFER, "{most} bytes waited");
    fs.unmount()?;
    pool.assert_clean();
    Ok(())
}

/// The claimed size of a device decided how much memory a mount took.
#[test]
fn a_tier_too_large_for_the_memory_of_its_accounts_is_refused() {
    for blocks in [1 << 36, 1 << 50] {
        let pool = SimulatedPool::new(2 << 20, blocks);
        let (superblock, _) = terrace_engine::read_superblock(&*pool.pm, true).unwrap();
        let mounted = Engine::mount(pool.media(), superblock, Default::default(), pool.clock.clone());
        let refused = mounted.map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("a lower tier says") || refused.contains("bytes of memory"), "{refused}");
    }
}
