//! Arguments of `terrace bench paper` and `terrace bench run`.

use crate::failure::{BadValue, Outcome};
use crate::process::terrace_program;
use crate::site::SiteOptions;
use crate::site::class::Class;
use crate::site::subject::{Peer, pm_speed};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use terrace_fuse::Transport;

/// The smallest data set that gives a meaningful figure.
const LEAST_BYTES: u64 = 8 << 20;

/// A parsed command.
pub enum Asked {
    /// Print the help.
    Help,
    /// List the rows.
    List {
        /// As JSON.
        json: bool,
    },
    /// Run a row, a replay or a workload.
    Row(Box<Options>),
    /// Run the rows of `--must-show`.
    MustShow(Box<Options>),
    /// For the child process: directory, job.
    Load(PathBuf, String),
    /// For the child process that serves the null file system in a directory.
    NullServer(PathBuf, Transport),
}

/// The options of a run.
#[derive(Debug)]
pub struct Options {
    /// The row or workload. Empty with `replay`.
    pub row: String,
    /// A tiny and short run, whose figures mean nothing.
    pub quick: bool,
    /// Number of interleaved rounds.
    pub rounds: usize,
    /// Time of a figure in a round.
    pub seconds: f64,
    /// Bytes of data.
    pub dataset_bytes: u64,
    /// All threads run on one core.
    pub one_core: bool,
    /// Rows of random reads and writes also run the program fio.
    pub fio: bool,
    /// Row regret also runs on the engine.
    pub engine: bool,
    /// The peers of the row that are measured; without a list all peers.
    pub peers: Option<Vec<Peer>>,
    /// The speed of emulated PM.
    pub emulate_pm: Option<String>,
    /// Tier 0 has a journal in place of PM.
    pub journal: bool,
    /// The file that gets the trace of the peer `local`.
    pub record: Option<PathBuf>,
    /// The trace that is replayed.
    pub replay: Option<PathBuf>,
    /// Options of the site.
    pub site: SiteOptions,
    /// The form and location of results.
    pub output: Output,
    /// Options of `--must-show`.
    pub must_show: MustShow,
    /// Options of `terrace bench run`.
    pub beside: Beside,
}

/// The form and location of results.
#[derive(Debug)]
pub struct Output {
    /// Print the result as JSON.
    pub json: bool,
    /// The directory of results; empty: no files are written.
    pub directory: PathBuf,
}

/// Options of `--must-show`.
#[derive(Debug)]
pub struct MustShow {
    /// The entry to run; without a name all entries run.
    pub only: Option<String>,
    /// Most entries that run.
    pub limit: usize,
    /// Entries with results run again.
    pub again: bool,
}

/// Options of `terrace bench run`, which runs a workload side by side in directories.
#[derive(Debug)]
pub struct Beside {
    /// The directories.
    pub dirs: Vec<PathBuf>,
    /// Threads of the workload.
    pub threads: u64,
}

/// Gives the word behind an option.
type Value<'a> = dyn FnMut() -> Outcome<&'a OsString> + 'a;

fn bad<T>(text: String) -> Outcome<T> {
    Err(BadValue(text).into())
}

fn number<T: std::str::FromStr>(option: &str, text: &OsStr) -> Outcome<T> {
    let text = text.to_string_lossy();
    text.parse().or_else(|_| bad(format!("{option} {text}: not a number")))
}

fn rounds(text: &OsStr) -> Outcome<usize> {
    match number("--rounds", text)? {
        0 => bad("--rounds: must be more than 0".to_string()),
        rounds => Ok(rounds),
    }
}

/// Time of one figure.
fn seconds(text: &OsStr) -> Outcome<f64> {
    match number::<f64>("--seconds", text)? {
        seconds if seconds > 0.0 => Ok(seconds.clamp(0.01, 3600.0)),
        _ => bad("--seconds: must be more than 0".to_string()),
    }
}

fn dataset(text: &OsStr) -> Outcome<u64> {
    match size("--dataset", text)? {
        0 => bad("--dataset: must be more than 0".to_string()),
        bytes => Ok(bytes.max(LEAST_BYTES)),
    }
}

/// `host`, or a class that `terrace bench device` knows.
fn class(text: &OsStr) -> Outcome<Class> {
    let class = Class::parse(&text.to_string_lossy());
    if let Err(error) = class.check() {
        return bad(format!("--class: {}", error.replacen("; use ", "; use host, ", 1)));
    }
    Ok(class)
}

/// Bytes with K, M, G or T (base 1024).
fn size(option: &str, text: &OsStr) -> Outcome<u64> {
    let text = text.to_string_lossy();
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T', 'k', 'm', 'g', 't']);
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return bad(format!("{option} {text}: not a size")),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.map_or_else(|| bad(format!("{option} {text}: not a size")), Ok)
}

fn peers(list: &OsStr) -> Outcome<Vec<Peer>> {
    let list = list.to_string_lossy().into_owned();
    let known = |name: &str| Peer::parse(name).map_or_else(|| bad(format!("no peer {name}; see --help")), Ok);
    list.split(',').filter(|name| !name.is_empty()).map(known).collect()
}

/// `journal`, or `memory`, the default.
fn is_journal(kind: &OsStr) -> Outcome<bool> {
    match kind.to_str() {
        Some("journal") => Ok(true),
        Some("memory") => Ok(false),
        _ => bad(format!("--pm {}: use memory or journal", kind.display())),
    }
}

impl Options {
    /// # Errors
    /// A sentence about the word that is not understood.
    pub fn parse(given: &[OsString]) -> Outcome<Asked> {
        Self::parse_words(given, false)
    }

    /// The words after `terrace bench run`: the workload is in `row`.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_run(given: &[OsString]) -> Outcome<Asked> {
        Self::parse_words(given, true)
    }

    /// The defaults of `terrace bench run` or of `terrace bench paper`.
    fn defaults(run: bool) -> Outcome<Options> {
        let (directory, dir) = match run {
            true => (PathBuf::new(), std::env::temp_dir()),
            false => (PathBuf::from("target/bench"), PathBuf::from("target/bench")),
        };
        Ok(Options {
            row: String::new(),
            quick: false,
            rounds: 5,
            seconds: 3.0,
            dataset_bytes: 512 << 20,
            one_core: false,
            fio: false,
            engine: false,
            peers: None,
            emulate_pm: None,
            journal: false,
            record: None,
            replay: None,
            site: SiteOptions { class: None, device_memory: false, dir, terrace: terrace_program()? },
            output: Output { json: false, directory },
            must_show: MustShow { only: None, limit: usize::MAX, again: false },
            beside: Beside { dirs: Vec::new(), threads: 1 },
        })
    }

    fn parse_words(given: &[OsString], run: bool) -> Outcome<Asked> {
        let mut options = Self::defaults(run)?;
        let (mut list, mut must_show) = (false, false);
        let mut given = given.iter();
        while let Some(word) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{} needs a value", word.display()).into());
            match word.to_str().unwrap_or_default() {
                "--help" | "-h" => return Ok(Asked::Help),
                "--list" if !run => list = true,
                "--must-show" if !run => must_show = true,
                "--null-server" if run => {
                    let directory = value()?.into();
                    let transport =
                        Transport::named(&value()?.to_string_lossy()).ok_or("no such transport")?;
                    return Ok(Asked::NullServer(directory, transport));
                }
                "--load" if run => {
                    let directory = value()?.into();
                    let job = value()?.to_string_lossy().into_owned();
                    return Ok(Asked::Load(directory, job));
                }
                option if options.takes(option, &mut value)? => {}
                "--threads" if run => options.beside.threads = number("--threads", value()?)?,
                option if !run && options.takes_of_row(option, &mut value)? => {}
                row if !row.is_empty() && !row.starts_with('-') && options.row.is_empty() => {
                    options.row = row.to_string();
                }
                directory if run && !directory.is_empty() && !directory.starts_with('-') => {
                    options.beside.dirs.push(word.into());
                }
                _ => return Err(format!("unknown option {}; see --help", word.display()).into()),
            }
        }
        match run {
            true => options.asked_beside(),
            false => options.asked(list, must_show),
        }
    }

    /// Sets an option that rows and workloads have; whether there is such an option.
    fn takes(&mut self, option: &str, value: &mut Value<'_>) -> Outcome<bool> {
        match option {
            "--quick" => self.quick = true,
            "--class" => self.site.class = Some(class(value()?)?),
            "--device-memory" => self.site.device_memory = true,
            "--peers" => self.peers = Some(peers(value()?)?),
            "--rounds" => self.rounds = rounds(value()?)?,
            "--seconds" => self.seconds = seconds(value()?)?,
            "--dataset" => self.dataset_bytes = dataset(value()?)?,
            "--fio" => self.fio = true,
            "--engine" => self.engine = true,
            "--one-core" => self.one_core = true,
            "--json" => self.output.json = true,
            "--out" => self.output.directory = value()?.into(),
            "--dir" => self.site.dir = value()?.into(),
            "--terrace" => self.site.terrace = value()?.into(),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets an option that rows alone have; whether there is such an option.
    fn takes_of_row(&mut self, option: &str, value: &mut Value<'_>) -> Outcome<bool> {
        match option {
            "--only" => self.must_show.only = Some(value()?.to_string_lossy().into_owned()),
            "--limit" => self.must_show.limit = number("--limit", value()?)?,
            "--again" => self.must_show.again = true,
            "--emulate-pm" => {
                let speed = value()?.to_string_lossy();
                let found = pm_speed(&speed).map_err(|error| format!("--emulate-pm: {error}"))?;
                self.emulate_pm = Some(found);
            }
            "--pm" => self.journal = is_journal(value()?)?,
            "--record" => self.record = Some(value()?.into()),
            "--replay" => self.replay = Some(value()?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The command of `terrace bench run`.
    fn asked_beside(self) -> Outcome<Asked> {
        match (self.row.is_empty(), self.beside.dirs.is_empty(), self.beside.threads) {
            (true, ..) => Err("which workload? terrace bench run --help shows them".into()),
            (_, true, _) => Err("in which directories? terrace bench run --help shows an example".into()),
            (.., 1..=64) => Ok(Asked::Row(Box::new(self))),
            _ => Err("--threads: from 1 to 64".into()),
        }
    }

    /// The command of `terrace bench paper`.
    fn asked(self, list: bool, must_show: bool) -> Outcome<Asked> {
        if list {
            return Ok(Asked::List { json: self.output.json });
        }
        if must_show {
            return match self.row.is_empty() && self.replay.is_none() {
                true => Ok(Asked::MustShow(Box::new(self))),
                false => Err("--must-show has rows of its own".into()),
            };
        }
        if self.row.is_empty() == self.replay.is_none() {
            return Err("which row? terrace bench paper --list shows them".into());
        }
        Ok(Asked::Row(Box::new(self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Outcome<Asked> {
        Options::parse(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_understood() {
        let Ok(Asked::Row(options)) = parse(&[
            "tpfs-9",
            "--pm",
            "journal",
            "--peers",
            "local,ext4-dj",
            "--dataset",
            "64M",
            "--class",
            "sata",
            "--json",
        ]) else {
            panic!("not a row")
        };
        assert_eq!(options.row, "tpfs-9");
        assert_eq!(options.peers, Some(vec![Peer::Local, Peer::Ext4Dj]));
        assert_eq!((options.dataset_bytes, options.output.json), (64 << 20, true));
        assert!(options.journal);
        assert_eq!(options.site.class, Some(Class::Emulated("sata".into())));
        assert!(matches!(parse(&["--list"]), Ok(Asked::List { json: false })));
    }

    #[test]
    fn wrong_options_are_refused() {
        for words in [
            &["tpfs-9", "zig-7"][..],
            &[],
            &["tpfs-9", "--peers", "ext9"],
            &["tpfs-9", "--dataset", "5X"],
            &["tpfs-9", "--rounds"],
            &["tpfs-9", "--emulate-pm", "fast"],
            &["tpfs-9", "--rounds", "many"],
            &["tpfs-9", "--pm", "paper"],
            &["tpfs-9", "--replay", "file"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }

    /// An unknown class made the bench skip nearly all cells, and a run without figures succeeded.
    #[test]
    fn unknown_classes_and_zero_values_are_refused() {
        for (words, what) in [
            (["tpfs-9", "--class", "foo"], "'foo' is no device class; use host, ssd, "),
            (["tpfs-9", "--class", "ssd+long"], "'ssd+long': behind + the microseconds of a flush"),
            (["tpfs-9", "--dataset", "0"], "--dataset: must be more than 0"),
            (["tpfs-9", "--seconds", "0"], "--seconds: must be more than 0"),
            (["tpfs-9", "--seconds", "NaN"], "--seconds: must be more than 0"),
            (["tpfs-9", "--rounds", "0"], "--rounds: must be more than 0"),
        ] {
            let Err(error) = parse(&words) else { panic!("{words:?}") };
            assert!(error.is::<BadValue>() && error.to_string().contains(what), "{error}");
        }
        let figures = parse(&["tpfs-9", "--class", "1000:1000:1G:1G"]);
        assert!(matches!(figures, Ok(Asked::Row(_))));
    }
}
