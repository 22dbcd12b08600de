//! Mount options of writes that wait in DRAM (docs/write-buffer.md): `lazy=` and the marks of write-back.

use std::time::Duration;
use terrace_engine::{BufferOptions, LazyOption, MountOptions};

/// The value of a mark.
enum Mark {
    /// A share of free room in DRAM, from 1 to 99.
    Percent(fn(&mut BufferOptions, u8)),
    /// From [`SHORTEST`] to [`LONGEST`].
    Time(fn(&mut BufferOptions, Duration)),
}

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(3600);

const MARKS: &[(&str, Mark)] = &[
    ("lazy_low", Mark::Percent(|buffer, percent| buffer.low_percent = percent)),
    ("lazy_high", Mark::Percent(|buffer, percent| buffer.high_percent = percent)),
    ("lazy_period", Mark::Time(|buffer, time| buffer.period = time)),
    ("lazy_age", Mark::Time(|buffer, time| buffer.age = time)),
    ("lazy_idle", Mark::Time(|buffer, time| buffer.idle = time)),
];

/// The static name of a mount option of this file; `None` for other words.
pub(crate) fn known(name: &str) -> Option<&'static str> {
    let mut names = std::iter::once("lazy").chain(MARKS.iter().map(|(name, _)| *name));
    names.find(|known| *known == name)
}

/// Sets an option that is [`known`].
///
/// # Errors
/// The allowed values of the option, in words for a user.
pub(crate) fn take(buffer: &mut BufferOptions, name: &str, value: &str) -> Result<(), &'static str> {
    let Some((_, mark)) = MARKS.iter().find(|(known, _)| *known == name) else {
        buffer.lazy = lazy_named(value).ok_or("must be auto, on or off")?;
        return Ok(());
    };
    match mark {
        Mark::Percent(set) => match value.trim_end_matches('%').parse() {
            Ok(percent @ 1..=99) => set(buffer, percent),
            _ => return Err("must be a percentage, from 1 to 99"),
        },
        Mark::Time(set) => match time(value) {
            Some(time) if (SHORTEST..=LONGEST).contains(&time) => set(buffer, time),
            _ => return Err("must be a time from 100ms to 3600s, such as 500ms, 5s or 5"),
        },
    }
    Ok(())
}

/// A time: whole seconds, or whole milliseconds before `ms`.
fn time(text: &str) -> Option<Duration> {
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, Duration::from_millis as fn(u64) -> Duration),
        None => (text.strip_suffix('s').unwrap_or(text), Duration::from_secs as fn(u64) -> Duration),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok().map(unit))?
}

fn lazy_named(name: &str) -> Option<LazyOption> {
    let named = [("auto", LazyOption::Auto), ("on", LazyOption::On), ("off", LazyOption::Off)];
    named.into_iter().find(|(found, _)| *found == name).map(|(_, option)| option)
}

/// Refuses marks that contradict each other, and lazy writes and marks where no write can wait. `given`: the names of the
/// options that were given. Marks beside `lazy=off` are for writes that wait for a lower tier.
pub(crate) fn check(options: &MountOptions, given: &[&str]) -> Result<(), String> {
    let mark = given.iter().find(|name| **name != "lazy").copied();
    let given = match options.buffer.lazy {
        _ if !given.contains(&"lazy") => mark,
        LazyOption::On => Some("lazy=on"),
        LazyOption::Auto => Some("lazy=auto"),
        LazyOption::Off => mark,
    };
    if let Some(given) = given.filter(|_| options.read_only) {
        return Err(format!("{given}: a mount with ro changes nothing; leave out one of both"));
    }
    if let Some(given) = given.filter(|_| !options.buffer.has_page()) {
        return Err(format!("{given}: needs a buffer of at least a page, 4096 bytes; see buffer="));
    }
    let BufferOptions { low_percent, high_percent, period, age, .. } = options.buffer;
    if low_percent >= high_percent {
        return Err(format!(
            "lazy_low={low_percent} is not below lazy_high={high_percent}; without the options they are 5 and 20"
        ));
    }
    if period > age {
        return Err(format!(
            "lazy_period={period:?} is above lazy_age={age:?}; without the options they are 5s and 30s"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(options: &[(&str, &str)]) -> Result<BufferOptions, &'static str> {
        let mut buffer = BufferOptions::default();
        options.iter().try_for_each(|(name, value)| take(&mut buffer, name, value))?;
        Ok(buffer)
    }

    #[test]
    fn each_mark_sets_its_field_within_its_range() {
        let expected = BufferOptions {
            lazy: LazyOption::Auto,
            low_percent: 1,
            high_percent: 99,
            period: Duration::from_millis(100),
            age: Duration::from_secs(3600),
            idle: Duration::from_secs(7),
            ..BufferOptions::default()
        };
        let options = [
            ("lazy", "auto"),
            ("lazy_low", "1%"),
            ("lazy_high", "99"),
            ("lazy_period", "100ms"),
            ("lazy_age", "3600s"),
            ("lazy_idle", "7"),
        ];
        assert_eq!(with(&options), Ok(expected));
        for (name, mark) in MARKS {
            assert_eq!(known(name), Some(*name));
            let outside: &[&str] = match mark {
                Mark::Percent(_) => &["0", "100", "-1", "many", ""],
                Mark::Time(_) => &["99ms", "3601", "1h", "1.5", "+5", "ms", "s", "", "99999999999999999999"],
            };
            for value in outside {
                assert!(with(&[(name, value)]).is_err(), "{name}={value}");
            }
        }
        assert_eq!(known("lazy_"), None);
    }
}
