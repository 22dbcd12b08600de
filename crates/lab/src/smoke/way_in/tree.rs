//! A generated tree of files with the sizes and content of a source tree, packed into a tar file in memory. The tree
//! depends on the number of files alone.

use super::ground::Ground;
use std::fs;
use std::path::{Path, PathBuf};
use terrace_bench::failure::Outcome;
use terrace_bench::process::run;
use terrace_bench::site::teardown::{Held, Resource};

/// The name of the directory in the tar file.
pub(super) const NAME: &str = "tree";
/// Text outside all files.
pub(super) const ABSENT: &str = "no-file-has-this-text";
const FILES_OF_DIRECTORY: usize = 20;
const DIRECTORIES_OF_DIRECTORY: usize = 20;
const MEDIAN_BYTES: f64 = 3072.0;
/// Deviation of the logarithm of sizes: a file in six has more than 12 KiB, a file in a thousand has the most.
const SPREAD: f64 = 1.4;
const MOST_BYTES: f64 = 200.0 * 1024.0;
/// The mean size is about 8 KiB; blocks are of 4 KiB.
const BYTES_OF_FILE: u64 = 12 << 10;

const WORDS: [&str; 32] = [
    "static", "int", "struct", "return", "if", "else", "unsigned", "const", "void", "buffer", "length",
    "offset", "index", "device", "register", "queue", "request", "page", "inode", "block", "lock", "flags",
    "error", "state", "next", "list", "entry", "size", "count", "=", "->", "()",
];

/// Bytes that a tree takes on a file system, about.
pub(super) fn bytes_of(files: usize) -> u64 {
    files as u64 * BYTES_OF_FILE
}

/// Makes the tar file; dropping the second value removes the file.
pub(super) fn make(ground: &Ground<'_>, files: usize) -> Outcome<(PathBuf, Held)> {
    let above = ground.scratch.memory.join("tree-source");
    fs::create_dir(&above)?;
    let source = ground.teardown.hold(Resource::Directory(above.clone()))?;
    let mut numbers = Numbers(11);
    for number in 0..files {
        let directory = directory_of(&above.join(NAME), number);
        if number % FILES_OF_DIRECTORY == 0 {
            fs::create_dir_all(&directory)?;
        }
        fs::write(directory.join(format!("file-{number}.c")), content(&mut numbers))?;
    }
    let tar = ground.scratch.memory.join("tree.tar");
    let held = ground.teardown.hold(Resource::File(tar.clone()))?;
    let words = ["-c", "--sort=name", "--mtime=@1000000000", "-C"].map(AsRef::as_ref);
    run("tar", words.into_iter().chain([above.as_os_str(), "-f".as_ref(), tar.as_os_str(), NAME.as_ref()]))?;
    drop(source);
    Ok((tar, held))
}

fn directory_of(root: &Path, number: usize) -> PathBuf {
    let directory = number / FILES_OF_DIRECTORY;
    root.join(format!("part-{}", directory / DIRECTORIES_OF_DIRECTORY)).join(format!("module-{directory}"))
}

fn content(numbers: &mut Numbers) -> String {
    let size = numbers.size();
    let mut text = String::with_capacity(size + 16);
    let mut words_of_line = 0;
    while text.len() < size {
        text += WORDS[(numbers.next() >> 59) as usize];
        words_of_line += 1;
        text.push(if words_of_line % 9 == 0 { '\n' } else { ' ' });
    }
    text
}

/// Numbers that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0
    }

    /// Evenly between 0 and 1, without 0.
    fn share(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A size of a file in bytes, distributed as the logarithm of a normal distribution (Box and Muller, 1958).
    fn size(&mut self) -> usize {
        let (radius, angle) = ((-2.0 * self.share().ln()).sqrt(), std::f64::consts::TAU * self.share());
        (MEDIAN_BYTES * (SPREAD * radius * angle.cos()).exp()).clamp(1.0, MOST_BYTES) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_resemble_a_source_tree() {
        let mut numbers = Numbers(11);
        let mut sizes: Vec<usize> = (0..30_000).map(|_| numbers.size()).collect();
        sizes.sort_unstable();
        assert!((2900..3250).contains(&sizes[15_000]), "{}", sizes[15_000]);
        assert_eq!(sizes[29_999], MOST_BYTES as usize);
        let blocks: u64 = sizes.iter().map(|size| (*size as u64).div_ceil(4096) * 4096).sum();
        assert!(blocks < bytes_of(sizes.len()), "{blocks}");
        assert!(!content(&mut numbers).contains(ABSENT));
    }
}
