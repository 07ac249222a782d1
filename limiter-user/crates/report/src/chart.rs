//! Charts as SVG.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::IntoDrawingArea as _;
use plotters::element::{PathElement, Text};
use plotters::prelude::{ChartBuilder, SVGBackend};
use plotters::style::{BLACK, Color as _, RGBColor};

use super::{escape, time};

const SIZE: (u32, u32) = (960, 300);
/// Of the colours that people who see few tell apart, by Okabe and Ito; they show on dark and light.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 114, 178),
    RGBColor(153, 153, 153),
];

/// How the lines of these colours are broken, in lengths of dash and gap: colours alone do not tell them apart for
/// everybody. The first one is whole.
const DASHES: [&str; 7] = ["none", "9 4", "2 3", "9 3 2 3", "16 5", "5 5", "9 3 2 3 2 3"];

/// How long a line is in the legend, pixels: enough for its dashes.
const SWATCH: i32 = 40;

/// Between the chart and its legend, pixels.
const LEGEND_GAP: i32 = 12;

/// The legend's letters, and how far its lines are apart, pixels.
const LEGEND_FONT: i32 = 12;
const LEGEND_LINE: i32 = 18;

/// A line: its name and its value at each moment.
pub type Line<'a> = (String, &'a [Option<f64>]);

/// Draws lines over `times`, s since 1970, with gaps where there are none. `title` is read out to those
/// who do not see it.
pub fn svg(title: &str, times: &[f64], lines: &[Line<'_>]) -> Result<String, String> {
    let mut text = String::new();
    draw(&mut text, times, lines).map_err(|error| format!("cannot draw {title}: {error}"))?;
    for (RGBColor(r, g, b), dashes) in COLOURS.iter().zip(DASHES) {
        // Drawn dash by dash, as the library does it, a page would be many times as large.
        let stroke = format!("stroke=\"#{r:02X}{g:02X}{b:02X}\"");
        text = text.replace(&stroke, &format!("{stroke} stroke-dasharray=\"{dashes}\""));
    }
    let title = escape(title);
    let head = format!("<svg role=\"img\" aria-label=\"{title}\" ");
    let text = text.replacen("<svg ", &head, 1);
    let body = text.find("<svg ").and_then(|start| Some(start + text[start..].find('>')? + 1));
    let (head, body) = text.split_at(body.unwrap_or_default());
    // A prologue belongs to a file of its own, not into a page.
    let head = &head[head.find("<svg ").unwrap_or_default()..];
    Ok(format!("{head}<title>{title}</title>{body}"))
}

/// A number in a few characters.
fn short(value: f64) -> String {
    match value {
        1e9.. => format!("{:.1} G", value / 1e9),
        1e6.. => format!("{:.1} M", value / 1e6),
        1e3.. => format!("{:.1} k", value / 1e3),
        _ => format!("{value:.0}"),
    }
}

/// Times between marks on the axis, s.
// Steps at which clocks and calendars are read. The library's own are decimal, and fall on no full
// minute.
const STEPS: [u32; 19] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
    172_800,
];

/// Marks on the axis.
const MAX_TICKS: f64 = 8.0;

/// The axis of times, s since 1970, with marks at round moments.
struct Times(Range<f64>);

impl Ranged for Times {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.0.clone()).map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        ticks(self.0.start, self.0.end)
    }

    fn range(&self) -> Range<f64> {
        self.0.clone()
    }
}

/// Round moments between two, s since 1970.
pub fn ticks(first: f64, last: f64) -> Vec<f64> {
    let fits = |step: &f64| (last - first) / step <= MAX_TICKS;
    let step = STEPS.into_iter().map(f64::from).find(fits).unwrap_or(last - first);
    let from = (first / step).ceil();
    let marks = (0..=MAX_TICKS as u32).map(|mark| (from + f64::from(mark)) * step);
    marks.filter(|mark| *mark <= last).collect()
}

/// What the legend takes beside the chart, pixels.
fn legend_width(lines: &[Line<'_>]) -> i32 {
    // About what the digits and small letters of the labels' font are wide.
    const LETTER: f64 = 6.0;
    let longest = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    // The first gap is room for half of the last moment, too.
    3 * LEGEND_GAP + SWATCH + (LETTER * longest as f64) as i32
}

fn draw(
    text: &mut String,
    times: &[f64],
    lines: &[Line<'_>],
) -> Result<(), Box<dyn std::error::Error>> {
    let (first, last) = match times {
        [] => (0.0, 1.0),
        // A range of no length cannot be drawn either.
        [only] => (*only - 1.0, *only),
        [first, .., last] => (*first, *last),
    };
    let most = lines.iter().flat_map(|(_, values)| values.iter().flatten()).copied();
    // At least one: an axis from 0 to 0 cannot be drawn.
    let most = most.fold(1.0, f64::max) * 1.1;
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .margin_right(legend_width(lines))
        .x_label_area_size(24)
        .y_label_area_size(64)
        .build_cartesian_2d(Times(first..last), 0.0..most)?;
    let day = last - first > 36.0 * 3600.0;
    let label = |moment: &f64| {
        let text = time(*moment);
        let within = if day { 5..16 } else { 11..19 };
        text.get(within).unwrap_or_default().replace('T', " ")
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(BLACK.mix(0.0))
        .bold_line_style(BLACK.mix(0.15))
        .x_label_formatter(&label)
        .y_labels(6)
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    for (i, (name, values)) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()].stroke_width(2);
        let mut parts: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
        for (time, value) in times.iter().zip(*values) {
            match (value, parts.last_mut()) {
                (Some(value), Some(part)) => part.push((*time, *value)),
                (None, Some(part)) if !part.is_empty() => parts.push(Vec::new()),
                _ => {}
            }
        }
        parts.retain(|part| !part.is_empty());
        for mut part in parts {
            if let [(time, value)] = part[..] {
                // One point alone is no line: a dash of a few pixels.
                part.push((time + (last - first) / 200.0, value));
            }
            chart.draw_series([PathElement::new(part, colour)])?;
        }
        // Beside the chart, where it hides no line; the library's own legend cannot be there.
        let x = SIZE.0 as i32 - legend_width(lines) + 2 * LEGEND_GAP;
        let y = LEGEND_GAP + LEGEND_LINE * i as i32;
        area.draw(&PathElement::new([(x, y), (x + SWATCH, y)], colour))?;
        let label = (x + SWATCH + LEGEND_GAP / 2, y - LEGEND_FONT / 2);
        area.draw(&Text::new(name.as_str(), label, ("sans-serif", LEGEND_FONT)))?;
    }
    area.present()?;
    Ok(())
}
