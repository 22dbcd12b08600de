//! YCSB over LevelDB in this process: the generator of operations, LevelDB's files in a mounted pool, and clients
//! that do the operations. `paper/rows/ycsb.rs` measures with them.

pub(crate) mod client;
pub(crate) mod env;
pub(crate) mod generator;
pub(crate) mod pool;
