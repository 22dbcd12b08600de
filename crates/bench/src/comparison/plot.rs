//! The plot of a row: medians as lines over the places of the axis, spreads as bars.
//! The value axis is logarithmic: values of file systems differ by orders of magnitude.

use super::outcome::Result;
use crate::failure::Outcome;
use crate::stats::short;
use plotters::prelude::*;
use std::path::Path;

const WIDTH_PIXELS: u32 = 900;
const HEIGHT_PIXELS: u32 = 560;

/// Draws the figures of a run as SVG. Without figures there is a title only.
pub fn draw(result: &Result, path: &Path) -> Outcome<()> {
    let area = SVGBackend::new(path, (WIDTH_PIXELS, HEIGHT_PIXELS)).into_drawing_area();
    area.fill(&WHITE)?;
    // Places in the order of the plan, evenly spaced: most places are classes and powers of two, not amounts.
    let mut places: Vec<(f64, &str)> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    let (mut low, mut high) = (f64::INFINITY, 0f64);
    let shown = || result.figures.iter().filter(|figure| figure.unit == result.metric.unit());
    for figure in shown() {
        if !places.iter().any(|(_, at)| *at == figure.at) {
            places.push((figure.x, &figure.at));
        }
        if !names.contains(&figure.series.as_str()) {
            names.push(&figure.series);
        }
        for sample in figure.samples.iter().filter(|sample| sample.is_finite() && **sample > 0.0) {
            (low, high) = (low.min(*sample), high.max(*sample));
        }
    }
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    if high <= 0.0 {
        area.titled(&format!("{}: nothing was measured", result.title()), ("sans-serif", 18))?;
        return Ok(area.present()?);
    }
    let right = places.len() as f64 - 0.5;
    let mut chart = ChartBuilder::on(&area)
        .caption(result.title(), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(-0.5..right, (low / 1.5..high * 1.5).log_scale())?;
    let name_of = |place: &f64| {
        let near = place.round();
        let whole = (place - near).abs() < 1e-6 && near >= 0.0;
        let found = places.get(near as usize).filter(|_| whole);
        found.map_or(String::new(), |(_, at)| (*at).to_string())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_desc(result.axis)
        .y_desc(result.metric.unit())
        .x_labels(places.len() * 2 + 1)
        .x_label_formatter(&name_of)
        .y_label_formatter(&|value| short(Some(*value)))
        .draw()?;
    for (number, name) in names.iter().enumerate() {
        let color = Palette99::pick(number).mix(0.9);
        let own = shown().filter(|figure| figure.series == *name);
        let mut points: Vec<(f64, f64)> = Vec::new();
        for figure in own {
            let place = places.iter().position(|(_, at)| *at == figure.at).unwrap_or(0) as f64;
            let samples = figure.samples.iter().copied().filter(|sample| *sample > 0.0);
            let (from, to) =
                samples.fold((f64::INFINITY, 0f64), |(low, high), it| (low.min(it), high.max(it)));
            if let Some(median) = figure.median.filter(|median| *median > 0.0) {
                chart.draw_series([PathElement::new([(place, from), (place, to)], color)])?;
                points.push((place, median));
            }
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
        let line = LineSeries::new(points, color.stroke_width(2));
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2));
        chart.draw_series(line)?.label(*name).legend(legend);
    }
    chart.configure_series_labels().border_style(BLACK.mix(0.3)).background_style(WHITE.mix(0.8)).draw()?;
    Ok(area.present()?)
}
