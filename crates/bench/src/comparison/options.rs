//! Arguments of `terrace bench paper`.

use crate::failure::{BadValue, Outcome};
use crate::process::terrace_program;
use crate::site::device::Class;
use crate::site::peer::{Peer, pm_speed};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use terrace_media::speed::ClassedSpeed;

/// The smallest data set that gives a meaningful figure.
const LEAST_BYTES: u64 = 8 << 20;

/// A parsed command.
pub enum Asked {
    Help,
    List {
        json: bool,
    },
    Row(Box<Options>),
    MustShow(Box<Options>),
    /// For the child process: directory, job.
    Load(PathBuf, String),
    /// For the child process that serves the null file system in a directory.
    NullServer(PathBuf),
}

#[derive(Debug)]
pub struct Options {
    /// Empty with `replay`.
    pub row: String,
    pub quick: bool,
    pub class: Option<Class>,
    pub device_memory: bool,
    pub emulate_pm: Option<String>,
    pub peers: Option<Vec<Peer>>,
    pub rounds: usize,
    pub seconds: f64,
    pub dataset_bytes: u64,
    pub fio: bool,
    pub engine: bool,
    pub one_core: bool,
    pub record: Option<PathBuf>,
    pub replay: Option<PathBuf>,
    /// Options of `--must-show`; `only` names the entry to run.
    pub only: Option<String>,
    pub limit: usize,
    pub again: bool,
    /// Options of `terrace bench run`.
    pub dirs: Vec<PathBuf>,
    pub threads: u64,
    pub json: bool,
    pub out: PathBuf,
    pub dir: PathBuf,
    pub terrace: PathBuf,
}

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
    if let Class::Emulated(name) = &class
        && let Err(error) = ClassedSpeed::parse(name)
    {
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

    fn parse_words(given: &[OsString], run: bool) -> Outcome<Asked> {
        let mut options = Options {
            row: String::new(),
            quick: false,
            class: None,
            device_memory: false,
            emulate_pm: None,
            peers: None,
            rounds: 5,
            seconds: 3.0,
            dataset_bytes: 512 << 20,
            fio: false,
            engine: false,
            one_core: false,
            record: None,
            replay: None,
            only: None,
            limit: usize::MAX,
            again: false,
            dirs: Vec::new(),
            threads: 1,
            json: false,
            out: PathBuf::from("target/bench"),
            dir: PathBuf::from("target/bench"),
            terrace: terrace_program()?,
        };
        if run {
            (options.out, options.dir) = (PathBuf::new(), std::env::temp_dir());
        }
        let (mut list, mut must_show) = (false, false);
        let mut given = given.iter();
        while let Some(word) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{} needs a value", word.display()));
            match word.to_str().unwrap_or_default() {
                "--help" | "-h" => return Ok(Asked::Help),
                "--list" if !run => list = true,
                "--must-show" if !run => must_show = true,
                "--only" if !run => options.only = Some(value()?.to_string_lossy().into_owned()),
                "--limit" if !run => options.limit = number("--limit", value()?)?,
                "--again" if !run => options.again = true,
                "--threads" if run => options.threads = number("--threads", value()?)?,
                "--quick" => options.quick = true,
                "--class" => options.class = Some(class(value()?)?),
                "--device-memory" => options.device_memory = true,
                "--emulate-pm" if !run => {
                    let speed = value()?.to_string_lossy();
                    let found = pm_speed(&speed).map_err(|error| format!("--emulate-pm: {error}"))?;
                    options.emulate_pm = Some(found);
                }
                "--peers" => options.peers = Some(peers(value()?)?),
                "--rounds" => options.rounds = rounds(value()?)?,
                "--seconds" => options.seconds = seconds(value()?)?,
                "--dataset" => options.dataset_bytes = dataset(value()?)?,
                "--fio" => options.fio = true,
                "--engine" => options.engine = true,
                "--one-core" => options.one_core = true,
                "--record" if !run => options.record = Some(value()?.into()),
                "--replay" if !run => options.replay = Some(value()?.into()),
                "--json" => options.json = true,
                "--out" => options.out = value()?.into(),
                "--dir" => options.dir = value()?.into(),
                "--terrace" => options.terrace = value()?.into(),
                "--null-server" if run => return Ok(Asked::NullServer(value()?.into())),
                "--load" if run => {
                    let directory = value()?.into();
                    let job = value()?.to_string_lossy().into_owned();
                    return Ok(Asked::Load(directory, job));
                }
                row if !row.is_empty() && !row.starts_with('-') && options.row.is_empty() => {
                    options.row = row.to_string();
                }
                directory if run && !directory.is_empty() && !directory.starts_with('-') => {
                    options.dirs.push(word.into());
                }
                _ => return Err(format!("unknown option {}; see --help", word.display()).into()),
            }
        }
        if list {
            return Ok(Asked::List { json: options.json });
        }
        if run {
            return match (options.row.is_empty(), options.dirs.is_empty(), options.threads) {
                (true, ..) => Err("which workload? terrace bench run --help shows them".into()),
                (_, true, _) => Err("in which directories? terrace bench run --help shows an example".into()),
                (.., 1..=64) => Ok(Asked::Row(Box::new(options))),
                _ => Err("--threads: from 1 to 64".into()),
            };
        }
        if must_show {
            return match options.row.is_empty() && options.replay.is_none() {
                true => Ok(Asked::MustShow(Box::new(options))),
                false => Err("--must-show has rows of its own".into()),
            };
        }
        if options.row.is_empty() == options.replay.is_none() {
            return Err("which row? terrace bench paper --list shows them".into());
        }
        Ok(Asked::Row(Box::new(options)))
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
        let Ok(Asked::Row(options)) =
            parse(&["tpfs-9", "--peers", "local,ext4-dj", "--dataset", "64M", "--class", "sata", "--json"])
        else {
            panic!("not a row")
        };
        assert_eq!(options.row, "tpfs-9");
        assert_eq!(options.peers, Some(vec![Peer::Local, Peer::Ext4Dj]));
        assert_eq!((options.dataset_bytes, options.json), (64 << 20, true));
        assert_eq!(options.class, Some(Class::Emulated("sata".into())));
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
