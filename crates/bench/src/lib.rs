//! `terrace bench run`: a workload side by side in directories; and the parts that the laboratory (crate
//! `lab`) measures with: workloads, sites with their devices and peers, plans, results.
//!
//! A run sets up scratch files below a directory and on /dev/shm, measures in rounds that alternate between
//! the subjects, and takes everything down again. Mounts live in a private mount namespace; processes are
//! ended by their id. A run that would leave too little memory or disk is refused with the reason.
#![forbid(unsafe_code)]

pub mod affinity;
pub mod comparison;
pub mod failure;
pub mod machine;
pub mod null_server;
pub mod process;
pub mod run;
pub mod scratch;
pub mod site;
pub mod stats;
pub mod trace;
pub mod workload;
