//! The options of `terrace mount -o`.

use crate::emulation::Emulation;
use crate::failure::{Failure, Outcome, status};
use crate::journal_options;
use crate::lazy_options;
use crate::memory::SystemMemory;
use crate::output::{distinct, parse_size};
use crate::parameters;
use crate::places::Lenience;
use crate::way_in::WayIn;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use terrace_engine::{Atime, MetadataMoves, MountOptions, PolicyKind};
use terrace_media::pm::JournalOptions;

/// Mount options, sorted by their receiver.
#[derive(Debug, Clone)]
pub struct Options {
    /// For the file system.
    pub fs: MountOptions,
    /// Most bytes of files in PM that the kernel caches while they are open for reading.
    pub kernel_cache_bytes: u64,
    /// DRAM for clean pages; `None`: it follows the memory of the machine.
    cache_bytes: Option<u64>,
    /// For the kernel.
    pub flags: Vec<String>,
    /// The treatment of devices that are not at their paths.
    pub lenience: Lenience,
    /// Whether other users may use the mount.
    pub allow_other: bool,
    /// Log file instead of syslog.
    pub log: Option<PathBuf>,
    /// Media that the mount makes slower than they are.
    pub emulation: Emulation,
    /// The way of requests.
    pub way_in: WayIn,
    /// For a journaled tier 0.
    pub journal: JournalOptions,
    /// Options of [`lazy_options`] that were given.
    lazy_given: Vec<&'static str>,
}

/// Words for fstab, mount(8) and systemd, which Terrace ignores.
pub const IGNORED: &[&str] = &[
    "defaults",
    "rw",
    "nofail",
    "_netdev",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "suid",
    "dev",
    "exec",
    "async",
    "atime",
    "diratime",
    "relatime",
    "nostrictatime",
    "nolazytime",
    "noiversion",
    "silent",
    "loud",
];
/// Words that undo an earlier word.
const OPPOSITES: &[(&str, &str)] = &[
    ("rw", "ro"),
    ("suid", "nosuid"),
    ("dev", "nodev"),
    ("exec", "noexec"),
    ("async", "sync"),
    ("atime", "noatime"),
    ("relatime", "noatime"),
    ("diratime", "nodiratime"),
];
/// Mount flags of the kernel.
pub const FLAGS: &[&str] = &["nosuid", "nodev", "noexec", "nodiratime", "dirsync", "sync"];
/// Words of cli.md or mount(8) that are not built yet.
const LATER: &[&str] = &["lazytime", "metrics", "strictatime"];

/// An hour.
const MAX_PREFETCH_MS: u64 = 3_600_000;

impl Options {
    /// Parses the words of all `-o`. `sloppy` ignores unknown words, as `mount -s` asks.
    pub fn parse(lists: &[OsString], root: bool, sloppy: bool) -> Outcome<Options> {
        let mut options = Options::parse_words(lists, root, sloppy)?;
        let misfit = |text| Failure::new(format!("mount options: {text}")).with_status(status::MOUNT_USAGE);
        match options.cache_bytes {
            Some(bytes) => options.fs.cache_bytes = bytes,
            None => options.fs.memory = Some(Arc::new(SystemMemory::read())),
        }
        options.fs.parameters.check().map_err(misfit)?;
        fits_in_memory(&options.fs, memory_bytes()).map_err(misfit)?;
        lazy_options::check(&options.fs, &options.lazy_given).map_err(misfit)?;
        Ok(options)
    }

    /// As [`Self::parse`], but does not check that the options fit each other.
    pub fn parse_words(lists: &[OsString], root: bool, sloppy: bool) -> Outcome<Options> {
        let mut options = Options {
            fs: MountOptions { late_references: true, ..MountOptions::default() },
            kernel_cache_bytes: memory_bytes() / 2,
            cache_bytes: None,
            flags: Vec::new(),
            lenience: Lenience::default(),
            allow_other: root,
            log: None,
            emulation: Emulation::default(),
            way_in: WayIn::default(),
            journal: JournalOptions::default(),
            lazy_given: Vec::new(),
        };
        for list in lists {
            for word in list.as_bytes().split(|&byte| byte == b',').filter(|word| !word.is_empty()) {
                match options.take(word) {
                    Err(failure) if failure.text.contains("unknown option") && sloppy => {}
                    result => result.map_err(|failure| failure.with_status(status::MOUNT_USAGE))?,
                }
            }
        }
        Ok(options)
    }

    fn take(&mut self, word: &[u8]) -> Outcome<()> {
        let (name, value) = match word.iter().position(|&byte| byte == b'=') {
            Some(at) => (&word[..at], Some(&word[at + 1..])),
            None => (word, None),
        };
        let name = String::from_utf8_lossy(name).into_owned();
        let ignored = value.is_none() && IGNORED.contains(&name.as_str());
        if ignored || name.starts_with("x-") || name.starts_with("X-") {
            self.take_back(&name);
            return Ok(());
        }
        if LATER.contains(&name.as_str()) {
            return Err(Failure::not_built(format!("mount option {name}")));
        }
        let Some(value) = value else { return self.take_plain(&name) };
        if name == "log" && value.is_empty() {
            return Err(Failure::new("mount option log=: needs a path; write log=PATH"));
        }
        if name == "tier" && value.is_empty() {
            return Err(Failure::new("mount option tier=: needs a path; write tier=PATH"));
        }
        if name == "tier" {
            self.lenience.tiers.push(PathBuf::from(OsString::from_vec(value.to_vec())));
            return Ok(());
        }
        if name == "log" {
            self.log = Some(PathBuf::from(OsString::from_vec(value.to_vec())));
            return Ok(());
        }
        self.take_value(&name, &OsStr::from_bytes(value).to_string_lossy())
    }

    /// Undoes the earlier of two options that contradict each other, as mount(8) does.
    fn take_back(&mut self, name: &str) {
        let Some((_, before)) = OPPOSITES.iter().find(|(later, _)| *later == name) else { return };
        self.flags.retain(|flag| flag != before);
        match *before {
            "ro" => self.fs.read_only = false,
            "noatime" => self.fs.atime = Atime::Relative,
            _ => {}
        }
    }

    fn take_plain(&mut self, name: &str) -> Outcome<()> {
        match name {
            "allow_other" => self.allow_other = true,
            "degraded" => self.lenience.degraded = true,
            "first_touch" => self.fs.promote_first_touch = true,
            "noatime" => self.fs.atime = Atime::Never,
            "ro" => self.fs.read_only = true,
            flag if FLAGS.contains(&flag) => {}
            "emulate-pm" | "emulate-tier" => {
                return Err(Failure::new(format!("mount option {name}: needs a value; write {name}=VALUE")));
            }
            "cache" | "kernel_cache" | "buffer" | "policy" | "data" | "threshold" | "group" | "prefetch"
            | "prefetch_ms" | "log" | "tier" | "metadata" | "large_min" | "journal_ms" | "journal_buffer"
            | "durable" => {
                return Err(Failure::new(format!("mount option {name}: needs a value; write {name}=VALUE")));
            }
            name if parameters::knows(name) || WayIn::knows(name) || lazy_options::known(name).is_some() => {
                return Err(Failure::new(format!("mount option {name}: needs a value; write {name}=VALUE")));
            }
            _ => return Err(unknown(name)),
        }
        if name == "ro" || name == "noatime" || FLAGS.contains(&name) {
            self.flags.push(name.to_string());
        }
        Ok(())
    }

    fn take_journal(&mut self, name: &str, value: &str) -> Outcome<()> {
        journal_options::take(&mut self.journal, name, value)
            .map_err(|error| Failure::new(format!("mount option {name}={value}: {error}")))
    }

    fn take_value(&mut self, name: &str, value: &str) -> Outcome<()> {
        let wrong = |what: &str| Failure::new(format!("mount option {name}={value}: {what}"));
        let size = || parse_size(value).map_err(|error| wrong(&error));
        match name {
            "cache" if value == "auto" => self.cache_bytes = None,
            "cache" => {
                self.cache_bytes =
                    Some(parse_size(value).map_err(|error| wrong(&format!("{error}, or auto")))?);
            }
            "kernel_cache" => self.kernel_cache_bytes = size()?,
            "buffer" => self.fs.buffer.bytes = size()?,
            "emulate-pm" => self.emulation.take_pm(value).map_err(|error| wrong(&error))?,
            "emulate-tier" => self.emulation.take_tier(value).map_err(|error| wrong(&error))?,
            "prefetch" => self.fs.prefetch_bytes = size()?,
            "journal_ms" | "journal_buffer" | "durable" => self.take_journal(name, value)?,
            "group" => {
                self.fs.group_bytes = match size()? {
                    bytes if (4096..=256 << 20).contains(&bytes) => bytes,
                    _ => return Err(wrong("must be from 4K to 256M")),
                }
            }
            "prefetch_ms" => {
                self.fs.prefetch_ms = match value.parse() {
                    Ok(time @ 0..=MAX_PREFETCH_MS) => time,
                    _ => return Err(wrong("must be milliseconds, at most 3600000")),
                }
            }
            "threshold" => {
                self.fs.threshold_percent = match value.trim_end_matches('%').parse() {
                    Ok(percent @ 1..=99) => Some(percent),
                    _ => return Err(wrong("must be a percentage from 1 to 99")),
                }
            }
            "large_min" => {
                self.fs.parameters.large_min = match size()? {
                    bytes if (4096..=1 << 20).contains(&bytes) => bytes,
                    _ => return Err(wrong("must be from 4K to 1M")),
                }
            }
            lazy if lazy_options::known(lazy).is_some() => {
                lazy_options::take(&mut self.fs.buffer, lazy, value).map_err(wrong)?;
                self.lazy_given.extend(lazy_options::known(lazy));
            }
            way if WayIn::knows(way) => self.way_in.take(way, value).map_err(wrong)?,
            "metadata" if value == "pm" => self.fs.metadata_moves = MetadataMoves::Never,
            "metadata" if value == "any" => self.fs.metadata_moves = MetadataMoves::WhenScarce,
            "metadata" => return Err(wrong("must be any or pm")),
            "policy" => {
                let unknown = || wrong(&format!("no such policy; use {}", terrace_engine::policy_names()));
                self.fs.policy = Some(PolicyKind::named(value).ok_or_else(unknown)?);
            }
            // Not in the help: makes the mount after a crash slow, for a measurement of recovery.
            "checkpoint" if value == "full" => self.fs.checkpoint_when_full = true,
            "checkpoint" => return Err(wrong("must be full")),
            "data" => {
                self.fs.data_ordered = Some(match value {
                    "atomic" => false,
                    "ordered" => true,
                    _ => return Err(wrong("must be atomic or ordered")),
                });
            }
            "user" | "uhelper" | "comment" | "helper" => {} // mount(8)'s notes to itself
            _ => match parameters::take(&mut self.fs.parameters, name, value) {
                Some(done) => done.map_err(|error| wrong(&error))?,
                None if is_plain(name) => return Err(wrong(&format!("takes no value; write {name}"))),
                None => return Err(unknown(name)),
            },
        }
        Ok(())
    }
}

/// Memory of this machine, in bytes.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit).max(1))
}

/// Refuses sizes beyond the machine's memory: a cache of 100 TiB once ended the daemon when its tables were
/// made.
fn fits_in_memory(options: &MountOptions, memory_bytes: u64) -> Result<(), String> {
    let (cache, buffer) = (options.cache_bytes, options.buffer.bytes);
    if cache.saturating_add(buffer) <= memory_bytes {
        return Ok(());
    }
    let [cache, buffer, memory] = distinct([cache, buffer, memory_bytes]);
    Err(format!("cache={cache} and buffer={buffer} are more than the {memory} of memory of this machine"))
}

/// Whether a word stands alone.
fn is_plain(name: &str) -> bool {
    let plain = ["allow_other", "degraded", "first_touch", "noatime", "ro"];
    plain.contains(&name) || FLAGS.contains(&name) || IGNORED.contains(&name)
}

fn unknown(name: &str) -> Failure {
    let space = if name.contains(char::is_whitespace) { ", options have no spaces" } else { "" };
    Failure::new(format!("mount option '{name}': unknown option{space}; see 'terrace mount --help'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_engine::{BufferOptions, LazyOption, Parameters};

    fn parse(text: &str) -> Outcome<Options> {
        Options::parse(&[OsString::from(text)], false, false)
    }

    #[test]
    fn options_are_sorted_by_receiver() {
        let options = parse(
            "defaults,nofail,x-systemd.automount,ro,noatime,nosuid,cache=1G,threshold=50,group,group=1M,log=/a b",
        );
        let options = options.unwrap_or_else(|failure| unreachable!("{failure:?}"));
        assert!(options.fs.read_only && !options.allow_other);
        assert_eq!(options.fs.atime, Atime::Never);
        assert_eq!((options.fs.cache_bytes, options.fs.threshold_percent), (1 << 30, Some(50)));
        assert!(options.fs.memory.is_none(), "as large as it was told");
        assert_eq!(parse("ro").unwrap().way_in, WayIn::default());
        let way = WayIn { transport: terrace_fuse::Transport::Uring, entries: Some(2) };
        assert_eq!(parse("transport=uring,entries=2").unwrap().way_in, way);
        let last = |text| parse(text).map(|options| (options.fs.read_only, options.fs.atime, options.flags));
        assert_eq!(last("ro,noatime,nosuid,rw,suid,atime"), Ok((false, Atime::Relative, Vec::new())));
        assert_eq!(last("rw,suid,ro"), Ok((true, Atime::Relative, vec!["ro".to_string()])));
        let refusal = parse("ro=1").err().map(|failure| failure.text);
        assert_eq!(refusal.as_deref(), Some("mount option ro=1: takes no value; write ro"));
        let follows = |text| parse(text).is_ok_and(|options| options.fs.memory.is_some());
        assert!(follows("ro") && follows("cache=1G,cache=auto") && !follows("cache=0"));
        assert_eq!(options.fs.group_bytes, 1 << 20);
        let kept = |text| parse(text).map_or(0, |options| options.kernel_cache_bytes);
        assert_eq!(["kernel_cache=2M,cache=1G", "cache=1G,kernel_cache=2M"].map(kept), [2 << 20; 2]);
        assert_eq!((kept("kernel_cache=0"), kept("cache=1G")), (0, memory_bytes() / 2));
        assert_eq!(options.flags, ["ro", "noatime", "nosuid"]);
        assert_eq!(options.log, Some(PathBuf::from("/a b")));
        assert!(!options.fs.checkpoint_when_full);
        assert!(
            !options.lenience.degraded && parse("degraded").is_ok_and(|options| options.lenience.degraded)
        );
        let moved = parse("tier=/a b,tier=/c").map(|options| options.lenience.tiers);
        assert_eq!(moved, Ok(vec![PathBuf::from("/a b"), PathBuf::from("/c")]));
        let options = parse("buffer=2G").unwrap_or_else(|failure| unreachable!("{failure:?}"));
        assert_eq!(options.fs.buffer.bytes, 2 << 30);
        let options = parse("lazy_low=10,lazy=on,lazy_high=30%,lazy_period=500ms,lazy_age=60,lazy_idle=1s");
        let BufferOptions { lazy, low_percent, high_percent, period, age, idle, .. } =
            options.unwrap_or_else(|failure| unreachable!("{failure:?}")).fs.buffer;
        assert_eq!((lazy, low_percent, high_percent), (LazyOption::On, 10, 30));
        assert_eq!([period, age, idle].map(|time| time.as_millis()), [500, 60_000, 1000]);
        // Each option alone would not fit the default of the other.
        assert!(parse("lazy_low=30,lazy_high=40,lazy_age=2,lazy_period=2").is_ok());
        assert!(parse("lazy=off,lazy_low=10").is_ok(), "writes for a lower tier wait as well");
        for words in ["buffer=0", "ro"] {
            assert_eq!(parse(words).map(|options| options.fs.buffer.lazy), Ok(LazyOption::Auto), "{words}");
        }
        let options = parse("policy=write-only,sync_blocks=8,large_after=0,large_min=32K");
        let options = options.unwrap_or_else(|failure| unreachable!("{failure:?}"));
        assert_eq!(options.fs.policy, Some(PolicyKind::WRITE_ONLY));
        assert_eq!(options.fs.metadata_moves, MetadataMoves::WhenScarce);
        let kept = parse("metadata=pm").unwrap_or_else(|failure| unreachable!("{failure:?}"));
        assert_eq!(kept.fs.metadata_moves, MetadataMoves::Never);
        let three =
            Parameters { sync_blocks: 8, large_after: 0, large_min: 32 << 10, ..Parameters::PUBLISHED };
        assert_eq!(options.fs.parameters, three);
        // Each option alone would not fit the default of the other.
        let options =
            parse("threshold_min=95%,threshold_max=97,dataflow_high=0.25,dataflow_low=0.1,dataflow_s=1");
        let options = options.unwrap_or_else(|failure| unreachable!("{failure:?}"));
        let Parameters { utilisation, dataflow, .. } = options.fs.parameters;
        assert_eq!((utilisation.least_percent, utilisation.most_percent), (95, 97));
        assert_eq!((dataflow.high_percent, dataflow.low_percent, dataflow.seconds), (25, 10, 1));
    }

    #[test]
    fn unknown_options_and_values_are_refused() {
        for (text, words) in [
            ("bogus", "unknown option"),
            ("bogus=1", "unknown option"),
            ("noatime, ro", "mount option ' ro': unknown option, options have no spaces"),
            ("log=", "log=: needs a path"),
            ("metrics=here", "not built yet"),
            ("emulate-pm=1:2", "write [line:|run:]WRITE_NS:BYTES_PER_S"),
            ("emulate-pm", "needs a value"),
            ("emulate-pm=200:1G,emulate-pm=300:1G", "emulate-pm=300:1G: given twice"),
            ("degraded=1", "takes no value; write degraded"),
            ("tier=", "needs a path"),
            ("tier", "needs a value"),
            ("emulate-tier=1", "must be TIER:CLASS"),
            ("emulate-tier=0:sata", "use emulate-pm"),
            ("emulate-tier=1:fast", "is no device class"),
            ("sync_blocks=0", "from 1 to 1048576"),
            ("large_after=251", "from 0 to 250"),
            ("touches=0", "from 1 to 100"),
            ("touches", "needs a value"),
            ("threshold_max=100", "must be a percentage, from 1 to 99"),
            ("threshold_min=91", "threshold_min=91 is above threshold_max=90"),
            ("dataflow_low=2.5", "dataflow_low is above dataflow_high"),
            ("dataflow_high=two", "must be a ratio from 0.01 to 1000"),
            ("dataflow_s=17", "from 1 to 16"),
            ("large_min=2M", "from 4K to 1M"),
            ("large_min", "needs a value"),
            ("policy=best", "no such policy"),
            ("metadata=below", "must be any or pm"),
            ("transport=pigeon", "must be auto, uring or classic"),
            ("transport", "needs a value"),
            ("entries=0", "from 1 to 4096"),
            ("threshold=0", "from 1 to 99"),
            ("cache=lots", "not a size"),
            ("cache=lots", "or auto"),
            ("cache=1000T", "more than the"),
            ("buffer=1000T", "of memory of this machine"),
            ("lazy=maybe", "must be auto, on or off"),
            ("journal_ms=9", "must be milliseconds, from 10 to 60000"),
            ("journal_ms=1s", "must be milliseconds"),
            ("journal_buffer=1M", "must be from 8M to 1G"),
            ("journal_buffer=8388609", "a multiple of 4096"),
            ("durable=fua", "must be auto, dsync or flush"),
            ("lazy=on,buffer=0", "lazy=on: needs a buffer"),
            ("lazy=on,buffer=4095", "lazy=on: needs a buffer of at least a page"),
            ("buffer=0,lazy=auto", "lazy=auto: needs a buffer"),
            ("lazy=auto,ro", "lazy=auto: a mount with ro changes nothing"),
            ("lazy_low=0", "lazy_low=0: must be a percentage, from 1 to 99"),
            ("lazy_high=100%", "from 1 to 99"),
            ("lazy_low=20", "lazy_low=20 is not below lazy_high=20"),
            ("lazy_high=3", "lazy_low=5 is not below lazy_high=3"),
            ("lazy_period=50ms", "must be a time from 100ms to 3600s, such as"),
            ("lazy_age=2h", "must be a time from 100ms to 3600s"),
            ("lazy_idle=", "must be a time from 100ms to 3600s"),
            ("lazy_age", "lazy_age: needs a value"),
            ("lazy_age=2", "lazy_period=5s is above lazy_age=2s"),
            ("lazy_low=10,buffer=0", "lazy_low: needs a buffer"),
            ("ro,lazy_idle=9,lazy=off", "lazy_idle: a mount with ro changes nothing"),
            ("lazy_middle=5", "unknown option"),
            ("cache", "needs a value"),
            ("kernel_cache=some", "not a size"),
            ("kernel_cache", "needs a value"),
            ("prefetch_ms=18446744073709551615", "at most 3600000"),
            ("checkpoint=soon", "must be full"),
        ] {
            let failure = parse(text).err().unwrap_or_else(|| unreachable!("{text}"));
            assert!(failure.text.contains(words), "{}", failure.text);
            assert_eq!(failure.status, status::MOUNT_USAGE);
        }
        assert!(Options::parse(&[OsString::from("bogus")], false, true).is_ok());
    }
}
