//! The title of a comparison: its stable name and the published result.

use serde::Serialize;

/// The shape of a workload of the user: no publication has one.
pub const NO_SHAPE: &str = "none";

/// The title of a comparison.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Row {
    /// The stable name of the row.
    #[serde(rename = "row")]
    pub id: &'static str,
    /// The measured quantity.
    pub sentence: &'static str,
    /// The result of the publication.
    pub published: &'static str,
    /// The relations of the published figures that must hold here too.
    pub shape: &'static str,
}
