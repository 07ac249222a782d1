//! Draws the medians.

use plotters::{
    drawing::IntoDrawingArea as _,
    element::{Rectangle, Text},
    prelude::{ChartBuilder, SVGBackend},
    style::{Color as _, IntoFont as _, RGBColor, WHITE},
};

use crate::{
    cell::{Family, Pattern},
    contender::Contender,
    outcome::Outcome,
};

const SIZE: (u32, u32) = (960, 480);
/// Of the colours that people who see few tell apart, by Okabe and Ito.
const COLOURS: [RGBColor; Contender::ALL.len()] = [
    RGBColor(153, 153, 153),
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
];
/// Width of a bar; a group of them is one wide with its margins.
const BAR: f64 = 0.9 / Contender::ALL.len() as f64;

/// Bars of packets per second, a group for each pattern, IPv4.
pub(crate) fn svg(outcome: &Outcome) -> Result<String, String> {
    let mut text = String::new();
    draw(&mut text, outcome).map_err(|error| format!("cannot draw the chart: {error}"))?;
    Ok(text)
}

fn draw(text: &mut String, outcome: &Outcome) -> Result<(), Box<dyn std::error::Error>> {
    let speed = |contender, pattern| {
        outcome.line(contender, pattern, Family::Ipv4).map_or(0.0, |line| line.mpps)
    };
    let all = Pattern::COMPARED.into_iter().flat_map(|p| Contender::ALL.map(|c| speed(c, p)));
    // Room above the highest bar for its figure.
    let most = all.fold(1.0, f64::max) * 1.15;
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!(
        "Millions of packets per second, by number of sources ({}, Linux {})",
        outcome.machine.processor, outcome.machine.kernel
    );
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..Pattern::COMPARED.len() as f64, 0.0..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_labels(8)
        .y_label_formatter(&|mpps| format!("{mpps:.1}"))
        .y_desc("Mpps")
        .draw()?;
    for (index, (contender, colour)) in Contender::ALL.into_iter().zip(COLOURS).enumerate() {
        let bars = Pattern::COMPARED.into_iter().enumerate().map(|(group, pattern)| {
            let left = group as f64 + (1.0 - BAR * Contender::ALL.len() as f64) / 2.0;
            let left = left + index as f64 * BAR;
            let corners = [(left, 0.0), (left + BAR * 0.92, speed(contender, pattern))];
            Rectangle::new(corners, colour.filled())
        });
        chart
            .draw_series(bars)?
            .label(contender.name())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        chart.draw_series(Pattern::COMPARED.into_iter().enumerate().map(|(group, pattern)| {
            let left = group as f64 + (1.0 - BAR * Contender::ALL.len() as f64) / 2.0;
            let at = (left + index as f64 * BAR, speed(contender, pattern) + most * 0.035);
            Text::new(
                format!("{:.2}", speed(contender, pattern)),
                at,
                ("sans-serif", 12).into_font(),
            )
        }))?;
    }
    chart.draw_series(Pattern::COMPARED.into_iter().enumerate().map(|(group, pattern)| {
        let at = (group as f64 + 0.42, -most * 0.02);
        Text::new(pattern.name(), at, ("sans-serif", 16).into_font())
    }))?;
    chart.configure_series_labels().background_style(WHITE.filled()).draw()?;
    area.present()?;
    Ok(())
}
