//! Man pages, made from the texts of `--help`.

use crate::args::Cli;
use crate::helpers::{HELPERS, helper_command};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::fs;
use std::io;
use std::path::Path;
use terrace_daemon::failure::{Failure, Outcome, plain};

/// Section of the pages: system administration.
const SECTION: &str = "8";

/// Writes terrace(8), a page for each of its commands, and a page for each name that mount(8), mkfs(8) and
/// fsck(8) look for.
pub fn write(directory: &Path) -> Outcome<()> {
    fs::create_dir_all(directory).map_err(|error| Failure::at(directory, plain(&error)))?;
    let mut whole = Cli::command().disable_help_subcommand(true);
    whole.build();
    let mut pages = vec![(whole.clone(), "terrace".to_string())];
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("terrace-{}", command.get_name());
        pages.push((command.clone().display_name(name.clone()), name));
    }
    for (name, command) in HELPERS.iter().filter(|(name, _)| *name != "mount.fuse.terrace") {
        pages.push((helper_command(name, command), (*name).to_string()));
    }
    for (command, name) in pages {
        let path = directory.join(format!("{name}.{SECTION}"));
        let text = page(command, &name).and_then(|text| fs::write(&path, text));
        text.map_err(|error| Failure::at(&path, plain(&error)))?;
    }
    Ok(())
}

/// A page of the manual. The text below the options keeps its line breaks.
fn page(command: Command, name: &str) -> io::Result<Vec<u8>> {
    let below = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_commands = command.get_subcommands().any(|command| !command.is_hide_set());
    let title = name.to_uppercase();
    let man =
        Man::new(command).title(title).section(SECTION).manual("Terrace").source(env!("CARGO_PKG_VERSION"));
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_commands {
        man.render_subcommands_section(&mut text)?;
    }
    if !below.is_empty() {
        text.extend_from_slice(b".SH NOTES\n.nf\n");
        for line in below.lines() {
            text.extend_from_slice(escaped(line).as_bytes());
            text.push(b'\n');
        }
        text.extend_from_slice(b".fi\n");
    }
    text.extend_from_slice(b".SH SEE ALSO\n");
    let others = ["terrace", "mount.terrace", "mkfs.terrace", "fsck.terrace", "mount", "fstab"];
    let sections = ["8", "8", "8", "8", "8", "5"];
    let named = others.iter().zip(sections).filter(|(other, _)| **other != name);
    let list: Vec<String> = named.map(|(other, section)| format!("{other}({section})")).collect();
    text.extend_from_slice(list.join(", ").as_bytes());
    text.push(b'\n');
    Ok(text)
}

/// A line of text as troff takes it.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn man_pages_have_the_texts_of_the_help() -> Result<(), Box<dyn std::error::Error>> {
        let directory = std::env::temp_dir().join(format!("terrace-manual-{}", std::process::id()));
        write(&directory).map_err(|failure| failure.text)?;
        let page = |name: &str| fs::read_to_string(directory.join(name));
        let whole = page("terrace.8")?;
        assert!(whole.contains("terrace\\-mkfs(8)") && !whole.contains("inspect"), "{whole}");
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(page(&format!("terrace-{}.8", command.get_name()))?.contains(".SH SYNOPSIS"));
        }
        assert!(page("mount.terrace.8")?.contains("threshold_even=PERCENT"));
        assert!(page("mkfs.terrace.8")?.contains("\\fBmkfs.terrace\\fR"));
        assert!(page("fsck.terrace.8")?.contains("repair"));
        assert_eq!([".B\\", "'x", "a-b"].map(escaped), ["\\&.B\\e", "\\&'x", "a\\-b"]);
        Ok(fs::remove_dir_all(&directory)?)
    }
}
