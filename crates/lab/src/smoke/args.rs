//! Arguments of `terrace bench smoke`.

use std::ffi::OsString;
use std::path::PathBuf;
use terrace_bench::failure::Outcome;
use terrace_bench::process::terrace_program;

pub(crate) const HELP: &str = "\
Measures what docs/benchmarks.md shows.

Usage: terrace bench smoke [OPTIONS]

  --rows LIST       rows to measure, of a,b,c,d,e,f,g (default all)
  --rounds N        interleaved rounds (default 5, at least 5 for figures that are to be shown)
  --hot-only        row a without its cold column (1 M files, 4 GiB of memory)
  --only WORD       of row a only operations whose name contains this (for profiling)
  --dir DIR         directory on the disk for tier files (default target/bench)
  --json PATH       where the figures go (default target/bench/smoke.json)
  --docs PATH       replaces the table between the marks in this page
  --terrace PATH    the program for mkfs, mount, … (default: this one, or the one beside it)

Example: terrace bench smoke --rows a,b --rounds 7";

pub(crate) struct Args {
    pub rows: Vec<char>,
    pub rounds: usize,
    pub hot_only: bool,
    pub only: String,
    pub dir: PathBuf,
    pub json: PathBuf,
    pub docs: Option<PathBuf>,
    pub terrace: PathBuf,
}

impl Args {
    /// `None`: the user asked for help.
    pub fn parse(given: &[OsString]) -> Outcome<Option<Args>> {
        let mut args = Args {
            rows: "abcdefg".chars().collect(),
            rounds: 5,
            hot_only: false,
            only: String::new(),
            dir: PathBuf::from("target/bench"),
            json: PathBuf::from("target/bench/smoke.json"),
            docs: None,
            terrace: terrace_program()?,
        };
        let mut given = given.iter();
        while let Some(option) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{} needs a value", option.display()));
            match option.to_str().unwrap_or_default() {
                "--help" | "-h" => return Ok(None),
                "--rows" => {
                    let list = value()?.to_string_lossy().to_lowercase();
                    args.rows = list.chars().filter(|letter| *letter != ',').collect();
                    if let Some(bad) = args.rows.iter().find(|row| !('a'..='g').contains(*row)) {
                        return Err(format!("no row {bad}; rows are a to g").into());
                    }
                }
                "--rounds" => {
                    let text = value()?.to_string_lossy();
                    args.rounds = text.parse().map_err(|_| format!("--rounds {text}: not a number"))?;
                    if args.rounds == 0 {
                        return Err("--rounds: must be more than 0".into());
                    }
                }
                "--hot-only" => args.hot_only = true,
                "--only" => args.only = value()?.to_string_lossy().into_owned(),
                "--dir" => args.dir = value()?.into(),
                "--json" => args.json = value()?.into(),
                "--docs" => args.docs = Some(value()?.into()),
                "--terrace" => args.terrace = value()?.into(),
                _ => return Err(format!("unknown option {}; see --help", option.display()).into()),
            }
        }
        Ok(Some(args))
    }
}
