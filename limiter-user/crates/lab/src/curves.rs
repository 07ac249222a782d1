//! What algorithms count and admit over time.

use limiter_common::algorithm::SubWindows;
use limiter_common::gcra::Ticks;

use super::judge::Judge;
use super::seconds;
use super::settings::{Candidate, Settings, SettingsError};
use super::traffic::Traffic;

/// Moments of a curve.
const MOMENTS: u64 = 240;

/// Curves of one source.
#[derive(Clone, Debug, Default)]
pub struct Curves {
    /// The moments, s since the first window began.
    pub times: Vec<f64>,
    /// What was offered within the window that ends then.
    pub offered: Vec<f64>,
    /// The algorithms; the exact log is last.
    pub algorithms: Vec<Curve>,
}

/// One algorithm's.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// The algorithm.
    pub name: String,
    /// What it counts.
    pub counted: Vec<f64>,
    /// What it admitted within the window that ends then.
    pub admitted: Vec<f64>,
}

/// The algorithms that are drawn: one name for the two of the bucket, and sub-windows in three lengths. One as long as
/// the window is the fixed window.
///
/// # Errors
/// As [`Settings::candidates`].
pub fn candidates(settings: &Settings) -> Result<Vec<Candidate>, SettingsError> {
    let mut all = settings.candidates()?;
    all.remove(1);
    let Settings { limit, window, parts, .. } = *settings;
    all[0].name = "token-, leaky-bucket".into();
    all[1].name = format!("fixed-window of {} s", seconds(window)).into();
    all[3].name = format!("sub-windows of {} s", seconds(window / parts)).into();
    // A quarter: 15 s of a minute.
    if parts != 4
        && let Ok(quarters) = SubWindows::new(limit, window, 4)
    {
        let name = format!("sub-windows of {} s", seconds(window / 4));
        all.insert(3, Candidate::new(name, quarters));
    }
    Ok(all)
}

/// Follows the source that sends most, with one seed, for as many windows as tell all.
pub fn curves(
    settings: &Settings,
    candidates: &[Candidate],
    traffic: &Traffic,
    seed: u64,
) -> Curves {
    let times = traffic.trace(settings, seed, 0);
    let window = settings.window;
    let begin = times.first().map_or(0, |first| first - first % window);
    let span = traffic.telling_windows() * window;
    let mut judge = Judge::new(settings, candidates, false);
    let named = |candidate: &Candidate| Curve {
        name: candidate.name.clone().into_owned(),
        ..Curve::default()
    };
    let mut curves =
        Curves { algorithms: candidates.iter().map(named).collect(), ..Curves::default() };
    let mut rest = &times[..];
    for moment in 0..=MOMENTS {
        let now = begin + (u128::from(span) * u128::from(moment) / u128::from(MOMENTS)) as Ticks;
        let (until, later) = rest.split_at(rest.partition_point(|time| *time <= now));
        judge.feed(until);
        rest = later;
        let (offered, counts) = judge.counts(now);
        curves.times.push(seconds(now - begin));
        curves.offered.push(offered as f64);
        for (curve, (counted, admitted)) in curves.algorithms.iter_mut().zip(counts) {
            curve.counted.push(counted as f64);
            curve.admitted.push(admitted as f64);
        }
    }
    curves
}
