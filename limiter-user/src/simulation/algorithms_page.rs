//! What algorithms made of the same traffic, as a page.

use super::algorithms::{AlgorithmsReport, Judged};
use lab::Settings;
use lab::curves::{Curve, candidates, curves};
use report::chart::{self, Line};
use report::escape;
use report::html::{document, table};

/// What is higher than so many limits is not drawn: the rest would be a line at the bottom.
const HIGHEST: f64 = 2.5;

impl AlgorithmsReport {
    /// As a page that needs nothing from elsewhere: the tables, and for each traffic what each algorithm counts and
    /// admits over time in the run with the first seed.
    ///
    /// # Errors
    /// If a chart cannot be drawn, with the reason.
    pub(crate) fn html(
        &self,
        settings: &Settings,
        judged: &[Judged],
        seed: u64,
    ) -> Result<String, String> {
        let candidates = candidates(settings).map_err(|error| error.to_string())?;
        let mut charts = String::new();
        for Judged { traffic, .. } in judged {
            let curves = curves(settings, &candidates, traffic, seed);
            charts.push_str(&format!("<h2>{}</h2>\n", escape(&traffic.name)));
            let many = if traffic.sources() > 1 { " Of the source that sends most." } else { "" };
            charts.push_str(&format!("<p>{}.{many}</p>\n", escape(&traffic.about)));
            for (what, values) in [
                ("What each counts", (|it| &it.counted) as fn(&Curve) -> &Vec<f64>),
                ("What each admitted in the window that ends here", |it| &it.admitted),
            ] {
                let highest = HIGHEST * settings.limit as f64;
                let drawn = |values: &[f64]| -> Vec<Option<f64>> {
                    values.iter().map(|value| Some(*value).filter(|it| *it <= highest)).collect()
                };
                let mut lines = vec![("offered in the window".to_owned(), drawn(&curves.offered))];
                // The exact log first: the others are drawn over it.
                let named = |it: &Curve| (it.name.clone(), drawn(values(it)));
                lines.extend(curves.algorithms.iter().rev().map(named));
                let lines: Vec<Line<'_>> =
                    lines.iter().map(|(name, values)| (name.clone(), &values[..])).collect();
                let svg = chart::svg(&format!("{}: {what}", traffic.name), &curves.times, &lines)?;
                charts.push_str(&format!(
                    "<figure><figcaption>{what}</figcaption><div class=\"wide\">{svg}</div></figure>\n"
                ));
            }
        }
        let figures: String = Self::FIGURES
            .iter()
            .map(|(title, figure)| {
                table(title, &self.figure_columns(), 1, &self.figure_rows(*figure))
            })
            .collect();
        let trace = match &self.trace_rows()[..] {
            [] => String::new(),
            rows => table("Found by the adversary", &Self::TRACE, 1, rows),
        };
        let main = format!(
            "<h1>One limit, by each algorithm</h1>\n\
             <div class=\"verdict\" role=\"status\"><p>{}: {}.</p></div>\n{}{charts}{figures}{trace}\
             <p class=\"soft\">limiter {}. All charts show requests in a window of {} s. Offered requests beyond \
             {HIGHEST} times the limit are not drawn. The log counts exactly what it admitted. The leaky bucket is the \
             token bucket.</p>\n",
            self.conditions(),
            self.verdict(),
            table("The worst of all", &Self::COLUMNS, 1, &self.rows()),
            env!("CARGO_PKG_VERSION"),
            self.window_seconds,
        );
        Ok(document("algorithms", &main))
    }
}
