//! What simulated clusters were like, as a page.

use super::{SimulationReport, SimulationRow};
use report::chart::{self, Line};
use report::escape;
use report::html::{document, table};
use sim::{Scenario, Summary};

impl SimulationReport {
    /// As a page that needs nothing from elsewhere: the table, and for each scenario what was admitted over
    /// time in the run with the first seed.
    ///
    /// # Errors
    /// If a chart cannot be drawn, with the reason.
    pub(crate) fn html(
        &self,
        scenarios: &[Scenario],
        summaries: &[Summary],
    ) -> Result<String, String> {
        let rows: Vec<_> = self.scenarios.iter().map(SimulationRow::cells).collect();
        let missed: String = self
            .missed()
            .iter()
            // Names and texts come from files that somebody may have been sent.
            .map(|missed| format!("<p>Missed: {}</p>", escape(missed)))
            .collect();
        let between = match &self.between()[..] {
            [] => String::new(),
            rows => table("Between regions", &Self::BETWEEN, 2, rows),
        };
        let verdict = if self.ok { "All goals are reached." } else { "Not all goals are reached." };
        let mut charts = String::new();
        // Hosts that only find each other admit nothing: their chart would be a line at zero.
        for (number, scenario) in scenarios.iter().enumerate().filter(|(_, s)| !s.membership) {
            let of_it: Vec<_> = summaries.iter().filter(|s| s.scenario == number).collect();
            charts.push_str(&of_scenario(scenario, &of_it)?);
        }
        let main = format!(
            "<h1>One limit on many simulated hosts</h1>\n\
             <div class=\"verdict\" role=\"status\"><p>{verdict}</p>{missed}</div>\n{}{between}{charts}\
             <p class=\"soft\">limiter {}. Overage is what all hosts together admitted beyond burst + rate · T, as \
             a part of burst + rate · 1 s; utilisation what they admitted of min(offered, limit).</p>\n",
            table("Results", &Self::COLUMNS, 2, &rows),
            env!("CARGO_PKG_VERSION"),
        );
        Ok(document("simulated clusters", &main))
    }
}

fn of_scenario(scenario: &Scenario, summaries: &[&Summary]) -> Result<String, String> {
    let Some(first) = summaries.first() else { return Ok(String::new()) };
    let percent = |values: &[f64]| {
        let keys = scenario.demand.keys as f64;
        // Of all limits together: runs with few and with many sources have one scale.
        values.iter().map(|value| Some(100.0 * value / keys)).collect::<Vec<_>>()
    };
    let mut lines = vec![("could be admitted", percent(&first.series.due))];
    lines.extend(summaries.iter().map(|it| (it.scheme.name(), percent(&it.series.admitted))));
    let lines: Vec<Line<'_>> =
        lines.iter().map(|(name, values)| ((*name).to_owned(), &values[..])).collect();
    let title = format!("{}, {} hosts", scenario.name, scenario.hosts);
    let svg = chart::svg(&title, &first.series.time, &lines)?;
    Ok(format!(
        "<h2>{}</h2><p class=\"soft\">{}. Admitted, % of all limits together, in the first run.</p>\n\
         <div class=\"wide\">{svg}</div>\n",
        escape(&title),
        escape(&scenario.about),
    ))
}
