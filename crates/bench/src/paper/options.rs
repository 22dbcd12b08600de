//! Arguments of `terrace bench paper`.

use crate::Outcome;
use crate::args::terrace_program;
use crate::site::device::Class;
use crate::site::peer::Peer;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

pub(crate) const HELP: &str = "\
Measures a row of docs/evaluation.md beside the file systems that this machine has.

Usage: terrace bench paper ROW [OPTIONS]
       terrace bench paper --list
       terrace bench paper --replay TRACE [OPTIONS]

  --list            the rows: id, what is measured, why one cannot run here
  --quick           tiny and short: shows that the row runs; its figures mean nothing
  --class CLASS     what the device below everyone behaves like: host (the disk of this machine, not
                    emulated) or a class of `terrace bench device` (default: host, or what the row is about)
  --device-memory   the file behind the device is in memory: for classes faster than the disk
  --peers LIST      only these of terrace,local,ext4,ext4-dj,xfs-ml,ext4-pm,xfs-pm,btrfs,tmpfs,null,mergerfs,device
                    (default: those of the row; local is Terrace without the kernel)
  --rounds N        interleaved rounds (default 5)
  --seconds N       time of one figure in one round (default 3)
  --dataset SIZE    bytes of data; PM follows in the published proportion (default 512M)
  --fio             rows of random reads and writes also through fio itself, beside the own generator
  --one-core        everything on one core
  --record PATH     what `local` is asked to do, to be replayed
  --json            the result on standard output, instead of a table
  --out DIR         ROW.json and ROW.svg go there (default target/bench)
  --dir DIR         directory on the disk for devices (default target/bench)
  --terrace PATH    the program for mkfs, mount, … (default: this one, or the one beside it)

Example: terrace bench paper tpfs-13 --class sata --peers terrace,ext4-dj,xfs-ml";

/// What is asked for.
pub(crate) enum Asked {
    Help,
    List {
        json: bool,
    },
    Row(Box<Options>),
    /// For the child process: directory, job.
    Load(PathBuf, String),
}

#[derive(Debug)]
pub(crate) struct Options {
    /// Empty with `replay`.
    pub row: String,
    pub quick: bool,
    pub class: Option<Class>,
    pub device_memory: bool,
    pub peers: Option<Vec<Peer>>,
    pub rounds: usize,
    pub seconds: f64,
    pub dataset_bytes: u64,
    pub fio: bool,
    pub one_core: bool,
    pub record: Option<PathBuf>,
    pub replay: Option<PathBuf>,
    pub json: bool,
    pub out: PathBuf,
    pub dir: PathBuf,
    pub terrace: PathBuf,
}

fn number<T: std::str::FromStr>(option: &str, text: &OsStr) -> Outcome<T> {
    let text = text.to_string_lossy();
    text.parse().map_err(|_| format!("{option} {text}: not a number").into())
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
        _ => return Err(format!("{option} {text}: not a size").into()),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("{option} {text}: not a size").into())
}

fn peers(list: &OsStr) -> Outcome<Vec<Peer>> {
    let list = list.to_string_lossy().into_owned();
    let known = |name: &str| Peer::parse(name).ok_or_else(|| format!("no peer {name}; see --help").into());
    list.split(',').filter(|name| !name.is_empty()).map(known).collect()
}

impl Options {
    /// # Errors
    /// A sentence about what is not understood.
    pub fn parse(given: &[OsString]) -> Outcome<Asked> {
        let mut options = Options {
            row: String::new(),
            quick: false,
            class: None,
            device_memory: false,
            peers: None,
            rounds: 5,
            seconds: 3.0,
            dataset_bytes: 512 << 20,
            fio: false,
            one_core: false,
            record: None,
            replay: None,
            json: false,
            out: PathBuf::from("target/bench"),
            dir: PathBuf::from("target/bench"),
            terrace: terrace_program()?,
        };
        let mut list = false;
        let mut given = given.iter();
        while let Some(word) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{} needs a value", word.display()));
            match word.to_str().unwrap_or_default() {
                "--help" | "-h" => return Ok(Asked::Help),
                "--list" => list = true,
                "--quick" => options.quick = true,
                "--class" => options.class = Some(Class::parse(&value()?.to_string_lossy())),
                "--device-memory" => options.device_memory = true,
                "--peers" => options.peers = Some(peers(value()?)?),
                "--rounds" => options.rounds = number::<usize>("--rounds", value()?)?.max(1),
                "--seconds" => options.seconds = number::<f64>("--seconds", value()?)?.clamp(0.01, 3600.0),
                "--dataset" => options.dataset_bytes = size("--dataset", value()?)?.max(8 << 20),
                "--fio" => options.fio = true,
                "--one-core" => options.one_core = true,
                "--record" => options.record = Some(value()?.into()),
                "--replay" => options.replay = Some(value()?.into()),
                "--json" => options.json = true,
                "--out" => options.out = value()?.into(),
                "--dir" => options.dir = value()?.into(),
                "--terrace" => options.terrace = value()?.into(),
                "--load" => {
                    let directory = value()?.into();
                    let job = value()?.to_string_lossy().into_owned();
                    return Ok(Asked::Load(directory, job));
                }
                row if !row.is_empty() && !row.starts_with('-') && options.row.is_empty() => {
                    options.row = row.to_string();
                }
                _ => return Err(format!("unknown option {}; see --help", word.display()).into()),
            }
        }
        if list {
            return Ok(Asked::List { json: options.json });
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
    fn what_is_wrong_is_said() {
        for words in [
            &["tpfs-9", "zig-7"][..],
            &[],
            &["tpfs-9", "--peers", "ext9"],
            &["tpfs-9", "--dataset", "5X"],
            &["tpfs-9", "--rounds"],
            &["tpfs-9", "--rounds", "many"],
            &["tpfs-9", "--replay", "file"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
