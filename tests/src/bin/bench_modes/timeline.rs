//! What happened in a fault, as a picture.

use report::chart;

use crate::sample::{MOMENT, Moment};

/// Pixels of a chart, and above it for its title.
const WIDTH: u32 = 960;
const HEIGHT: u32 = 300;
const TITLE: u32 = 24;

/// Four charts, one above the other, over s since the begin. `limit` is that of all keys that are judged together.
pub(crate) fn draw(name: &str, moments: &[Moment], limit: f64) -> Result<String, String> {
    let times: Vec<f64> = (0..moments.len() as u32).map(|at| (MOMENT * at).as_secs_f64()).collect();
    let line = |name: &str, of: fn(&Moment) -> f64| {
        let values: Vec<_> = moments.iter().map(|moment| Some(of(moment))).collect();
        (name.to_owned(), values)
    };
    let charts = [
        ("Decisions a second", vec![line("decisions", |moment| moment.decisions)]),
        (
            "Admitted a second, of keys beyond their limit",
            vec![
                line("admitted", |moment| moment.admitted),
                ("limit".to_owned(), vec![Some(limit); moments.len()]),
            ],
        ),
        ("p99, µs", vec![line("p99", |moment| moment.p99_us)]),
        ("Answered by on_error, %", vec![line("on_error", |moment| 100.0 * moment.alone)]),
    ];
    let (count, each) = (charts.len() as u32, HEIGHT + TITLE);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{}\" font-family=\"sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        count * each
    );
    for (at, (title, lines)) in (0..).zip(&charts) {
        let lines: Vec<_> = lines.iter().map(|(name, line)| (name.clone(), &line[..])).collect();
        let chart = chart::svg(&format!("{name}: {title}"), &times, &lines)?;
        text += &format!(
            "<g transform=\"translate(0 {})\"><text x=\"64\" y=\"16\" font-size=\"14\">{name}: {title}</text>\n\
             <g transform=\"translate(0 {TITLE})\">{chart}</g></g>\n",
            at * each
        );
    }
    Ok(text + "</svg>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_four_charts() {
        let moments =
            [Moment::default(), Moment { decisions: 5.0, admitted: 2.0, p99_us: 3.0, alone: 1.0 }];
        let picture = draw("strict-paused", &moments, 500.0).unwrap();
        assert_eq!(picture.matches("strict-paused: p99, µs").count(), 3, "{picture}");
        assert_eq!(picture.matches("<svg ").count(), 5);
        assert!(!picture.contains("<?xml"));
    }
}
