//! Every operation crashed at every persistence event (docs/semantics.md). PM and device lose power at the
//! same instant. All subsets of up to eight undecided lines and samples of more are mounted; recovery is
//! crashed as well. check must be clean before and after the next mount, and the tree in a state that the
//! semantics allow. Each case runs on a busy pool and on a quiet one; free blocks hold the pages of an older
//! pool.
//!
//! `cargo test -p terrace-sim --test crash -- --nocapture` prints the number of states of each case;
//! `TERRACE_CRASH_SAMPLES=10` takes ten times the samples. CONTRIBUTING.md says how the test was tested.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod crash_support;

use crash_support::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use terrace_engine::{Allocate, Engine, Movements, SetAttributes, SetTime, Simulation, WriteFlags};
use terrace_runtime::sync::Mutex;

/// A tree with a file of each kind; records of two lanes are above the checkpoint.
fn populate(world: &World, fs: &std::sync::Arc<terrace_engine::Engine>) {
    let d = mkdir(fs, ROOT, "d");
    mkdir(fs, ROOT, "empty");
    mkdir(fs, d, "sub");
    let cold = create(fs, ROOT, "cold");
    write(fs, cold, 0, &pattern(20_000, 1));
    if world.shape.tier {
        fs.sync_to(1, &mut |_| {}).unwrap();
    }
    let f = create(fs, ROOT, "f");
    in_lane(0, 2, || write(fs, f, 0, &pattern(10_000, 2)));
    let g = create(fs, d, "g");
    in_lane(1, 2, || write(fs, g, 0, &pattern(5000, 3)));
    fs.link(g, ROOT, b"hard", W).unwrap();
    fs.forget(g, 1);
    let h = create(fs, d, "h");
    set_xattr(fs, h, "user.a", b"value");
    let link = fs.symlink(ROOT, b"link", b"d/g", CALLER, W).unwrap().ino;
    fs.forget(link, 1);
}

fn case(
    name: &'static str,
    act: impl Fn(&std::sync::Arc<terrace_engine::Engine>) + Send + Sync + 'static,
) -> Case {
    Case::new(name, populate, move |_, fs| act(fs))
}

/// A cold block under a partial shadow.
fn shadowed(world: &World, fs: &std::sync::Arc<terrace_engine::Engine>) {
    populate(world, fs);
    if world.shape.tier {
        write(fs, find(fs, "cold"), 4096 + 512, &pattern(512, 5));
    }
}

fn shadow_case(
    name: &'static str,
    act: impl Fn(&std::sync::Arc<terrace_engine::Engine>) + Send + Sync + 'static,
) -> Case {
    Case::new(name, shadowed, move |_, fs| act(fs))
}

/// Runs cases on two threads, prints the counts, and fails with the first error of a case. Gives the number of states.
fn run(cases: Vec<Case>, factor: f64) -> u64 {
    run_with(cases, Effort::default_times(factor))
}

fn run_with(cases: Vec<Case>, effort: Effort) -> u64 {
    static TOTAL: Mutex<Option<Counts>> = Mutex::new(None);
    static FAILED: AtomicBool = AtomicBool::new(false);
    let failed = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let states = AtomicU64::new(0);
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed))
            && !FAILED.load(Ordering::Relaxed)
        {
            // A fixed lane, so that a run repeats.
            match in_lane(0, 2, || case.run(effort)) {
                Ok((text, counts)) => {
                    println!("{text}");
                    states.fetch_add(counts.states, Ordering::Relaxed);
                    *TOTAL.lock().get_or_insert_default() += counts;
                }
                Err(error) => {
                    FAILED.store(true, Ordering::Relaxed);
                    failed.lock().push(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    println!("so far: {}", TOTAL.lock().unwrap_or_default());
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    states.into_inner()
}

fn names() -> Vec<Case> {
    vec![
        case("create", |fs| {
            create(fs, ROOT, "new");
        }),
        case("mkdir", |fs| {
            mkdir(fs, find(fs, "d"), "new");
        }),
        case("mknod", |fs| {
            let ino = fs.mknod(ROOT, b"pipe", 0o010600, 0, CALLER, W).unwrap().ino;
            fs.forget(ino, 1);
        }),
        case("symlink", |fs| {
            let ino = fs.symlink(ROOT, b"s", &[b'x'; 1500], CALLER, W).unwrap().ino;
            fs.forget(ino, 1);
        }),
        case("link", |fs| {
            let ino = find(fs, "f");
            fs.link(ino, find(fs, "d"), b"f2", W).unwrap();
            fs.forget(ino, 1);
        }),
        case("unlink one of two", |fs| fs.unlink(ROOT, b"hard", W).unwrap()),
        case("unlink the last, with data", |fs| fs.unlink(ROOT, b"f", W).unwrap()),
        case("unlink the last, cold", |fs| {
            fs.unlink(ROOT, b"cold", W).unwrap();
            fs.run_background(200);
        }),
        case("unlink with xattr", |fs| {
            fs.unlink(find(fs, "d"), b"h", W).unwrap();
            fs.run_background(200);
        }),
        case("unlink symlink", |fs| {
            fs.unlink(ROOT, b"link", W).unwrap();
            fs.run_background(200);
        }),
        case("rmdir", |fs| fs.rmdir(ROOT, b"empty", W).unwrap()),
        case("rename in one directory", |fs| fs.rename(ROOT, b"f", ROOT, b"z", false, W).unwrap()),
        case("rename across", |fs| fs.rename(ROOT, b"f", find(fs, "d"), b"z", true, W).unwrap()),
        case("rename over a file", |fs| fs.rename(ROOT, b"f", find(fs, "d"), b"h", false, W).unwrap()),
        case("rename over a linked file", |fs| fs.rename(ROOT, b"f", ROOT, b"hard", false, W).unwrap()),
        case("rename a directory", |fs| {
            fs.rename(find(fs, "d"), b"sub", ROOT, b"moved", false, W).unwrap();
        }),
        case("rename over a directory", |fs| {
            fs.rename(find(fs, "d"), b"sub", ROOT, b"empty", false, W).unwrap();
        }),
    ]
}

#[test]
fn operations_on_names_are_atomic() {
    run(names(), 1.0);
}

fn attributes() -> Vec<Case> {
    vec![
        case("chmod", |fs| {
            let change = SetAttributes { mode: Some(0o4711), ..Default::default() };
            fs.setattr(find(fs, "f"), &change, W).unwrap();
        }),
        case("chown", |fs| {
            let change = SetAttributes { uid: Some(7), gid: Some(8), ..Default::default() };
            fs.setattr(find(fs, "d"), &change, W).unwrap();
        }),
        case("utimens", |fs| {
            let (a, m) = (Some(SetTime::At(5)), Some(SetTime::At(-7)));
            let change = SetAttributes { atime: a, mtime: m, ..Default::default() };
            fs.setattr(find(fs, "d/g"), &change, W).unwrap();
        }),
        case("setxattr new", |fs| set_xattr(fs, find(fs, "f"), "user.n", &pattern(2000, 9))),
        case("setxattr longer", |fs| set_xattr(fs, find(fs, "d/h"), "user.a", &pattern(1400, 9))),
        case("setxattr shorter", |fs| set_xattr(fs, find(fs, "d/h"), "user.a", b"v")),
        case("removexattr", |fs| fs.removexattr(find(fs, "d/h"), b"user.a", W).unwrap()),
    ]
}

#[test]
fn changes_of_attributes_are_atomic() {
    run(attributes(), 1.0);
}

fn writes() -> Vec<Case> {
    // The most that a record of a quarter of a lane of 16 KiB holds, with the file map of the pool.
    let piece = terrace_sim::kinds::BASE.atomic_blocks() as usize * 4096;
    let length = piece * 5 / 2;
    let large = move |pieces: usize| {
        move |fs: &std::sync::Arc<terrace_engine::Engine>| {
            let ino = find(fs, "f");
            write(fs, ino, 0, &pattern(length, 9)[..pieces * piece]);
        }
    };
    vec![
        case("write a new block", |fs| write(fs, find(fs, "f"), 40_960, &pattern(4096, 9))),
        case("overwrite a block", |fs| write(fs, find(fs, "f"), 4096, &pattern(4096, 9))),
        case("overwrite two blocks", |fs| write(fs, find(fs, "f"), 0, &pattern(8192, 9))),
        case("overwrite many blocks", |fs| write(fs, find(fs, "f"), 0, &pattern(80_000, 9))),
        case("append in the last block", |fs| write(fs, find(fs, "f"), 10_000, &pattern(100, 9))),
        case("append across blocks", |fs| write(fs, find(fs, "f"), 10_000, &pattern(9000, 9))),
        case("unaligned overwrite", |fs| write(fs, find(fs, "f"), 4000, &pattern(200, 9))),
        case("sparse, past a partial block", |fs| write(fs, find(fs, "f"), 100_000, &pattern(10, 9))),
        case("over a cold block, whole", |fs| write(fs, find(fs, "cold"), 4096, &pattern(4096, 9))),
        case("over a cold block, part", |fs| write(fs, find(fs, "cold"), 5000, &pattern(100, 9))),
        case("lines over a cold block", |fs| write(fs, find(fs, "cold"), 4096 + 512, &pattern(512, 9))),
        case("append to a cold block", |fs| write(fs, find(fs, "cold"), 20_000, &pattern(3000, 9))),
        shadow_case("lines added to a partial shadow", |fs| {
            write(fs, find(fs, "cold"), 4096 + 1024, &pattern(128, 9));
        }),
        shadow_case("lines over others of a partial shadow", |fs| {
            write(fs, find(fs, "cold"), 4096 + 256, &pattern(512, 9));
        }),
        shadow_case("part of a line of a partial shadow", |fs| {
            write(fs, find(fs, "cold"), 4096 + 600, &pattern(100, 9));
        }),
        shadow_case("whole block over a partial shadow", |fs| {
            write(fs, find(fs, "cold"), 4096, &pattern(4096, 9));
        }),
        case("write with O_SYNC and set-id", |fs| {
            let flags = WriteFlags { sync: true, kill_set_id: true, pages: false };
            fs.write(find(fs, "f"), 1, b"abc", flags, W).unwrap();
        }),
        Case::new("write in three pieces", populate, move |_, fs| {
            write(fs, find(fs, "f"), 0, &pattern(length, 9));
        })
        .or(move |_, fs| large(1)(fs))
        .or(move |_, fs| large(2)(fs)),
    ]
}

#[test]
fn each_piece_of_a_write_is_atomic() {
    let effort = Effort::default_times(1.0);
    let states = run_with(writes(), Effort { stride: effort.stride.min(2), ..effort });
    // With each file map (TERRACE_MAP), and with the samples of `make test`. This file has several times as many states.
    assert!(states > 5_000, "{states}");
}

fn sizes() -> Vec<Case> {
    let filled = |blocks: usize| {
        move |w: &World, fs: &std::sync::Arc<terrace_engine::Engine>| {
            populate(w, fs);
            let big = create(fs, ROOT, "big");
            write(fs, big, 0, &pattern(blocks * 4096 + 10, 4));
        }
    };
    vec![
        case("truncate down", |fs| set_size(fs, find(fs, "f"), 4500)),
        case("truncate to nothing", |fs| set_size(fs, find(fs, "f"), 0)),
        case("truncate cold", |fs| set_size(fs, find(fs, "cold"), 4500)),
        case("truncate up in the block", |fs| set_size(fs, find(fs, "f"), 11_000)),
        case("truncate up, cold", |fs| set_size(fs, find(fs, "cold"), 100_000)),
        case("truncate down and up", |fs| {
            set_size(fs, find(fs, "f"), 4500);
            set_size(fs, find(fs, "f"), 9000);
        })
        .or(|_, fs| set_size(fs, find(fs, "f"), 4500)),
        shadow_case("truncate a partial shadow", |fs| set_size(fs, find(fs, "cold"), 4096 + 600)),
        shadow_case("truncate a partial shadow down and up", |fs| {
            set_size(fs, find(fs, "cold"), 4096 + 512);
            set_size(fs, find(fs, "cold"), 8192);
        })
        .or(|_, fs| set_size(fs, find(fs, "cold"), 4096 + 512)),
        shadow_case("punch in a partial shadow", |fs| punch(fs, find(fs, "cold"), 4096 + 576, 640)),
        case("punch inside", |fs| punch(fs, find(fs, "f"), 1000, 7000)),
        case("punch in one block", |fs| punch(fs, find(fs, "f"), 1000, 70)),
        case("punch cold", |fs| punch(fs, find(fs, "cold"), 1000, 9000)),
        case("allocate in the file", |fs| {
            fs.fallocate(find(fs, "f"), 0, 60_000, Allocate::KeepSize, W).unwrap();
        }),
        case("allocate and extend", |fs| {
            fs.fallocate(find(fs, "f"), 5000, 200_000, Allocate::Extend, W).unwrap();
        })
        .or(|_, fs| fs.fallocate(find(fs, "f"), 5000, 200_000, Allocate::KeepSize, W).unwrap()),
        Case::new("truncate by intent", filled(120), |_, fs| set_size(fs, find(fs, "big"), 5000)),
        Case::new("punch by intent", filled(120), |_, fs| punch(fs, find(fs, "big"), 5000, 440_000)),
        Case::new(
            "truncate cold by intent",
            move |w, fs| {
                filled(120)(w, fs);
                fs.sync_to(1, &mut |_| {}).unwrap();
                // Every third block has a shadow over a stale cold copy.
                for block in (0..120).step_by(3) {
                    write(fs, find(fs, "big"), block * 4096, &pattern(4096, 5));
                }
            },
            |_, fs| set_size(fs, find(fs, "big"), 5000),
        ),
        Case::new("unlink of many blocks", filled(120), |_, fs| {
            fs.unlink(ROOT, b"big", W).unwrap();
            fs.run_background(500);
        }),
        Case::new("write into an intent", filled(120), |_, fs| {
            set_size(fs, find(fs, "big"), 5000);
            write(fs, find(fs, "big"), 100_000, b"here");
        })
        .or(|_, fs| set_size(fs, find(fs, "big"), 5000)),
    ]
}

#[test]
fn changes_of_size_are_atomic() {
    run(sizes(), 1.0);
}

fn moves() -> Vec<Case> {
    let promoted = |w: &World, fs: &std::sync::Arc<terrace_engine::Engine>| {
        populate(w, fs);
        let cold = find(fs, "cold");
        for _ in 0..3 {
            read(fs, cold);
        }
    };
    let in_pm = move |w: &World, fs: &std::sync::Arc<terrace_engine::Engine>| {
        promoted(w, fs);
        fs.run_background(50);
        assert!(fs.status().unwrap().migration.promoted_bytes > 0);
    };
    vec![
        case("demotion", |fs| fs.sync_to(1, &mut |_| {}).map(drop).unwrap()),
        case("demotion over old copies", |fs| {
            let cold = find(fs, "cold");
            write(fs, cold, 0, &pattern(9000, 8));
            fs.sync_to(1, &mut |_| {}).unwrap();
        })
        .or(|_, fs| write(fs, find(fs, "cold"), 0, &pattern(9000, 8))),
        shadow_case("demotion of a partial shadow", |fs| fs.sync_to(1, &mut |_| {}).map(drop).unwrap()),
        shadow_case("promotion of a partial shadow", |fs| {
            for _ in 0..3 {
                read(fs, find(fs, "cold"));
            }
            fs.run_background(50);
            assert!(fs.status().unwrap().migration.promoted_bytes > 0);
        }),
        // Freed device space is used again at once: the record that freed it is durable by then.
        case("freed space below is used again", |fs| {
            set_size(fs, find(fs, "cold"), 0);
            fs.sync_to(1, &mut |_| {}).unwrap();
        })
        .or(|_, fs| set_size(fs, find(fs, "cold"), 0)),
        // A block read before a punch is not promoted into the hole.
        Case::new("promotion after a punch", promoted, |_, fs| {
            punch(fs, find(fs, "cold"), 0, 8192);
            fs.run_background(50);
        })
        .volatile(),
        Case::new("promotion", promoted, |_, fs| {
            fs.run_background(50);
            assert!(fs.status().unwrap().migration.promoted_bytes > 0);
        })
        .volatile(),
        Case::new("clean eviction", in_pm, |_, fs| {
            // PM is far below the threshold, so `sync --to` demotes; clean blocks are dropped without a
            // write.
            write(fs, find(fs, "d/g"), 0, b"dirty");
            fs.sync_to(1, &mut |_| {}).unwrap();
            assert!(fs.status().unwrap().migration.clean_evicted_bytes > 0);
        })
        .or(|_, fs| write(fs, find(fs, "d/g"), 0, b"dirty"))
        .volatile(),
        Case::new("overwrite of a clean copy", in_pm, |_, fs| {
            write(fs, find(fs, "cold"), 100, b"new");
            fs.sync_to(1, &mut |_| {}).unwrap();
        })
        .or(|_, fs| write(fs, find(fs, "cold"), 100, b"new"))
        .volatile(),
        Case::new(
            "reclaim of an orphan",
            |w, fs| {
                populate(w, fs);
                let f = fs.lookup(ROOT, b"f").unwrap().ino;
                fs.unlink(ROOT, b"f", W).unwrap();
                fs.forget(f, 1);
            },
            |_, fs| fs.run_background(200),
        ),
        case("fsync, sync", |fs| {
            fs.fsync(find(fs, "f"), false, W).unwrap();
            fs.sync().unwrap();
        }),
        Case::new("many small changes, checkpoints", populate, |_, fs| {
            for index in 0..40u8 {
                write(fs, find(fs, "f"), 0, &[index; 64]);
            }
        })
        .or_if(|dump| {
            dump.0
                .get("/f")
                .is_some_and(|f| f.size == 10_000 && f.content[..64].iter().all(|b| *b == f.content[0]))
        }),
        Case::new("unmount", populate, |_, fs| fs.unmount().unwrap()),
    ]
}

#[test]
fn movements_leave_content_and_attributes_unchanged() {
    run(moves(), 1.0);
}

fn growth() -> Vec<Case> {
    let prefix_of_names = |count: usize| {
        move |dump: &Dump| {
            // Names appear in the order of their creation.
            let made = (0..count).take_while(|i| dump.0.contains_key(&format!("/d/{}", long(*i)))).count();
            (made..count).all(|i| !dump.0.contains_key(&format!("/d/{}", long(i))))
        }
    };
    vec![
        case("inode page growth", |fs| {
            let d = find(fs, "d");
            (0..30).for_each(|i| {
                create(fs, d, &long(i));
            });
        })
        .or_if(prefix_of_names(30)),
        Case::new(
            "catalog splits",
            |w, fs| {
                populate(w, fs);
                let d = find(fs, "d");
                (100..160).for_each(|i| {
                    create(fs, d, &long(i));
                });
            },
            |_, fs| {
                let d = find(fs, "d");
                (0..20).for_each(|i| {
                    create(fs, d, &long(i));
                });
            },
        )
        .or_if(prefix_of_names(20)),
        Case::new("map node growth", populate, |_, fs| {
            write(fs, find(fs, "f"), 600 * 4096, &pattern(9000, 8))
        }),
        Case::new(
            "map nodes pruned",
            |w, fs| {
                populate(w, fs);
                write(fs, find(fs, "f"), 600 * 4096, &pattern(9000, 8));
            },
            |_, fs| set_size(fs, find(fs, "f"), 100),
        ),
        Case::new(
            "leaves emptied",
            |w, fs| {
                populate(w, fs);
                let d = find(fs, "d");
                (0..40).for_each(|i| {
                    create(fs, d, &long(i));
                });
            },
            |_, fs| {
                let d = find(fs, "d");
                (0..40).for_each(|i| fs.unlink(d, long(i).as_bytes(), W).unwrap());
            },
        )
        .or_if(|dump| {
            let there: Vec<bool> = (0..40).map(|i| dump.0.contains_key(&format!("/d/{}", long(i)))).collect();
            there.windows(2).all(|pair| !pair[0] || pair[1])
        }),
    ]
}

fn long(index: usize) -> String {
    format!("{index:03}-a-name-long-enough-to-fill-the-pages-of-the-catalog-quickly-{}", "x".repeat(150))
}

#[test]
fn growth_is_invisible() {
    run(growth(), 1.0);
}

type Step = std::sync::Arc<dyn Fn(&std::sync::Arc<terrace_engine::Engine>) + Send + Sync>;

/// A case of several steps; a crash may leave any number of them.
fn steps(
    name: &'static str,
    setup: impl Fn(&World, &std::sync::Arc<terrace_engine::Engine>) + Send + Sync + 'static,
    steps: Vec<Step>,
) -> Case {
    let first = |count: usize| {
        let steps = steps[..count].to_vec();
        move |_: &World, fs: &std::sync::Arc<terrace_engine::Engine>| steps.iter().for_each(|step| step(fs))
    };
    (1..steps.len()).fold(Case::new(name, setup, first(steps.len())), |case, count| case.or(first(count)))
}

/// Blocks that are freed and at once claimed for another file (T6): a block that older records above the
/// checkpoint name or write must not be in use for new content.
fn reuse() -> Vec<Case> {
    fn step(act: impl Fn(&std::sync::Arc<terrace_engine::Engine>) + Send + Sync + 'static) -> Step {
        std::sync::Arc::new(act)
    }
    // A write of a single block takes the lowest free block, which is the one just freed.
    fn then_others(first: Vec<Step>) -> Vec<Step> {
        let other = |block: u64| {
            step(move |fs| in_lane(1, 2, || write(fs, find(fs, "d/g"), block * 4096, &pattern(4096, 12))))
        };
        first.into_iter().chain((0..6).map(other)).collect()
    }
    // The record in lane 0 names two blocks; one is freed and written again through lane 1.
    let named = |name: &'static str, length: usize| {
        let two = step(|fs| in_lane(0, 2, || write(fs, find(fs, "f"), 0, &pattern(8192, 9))));
        let one = step(move |fs| in_lane(1, 2, || write(fs, find(fs, "f"), 0, &pattern(length, 11))));
        steps(name, populate, then_others(vec![two, one]))
    };
    let far = step(|fs| write(fs, find(fs, "f"), 600 * 4096, &pattern(4096, 8)));
    let cut = step(|fs| set_size(fs, find(fs, "f"), 100));
    let single = |w: &World, fs: &std::sync::Arc<terrace_engine::Engine>| {
        populate(w, fs);
        // A name in a shard of its own.
        let other = mkdir(fs, ROOT, "other");
        create(fs, other, "name");
    };
    let emptied = step(|fs| fs.unlink(find(fs, "other"), b"name", W).unwrap());
    vec![
        named("reuse: a block of a named write", 4096),
        named("reuse: the same, in part", 3000),
        steps("reuse: map nodes as data", populate, then_others(vec![far, cut])),
        steps("reuse: catalog leaves as data", single, then_others(vec![emptied])),
    ]
}

#[test]
fn freed_blocks_are_not_reused_early() {
    run(reuse(), 1.0);
}

/// PM alone: then preallocated blocks lie in PM.
#[test]
fn without_a_tier() {
    let bare = Shape { tier: false, ..SMALL };
    let over = |name: &'static str, offset: u64, data: Vec<u8>| {
        let allocated = |w: &World, fs: &std::sync::Arc<terrace_engine::Engine>| {
            populate(w, fs);
            fs.fallocate(find(fs, "f"), 8192, 40_000, Allocate::Extend, W).unwrap();
        };
        Case::new(name, allocated, move |_, fs| write(fs, find(fs, "f"), offset, &data))
    };
    let cases = vec![
        case("bare: allocate in the file", |fs| {
            fs.fallocate(find(fs, "f"), 0, 60_000, Allocate::KeepSize, W).unwrap();
        }),
        case("bare: allocate and extend", |fs| {
            fs.fallocate(find(fs, "f"), 5000, 100_000, Allocate::Extend, W).unwrap();
        })
        .or(|_, fs| fs.fallocate(find(fs, "f"), 5000, 100_000, Allocate::KeepSize, W).unwrap()),
        over("bare: over allocated, whole", 16_384, pattern(4096, 9)),
        over("bare: over allocated, part", 17_000, pattern(100, 9)),
        over("bare: over allocated, many", 17_000, pattern(20_000, 9)),
        case("bare: shrink and grow", |fs| {
            set_size(fs, find(fs, "f"), 4500);
            set_size(fs, find(fs, "f"), 9000);
        })
        .or(|_, fs| set_size(fs, find(fs, "f"), 4500)),
        case("bare: punch", |fs| punch(fs, find(fs, "f"), 1000, 7000)),
    ];
    run(cases.into_iter().map(|case| case.shape(bare)).collect(), 1.0);
}

/// Overwrites of allocated blocks on a full pool: into the reserve, and from there over the cold copies that
/// the new blocks shadow. A part of these cold blocks holds data, a part is unwritten.
#[test]
fn overwrites_on_a_full_pool() {
    const LAID_OUT: u64 = 48 * 4096;
    fn full(_: &World, fs: &Arc<Engine>) {
        let (old, filler) = (create(fs, ROOT, "old"), create(fs, ROOT, "filler"));
        write(fs, old, 0, &pattern(40 * 4096, 3));
        fs.sync_to(1, &mut |_| {}).unwrap();
        fs.fallocate(old, LAID_OUT, 40 * 4096, Allocate::Extend, W).unwrap();
        let filled = |at: &u64| fs.write(filler, at * 4096, &[7; 4096], WriteFlags::default(), W).is_ok();
        assert!((0..).take_while(filled).count() > 300);
        // The file's share of the reserve is used up, or nearly.
        for at in 0..4 {
            write(fs, old, at * 5 * 4096, &pattern(4096, 4));
            write(fs, old, LAID_OUT + at * 5 * 4096, &pattern(4096, 5));
        }
    }
    let shape = Shape { device_blocks: 257, ..SMALL };
    let over = |name, offset: u64, length: usize| {
        let act = move |_: &World, fs: &Arc<Engine>| write(fs, find(fs, "old"), offset, &pattern(length, 9));
        Case::new(name, full, act).shape(shape)
    };
    run(
        vec![
            over("full: over what lies below", 2 * 4096, 3 * 4096),
            over("full: over part of it", 7 * 4096 + 100, 5000),
            over("full: over what was laid out", LAID_OUT + 2 * 4096, 3 * 4096),
            over("full: over what PM has", 0, 4096),
        ],
        0.3,
    );
}

/// Demotion to a tier without a free block: blocks go over the hidden cold copies (docs/decisions/0023), dense blocks
/// and a partial shadow too.
#[test]
fn demotion_to_a_full_tier() {
    fn full_below(_: &World, fs: &Arc<Engine>) {
        let (old, filler) = (create(fs, ROOT, "old"), create(fs, ROOT, "filler"));
        write(fs, old, 0, &pattern(24 * 4096, 3));
        fs.sync_to(1, &mut |_| {}).unwrap();
        let free = || {
            let tier = &fs.status().unwrap().tiers[1];
            (tier.capacity_bytes - tier.used_bytes) as usize
        };
        // A group leaves the room of its summaries to the next group.
        let mut at = 0;
        while free() > 0 {
            let more = free();
            write(fs, filler, at, &vec![7; more]);
            fs.sync_to(1, &mut |_| {}).unwrap();
            at += more as u64;
        }
        write(fs, old, 4096, &pattern(8 * 4096, 4));
        write(fs, old, 12 * 4096 + 512, &pattern(512, 7));
        write(fs, old, 20 * 4096, &pattern(2 * 4096, 6));
    }
    let demote = |fs: &Arc<Engine>| {
        let before = fs.status().unwrap().migration.in_place_bytes;
        fs.sync_to(1, &mut |_| {}).unwrap();
        assert_eq!(fs.status().unwrap().migration.in_place_bytes - before, 11 * 4096);
    };
    let shape = Shape { device_blocks: 65, ..SMALL };
    run(vec![Case::new("full below: demotion", full_below, move |_, fs| demote(fs)).shape(shape)], 0.3);
}

#[test]
fn ordered_overwrites_in_place() {
    let ordered = Shape { ordered: true, ..SMALL };
    let mixed = |path: &'static str, from: usize, new: Vec<u8>, old: Vec<u8>| {
        move |dump: &Dump| {
            let Some(file) = dump.0.get(path) else { return false };
            file.content.len() == old.len()
                && file.content.chunks(8).zip(old.chunks(8)).enumerate().all(|(word, (found, old))| {
                    let range = word * 8..word * 8 + found.len();
                    let mut after = old.to_vec();
                    for (at, byte) in range.clone().zip(after.iter_mut()) {
                        if at >= from && at < from + new.len() {
                            *byte = new[at - from];
                        }
                    }
                    found == old || found == after
                })
        }
    };
    let old = pattern(10_000, 2);
    run(
        vec![
            case("ordered: overwrite", |fs| write(fs, find(fs, "f"), 4096, &pattern(4096, 9)))
                .shape(ordered)
                .or_if(mixed("/f", 4096, pattern(4096, 9), old.clone())),
            case("ordered: unaligned", |fs| write(fs, find(fs, "f"), 1001, &pattern(50, 9)))
                .shape(ordered)
                .or_if(mixed("/f", 1001, pattern(50, 9), old.clone())),
            case("ordered: twice, two lanes", |fs| {
                in_lane(0, 2, || write(fs, find(fs, "f"), 0, &pattern(64, 9)));
                in_lane(1, 2, || write(fs, find(fs, "f"), 0, &pattern(64, 10)));
            })
            .shape(ordered)
            .or_if(move |dump| {
                let f = &dump.0["/f"].content;
                let of = |seed| pattern(64, seed);
                f[64..] == old[64..]
                    && (0..8).all(|w| {
                        let r = w * 8..w * 8 + 8;
                        f[r.clone()] == old[r.clone()]
                            || f[r.clone()] == of(9)[r.clone()]
                            || f[r.clone()] == of(10)[r]
                    })
            }),
            shadow_case("ordered: lines added to a partial shadow", |fs| {
                write(fs, find(fs, "cold"), 4096 + 1024, &pattern(128, 9));
            })
            .shape(ordered),
            case("ordered: append", |fs| write(fs, find(fs, "f"), 10_000, &pattern(3000, 9))).shape(ordered),
            case("ordered: new block", |fs| write(fs, find(fs, "f"), 40_960, &pattern(3000, 9)))
                .shape(ordered),
        ],
        1.0,
    );
}

fn where_only_persist_makes_durable(cases: impl IntoIterator<Item = Case>) {
    let persist_only = Shape { persist_only: true, ..SMALL };
    run(cases.into_iter().map(|case| case.shape(persist_only)).collect(), 0.25);
}

#[test]
fn names_and_attributes_are_atomic_where_only_persist_makes_durable() {
    where_only_persist_makes_durable([names(), attributes(), growth()].into_iter().flatten());
}

/// A short run takes all writes, and every fourth of the other cases: with each map others.
#[test]
fn content_is_atomic_where_only_persist_makes_durable() {
    let part = if Effort::default_times(1.0).is_short() { 4 } else { 1 };
    let others = sizes().into_iter().chain(moves());
    let first = terrace_sim::kinds::BASE.file_map() as usize % part;
    where_only_persist_makes_durable(writes().into_iter().chain(others.skip(first).step_by(part)));
}
