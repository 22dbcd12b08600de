//! The speeds of a new pool's devices: given by the user, else measured, else by the kernel's class of their
//! disks.
//!
//! Devices of one disk are measured together and share a tier, because they slow each other down. A
//! measurement decides the tiers for ever, so it does not count if other programs used the disk or the
//! processors.

use crate::disk::{self, Disks, Load};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use terrace_daemon::failure::{Failure, Outcome};
use terrace_daemon::output;
use terrace_format::device::FIRST_CHUNK_BLOCK;
use terrace_media::BlockMedium;
use terrace_media::block::probe::{Access, probe_together};
use terrace_media::speed::{ClassedSpeed, FIGURES, tiers};
use terrace_runtime::SystemClock;

/// A device whose speed is to be found.
pub struct Subject<'a> {
    /// The path that the user gave.
    pub path: &'a Path,
    /// A path on the same disks that exists.
    pub place: PathBuf,
    /// The speed that the user gave.
    pub given: Option<ClassedSpeed>,
    /// The device to measure, and the way to measure it; `None` if it cannot be measured.
    pub device: Option<(&'a dyn BlockMedium, Access)>,
}

/// The source of a speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The speed was not needed: the pool has only this device.
    Unknown,
    /// The user.
    Given,
    /// Measured.
    Measured,
    /// The kernel's class of the disks.
    Kernel,
}

/// The speed of a device, and the tier that it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judged {
    /// The speed.
    pub speed: Option<ClassedSpeed>,
    /// The source of the speed.
    pub source: Source,
    /// Its tier, 1 the fastest.
    pub tier: u8,
}

/// Judges the devices of a pool. The speed of a single device is not needed.
pub fn judge(subjects: &[Subject<'_>]) -> Outcome<Vec<Judged>> {
    judge_by(subjects, disk::below, of_disks)
}

/// `disks_below`: the disks of a path; `measure`: the speed of devices on the same disks.
fn judge_by(
    subjects: &[Subject<'_>],
    disks_below: impl Fn(&Path) -> Disks,
    mut measure: impl FnMut(&Disks, &[&Subject<'_>]) -> Outcome<(ClassedSpeed, Source)>,
) -> Outcome<Vec<Judged>> {
    let mut judged: Vec<Judged> = subjects
        .iter()
        .map(|subject| {
            let source = if subject.given.is_some() { Source::Given } else { Source::Unknown };
            Judged { speed: subject.given, source, tier: 1 }
        })
        .collect();
    if subjects.len() < 2 {
        return Ok(judged);
    }
    let mut by_disks: BTreeMap<Disks, Vec<usize>> = BTreeMap::new();
    for (index, subject) in subjects.iter().enumerate().filter(|(_, subject)| subject.given.is_none()) {
        by_disks.entry(disks_below(&subject.place)).or_default().push(index);
    }
    for (disks, members) in &by_disks {
        let together: Vec<&Subject<'_>> = members.iter().map(|&index| &subjects[index]).collect();
        let (speed, source) = measure(disks, &together)?;
        for &index in members {
            (judged[index].speed, judged[index].source) = (Some(speed), source);
        }
    }
    let speeds: Vec<_> = judged.iter().filter_map(|one| one.speed.map(|speed| speed.speed)).collect();
    assert_eq!(speeds.len(), judged.len(), "each is known");
    for (one, tier) in judged.iter_mut().zip(tiers(&speeds)) {
        one.tier = tier;
    }
    Ok(judged)
}

/// The speed of devices on the same disks.
fn of_disks(disks: &Disks, members: &[&Subject<'_>]) -> Outcome<(ClassedSpeed, Source)> {
    let devices: Option<Vec<_>> = members.iter().map(|member| member.device).collect();
    let mut load = Load::new(disks.clone());
    let measured = match devices {
        Some(devices) => probe_together(&devices, FIRST_CHUNK_BLOCK, &SystemClock::default(), &mut load)
            .map_err(|error| Failure::new(error.to_string()))?,
        None => None,
    };
    if let Some(speed) = measured {
        return Ok((ClassedSpeed { number: FIGURES, speed }, Source::Measured));
    }
    let class = disk::class_by_kernel(disks);
    let paths: Vec<String> = members.iter().map(|member| member.path.display().to_string()).collect();
    let what = "its speed cannot be measured while the machine is busy";
    output::warn(format!(
        "{}: {what}; taken as {class}, as the kernel calls it: class= says better, 'terrace tier' changes the order later",
        paths.join(", ")
    ));
    let speed = ClassedSpeed::parse(class).map_err(Failure::new)?;
    Ok((speed, Source::Kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject<'a>(path: &'a str, class: Option<&str>) -> Subject<'a> {
        let given = class.and_then(|name| ClassedSpeed::parse(name).ok());
        Subject { path: Path::new(path), place: PathBuf::from(path), given, device: None }
    }

    /// Two files of one disk became two tiers: each was measured alone, and a busy program slowed one
    /// measurement.
    #[test]
    fn devices_of_one_disk_share_a_tier() {
        let subjects = [
            subject("/sda/1", None),
            subject("/sdb/1", None),
            subject("/sda/2", None),
            subject("/sda/3", Some("optane")),
        ];
        let disks_below = |path: &Path| Disks::from([path.to_string_lossy()[1..4].to_string()]);
        let mut asked = Vec::new();
        let measure = |disks: &Disks, members: &[&Subject<'_>]| {
            let paths = members.iter().map(|member| member.path.display().to_string());
            asked.push(paths.collect::<Vec<_>>().join(" "));
            let class = if disks.contains("sda") { "sata" } else { "disk" };
            ClassedSpeed::parse(class).map(|speed| (speed, Source::Measured)).map_err(Failure::new)
        };
        let judged = judge_by(&subjects, disks_below, measure).map(|judged| {
            judged.iter().map(|one| (one.tier, one.source == Source::Given)).collect::<Vec<_>>()
        });
        assert_eq!(judged, Ok(vec![(2, false), (3, false), (2, false), (1, true)]));
        assert_eq!(asked, ["/sda/1 /sda/2", "/sdb/1"]);
    }

    #[test]
    fn a_single_device_is_not_measured() {
        let subjects = [subject("/sda/1", None)];
        let measure = |_: &Disks, _: &[&Subject<'_>]| Err(Failure::new("measured"));
        let judged = judge_by(&subjects, disk::below, measure);
        assert_eq!(judged, Ok(vec![Judged { speed: None, source: Source::Unknown, tier: 1 }]));
    }
}
