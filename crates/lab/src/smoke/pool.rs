//! A pool for the rows: made by the program that is measured, mounted in a process of its own.

use super::args::Args;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use terrace_bench::failure::Outcome;
use terrace_bench::process::{Server, run};
use terrace_bench::scratch::Scratch;

/// A pool made by `terrace mkfs`: its PM file and tier file. Deleted when dropped.
pub(crate) struct Pool {
    pub pm: PathBuf,
    pub tier: PathBuf,
    terrace: PathBuf,
}

impl Pool {
    /// Names the files of a pool; makes nothing.
    pub fn name(terrace: &Path, scratch: &Scratch, name: &str) -> Pool {
        Pool {
            pm: scratch.memory.join(name),
            tier: scratch.disk.join(format!("{name}.tier")),
            terrace: terrace.to_path_buf(),
        }
    }

    /// `terrace mkfs`; sizes in bytes.
    pub fn make(args: &Args, scratch: &Scratch, name: &str, pm: u64, tier: u64) -> Outcome<Pool> {
        Pool::make_with(&args.terrace, scratch, name, (pm, tier), args.map.as_deref())
    }

    /// As [`Self::make`] by another program `terrace`, which mounts the pool too.
    pub fn make_by(terrace: &Path, scratch: &Scratch, name: &str, pm: u64, tier: u64) -> Outcome<Pool> {
        Pool::make_with(terrace, scratch, name, (pm, tier), None)
    }

    fn make_with(
        terrace: &Path,
        scratch: &Scratch,
        name: &str,
        (pm, tier): (u64, u64),
        map: Option<&str>,
    ) -> Outcome<Pool> {
        let pool = Pool::name(terrace, scratch, name);
        let tier = format!("{},size={tier}", pool.tier.display());
        let size = pm.to_string();
        let (path, command) = (pool.pm.as_os_str(), OsStr::new("mkfs"));
        let rest = [
            OsStr::new("--pm"),
            path,
            OsStr::new("--pm-size"),
            size.as_ref(),
            OsStr::new("--tier"),
            tier.as_ref(),
        ];
        let map = map.into_iter().flat_map(|map| [OsStr::new("--map"), OsStr::new(map)]);
        run(&pool.terrace, std::iter::once(command).chain(rest).chain(map))?;
        Ok(pool)
    }

    /// Mounts with the daemon as child of this process. Its cache has a fixed size, so the figures do not
    /// depend on the memory of the machine.
    pub fn mount(&self, scratch: &Scratch, mount: &Path) -> Outcome<Server> {
        self.mount_with(scratch, mount, "cache=64M")
    }

    /// As [`Self::mount`] with options as for `-o`.
    pub fn mount_with(&self, scratch: &Scratch, mount: &Path, options: &str) -> Outcome<Server> {
        let mut command = Command::new(&self.terrace);
        command.arg("mount").arg("--foreground").args(["-o", options]).arg(&self.pm).arg(mount);
        Server::start(scratch, command, mount)
    }

    /// Runs a command of `terrace`.
    pub fn terrace<S: AsRef<OsStr>>(&self, args: &[S]) -> Outcome<String> {
        run(&self.terrace, args)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.pm);
        let _ = std::fs::remove_file(&self.tier);
    }
}
