//! What sources have sent while somebody watched.

use std::collections::{HashMap, VecDeque};

use super::line::Name;

/// Looks that are remembered of a source.
const MAX_LOOKS: usize = 240;

/// Sources that are remembered.
const MAX_SOURCES: usize = 2048;

#[derive(Debug, Default)]
struct Past {
    pps: VecDeque<f64>,
    /// The number of the last look that it was seen in.
    seen: u64,
}

/// The rates of the sources that were listed, look by look.
#[derive(Debug, Default)]
pub(super) struct History {
    sources: HashMap<Name, Past>,
    looks: u64,
}

impl History {
    /// Adds a look: the packets per second of some sources.
    pub(super) fn add<'a>(&mut self, rates: impl IntoIterator<Item = (&'a Name, f64)>) {
        self.looks += 1;
        let look = self.looks;
        for (name, pps) in rates {
            let past = self.sources.entry(name.clone()).or_default();
            // Looks that it was not listed in are shown as nothing; more of them than fit need not be.
            let missed = if past.pps.is_empty() { 0 } else { look - past.seen - 1 };
            past.pps.extend((0..missed.min(MAX_LOOKS as u64)).map(|_| 0.0));
            past.pps.push_back(pps);
            past.seen = look;
            while past.pps.len() > MAX_LOOKS {
                past.pps.pop_front();
            }
        }
        // A flood of forged sources brings others into the list each second.
        self.sources.retain(|_, past| look - past.seen < MAX_LOOKS as u64);
        if self.sources.len() > MAX_SOURCES {
            let mut seen: Vec<_> = self.sources.values().map(|past| past.seen).collect();
            seen.sort_unstable();
            let from = seen[seen.len() - MAX_SOURCES];
            // Those of the last look are at most as many as are listed.
            self.sources.retain(|_, past| past.seen > from || past.seen == look);
        }
    }

    /// The rates of a source, the latest last.
    pub(super) fn of(&self, name: &Name) -> Vec<f64> {
        self.sources.get(name).map(|past| past.pps.iter().copied().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_keeps_the_latest() {
        let name = |i: usize| Name { text: format!("source {i}"), class: None };
        let mut history = History::default();
        for look in 0..MAX_LOOKS + 10 {
            history.add([(&name(0), look as f64)]);
        }
        let past = history.of(&name(0));
        assert_eq!(
            (past.len(), past[0], past[MAX_LOOKS - 1]),
            (MAX_LOOKS, 10.0, (MAX_LOOKS + 9) as f64)
        );
        // Others come; what was not listed for a look is shown as nothing.
        history.add([(&name(1), 5.0)]);
        history.add([(&name(0), 7.0)]);
        let past = history.of(&name(0));
        assert_eq!(past[MAX_LOOKS - 2..], [0.0, 7.0]);
        for round in 0..5 {
            let names: Vec<_> = (0..1000).map(|i| name(round * 1000 + i)).collect();
            history.add(names.iter().map(|name| (name, 1.0)));
        }
        assert!(history.sources.len() <= MAX_SOURCES);
        assert_eq!(history.of(&name(4999)), [1.0]);
    }
}
