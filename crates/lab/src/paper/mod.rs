//! `terrace bench paper ROW`: the rows of docs/evaluation.md, each a figure or table of a publication.
//!
//! A row is an entry of [`ROWS`] and a function that makes its plan (rows/). Ids are stable: results and
//! documentation name them.

mod must_show;
mod replay;
pub(crate) mod rows;
#[cfg(test)]
mod tests;

use serde::Serialize;
use std::ffi::OsString;
use std::process::ExitCode;
use terrace_bench::comparison::options::{Asked, Options};
use terrace_bench::comparison::plan::{self, Plan, Scale};
use terrace_bench::comparison::{Row, pin, run_plan, scale};
use terrace_bench::failure::ended;
use terrace_bench::failure::say;
use terrace_bench::failure::{BadValue, Outcome};
use terrace_bench::site::Site;
use terrace_bench::site::subject::Peer;

pub(crate) const HELP: &str = "\
Measures a row of docs/evaluation.md beside the file systems that this machine has.

Usage: terrace bench paper ROW [OPTIONS]
       terrace bench paper --list
       terrace bench paper --replay TRACE [OPTIONS]
       terrace bench paper --must-show [OPTIONS]

  --list            the rows: id, what is measured, why one cannot run here
  --must-show       all rows of what the project has to show, on one core and unpinned, and their table; what
                    has results below --out is not run again
  --only NAME       of these only this one
  --limit N         of these run at most so many, then print the table (0: only the table)
  --again           run those again that have results
  --quick           tiny and short: shows that the row runs; its figures mean nothing
  --class CLASS     what the device below everyone behaves like: host (the disk of this machine, not
                    emulated) or a class of `terrace bench device` (default: host, or what the row is about)
  --device-memory   the file behind the device is in memory: for classes faster than the disk
  --emulate-pm SPEED  PM of Terrace with another speed: line or run, the models of docs/evaluation.md, or as the
                    mount option has it; what peers have of PM is not slowed
  --peers LIST      only these of terrace,local,ext4,ext4-dj,xfs-ml,ext4-pm,xfs-pm,btrfs,tmpfs,null,mergerfs,device
                    (default: those of the row; local is Terrace without the kernel)
  --rounds N        interleaved rounds (default 5)
  --seconds N       time of one figure in one round (default 3)
  --dataset SIZE    bytes of data, at least 8M; PM follows in the published proportion (default 512M); rows hashfs-13
                    and -14 have the published records, and run in process
  --fio             rows of random reads and writes also through fio itself, beside the own generator
  --engine          row regret also on the engine, for time (long), and on one machine of costs only
  --one-core        everything on one core; emulated devices on the others
  --record PATH     what `local`, which has to be among the peers, is asked to do, to be replayed
  --json            the result on standard output, instead of a table or a line
  --out DIR         ROW.json and ROW.svg go there (default target/bench)
  --dir DIR         directory on the disk for devices (default target/bench)
  --terrace PATH    the program for mkfs, mount, … (default: this one, or the one beside it)

Example: terrace bench paper tpfs-13 --class sata --peers terrace,ext4-dj,xfs-ml";

/// How a row is run.
#[derive(Clone, Copy)]
enum Built {
    Plan(fn(&Scale) -> Plan),
    /// A row that does not run from a plan.
    Own(fn(&Row, &Options) -> Outcome<()>),
}

/// A row of docs/evaluation.md, and how it is run.
struct PaperRow {
    about: Row,
    built: Built,
}

const fn row(
    id: &'static str,
    sentence: &'static str,
    published: &'static str,
    shape: &'static str,
    built: Built,
) -> PaperRow {
    PaperRow { about: Row { id, sentence, published, shape }, built }
}

use rows::{
    anticache, databases, filebench, hinfs, maps, predict, predictor_cost, random, regret, tiering, ycsb,
};

/// All rows, in the order of docs/evaluation.md.
#[rustfmt::skip]
const ROWS: [PaperRow; 66] = [
    row("hashfs-5", "Look-ups and insertions of one block of a file of 1 GiB by each file map, hot and cold",
        "cold reads: global maps up to 15 times faster; HashFS inserts 14 to 20 times faster than all others; hot sequential reads alike",
        "cold look-ups in lines and rounds: hashfs-linear 1.3 and 1.1, cuckoo 2 and 1, radix 3 and 3, extent more; hot sequential reads within 2 times; HashFS inserts write a line fewer and read fewest",
        Built::Own(maps::locality::locality)),
    row("hashfs-6", "As hashfs-5, cold, with layout scores of 1.0 and 0.7",
        "reads: only the extent tree suffers; insertions: all that use an allocator get slower, HashFS does not",
        "extent reads at least twice the lines; the others within 5 %", Built::Own(maps::shape::fragmentation)),
    row("hashfs-7", "As hashfs-5, cold, with files of 4 KiB, 4 MiB and 4 GiB",
        "trees grow, random reads by 34 %; hash maps are constant",
        "hash maps within 5 %; radix from one round to four", Built::Own(maps::shape::file_size)),
    row("hashfs-8", "Reads of 4 KiB, 64 KiB and 1 MiB in process: the share of the file map",
        "the gap closes with the size; radix takes 3 % of the I/O path at 1 MiB and is the best there",
        "radix at most 3 % of a read of 1 MiB; hashfs between radix and hashfs-linear from 64 KiB on",
        Built::Own(maps::requests::io_size)),
    row("hashfs-9", "As hashfs-5, cold, in PM that is 80 and 95 % full; absent blocks with and without presence",
        "at 95 % HashFS reads 12 to 14 % slower than cuckoo; both beat the trees",
        "hashfs-linear reads more lines than cuckoo at 95 %; both take fewer rounds than the trees", Built::Own(maps::shape::utilisation)),
    row("hashfs-10", "Reads and appends of one file by one thread and two",
        "at most 13 % growth to eight threads, the order is unchanged", "growth within 5 % of that of the radix tree",
        Built::Own(maps::threads::threads)),
    row("hashfs-11", "The extent tree in place and in a page cache, a million operations on a file of 1 GiB",
        "in place wins, in reads and insertions", "in place is not slower", Built::Own(maps::baselines::page_cache)),
    row("hashfs-12", "filebench fileserver and webproxy in process on emulated PM, every file map, extents in a page cache, level hashing",
        "fileserver: HashFS +26 % over extents in a page cache, radix −10 %, level hashing below the baseline; webproxy within 2 %",
        "the order with intervals; level hashing is not above HashFS", Built::Own(maps::flows::filebench)),
    row("hashfs-4.9", "Level hashing as a file map, beside HashFS",
        "loses to HashFS everywhere", "not fewer lines or rounds than HashFS", Built::Own(maps::baselines::level_hashing)),
    row("maps-hot", "Overwrites, appends and reads of 4 KiB in process, hot, with each file map",
        NOBODY, "HashFS at most 1.25 times the radix tree, cuckoo and extent 1.4 times; as many fences; one block overwritten for ever: HashFS at most 1.3 times",
        Built::Own(maps::requests::hot)),
    row("maps-tiers", "fileserver, webproxy and varmail in process, PM for 6 % of the data over a SATA device, with each file map",
        NOBODY, "every map at least 0.93 of the radix tree; hashfs-linear is shown", Built::Plan(maps::flows::tiers)),
    row("maps-full", "Insertions into PM that is 95 % full, until no block is free",
        NOBODY, "HashFS and cuckoo take data until no block is free; an insertion at 95 % takes at most 10 ms",
        Built::Own(maps::full::full)),
    row("maps-range", "Look-ups of 1, 16 and 256 blocks by each file map, cold, in PM that is 80 % full",
        NOBODY, "16 blocks: hashfs at least 1.8 times faster than hashfs-linear, with 1.8 times fewer lines; one block: at most twice the lines",
        Built::Own(maps::shape::ranges)),
    row("maps-cold", "Open, SEEK_HOLE and unlink of a demoted file of 1 GiB, reads of its blocks from DRAM, with each file map",
        NOBODY, "open, SEEK_HOLE and unlink touch at most a line of PM for 128 blocks with a table of all files; reads of 4 KiB within 15 % of the radix tree",
        Built::Own(maps::cold::cold)),
    row("hinfs-1", "Reads and writes of 64 B to 1 MiB, 1 : 2, direct, in process: time of writes in PM",
        "write access takes more than 80 % of the time from 4 KiB on, at least 16 % at 64 B", "the same", Built::Own(hinfs::shares)),
    row("hinfs-2", "The share of bytes that are synced, by load", "TPC-C over 90 %, LASR none", "shown for each load that is used",
        Built::Own(hinfs::synced_shares)),
    row("hinfs-4", "Blocks that were in the state that is the cheaper one in hindsight, between two syncs",
        "about 90 % at worst", "at least 90 % on each load; at most 5 % of synced lines copied twice, varmail after 100 files 1 %",
        Built::Own(hinfs::accuracy)),
    row("hinfs-7", "filebench's personalities in process on slow PM, lazy and direct writes, 1 and 2 threads",
        "fileserver up to +127 %, 1.5 times at 10 threads; webserver and varmail equal",
        "fileserver at least 1.8 times direct with one thread, 1.25 with two; webproxy 1.5 times; varmail and webserver not below",
        Built::Own(hinfs::personalities)),
    row("hinfs-8", "As hinfs-7, with 4 and 8 threads",
        "fileserver 1.5 times at 10 threads, webproxy always above; webserver and varmail equal", "shown",
        Built::Own(hinfs::threads)),
    row("hinfs-10", "Writes of 64 B to 1 MiB at random offsets in process: lines, whole blocks, and direct",
        "up to 30 % above whole blocks below 4 KiB, with far fewer bytes to PM; +58 % at 4 KiB and +136 % at 16 KiB over direct",
        "at most a quarter of the bytes of whole blocks up to 512 B; both gains are shown", Built::Own(hinfs::sizes)),
    row("hinfs-11", "fileserver and webproxy in process, by the size of the buffer", "fileserver rises, webproxy flat",
        "fileserver at 100 % at least 1.25 times 10 %; webproxy within 10 %", Built::Own(hinfs::buffers)),
    row("hinfs-12", "filebench's personalities in process, PM of 50 to 800 ns a line",
        "webproxy +53 % at 100 ns, nearly 6 times at 800 ns; not worse at 50 ns",
        "webproxy at least 1.5 times at 200 ns, 4 times at 800 ns; none below direct at 50 ns", Built::Own(hinfs::costs)),
    row("hinfs-13", "Generated traces of two desktops, of software development and of a phone, in process",
        "usr0 −37 %, usr1 −35 %, LASR −38 %, facebook equal; without the choice usr0 +28 %, usr1 +32 %, facebook +14 %",
        "at most 0.75 of the time of direct, facebook-like at most 1.03", Built::Own(hinfs::replayed)),
    row("hinfs-14", "PostMark in process; grep, make and pgbench through the mount",
        "postmark −60 %, grep 0, make −64 %, TPC-C 0; without the choice TPC-C +22 %",
        "postmark at most 0.65 of the time of direct, the others at most 1.03", Built::Own(hinfs::programs)),
    row("hinfs-synced", "varmail in process on slow PM, lazy and direct writes", "equal",
        "between 0.97 and 1.03 times direct", Built::Own(hinfs::synced)),
    row("hinfs-mount", "fileserver, and rewrites of 64 KiB, through the mount with slow PM", NOBODY,
        "fileserver at least 1.3 times direct; rewrites at 800 ns 1.5 times, synced 0.95 times", Built::Own(hinfs::mounts)),
    row("hinfs-foreground", "Reads and direct writes of a file while its pages are written back", NOBODY,
        "the 99th percentile at most 250 µs above that of an idle buffer", Built::Own(hinfs::foreground)),
    row("hinfs-memory", "Anonymous memory of the daemon with a full buffer", NOBODY,
        "at most 1.03 times the buffer and 16 MiB more than with lazy=off", Built::Own(hinfs::memory)),
    row("hinfs-auto", "Mounts with lazy=auto: how often PM is found slow", NOBODY,
        "off in 20 of 20 mounts of plain RAM; on in 20 of 20 with 200 ns a line", Built::Own(hinfs::auto)),
    row("hashfs-13", "YCSB A to F over LevelDB in process, four threads with a database of a quarter each, every file map",
        "HashFS 10 to 45 % above page-cached extents on F; radix and cuckoo 2 to 4 % behind it, extents 13 % on C and F; A and E within 3 %",
        "the order; A and E within 5 % of each other", Built::Own(ycsb::four_threads)),
    row("hashfs-14", "As hashfs-13 with one thread and one database",
        "HashFS 23 % above page-cached extents on F; else as hashfs-13",
        "the order; A and E within 5 % of each other", Built::Own(ycsb::one_thread)),
    row("tpfs-8", "Random reads of 4 KiB by locality, PM from a sixteenth of the data to four times it",
        "rises with locality; all-PM within 1 to 2 % of a PM-only file system; read-hot files in DRAM beat it by 29 % (Optane) and 6 % (SATA)",
        "the same; bytes served from DRAM and when promoted", Built::Plan(random::tpfs_reads)),
    row("zig-4r", "As tpfs-8 with 10 of 32 GB of page cache",
        "rises with locality; all-PM within 2 % of NOVA; PM 2 within 5 % of EXT4-DJ and XFS-ML",
        "the same", Built::Plan(random::ziggurat_reads)),
    row("tpfs-9", "Synchronous random writes of 4 KiB by locality",
        "flat over locality; PM-rich within 1 % of PM-only; PM 2 falls to the speed of the SSD",
        "the same; never below EXT4-DJ or XFS-ML", Built::Plan(random::tpfs_writes)),
    row("zig-4w", "As tpfs-9 with 10 of 32 GB of page cache; what the device is written",
        "device writes reach 1917 of 2000 and 438 of 500 MB/s",
        "the same; never below EXT4-DJ or XFS-ML", Built::Plan(random::ziggurat_writes)),
    row("tpfs-10", "Random reads and writes with PM fixed and DRAM from twice the data to a sixteenth",
        "reads fall below half the data in DRAM; writes do not care",
        "the same", Built::Plan(random::sensitivity)),
    row("tpfs-11", "filebench fileserver, 1 to 16 threads", "PM 2 like EXT4-DJ; PM-rich within 5 % of PM-only",
        "the same", Built::Plan(filebench::fileserver)),
    row("tpfs-12", "filebench webserver, 1 to 16 threads", "13 to 15 % above PM-only",
        "the same", Built::Plan(filebench::webserver)),
    row("tpfs-13", "filebench varmail, 1 to 16 threads",
        "PM 2: 3.9 times EXT4-DJ, 4.5 times XFS-ML, like PM-only on Optane, lower on SATA",
        "the same", Built::Plan(filebench::varmail)),
    row("mails", "As tpfs-13 with files of 32 KiB, as many as the data has room for",
        "nothing: files of 2 MB, which the flow soon replaces by small ones", "beside", Built::Plan(filebench::mails)),
    row("zig-5", "filebench fileserver, webproxy and varmail, several threads",
        "varmail PM 2: 2.1 (Optane) and 2.6 times (NVMe) EXT4-DJ and XFS-ML; PM-rich within 3 % of NOVA",
        "the same", Built::Plan(filebench::ziggurat_many)),
    row("zig-6", "filebench fileserver, webproxy and varmail, one thread",
        "PM-rich like NOVA; 31 and 27 % above Strata on fileserver and webproxy",
        "PM-rich within 5 % of PM-only", Built::Plan(filebench::ziggurat_one)),
    row("tpfs-14", "LevelDB: FillSeq, ReadRandom, ReadHot, 16 GB",
        "least latency for random and skewed reads with PM 2", "the same",
        Built::Plan(databases::leveldb)),
    row("tpfs-15", "RocksDB: FillSeq, FillUniqueRandom, synchronous, 8 threads",
        "FillSeq PM 2: 7.3 to 8.2 times the disk variants, near PM-only (Optane); random 1.7 to 5.8 times",
        "the same", Built::Plan(databases::rocksdb_writes)),
    row("tpfs-16", "RocksDB: ReadSeq, ReadRandom",
        "PM 2: 85 and 68 % of PM-rich on Optane, 30 and 31 % on SATA", "the same", Built::Plan(databases::rocksdb_reads)),
    row("tpfs-17", "Group size of migration, 4 KiB to 8 MiB",
        "the average peaks at 16 MiB (their grain of fetching; CPU cache 25 MB)",
        "a rise up to a knee; the falling side only if fetches are group-sized", Built::Plan(filebench::group_size)),
    row("zig-10", "As tpfs-17", "the average peaks at 16 MiB; filebench saturates at 2 MiB, its file size",
        "a rise up to a knee", Built::Plan(filebench::group_size)),
    row("tpfs-predict", "Synchronicity predictor over its threshold",
        "99 % right, at worst 98.2 % (97 % in Ziggurat)",
        "recall of each class, weighted by bytes, on one interleaved mix, beside always-sync and always-async",
        Built::Plan(predict::mix)),
    row("tpfs-predict-n", "As tpfs-predict, thresholds from 4 KiB to 1 GiB",
        "99 % right, at worst 98.2 %, where the threshold lies between the files and the appends of varmail",
        "as tpfs-predict; right of all bytes by threshold", Built::Plan(predict::thresholds)),
    row("predictor-cost", "policy=predictive against policy=static where PM is plenty, every personality, in process",
        "not published", "at most 40 ns a request; the predictors ran", Built::Own(cost)),
    row("zig-7", "RocksDB with PM 2",
        "FillSeq up to 38.9 times EXT4-DJ and 46.5 times XFS-ML; random 8.6 and 13.2 times; ReadSeq +43 to +48 %",
        "these ratios against the same peers, or the reason", Built::Plan(databases::ziggurat_rocksdb)),
    row("zig-8", "SQLite inserts with journal modes DELETE, PERSIST, WAL",
        "1.4 to 5.6 times EXT4-DJ and XFS-ML; near PM-only with 5 % of the data in PM",
        "the same", Built::Plan(databases::sqlite)),
    row("zig-9", "TPC-C on a MySQL-type database, 20 GB; here pgbench's TPC-B on PostgreSQL",
        "+1 % Optane, +19 % NVMe", "not slower", Built::Plan(databases::postgres)),
    row("acbpfs-t1", "Operations on names, with the policy and without",
        "−4 to +12 % (rmdir +11.9 %)", "at most +10 % each", Built::Plan(anticache::names)),
    row("acbpfs-3", "Durable appends of growing sizes, past the threshold",
        "like PM-only; orders of magnitude above ext4", "the same", Built::Plan(anticache::append)),
    row("acbpfs-4", "Random reads, and overwrites with fsync, over data above the threshold; caches dropped",
        "between PM-only and ext4", "the same", Built::Plan(anticache::random)),
    row("acbpfs-5", "Reads of ten files of 40 KiB, none to all of them hot",
        "from ext4's latency at 0 % to PM's at 100 %, falling all the way", "the same", Built::Plan(anticache::hotness)),
    row("acbpfs-6", "fileserver with fsync by the threshold, 20 to 100 % of the data; bytes evicted",
        "falls with the threshold, always above ext4; evictions grow",
        "the same; clean evictions counted apart", Built::Plan(anticache::threshold)),
    row("regret", "Recorded traces through every policy, predictive without each predictor, and an offline optimum",
        "nothing", "predictive at least 0.8 of the optimum on average, each predictor worth its place",
        Built::Own(regret::run)),
    row("burst", "Open loop of durable 4 KiB appends at half the capacity, four times PM in a burst",
        NOBODY, "p99.9 at most 20 medians or 2 ms, none above 500 ms, no ENOSPC", Built::Plan(tiering::burst)),
    row("sync-write", "Synchronous random writes of 4 KiB with PM for 3 % of the data; what the device is written",
        "1917 of 2000 and 438 of 500 MB/s reach the device",
        "never below EXT4-DJ; 85 % of the device's bandwidth; at most 1.1 bytes written per byte demoted",
        Built::Plan(tiering::sync_write)),
    row("scan", "Durable 4 KiB appends beside a scan of cold data, ten times PM",
        NOBODY, "the 99th percentile of a commit is unchanged within its interval", Built::Plan(tiering::scan)),
    row("cold-small", "512 bytes, synchronous, appended to and written over cold files on a disk",
        "the originals read the block first",
        "at most 3 times the same on files in PM", Built::Plan(tiering::small)),
    row("demoted-read", "A demoted file of 1 GiB read from end to end",
        NOBODY, "at least 0.8 of the device's bandwidth", Built::Plan(tiering::demoted_read)),
    row("dram-reads", "Files that are only read, PM for all of them and DRAM to spare: copies kept in DRAM",
        "read-hot files in DRAM beat a PM-only file system by 29 % (Optane) and 6 % (SATA)",
        "bytes served from DRAM, when that was decided, throughput beside PM alone, with both models of PM",
        Built::Plan(random::promoted)),
    row("rich", "The four personalities in process, PM for everything, predictive policy against static",
        "within 1 to 5 % of a PM-only file system", "at most 40 ns more per operation", Built::Plan(tiering::rich)),
];

/// The publication of rows that no publication has.
const NOBODY: &str = "by nobody";

/// Runs `terrace bench paper` with the arguments after `paper`.
pub fn main(args: &[OsString]) -> ExitCode {
    let done = Options::parse(args).and_then(|asked| match asked {
        Asked::Help => say(HELP),
        Asked::List { json } => list(json),
        // Only `run` knows them.
        Asked::Load(..) | Asked::NullServer(..) => say(HELP),
        Asked::MustShow(options) => must_show::run(&options),
        Asked::Row(options) => match &options.replay {
            Some(trace) => replay::replay(&options, trace),
            None => run(&options),
        },
    });
    ended("paper", done.map(|()| true))
}

/// A row as `--list --json` shows it.
#[derive(Serialize)]
struct Listed {
    id: &'static str,
    sentence: &'static str,
    published: &'static str,
    shape: &'static str,
    /// Why it cannot run here.
    not_built: Option<&'static str>,
}

fn list(json: bool) -> Outcome<()> {
    let rows = ROWS.iter().map(|row| Listed {
        id: row.about.id,
        sentence: row.about.sentence,
        published: row.about.published,
        shape: row.about.shape,
        not_built: None,
    });
    if json {
        let rows: Vec<Listed> = rows.collect();
        say(serde_json::json!({ "output_version": 1, "rows": rows }))?;
        return Ok(());
    }
    for row in rows {
        say(format_args!("{:<13} {}", row.id, row.sentence))?;
    }
    Ok(())
}

fn run(options: &Options) -> Outcome<()> {
    let row = ROWS.iter().find(|row| row.about.id == options.row);
    let row = row.ok_or_else(|| format!("no row {}; terrace bench paper --list shows them", options.row))?;
    let (row, built) = (&row.about, row.built);
    let plan = match built {
        Built::Plan(plan) => plan,
        Built::Own(_) if options.record.is_some() => {
            return Err(BadValue(format!("--record: row {} asks nothing of the peer local", row.id)).into());
        }
        Built::Own(run) => return run(row, options),
    };
    let scale = scale(options);
    let mut plan = plan(&scale);
    if let Some(peers) = &options.peers {
        plan.keep(peers);
    }
    plan.emulate_pm(options.emulate_pm.as_deref());
    if plan.cells.is_empty() {
        return Err(format!("row {} measures none of these peers", row.id).into());
    }
    let local = |cell: &plan::Cell| plan.subjects[cell.subject].peer == Peer::Local;
    if options.record.is_some() && !plan.cells.iter().any(local) {
        let text = "--record needs peer local, which is not among the peers; say --peers local".to_string();
        return Err(BadValue(text).into());
    }
    run_plan(options, row, plan, &scale)
}

/// Runs row predictor-cost, which has no plan.
fn cost(row: &Row, options: &Options) -> Outcome<()> {
    let device_cores = pin(options)?;
    let mut site = Site::new(&options.site, 0, None)?;
    site.device_cores = device_cores;
    eprintln!("row {}: {}", row.id, row.sentence);
    let found = predictor_cost::run(&site, &scale(options), options.rounds)?;
    std::fs::create_dir_all(&options.output.directory)?;
    let path = options.output.directory.join(format!("{}.json", row.id));
    let json = serde_json::json!({
        "output_version": 1,
        "row": row.id,
        "quick": options.quick,
        "one_core": options.one_core,
        "machine": terrace_bench::machine::describe(),
        "dataset_bytes": scale(options).dataset_bytes,
        "found": found,
    });
    std::fs::write(&path, serde_json::to_string_pretty(&json)? + "\n")?;
    say(if options.output.json { json.to_string() } else { found.table(options.quick) })?;
    eprintln!("  {} written", path.display());
    Ok(())
}
