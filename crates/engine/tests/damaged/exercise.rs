//! The operations done with a damaged pool: each may fail, and must end.

use super::ROOT;
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeSet;
use std::sync::Arc;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{
    Allocate, Caller, Engine, MountOptions, Movements, PoolMedia, Seek, SetAttributes, Simulation, Wait,
    WriteFlags, XattrMode, read_superblock,
};
use terrace_format::Ino;
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::ManualClock;

const CALLER: Caller = Caller { uid: 0, gid: 0 };
/// Limits of inodes in a tree and entries of a directory: more than a sound pool of this size has.
const INODES: usize = 60;
const ENTRIES: usize = 50_000;

type Media = (Arc<dyn PmMedium>, Arc<dyn BlockMedium>);

/// The result of the operations.
#[derive(Default, Clone, Copy)]
pub struct Outcome {
    pub clean: bool,
    pub mounted: bool,
    pub unmounted: bool,
    pub failures: u64,
    pub calls: u64,
}

/// Checks, mounts, uses, unmounts, checks and mounts again.
pub fn exercise(media: &Media, random: &mut StdRng) -> Outcome {
    let mut outcome = Outcome { clean: judge(media), ..Default::default() };
    let options = MountOptions {
        read_only: random.random_range(0..10) == 0,
        promote_first_touch: random.random_range(0..4) == 0,
        data_ordered: (random.random_range(0..4) == 0).then_some(true),
        threshold_percent: Some(random.random_range(5..95)),
        cache_bytes: 1 << random.random_range(12..20),
        checkpoint_when_full: random.random_range(0..8) == 0,
        ..Default::default()
    };
    let Some(fs) = mount(media, options) else { return outcome };
    outcome.mounted = true;
    let mut user = User { fs: &fs, random, outcome, directories: Vec::new(), inodes: BTreeSet::new() };
    user.all();
    outcome = user.outcome;
    outcome.unmounted = fs.unmount().is_ok();
    drop(fs);
    judge(media);
    if let Some(fs) = mount(media, MountOptions::default()) {
        let mut random = random.clone();
        let (directories, inodes) = (Vec::new(), BTreeSet::new());
        User { fs: &fs, random: &mut random, outcome, directories, inodes }.walk();
        let _ = fs.unmount();
    }
    outcome
}

fn judge((pm, device): &Media) -> bool {
    let view = PoolView::new(Arc::clone(pm), vec![Some(Arc::clone(device))]);
    check(&view, &Options { read_cold: true, progress: None, given: &[] }).is_clean()
}

fn mount((pm, device): &Media, options: MountOptions) -> Option<Arc<Engine>> {
    let (superblock, _) = read_superblock(&**pm, !options.read_only).ok()?;
    // As in the daemon: one device for each row of the superblock, or no mount.
    if superblock.device_rows().len() != 1 {
        return None;
    }
    let media = PoolMedia { pm: Arc::clone(pm), block: vec![Arc::clone(device)] };
    Engine::mount(media, superblock, options, Arc::new(ManualClock::new(1_800_000_000_000_000_000))).ok()
}

struct User<'a> {
    fs: &'a Arc<Engine>,
    random: &'a mut StdRng,
    outcome: Outcome,
    directories: Vec<(Ino, Vec<Vec<u8>>)>,
    inodes: BTreeSet<u64>,
}

impl User<'_> {
    fn all(&mut self) {
        self.status();
        self.walk();
        self.fs.run_background(40);
        for _ in 0..40 {
            self.change();
        }
        self.fs.run_background(200);
        if self.random.random_range(0..8) == 0 {
            let result = self.fs.sync_to(1, &mut |_| {});
            self.count(result);
        }
        self.walk();
        self.status();
        let result = self.fs.sync();
        self.count(result);
    }

    fn count<T, E>(&mut self, result: Result<T, E>) -> Option<T> {
        self.outcome.calls += 1;
        self.outcome.failures += u64::from(result.is_err());
        result.ok()
    }

    fn status(&mut self) {
        let result = self.fs.status();
        self.count(result);
        let result = self.fs.statfs(Wait::Allowed);
        self.count(result);
    }

    /// Visits every reachable inode, and a few that no name leads to.
    fn walk(&mut self) {
        self.directories.clear();
        self.inodes.clear();
        let mut waiting = vec![ROOT];
        while let Some(ino) = waiting.pop() {
            if self.inodes.len() > INODES || !self.inodes.insert(ino.0) {
                continue;
            }
            self.look(ino);
            let mut names = Vec::new();
            let result = self.fs.readdir(ino, 0, &mut |entry| {
                names.push((entry.name.clone(), entry.cookie));
                assert!(names.len() < ENTRIES, "endless directory {ino}");
                true
            });
            self.count(result);
            let mut kept = Vec::new();
            for (name, cookie) in names.into_iter().take(140) {
                if cookie > 2
                    && let result = self.fs.lookup(ino, &name)
                    && let Some(found) = self.count(result)
                {
                    waiting.push(found.ino);
                    self.fs.forget(found.ino, 1);
                }
                kept.push(name);
            }
            self.directories.push((ino, kept));
        }
        for ino in [0, 2, 16, 31, 32, u64::from(u32::MAX)] {
            let result = self.fs.getattr(Ino(ino));
            self.count(result);
        }
    }

    fn look(&mut self, ino: Ino) {
        let fs = self.fs;
        let result = fs.getattr(ino);
        let Some(attributes) = self.count(result) else { return };
        let mut buffer = vec![0; 64 << 10];
        let far = attributes.size.saturating_sub(9000);
        for offset in [0, far, self.random.random_range(0..=attributes.size)] {
            let result = fs.read(ino, offset, &mut buffer, Wait::Allowed);
            self.count(result);
        }
        let mut at = 0;
        for round in 0..20 {
            let what = if round % 2 == 0 { Seek::Data } else { Seek::Hole };
            let Ok(next) = fs.seek(ino, at, what) else { break };
            at = next;
        }
        let result = fs.whereabouts(ino);
        self.count(result);
        let result = fs.readlink(ino);
        self.count(result);
        let result = fs.listxattr(ino);
        if let Some(names) = self.count(result) {
            for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).take(20) {
                let result = fs.getxattr(ino, name);
                self.count(result);
            }
        }
    }

    fn change(&mut self) {
        let wait = if self.random.random_range(0..6) == 0 { Wait::Never } else { Wait::Allowed };
        if self.random.random_range(0..3) == 0 { self.change_names(wait) } else { self.change_file(wait) }
    }

    fn change_file(&mut self, w: Wait) {
        let fs = self.fs;
        let index = self.random.random_range(0..self.inodes.len().max(1));
        let Some(ino) = self.inodes.iter().nth(index).map(|ino| Ino(*ino)) else { return };
        let size = fs.getattr(ino).map_or(0, |attributes| attributes.size);
        let offset = match self.random.random_range(0..3) {
            0 => self.random.random_range(0..200_000),
            1 => self.random.random_range(0..=size),
            _ => self.random.random_range(0..=size.saturating_mul(2).min(1 << 44)),
        };
        let length = self.random.random_range(1..60_000);
        let result = match self.random.random_range(0..9) {
            0..3 => fs.write(ino, offset, &vec![7; length as usize], WriteFlags::default(), w).map(|_| ()),
            3 => {
                let change = SetAttributes { size: Some(offset), ..Default::default() };
                fs.setattr(ino, &change, w).map(|_| ())
            }
            4 => fs.fallocate(ino, offset, length, Allocate::PunchHole, w),
            5 => fs.fallocate(ino, offset, length, Allocate::Extend, w),
            6 => fs.setxattr(ino, b"user.small", &vec![1; length as usize % 1900], XattrMode::Any, w),
            7 => fs.removexattr(ino, b"user.large", w),
            _ => fs.open(ino, self.random.random(), true, w).map(|_| fs.release(ino)),
        };
        self.count(result);
    }

    fn change_names(&mut self, w: Wait) {
        let fs = self.fs;
        let some = |random: &mut StdRng, directories: &[(Ino, Vec<Vec<u8>>)]| {
            let (ino, names) = &directories[random.random_range(0..directories.len())];
            let name = names.get(random.random_range(0..names.len().max(1)));
            (*ino, name.cloned().unwrap_or_else(|| b"none".to_vec()))
        };
        if self.directories.is_empty() {
            return;
        }
        let (directory, name) = some(self.random, &self.directories);
        let (other, target) = some(self.random, &self.directories);
        let fresh = format!("new-{}", self.random.random_range(0..1000u32));
        let result = match self.random.random_range(0..8) {
            0 => fs.unlink(directory, &name, w),
            1 => fs.rmdir(directory, &name, w),
            2 => fs.rename(directory, &name, other, &target, false, w),
            3 => fs.rename(directory, &name, other, fresh.as_bytes(), true, w),
            4 => fs.mkdir(directory, fresh.as_bytes(), 0o755, CALLER, w).map(|made| fs.forget(made.ino, 1)),
            5 => fs
                .symlink(directory, fresh.as_bytes(), &[b's'; 1200], CALLER, w)
                .map(|made| fs.forget(made.ino, 1)),
            6 => fs.lookup(other, &target).and_then(|found| {
                fs.forget(found.ino, 1);
                fs.link(found.ino, directory, fresh.as_bytes(), w).map(|_| fs.forget(found.ino, 1))
            }),
            _ => fs
                .mknod(directory, fresh.as_bytes(), 0o100644, 0, CALLER, w)
                .map(|made| fs.forget(made.ino, 1)),
        };
        self.count(result);
    }
}
