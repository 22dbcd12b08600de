//! Mount options that set numbers of predictors, thresholds and migration: one table, which also gives the
//! texts of refusals.

use terrace_engine::{MOST_DATAFLOW_SECONDS, Parameters};

/// A day.
const DAY_S: u32 = 86_400;

/// An option whose value is a whole number.
struct Number {
    name: &'static str,
    range: (u32, u32),
    what: &'static str,
    set: fn(&mut Parameters, u32),
}

const fn number(
    name: &'static str,
    range: (u32, u32),
    what: &'static str,
    set: fn(&mut Parameters, u32),
) -> Number {
    Number { name, range, what, set }
}

const NUMBERS: &[Number] = &[
    number("sync_blocks", (1, 1 << 20), "blocks", |p, n| p.sync_blocks = n),
    number("large_after", (0, 250), "a count", |p, n| p.large_after = n as u8),
    number("large_pm", (0, 100), "a percentage", |p, n| p.large_pm_percent = Some(n as u8)),
    number("read_times", (1, 1000), "a factor", |p, n| p.read_times = n),
    number("touches", (1, 100), "a count", |p, n| p.touches = n),
    number("whole_after_s", (1, DAY_S), "seconds", |p, n| p.whole_after_s = n),
    number("threshold_even", (1, 99), "a percentage", |p, n| p.utilisation.even_percent = n as u8),
    number("threshold_step", (0, 50), "a percentage", |p, n| p.utilisation.step_percent = n as u8),
    number("threshold_min", (1, 99), "a percentage", |p, n| p.utilisation.least_percent = n as u8),
    number("threshold_max", (1, 99), "a percentage", |p, n| p.utilisation.most_percent = n as u8),
    number("threshold_decay", (1, 3600), "a divisor", |p, n| p.utilisation.decay = n),
    number("dataflow_s", (1, MOST_DATAFLOW_SECONDS as u32), "seconds", |p, n| p.dataflow.seconds = n as u8),
    number("spill_high", (1, 100), "a percentage", |p, n| p.spill.high_percent = n as u8),
    number("spill_low", (1, 100), "a percentage", |p, n| p.spill.low_percent = n as u8),
];

/// An option whose value is a ratio with at most two digits behind the point, kept in hundredths.
struct Ratio {
    name: &'static str,
    set: fn(&mut Parameters, u32),
}

const RATIOS: &[Ratio] = &[
    Ratio { name: "dataflow_high", set: |p, n| p.dataflow.high_percent = n },
    Ratio { name: "dataflow_low", set: |p, n| p.dataflow.low_percent = n },
];

/// Largest ratio, in hundredths.
const MOST_RATIO: u32 = 100_000;

/// Whether an option is in one of the tables.
pub fn knows(name: &str) -> bool {
    NUMBERS.iter().any(|number| number.name == name) || RATIOS.iter().any(|ratio| ratio.name == name)
}

/// Sets an option; `None` when it is in none of the tables.
///
/// # Errors
/// The allowed values of the option, in words for a user.
pub fn take(parameters: &mut Parameters, name: &str, value: &str) -> Option<Result<(), String>> {
    if let Some(Number { range: (least, most), what, set, .. }) = NUMBERS.iter().find(|it| it.name == name) {
        let value = if *what == "a percentage" { value.trim_end_matches('%') } else { value };
        return Some(match value.parse() {
            Ok(number) if (*least..=*most).contains(&number) => {
                set(parameters, number);
                Ok(())
            }
            _ => Err(format!("must be {what}, from {least} to {most}")),
        });
    }
    let Ratio { set, .. } = RATIOS.iter().find(|it| it.name == name)?;
    Some(match hundredths(value) {
        Some(ratio @ 1..=MOST_RATIO) => {
            set(parameters, ratio);
            Ok(())
        }
        _ => Err("must be a ratio from 0.01 to 1000".to_string()),
    })
}

/// `2`, `0.5` or `1.25` in hundredths.
fn hundredths(text: &str) -> Option<u32> {
    let (whole, behind) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || behind.len() > 2 || !digits(whole) || !digits(behind) {
        return None;
    }
    format!("{whole}{behind:0<2}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_sets_its_parameter_within_its_range() {
        let with = |name: &str, value: &str| {
            let mut parameters = Parameters::PUBLISHED;
            take(&mut parameters, name, value).map(|done| done.map(|()| parameters))
        };
        for Number { name, range: (least, most), .. } in NUMBERS {
            let set = [least, most].map(|value| with(name, &value.to_string()));
            assert!(set.iter().all(|set| matches!(set, Some(Ok(_)))) && set[0] != set[1], "{name}");
            for outside in [i64::from(*least) - 1, i64::from(*most) + 1] {
                assert!(matches!(with(name, &outside.to_string()), Some(Err(_))), "{name}={outside}");
            }
        }
        assert_eq!(with("bogus", "1"), None);
    }

    #[test]
    fn ratios_have_two_digits_behind_the_point() {
        for (text, value) in [("2", 200), ("0.5", 50), ("1.25", 125), ("10.0", 1000), ("3.", 300)] {
            assert_eq!(hundredths(text), Some(value), "{text}");
        }
        for bad in ["", ".5", "-1", "+1", "1.255", "1,5", "1.+5", "99999999999"] {
            assert_eq!(hundredths(bad), None, "{bad}");
        }
    }
}
