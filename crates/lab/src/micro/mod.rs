//! `terrace-lab micro NAME`: small measurements of one mechanism each, in this process, without a mount.

mod catalog_times;
mod cold_small_write;
mod commit_times;
mod data_checksum_cost;
mod demotion_rate;
mod emulated_accuracy;
mod fixture;
mod map_primitives;
mod map_requests;
mod metadata_below;
mod overwrite_for_ever;
mod pm_primitives;
mod pm_reads;
mod predictor_cost;
mod presence_cost;
mod sequential_read;
mod table_map_times;

use std::ffi::OsString;
use std::process::ExitCode;
use terrace_bench::failure::{Outcome, ended, say};

/// A measurement: name, arguments, a sentence, and the function that prints the figures.
struct Micro {
    name: &'static str,
    arguments: &'static str,
    sentence: &'static str,
    run: fn(&[String]) -> Outcome<()>,
}

const MICROS: &[Micro] = &[
    Micro {
        name: "catalog_times",
        arguments: "",
        sentence: "Times of catalog operations on PM that is in the processor's caches.",
        run: catalog_times::run,
    },
    Micro {
        name: "cold_small_write",
        arguments: "[ROUNDS]",
        sentence: "Time of a small synchronous write to a cold file, and of the same write in PM.",
        run: cold_small_write::run,
    },
    Micro {
        name: "commit_times",
        arguments: "",
        sentence: "Times of the steps of a commit, apart from its medium.",
        run: commit_times::run,
    },
    Micro {
        name: "data_checksum_cost",
        arguments: "[ROUNDS]",
        sentence: "Time that checksums of data in PM add to a request.",
        run: data_checksum_cost::run,
    },
    Micro {
        name: "demotion_rate",
        arguments: "[SECONDS] [DATA_MIB] [THREADS] [CLASS…]",
        sentence: "Rate of random writes over a small PM, and the share of the device that demotion reaches.",
        run: demotion_rate::run,
    },
    Micro {
        name: "emulated_accuracy",
        arguments: "",
        sentence: "Deviation of emulated media from the times that were asked for.",
        run: emulated_accuracy::run,
    },
    Micro {
        name: "map_primitives",
        arguments: "[PM_DIRECTORY] [MAP]",
        sentence: "Times of the operations of the file map.",
        run: map_primitives::run,
    },
    Micro {
        name: "map_requests",
        arguments: "[MAP] [MIB] [ROUNDS]",
        sentence: "Times of reads, overwrites and appends of 4 KiB in a large file, in order and at random.",
        run: map_requests::run,
    },
    Micro {
        name: "metadata_below",
        arguments: "[DIRECTORY [FILES [PM_MIB]]]",
        sentence: "Times of lookups while metadata is larger than PM.",
        run: metadata_below::run,
    },
    Micro {
        name: "overwrite_for_ever",
        arguments: "[PERCENT [MAP]]",
        sentence: "Time of a write over the same block again and again, by file map, beside data that fill PM so far.",
        run: overwrite_for_ever::run,
    },
    Micro {
        name: "pm_primitives",
        arguments: "[PM_DIRECTORY] [DEVICE_DIRECTORY]",
        sentence: "Times of the primitives of PM and of a device.",
        run: pm_primitives::run,
    },
    Micro {
        name: "pm_reads",
        arguments: "",
        sentence: "Times of PM reads of several sizes.",
        run: pm_reads::run,
    },
    Micro {
        name: "predictor_cost",
        arguments: "[ROUNDS] | count static|resting|predictive OPERATION NUMBER",
        sentence: "Time, or instructions, that predictors add to an operation of 4 KiB.",
        run: predictor_cost::run,
    },
    Micro {
        name: "presence_cost",
        arguments: "",
        sentence: "Memory and times of the blocks that memory knows beside a block table that is the file map.",
        run: presence_cost::run,
    },
    Micro {
        name: "sequential_read",
        arguments: "[MIB] [ROUNDS] [CLASS…]",
        sentence: "Share of a device's bandwidth that a demoted file reaches when it is read to its end.",
        run: sequential_read::run,
    },
    Micro {
        name: "table_map_times",
        arguments: "[GIB]",
        sentence: "Times and lines of look-ups in block tables that are file maps, by load.",
        run: table_map_times::run,
    },
];

/// Runs `terrace-lab micro` with the arguments after `micro`.
pub fn main(args: &[OsString]) -> ExitCode {
    let args: Vec<String> = args.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    match args.split_first() {
        None => ended("micro", say(list()).map(|()| true)),
        Some((name, _)) if ["--help", "-h"].contains(&name.as_str()) => {
            ended("micro", say(list()).map(|()| true))
        }
        Some((name, rest)) => match MICROS.iter().find(|micro| micro.name == name) {
            Some(micro) => ended("micro", (micro.run)(rest).map(|()| true)),
            None => ended("micro", Err(format!("no micro {name}\n{}", list()).into())),
        },
    }
}

fn list() -> String {
    let mut text = String::from("Usage: terrace-lab micro NAME [ARGUMENTS]\n");
    for micro in MICROS {
        text += &format!("\n  {} {}\n      {}", micro.name, micro.arguments, micro.sentence);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micros_are_listed_once_and_by_name() {
        assert!(MICROS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(MICROS.iter().all(|micro| list().contains(micro.sentence)));
    }
}
