//! Traffic to try algorithms on.

use std::borrow::Cow;
use std::f64::consts::TAU;

use limiter_common::gcra::Ticks;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::settings::Settings;

/// The most requests of all patterns with one seed, in limits: what they offer in a window, about.
const OFFERED: u64 = 110;
/// About how many requests one seed is to have.
const REQUESTS: u64 = 30_000_000;
/// Windows that a pattern lasts; fewer for high limits.
const WINDOWS: std::ops::RangeInclusive<u64> = 4..=30;
/// Sources of the pattern `zipf`.
const ZIPF_SOURCES: usize = 1000;
/// What the first of them sends, in limits.
const ZIPF_TOP: f64 = 10.0;

/// A way to send requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pattern {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    shape: Shape,
}

/// Rates are in limits a window.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Evenly spaced.
    Steady(f64),
    /// At random.
    Poisson(f64),
    Edge,
    OnOff,
    Bursts,
    Zipf,
    Diurnal,
}

const fn pattern(name: &'static str, about: &'static str, shape: Shape) -> Pattern {
    Pattern { name, about, shape }
}

/// All patterns.
pub const PATTERNS: [Pattern; 15] = [
    pattern("steady-0.5", "half the limit, evenly spaced", Shape::Steady(0.5)),
    pattern("steady-0.9", "0.9 of the limit, evenly spaced", Shape::Steady(0.9)),
    pattern("steady-1", "the limit, evenly spaced", Shape::Steady(1.0)),
    pattern("steady-1.5", "1.5 times the limit, evenly spaced", Shape::Steady(1.5)),
    pattern("steady-10", "ten times the limit, evenly spaced", Shape::Steady(10.0)),
    pattern("poisson-0.5", "half the limit, at random times", Shape::Poisson(0.5)),
    pattern("poisson-0.9", "0.9 of the limit, at random times", Shape::Poisson(0.9)),
    pattern("poisson-1", "the limit, at random times", Shape::Poisson(1.0)),
    pattern("poisson-1.5", "1.5 times the limit, at random times", Shape::Poisson(1.5)),
    pattern("poisson-10", "ten times the limit, at random times", Shape::Poisson(10.0)),
    pattern(
        "edge",
        "the limit just before each second edge of a window, and just behind it",
        Shape::Edge,
    ),
    pattern(
        "on-off",
        "0.8 of the limit within a sixth of a window, then silence for half of one",
        Shape::OnOff,
    ),
    pattern(
        "bursts",
        "bursts of 0.05 to 0.6 of the limit at random times, the limit on average",
        Shape::Bursts,
    ),
    pattern(
        "zipf",
        "1000 sources at random times; the first sends ten times the limit, the n-th 1/n of that",
        Shape::Zipf,
    ),
    pattern(
        "diurnal",
        "0.1 to 1.5 times the limit and back in 30 windows, at random times",
        Shape::Diurnal,
    ),
];

/// Requests of one or more sources.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// What it is called.
    pub name: String,
    /// What it is.
    pub about: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Pattern(usize),
    /// The times of each source's requests, which never go back.
    Recorded(Vec<Vec<Ticks>>),
}

impl Traffic {
    /// The patterns that are called `name`, or of which that is all before the last `-`: `steady` is five of them.
    pub fn named(name: &str) -> Vec<Self> {
        let is_meant = |pattern: &Pattern| {
            pattern.name == name || pattern.name.rsplit_once('-').is_some_and(|it| it.0 == name)
        };
        Self::all().into_iter().zip(&PATTERNS).filter(|it| is_meant(it.1)).map(|it| it.0).collect()
    }

    /// All patterns.
    pub fn all() -> Vec<Self> {
        let traffic = |(i, it): (usize, &Pattern)| Self {
            name: it.name.into(),
            about: it.about.into(),
            kind: Kind::Pattern(i),
        };
        PATTERNS.iter().enumerate().map(traffic).collect()
    }

    /// Traffic that was recorded: the times of each source's requests, which never go back.
    pub fn recorded(
        name: impl Into<String>,
        about: impl Into<String>,
        sources: Vec<Vec<Ticks>>,
    ) -> Self {
        Self { name: name.into(), about: about.into(), kind: Kind::Recorded(sources) }
    }

    /// How many sources there are. The first one sends most.
    pub fn sources(&self) -> usize {
        match &self.kind {
            Kind::Pattern(i) if PATTERNS[*i].shape == Shape::Zipf => ZIPF_SOURCES,
            Kind::Pattern(_) => 1,
            Kind::Recorded(sources) => sources.len(),
        }
    }

    /// Whether it depends on the seed.
    pub fn is_random(&self) -> bool {
        matches!(self.kind, Kind::Pattern(_))
    }

    /// How many windows tell all of it; the rest is more of the same.
    pub(crate) fn telling_windows(&self) -> u64 {
        match &self.kind {
            Kind::Pattern(i) if PATTERNS[*i].shape == Shape::Diurnal => *WINDOWS.end(),
            _ => *WINDOWS.start(),
        }
    }

    /// When a source sends its requests. The first window of a pattern begins with the clock's third one.
    pub fn trace(&self, settings: &Settings, seed: u64, source: usize) -> Cow<'_, [Ticks]> {
        match &self.kind {
            Kind::Recorded(sources) => Cow::Borrowed(sources.get(source).map_or(&[], |it| it)),
            Kind::Pattern(i) => {
                let number = ((*i as u64) << 32) + source as u64;
                Cow::Owned(trace(PATTERNS[*i].shape, settings, source, &mut rng(seed, number)))
            }
        }
    }
}

/// Chance of a seed; what is random has a number of its own.
pub(crate) fn rng(seed: u64, number: u64) -> SmallRng {
    // The generator mixes its seed, so that seeds only have to differ.
    SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number)
}

/// The time between two requests that come at random, if `mean` ticks lie between them on average.
pub(crate) fn gap(mean: f64, rng: &mut SmallRng) -> f64 {
    // Without 0, of which there is no logarithm.
    -mean * (1.0 - rng.random::<f64>()).ln()
}

/// Moments at random between two, at `rate` for each tick.
fn poisson(from: f64, to: f64, rate: f64, rng: &mut SmallRng, times: &mut Vec<Ticks>) {
    let mut now = from + gap(1.0 / rate, rng);
    while now < to {
        times.push(now as Ticks);
        now += gap(1.0 / rate, rng);
    }
}

/// `n` moments evenly from `from` on; the next one would be `to`.
pub(crate) fn evenly(from: Ticks, to: Ticks, n: u64) -> impl Iterator<Item = Ticks> {
    let length = u128::from(to - from);
    (0..n).map(move |i| from + (length * u128::from(i) / u128::from(n)) as Ticks)
}

fn trace(shape: Shape, settings: &Settings, source: usize, rng: &mut SmallRng) -> Vec<Ticks> {
    let Settings { limit, window, .. } = *settings;
    let windows = (REQUESTS / (limit * OFFERED)).clamp(*WINDOWS.start(), *WINDOWS.end());
    let begin = 2 * window;
    let end = begin + windows * window;
    let (length, per_window) = (window as f64, limit as f64);
    let (from, to) = (begin as f64, end as f64);
    let mut times = Vec::new();
    match shape {
        Shape::Steady(rate) => {
            let n = (rate * per_window * windows as f64).ceil() as u64;
            let phase = rng.random_range(0..window.div_ceil(limit));
            times.extend(evenly(begin + phase, end + phase, n));
        }
        Shape::Poisson(rate) => poisson(from, to, rate * per_window / length, rng, &mut times),
        Shape::Edge => {
            let near = window / 60;
            for edge in (begin + window..end).step_by(2 * window as usize) {
                times.extend(evenly(edge - near, edge, limit));
                times.extend(evenly(edge, edge + near, limit));
            }
        }
        Shape::OnOff => {
            let (on, period) = (length / 6.0, length * 2.0 / 3.0);
            let mut start = from + period * rng.random::<f64>();
            while start < to {
                poisson(start, start + on, 0.8 * per_window / on, rng, &mut times);
                start += period;
            }
        }
        Shape::Bursts => {
            let mean = length * (0.05 + 0.6) / 2.0;
            let mut now = from + gap(mean, rng);
            while now < to {
                let size = per_window * rng.random_range(0.05..0.6);
                times.extend(std::iter::repeat_n(now as Ticks, size.ceil() as usize));
                now += gap(mean, rng);
            }
        }
        Shape::Zipf => {
            let rate = ZIPF_TOP * per_window / length / (source + 1) as f64;
            poisson(from, to, rate, rng, &mut times);
        }
        Shape::Diurnal => {
            // Thinned out (Lewis and Shedler 1979).
            let most = 1.5;
            poisson(from, to, most * per_window / length, rng, &mut times);
            let rate = |time: Ticks| {
                0.8 - 0.7 * (TAU * (time - begin) as f64 / (end - begin) as f64).cos()
            };
            times.retain(|time| rng.random::<f64>() * most < rate(*time));
        }
    }
    times
}
