//! LevelDB on a subject's directory: FillSeq, ReadRandom and ReadHot of LevelDB's db_bench [TPFS 6.4]. Debian
//! has the library without db_bench, so the library is driven through its Python binding, whose part of an
//! operation (about a microsecond) is the same on every file system. A LevelDB in Rust would not serve: its
//! writes and syncs differ.

use crate::failure::Outcome;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Debian's own Python, which finds the binding.
const PYTHON: &str = "/usr/bin/python3";
/// The binding of Debian's package.
const BINDING: &str = "/usr/lib/python3/dist-packages/plyvel";

/// Arguments: database, benchmark, keys, seconds. Prints operations per second. Writes are asynchronous,
/// values have 1,000 bytes, the memtable is in the published proportion (4 MB to 16 GB); ReadHot reads the
/// first hundredth of the keys.
const SCRIPT: &str = r#"
import os, plyvel, random, shutil, sys, time
path, benchmark, keys, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
filling = benchmark == "fillseq"
if filling and os.path.exists(path):
    shutil.rmtree(path)
memtable = max(keys * 1016 // 4096, 64 << 10)
picks = random.Random(7)
values = [picks.randbytes(1000) for _ in range(256)]
db = plyvel.DB(path, create_if_missing=filling, compression=None, write_buffer_size=memtable)
key = lambda number: b"%016d" % number
done, begin = 0, time.monotonic()
if filling:
    for number in range(keys):
        db.put(key(number), values[number & 255])
    done = keys
else:
    among = keys if benchmark == "readrandom" else (keys + 99) // 100
    while True:
        for _ in range(100):
            if db.get(key(picks.randrange(among))) is None:
                sys.exit("a key is missing")
        done += 100
        if time.monotonic() - begin >= seconds:
            break
spent = time.monotonic() - begin
db.close()
print(done / spent)
"#;

/// Whether this machine can run the benchmark.
///
/// # Errors
/// Names the missing package.
pub fn available() -> Outcome<()> {
    match Path::new(PYTHON).exists() && Path::new(BINDING).exists() {
        true => Ok(()),
        false => Err("LevelDB's Python binding is not installed (Debian: python3-plyvel)".into()),
    }
}

/// The command that runs a benchmark on one thread and prints its operations per second.
pub fn command(directory: &Path, benchmark: &str, keys: u64, seconds: f64) -> (PathBuf, Vec<OsString>) {
    let database = directory.join("leveldb");
    let mut args: Vec<OsString> = vec!["-c".into(), SCRIPT.into(), database.into(), benchmark.into()];
    args.extend([keys.to_string().into(), seconds.to_string().into()]);
    (PYTHON.into(), args)
}
