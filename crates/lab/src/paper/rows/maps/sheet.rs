//! Figures of the rows about file maps, by series, place and unit; and the loop of their rounds.

use crate::mapping::contestant::Contestant;
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use terrace_bench::comparison::figure::Figure;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::outcome::Result;
use terrace_bench::comparison::plan::{Cell, Metric, Must, Plan, Work};
use terrace_bench::comparison::{Row, pin};
use terrace_bench::failure::{Outcome, say};
use terrace_bench::site::Site;
use terrace_bench::site::teardown::{Held, Resource};

/// Words behind the name of a map, for series other than times.
pub(in crate::paper::rows) const LINES_READ: &str = "lines read";
pub(in crate::paper::rows) const ROUNDS: &str = "rounds";
pub(in crate::paper::rows) const IN_PLACE: &str = "lines in place";
pub(in crate::paper::rows) const IN_RECORD: &str = "lines in the record";
pub(in crate::paper::rows) const FENCES: &str = "fences";
pub(in crate::paper::rows) const WRITTEN: &str = "lines written";

/// The series of a map and a kind of figure.
pub(in crate::paper::rows) fn series(map: &str, words: &str) -> String {
    if words.is_empty() { map.to_string() } else { format!("{map} {words}") }
}

/// The figures and claims of a row.
pub(in crate::paper::rows) struct Sheet {
    pub(in crate::paper::rows) plan: Plan,
    figures: Vec<Figure>,
    places: Vec<String>,
}

impl Sheet {
    fn new(axis: &'static str, metric: Metric) -> Sheet {
        Sheet { plan: Plan::new(metric, axis, 0), figures: Vec::new(), places: Vec::new() }
    }

    /// Adds the sample of a round.
    pub(in crate::paper::rows) fn add(
        &mut self,
        round: usize,
        (map, words): (&str, &str),
        metric: Metric,
        at: &str,
        value: f64,
    ) {
        let name = series(map, words);
        let known = |figure: &Figure| figure.series == name && figure.at == at;
        let index = self.figures.iter().position(known).unwrap_or_else(|| {
            let x = self.places.iter().position(|place| place == at).unwrap_or_else(|| {
                self.places.push(at.to_string());
                self.places.len() - 1
            });
            let work = Work::Together(Vec::new());
            let cell = Cell { subject: 0, series: map.to_string(), x: x as f64, at: at.to_string(), work };
            self.figures.push(Figure::new(&cell, words, metric));
            self.figures.len() - 1
        });
        self.figures[index].push(round, value, None);
    }

    /// Adds a series that has the least sample of other series in each round.
    pub(in crate::paper::rows) fn best(&mut self, name: &str, of: &[&str], metric: Metric, at: &str) {
        let samples: Vec<Vec<f64>> = self
            .figures
            .iter()
            .filter(|figure| figure.at == at && of.contains(&figure.series.as_str()))
            .map(|figure| figure.samples.clone())
            .collect();
        let rounds = samples.iter().map(Vec::len).max().unwrap_or(0);
        for round in 0..rounds {
            let least =
                samples.iter().filter_map(|samples| samples.get(round)).copied().fold(f64::NAN, f64::min);
            self.add(round, (name, ""), metric, at, least);
        }
    }

    /// Adds, at each place, a series with the samples of the best of other series there, by their medians.
    pub(in crate::paper::rows) fn best_of(&mut self, name: &str, of: &[&str]) {
        for place in &self.places {
            let candidates = self.figures.iter().filter(|figure| {
                figure.at == *place && of.contains(&figure.series.as_str()) && figure.median.is_some()
            });
            let best = candidates.min_by(|one, other| {
                let order = one.median.partial_cmp(&other.median).unwrap_or(Ordering::Equal);
                if one.unit.ends_with("/s") { order.reverse() } else { order }
            });
            let best = best.cloned().map(|mut best| {
                best.series = name.to_string();
                best
            });
            self.figures.extend(best);
        }
    }

    /// A claim about the ratio of two series at a place.
    pub(in crate::paper::rows) fn claim(
        &mut self,
        text: &str,
        ours: &str,
        theirs: &str,
        at: &str,
        must: Must,
    ) {
        self.plan.claim_at(text, ours, theirs, at, must);
    }

    /// A claim about the ratio of a series at two places.
    pub(in crate::paper::rows) fn between(
        &mut self,
        text: &str,
        series: &str,
        (from, to): (&str, &str),
        must: Must,
    ) {
        self.plan.claim_at(text, series, series, to, must);
        if let Some(claim) = self.plan.claims.last_mut() {
            claim.from = Some(from.to_string());
        }
    }
}

/// The place of a pool's file during a measurement; the file goes with it.
pub(in crate::paper::rows) struct PoolFile {
    pub(in crate::paper::rows) path: PathBuf,
    _held: Held,
}

impl PoolFile {
    pub(in crate::paper::rows) fn new(site: &Site, name: &str) -> Outcome<PoolFile> {
        let path = site.scratch.memory.join(format!("{name}.pm"));
        let held = site.teardown.hold(Resource::File(path.clone()))?;
        Ok(PoolFile { path, _held: held })
    }
}

/// Places of two pools.
pub(in crate::paper::rows) struct TwinFiles([PoolFile; 2]);

impl TwinFiles {
    pub(in crate::paper::rows) fn new(site: &Site) -> Outcome<TwinFiles> {
        Ok(TwinFiles([PoolFile::new(site, "counted")?, PoolFile::new(site, "timed")?]))
    }

    pub(in crate::paper::rows) fn paths(&self) -> [&Path; 2] {
        self.0.each_ref().map(|file| file.path.as_path())
    }
}

/// A row: a round measures every contestant; the claims are added at the end and judged.
pub(in crate::paper::rows) struct MapRow<'a, T = Contestant> {
    pub(in crate::paper::rows) axis: &'static str,
    pub(in crate::paper::rows) metric: Metric,
    pub(in crate::paper::rows) maps: Vec<T>,
    pub(in crate::paper::rows) data_bytes: u64,
    pub(in crate::paper::rows) notes: Vec<String>,
    pub(in crate::paper::rows) measure: &'a dyn Fn(&Site, &T, usize, &mut Sheet) -> Outcome<()>,
    pub(in crate::paper::rows) claims: &'a dyn Fn(&mut Sheet),
}

impl<T> MapRow<'_, T> {
    pub(in crate::paper::rows) fn run(self, row: &Row, options: &Options) -> Outcome<()> {
        let device_cores = pin(options)?;
        let mut site = Site::new(&options.site, 0, None)?;
        site.device_cores = device_cores;
        eprintln!("row {}: {}", row.id, row.sentence);
        let mut sheet = Sheet::new(self.axis, self.metric);
        sheet.plan.notes = self.notes;
        for round in 0..options.rounds {
            eprintln!("  round {} of {}", round + 1, options.rounds);
            let mut order: Vec<&T> = self.maps.iter().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for map in order {
                site.teardown.go_on()?;
                (self.measure)(&site, map, round, &mut sheet)?;
            }
        }
        (self.claims)(&mut sheet);
        let mut result = Result::new(row, options, &sheet.plan, &site, self.data_bytes);
        result.figures = sheet.figures;
        result.judge(&sheet.plan);
        let path = result.write(&options.output.directory)?;
        match options.output.json {
            true => say(serde_json::to_string_pretty(&result)?)?,
            false => say(result.table())?,
        }
        eprintln!("  {} and .svg written", path.display());
        Ok(())
    }
}
