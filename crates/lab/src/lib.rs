//! The laboratory: `terrace-lab smoke` measures the tables of docs/benchmarks.md, `terrace-lab paper ROW` a
//! row of docs/evaluation.md beside the peers that this machine has, `terrace-lab micro NAME` one mechanism in this
//! process. `terrace bench smoke` and `terrace bench paper` start it.
#![forbid(unsafe_code)]

mod mapping;
pub mod micro;
pub mod paper;
mod regret;
pub mod smoke;
#[cfg(test)]
mod workload_tests;
mod ycsb;
