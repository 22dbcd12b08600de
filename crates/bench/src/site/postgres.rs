//! PostgreSQL on a subject's directory, measured by pgbench's TPC-B-like transactions: stands for the TPC-C
//! of [Ziggurat 4.6]. A shell, confined and bounded by the site, starts, measures and ends the server. The
//! server runs as the user `postgres`, since it refuses root, and gets SIGINT (fast shutdown) when the shell
//! dies. The shell must signal the server's own process id: background processes of a shell ignore SIGINT by
//! default, so a subshell in between would never end.

use super::Site;
use crate::failure::Outcome;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments: programs, data, socket, scale, clients, seconds.
const SCRIPT: &str = r#"
set -eu
as() { exec setpriv --reuid=postgres --regid=postgres --clear-groups --pdeathsig INT -- "$@"; }
running() { kill -0 $server 2>/dev/null; }
# Fast, then at once, then at all; each is given half a minute.
stop() {
    trap - EXIT
    for signal in INT QUIT KILL; do
        kill -$signal $server 2>/dev/null || break
        for try in $(seq 150); do
            running || break 2
            sleep 0.2
        done
    done
    wait $server || :
}
cd /
fresh=
if [ ! -e "$2/PG_VERSION" ]; then
    fresh=yes
    (as "$1/initdb" -D "$2" -A trust --no-locale >&2)
fi
as "$1/postgres" -D "$2" -k "$3" -c listen_addresses= -c shared_buffers=32MB \
    -c max_wal_size=64MB -c min_wal_size=32MB >&2 &
server=$!
trap stop EXIT
for try in $(seq 300); do
    (as "$1/pg_isready" -q -h "$3") && break
    running
    sleep 0.2
done
if [ -n "$fresh" ]; then (as "$1/pgbench" -h "$3" -i -q -s "$4" postgres >&2); fi
(as "$1/pgbench" -h "$3" -n -c "$5" -T "$6" postgres)
"#;
/// Time beyond the measured time, for making the cluster and its tables on a slow device, for start and for
/// end.
const PATIENCE: Duration = Duration::from_secs(600);
const CLIENTS: u64 = 4;

/// The directory of the newest server's programs on Debian.
fn programs() -> Outcome<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found =
        versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("postgres").exists());
    found.max().ok_or_else(|| "PostgreSQL is not installed (Debian: postgresql)".into())
}

/// User and group ids of `postgres`.
fn user() -> Outcome<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd")?;
    let line = users.lines().find(|line| line.starts_with("postgres:")).ok_or("no user postgres")?;
    let mut fields = line.split(':').skip(2);
    let mut number = || fields.next().and_then(|field| field.parse().ok()).ok_or("/etc/passwd: postgres");
    Ok((number()?, number()?))
}

/// Whether this machine can run PostgreSQL.
///
/// # Errors
/// Names the missing part.
pub fn available() -> Outcome<()> {
    programs()?;
    user().map(|_| ())
}

/// Transactions per second during `seconds`, on a database of `scale` times 16 MiB, which is made if missing.
///
/// # Errors
/// The message of a failed program; output that is not understood.
pub fn run(site: &Site, directory: &Path, scale: u64, seconds: u64) -> Outcome<f64> {
    let (uid, gid) = user()?;
    let (data, socket) = (directory.join("postgres"), site.scratch.disk.join("postgres"));
    for path in [&data, &socket] {
        if !path.exists() {
            fs::create_dir(path)?;
        }
        chown(path, Some(uid), Some(gid))?;
    }
    let numbers = [scale, CLIENTS, seconds].map(|number| OsString::from(number.to_string()));
    let mut args: Vec<OsString> = vec!["-c".into(), SCRIPT.into(), "sh".into(), programs()?.into()];
    args.extend([data.into(), socket.into()]);
    args.extend(numbers);
    let patience = PATIENCE + Duration::from_secs(seconds);
    transactions_per_s(&site.confined(Path::new("/bin/sh"), &args, patience)?)
}

/// `tps = 1234.5 (without initial connection time)`
fn transactions_per_s(text: &str) -> Outcome<f64> {
    let line = text.lines().rev().find_map(|line| line.strip_prefix("tps = "));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| "pgbench does not say tps".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_pgbench_is_parsed() {
        let text = "scaling factor: 1\nlatency average = 2.5 ms\ntps = 1600.250000 (without initial connection time)\n";
        assert_eq!(transactions_per_s(text).unwrap(), 1600.25);
        assert!(transactions_per_s("nothing").is_err());
    }
}
