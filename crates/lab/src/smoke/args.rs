//! Arguments of `terrace bench smoke`.

use std::ffi::OsString;
use std::path::PathBuf;
use terrace_bench::failure::Outcome;
use terrace_bench::process::terrace_program;
use terrace_map::MAPS;

pub(crate) const HELP: &str = "\
Measures what docs/benchmarks.md shows.

Usage: terrace bench smoke [OPTIONS]

  --rows LIST       rows to measure, of a,b,c,d,e,f,g (default all of them) and way-in: the ways of requests into
                    the daemon, by io_uring and classic, beside ext4, XFS and tmpfs
  --map NAME        file map of the pools of rows a to g (default: that of mkfs)
  --rounds N        interleaved rounds (default 5, at least 5 for figures that are to be shown)
  --hot-only        row a without its cold column (1 M files, 4 GiB of memory)
  --only WORD       of row a only operations whose name contains this (for profiling); of way-in only these parts, of
                    calls,clients,trees
  --before PATH     way-in: an older program terrace, which is measured too
  --files N         way-in: files of the tree (default 30000)
  --quick           way-in: tiny and short: shows that it runs; its figures mean nothing
  --dir DIR         directory on the disk for tier files (default target/bench)
  --json PATH       where the figures go (default target/bench/smoke.json)
  --docs PATH       replaces the table between the marks in this page
  --terrace PATH    the program for mkfs, mount, … (default: this one, or the one beside it)

Example: terrace bench smoke --rows a,b --rounds 7";

/// The parts of row way-in.
pub(crate) const PARTS: [&str; 3] = ["calls", "clients", "trees"];

/// Rows that are measured unless the user names others.
const USUAL: &str = "a,b,c,d,e,f,g";
const WAY_IN: &str = "way-in";

pub(crate) struct Args {
    rows: Vec<String>,
    pub map: Option<String>,
    pub rounds: usize,
    pub hot_only: bool,
    pub only: String,
    pub before: Option<PathBuf>,
    files: Option<usize>,
    pub quick: bool,
    pub dir: PathBuf,
    pub json: PathBuf,
    pub docs: Option<PathBuf>,
    pub terrace: PathBuf,
}

impl Args {
    /// `None`: the user asked for help.
    pub fn parse(given: &[OsString]) -> Outcome<Option<Args>> {
        let mut args = Args {
            rows: rows(USUAL)?,
            map: None,
            rounds: 5,
            hot_only: false,
            only: String::new(),
            before: None,
            files: None,
            quick: false,
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
                "--rows" => args.rows = rows(&value()?.to_string_lossy())?,
                "--map" => args.map = Some(map(&value()?.to_string_lossy())?),
                "--rounds" => args.rounds = count("--rounds", value()?)?,
                "--files" => args.files = Some(count("--files", value()?)?),
                "--before" => args.before = Some(value()?.into()),
                "--quick" => args.quick = true,
                "--hot-only" => args.hot_only = true,
                "--only" => args.only = value()?.to_string_lossy().into_owned(),
                "--dir" => args.dir = value()?.into(),
                "--json" => args.json = value()?.into(),
                "--docs" => args.docs = Some(value()?.into()),
                "--terrace" => args.terrace = value()?.into(),
                _ => return Err(format!("unknown option {}; see --help", option.display()).into()),
            }
        }
        let bad = args.only.split(',').find(|word| !word.is_empty() && !PARTS.contains(word));
        if let Some(bad) = bad.filter(|_| args.rows == [WAY_IN]) {
            return Err(format!("--only {bad}: the parts of row {WAY_IN} are {}", PARTS.join(", ")).into());
        }
        Ok(Some(args))
    }

    /// Whether a row is to be measured.
    pub fn wants(&self, row: &str) -> bool {
        self.rows.iter().any(|wanted| wanted == row)
    }

    /// Whether a part of row way-in is to be measured.
    pub fn wants_part(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.split(',').any(|wanted| wanted == part)
    }

    /// Files of the tree of row way-in.
    pub fn files(&self) -> usize {
        self.files.unwrap_or(if self.quick { 200 } else { 30_000 })
    }
}

/// The rows of a list; letters need no comma between them.
fn rows(list: &str) -> Outcome<Vec<String>> {
    let mut rows = Vec::new();
    for word in list.to_lowercase().split(',') {
        match word {
            WAY_IN => rows.push(word.to_string()),
            letters => rows.extend(letters.chars().map(String::from)),
        }
    }
    match rows.iter().find(|row| *row != WAY_IN && !USUAL.contains(row.as_str())) {
        Some(bad) => Err(format!("no row {bad}; rows are a to g and {WAY_IN}").into()),
        None => Ok(rows),
    }
}

/// The name of a file map.
fn map(name: &str) -> Outcome<String> {
    if MAPS.iter().any(|row| row.name == name) {
        return Ok(name.to_string());
    }
    let names: Vec<_> = MAPS.iter().map(|row| row.name).collect();
    Err(format!("--map {name}: file maps are {}", names.join(", ")).into())
}

/// The number above 0 after an option.
fn count(option: &str, text: &OsString) -> Outcome<usize> {
    let text = text.to_string_lossy();
    match text.parse() {
        Ok(0) => Err(format!("{option}: must be more than 0").into()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("{option} {text}: not a number").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Outcome<Option<Args>> {
        Args::parse(&words.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn rows_are_letters_and_words() {
        let args = parse("--rows ab,way-in --only trees --quick").unwrap().unwrap();
        assert_eq!(args.rows, ["a", "b", "way-in"]);
        assert!(args.wants("way-in") && args.wants_part("trees"));
        assert!(!args.wants("c") && !args.wants_part("calls"));
        assert_eq!(args.files(), 200);
        let usual = parse("--rounds 2").unwrap().unwrap();
        assert!(usual.wants("g") && !usual.wants("way-in") && usual.wants_part("calls"));
        let extent = parse("--rows a --map extent").unwrap().unwrap();
        assert_eq!((extent.map.as_deref(), usual.map), (Some("extent"), None));
        for wrong in
            ["--map tree", "--rows h", "--rows way", "--rounds 0", "--files x", "--rows way-in --only names"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
