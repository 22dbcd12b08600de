//! A comparison: a plan of figures on several subjects, measured in interleaved rounds at a site, judged and
//! written.

pub mod figure;
pub mod measure;
pub mod metric;
pub mod options;
pub mod outcome;
pub mod plan;
mod plot;
mod row;
mod run;
mod table;
mod verdict;

pub use row::{NO_SHAPE, Row};
pub use run::{pin, run_plan, scale};
