//! Programs that are measured on a subject's directory: databases with their own benchmarks.

use super::run::Running;
use super::{Site, leveldb, postgres, sources};
use crate::failure::Outcome;
use crate::workload::numbers::Picks;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A run of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Program {
    /// A benchmark of RocksDB's db_bench: synchronous, values of 1,000 bytes, uncompressed. The sizes of log
    /// and memtable are in the published proportion to the data (128 MB : 32 GB).
    RocksDb {
        /// Name of the benchmark.
        benchmark: &'static str,
        /// Number of keys.
        keys: u64,
        /// Number of threads.
        threads: u64,
        /// Longest time of the run.
        seconds: u64,
    },
    /// A benchmark of LevelDB's db_bench: one thread, asynchronous; reads run for `milliseconds`.
    LevelDb {
        /// Name of the benchmark.
        benchmark: &'static str,
        /// Number of keys.
        keys: u64,
        /// Time of reads.
        milliseconds: u64,
    },
    /// sqlite3: inserts of 1,000 bytes under random keys, a transaction each, synchronous=FULL, into a
    /// database of `rows` rows.
    Sqlite {
        /// The journal mode.
        journal: &'static str,
        /// Number of inserts.
        inserts: u64,
        /// Rows of the database.
        rows: u64,
    },
    /// A git clone, without links, of a repository with `files` files of a few KiB. Clones of earlier rounds
    /// are removed first.
    GitClone {
        /// Number of files.
        files: u64,
    },
    /// grep for an absent word in a tree of C sources.
    Grep {
        /// Number of sources.
        files: u64,
    },
    /// make of a tree of C sources, one compiler at a time.
    Make {
        /// Number of sources.
        files: u64,
    },
    /// PostgreSQL with pgbench; the database is `scale` times 16 MiB.
    Postgres {
        /// Size of the database in 16 MiB.
        scale: u64,
        /// Time of the run.
        seconds: u64,
    },
    /// fio: 4 KiB at Zipf-distributed offsets of a private file per thread; writes with O_DSYNC. θ 0 is
    /// uniform.
    Fio {
        /// Write, or read.
        write: bool,
        /// The skew θ of Zipf's distribution.
        theta: String,
        /// Number of files and threads.
        files: u64,
        /// Size of a file.
        file_bytes: u64,
        /// Time of the run.
        milliseconds: u64,
    },
}

const PATIENCE: Duration = Duration::from_secs(1800);

/// Path of a program, or the Debian package that has it.
fn find(program: &str, package: &str) -> Outcome<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|place| place.join(program)).find(|file| file.exists());
    found.ok_or_else(|| format!("{program} is not installed (Debian: {package})").into())
}

impl Program {
    /// Whether each run of the program makes its files anew.
    pub fn begins_anew(&self) -> bool {
        matches!(self, Program::RocksDb { .. } | Program::LevelDb { .. })
    }

    /// Whether this machine has the program.
    ///
    /// # Errors
    /// Names the missing package.
    pub fn available(&self) -> Outcome<()> {
        match self {
            Program::RocksDb { .. } => find("db_bench", "rocksdb-tools"),
            Program::Sqlite { .. } => find("sqlite3", "sqlite3"),
            Program::GitClone { .. } => find("git", "git"),
            Program::Grep { .. } => find("grep", "grep"),
            Program::Make { .. } => find("cc", "gcc").and_then(|_| find("make", "make")),
            Program::Postgres { .. } => return postgres::available(),
            Program::LevelDb { .. } => return leveldb::available(),
            Program::Fio { .. } => find("fio", "fio"),
        }
        .map(|_| ())
    }

    /// Runs the program; gives operations per second.
    ///
    /// # Errors
    /// The message of the failed program; output that is not understood.
    pub fn run(&self, site: &Site, directory: &Path) -> Outcome<f64> {
        match self {
            Program::Postgres { scale, seconds } => postgres::run(site, directory, *scale, *seconds),
            _ => self.begin(site, directory)?.wait(site),
        }
    }

    /// Prepares the program's data and begins the program.
    ///
    /// # Errors
    /// The missing package; PostgreSQL, which is several programs.
    pub fn begin(&self, site: &Site, directory: &Path) -> Outcome<Begun> {
        let (program, args, unit) = match self {
            Program::RocksDb { benchmark, keys, threads, seconds } => {
                rocksdb(directory, benchmark, *keys, *threads, *seconds)?
            }
            Program::LevelDb { benchmark, keys, milliseconds } => {
                let (python, args) =
                    leveldb::command(directory, benchmark, *keys, *milliseconds as f64 / 1e3);
                (python, args, Unit::Printed)
            }
            Program::Sqlite { journal, inserts, rows } => sqlite(site, directory, journal, *inserts, *rows)?,
            Program::GitClone { files } => git_clone(site, directory, *files)?,
            Program::Grep { files } => {
                sources::prepare(directory, *files)?;
                let (shell, args) = sources::grep(directory);
                (shell, args, Unit::Operations(*files))
            }
            Program::Make { files } => {
                sources::prepare(directory, *files)?;
                (find("make", "make")?, sources::make(directory), Unit::Operations(*files))
            }
            Program::Postgres { .. } => return Err("PostgreSQL runs alone".into()),
            Program::Fio { write, theta, files, file_bytes, milliseconds } => {
                fio(directory, *write, theta, [*files, *file_bytes, *milliseconds])?
            }
        };
        Ok(Begun { running: site.begin(&program, &args, PATIENCE)?, unit })
    }
}

/// The source of a program's operations per second.
enum Unit {
    /// The line of a benchmark in db_bench's output.
    DbBench(&'static str),
    /// The program does this number of operations; its time is measured.
    Operations(u64),
    /// fio's JSON, of its reads or of its writes.
    Fio(&'static str),
    /// The whole output is the number.
    Printed,
}

/// A program with its arguments.
type Ready = (PathBuf, Vec<OsString>, Unit);

/// A program that was begun.
pub struct Begun {
    running: Running,
    unit: Unit,
}

impl Begun {
    /// Waits for the program's end; gives operations per second.
    ///
    /// # Errors
    /// The message of the failed program; output that is not understood.
    pub fn wait(self, site: &Site) -> Outcome<f64> {
        let begin_ns = self.running.begin_ns;
        let text = self.running.wait(site)?;
        match self.unit {
            Unit::DbBench(benchmark) => operations_per_s(&text, benchmark),
            Unit::Printed => {
                text.trim().parse().map_err(|_| "the program does not say operations per second".into())
            }
            Unit::Operations(count) => {
                Ok(count as f64 * 1e9 / (site.scratch.now_ns() - begin_ns).max(1) as f64)
            }
            Unit::Fio(side) => {
                // fio prints notes before the JSON object.
                let object = text.find('{').map(|at| &text[at..]).ok_or("fio says nothing")?;
                let found: serde_json::Value = serde_json::from_str(object)?;
                found["jobs"][0][side]["iops"].as_f64().ok_or_else(|| "fio does not say iops".into())
            }
        }
    }
}

fn rocksdb(
    directory: &Path,
    benchmark: &'static str,
    keys: u64,
    threads: u64,
    seconds: u64,
) -> Outcome<Ready> {
    let data = keys * 1016;
    let memtable = (data / 256).max(64 << 10);
    let reading = benchmark.starts_with("read");
    let each = (keys / if reading { 1 } else { threads }).max(1);
    let args = [
        format!("--benchmarks={benchmark}"),
        format!("--db={}", directory.join("rocksdb").display()),
        format!("--wal_dir={}", directory.join("rocksdb").display()),
        format!("--num={each}"),
        format!("--threads={threads}"),
        format!("--duration={seconds}"),
        format!("--write_buffer_size={memtable}"),
        format!("--target_file_size_base={memtable}"),
        format!("--use_existing_db={}", u8::from(reading)),
        "--sync=1".into(),
        "--key_size=16".into(),
        "--value_size=1000".into(),
        "--compression_type=none".into(),
        "--histogram=0".into(),
        "--stats_interval=0".into(),
    ];
    let args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
    Ok((find("db_bench", "rocksdb-tools")?, args, Unit::DbBench(benchmark)))
}

/// `fillseq : 11.1 micros/op 90012 ops/sec 1.0 seconds …`
fn operations_per_s(text: &str, benchmark: &str) -> Outcome<f64> {
    let line = text.lines().rev().find(|line| line.starts_with(benchmark) && line.contains("ops/sec"));
    let number = line.and_then(|line| {
        let before = line.split("ops/sec").next()?;
        before.split_whitespace().last()?.parse().ok()
    });
    number.ok_or_else(|| format!("db_bench says nothing of {benchmark}").into())
}

fn sqlite(site: &Site, directory: &Path, journal: &str, inserts: u64, rows: u64) -> Outcome<Ready> {
    let database = directory.join(format!("{journal}.sqlite"));
    let script = site.scratch.disk.join(format!("{journal}.sql"));
    let program = find("sqlite3", "sqlite3")?;
    let head = format!("PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL;\n");
    let args =
        vec!["-bail".into(), database.clone().into_os_string(), format!(".read {}", script.display()).into()];
    if !database.exists() {
        let make = format!(
            "{head}CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
             INSERT OR IGNORE INTO t SELECT random(), randomblob(1000) FROM n;\n"
        );
        fs::write(&script, make)?;
        site.confined(&program, &args, PATIENCE)?;
    }
    let insert = "INSERT OR IGNORE INTO t VALUES(random(), randomblob(1000));\n";
    fs::write(&script, head + &insert.repeat(inserts as usize))?;
    Ok((program, args, Unit::Operations(inserts)))
}

/// Files in each directory of a generated repository.
const PER_DIRECTORY: u64 = 32;
const EXTENSIONS: [&str; 4] = ["c", "h", "md", "txt"];

/// Files checked out per second.
fn git_clone(site: &Site, directory: &Path, files: u64) -> Outcome<Ready> {
    let git = find("git", "git")?;
    let source = site.scratch.disk.join("repository");
    let run = |args: &[&OsStr]| {
        let all: Vec<OsString> = args.iter().map(OsString::from).collect();
        site.confined(&git, &all, PATIENCE).map(|_| ())
    };
    if !source.exists() {
        fs::create_dir(&source)?;
        let mut picks = Picks::new(11);
        for number in 0..files {
            let lines: Vec<String> =
                (0..picks.below(400)).map(|_| format!("{:016x}\n", picks.draw())).collect();
            let leaf = number / PER_DIRECTORY;
            let place = source.join(format!("part{}/{leaf}", leaf % 8));
            fs::create_dir_all(&place)?;
            let extension = EXTENSIONS[number as usize % EXTENSIONS.len()];
            fs::write(place.join(format!("file-{number}.{extension}")), lines.concat())?;
        }
        let at = [OsStr::new("-C"), source.as_os_str()];
        // No packing in the background: it would remove objects during the clone.
        let identity =
            ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"].map(OsStr::new);
        run(&[&at[..], &["init", "-q"].map(OsStr::new)].concat())?;
        run(&[&at[..], &["add", "-A"].map(OsStr::new)].concat())?;
        run(&[&at[..], &identity, &["commit", "-q", "-m", "all"].map(OsStr::new)].concat())?;
    }
    let clone = directory.join("clone");
    if clone.exists() {
        fs::remove_dir_all(&clone)?;
    }
    let words = ["clone", "-q", "--no-hardlinks"].map(OsString::from);
    let args = words.into_iter().chain([source.into(), clone.into()]).collect();
    Ok((git, args, Unit::Operations(files)))
}

fn fio(
    directory: &Path,
    write: bool,
    theta: &str,
    [files, file_bytes, milliseconds]: [u64; 3],
) -> Outcome<Ready> {
    let distribution = if theta == "0" { "random".to_string() } else { format!("zipf:{theta}") };
    let mut args = vec![
        "--name=zipf".to_string(),
        format!("--directory={}", directory.display()),
        "--filename_format=fio.$jobnum".to_string(),
        format!("--rw={}", if write { "randwrite" } else { "randread" }),
        "--bs=4k".to_string(),
        format!("--size={file_bytes}"),
        format!("--numjobs={files}"),
        format!("--random_distribution={distribution}"),
        "--ioengine=psync".to_string(),
        "--time_based".to_string(),
        format!("--runtime={milliseconds}ms"),
        "--group_reporting".to_string(),
        "--output-format=json".to_string(),
    ];
    if write {
        args.push("--sync=dsync".to_string());
    }
    let args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
    Ok((find("fio", "fio")?, args, Unit::Fio(if write { "write" } else { "read" })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_db_bench_is_parsed() {
        let text = "RocksDB:    version 7.8.3\n\
            fillseq      :      11.110 micros/op 90012 ops/sec 0.111 seconds 10000 operations;   87.3 MB/s\n";
        assert_eq!(operations_per_s(text, "fillseq").unwrap(), 90012.0);
        assert!(operations_per_s(text, "readseq").is_err());
    }
}
