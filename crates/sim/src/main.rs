//! `cargo run -p terrace-sim`: runs histories until time is up or a violation is found.

fn main() {}
