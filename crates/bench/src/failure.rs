//! Failures as sentences for a person, and the exit status of a command of `terrace bench`.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

/// An error is a sentence for the user.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Writes a line to standard output. A closed pipe is no error.
pub fn say(text: impl std::fmt::Display) -> Outcome<()> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("standard output: {error}").into())
        }
        _ => Ok(()),
    }
}

/// A value that an option does not take: exit status 2.
#[derive(Debug)]
pub struct BadValue(pub String);

impl std::fmt::Display for BadValue {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl Error for BadValue {}

/// The exit status of `terrace bench COMMAND`; false is a failure that was already reported.
pub fn ended(command: &str, done: Outcome<bool>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "terrace bench {command}: {error}");
            if error.is::<BadValue>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
