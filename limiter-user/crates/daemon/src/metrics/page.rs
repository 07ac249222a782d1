//! Each metric: its name, what it means, and where it comes from.

use std::fmt::Error;

use limiter_common::abi::{ABI_VERSION, Internal, Reason};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::Scrape;
use api::{Health, LeasesReport};
use model::interface::Mode;

/// Writes the metrics of one scrape.
#[derive(Debug)]
// A collector instead of the library's counters: the maps count, also while no daemon runs.
pub(super) struct Page(pub(super) Scrape);

pub(super) type Written = Result<(), Error>;

/// A label and its value.
pub(super) type Label<'a> = (&'static str, &'a str);

/// Writes one family after the other.
pub(super) struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> Written {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    pub(super) fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = ([Label<'static>; N], u64)>,
    ) -> Written {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in rows {
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    pub(super) fn gauge(
        &mut self,
        name: &str,
        help: &str,
        value: impl EncodeGaugeValue,
    ) -> Written {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    pub(super) fn in_unit(&mut self, name: &str, unit: &Unit, help: &str, value: f64) -> Written {
        self.0.encode_descriptor(name, help, Some(unit), MetricType::Gauge)?.encode_gauge(&value)
    }

    /// Gauges that one label tells apart.
    pub(super) fn gauges<'l>(
        &mut self,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        rows: impl IntoIterator<Item = (Label<'l>, impl EncodeGaugeValue)>,
    ) -> Written {
        let mut metric = self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for (label, value) in rows {
            metric.encode_family(&[label])?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn info(&mut self, name: &str, help: &str, rows: &[Vec<Label<'_>>]) -> Written {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Info)?;
        rows.iter().try_for_each(|labels| metric.encode_info(labels))
    }
}

impl Collector for Page {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Written {
        let mut families = Families(encoder);
        self.traffic(&mut families)?;
        self.table(&mut families)?;
        self.sketch(&mut families)?;
        self.policy(&mut families)?;
        if let Some(leases) = &self.0.slow.status.leases {
            lease_metrics(leases, &mut families)?;
        }
        if let Some(cluster) = &self.0.cluster {
            super::cluster::write(cluster, &mut families)?;
        }
        self.daemon(&mut families)
    }
}

fn lease_metrics(leases: &LeasesReport, to: &mut Families<'_>) -> Written {
    let LeasesReport { sources, leased, left_out, tokens, given_back, asked, unanswered, .. } =
        leases;
    to.gauge(
        "leases_up",
        "Whether the central store leases strict limits, or else on_error says what is admitted",
        i64::from(leases.problem.is_none()),
    )?;
    to.gauges(
        "lease_sources",
        None,
        "Sources under strict limits: those that want a lease, have one, or are too many",
        [("wanted", sources), ("leased", leased), ("left_out", left_out)]
            .map(|(state, count)| (("state", state), *count as u64)),
    )?;
    to.counter("lease_tokens", "Packets that the central store has leased", *tokens)?;
    to.counter("lease_returned", "Packets that were given back to it", *given_back)?;
    to.counter("lease_asked", "Leases that it was asked for", *asked)?;
    to.counter("lease_unanswered", "Leases that it did not answer about", *unanswered)
}

impl Page {
    fn traffic(&self, to: &mut Families<'_>) -> Written {
        let sample = &self.0.sample;
        // Each packet is in one series, so that their sum is what the interface has received (P5).
        let labels = |reason: Reason| {
            let verdict = if reason.passes() { "pass" } else { "drop" };
            [("verdict", verdict), ("reason", reason.name())]
        };
        let rows = |of: fn(&limiter_common::abi::Tally) -> u64| {
            // Zeros, too: a series that begins with its first drop has no `rate()` for that drop.
            Reason::ALL.map(|reason| (labels(reason), of(&sample.tally(reason))))
        };
        to.counters(
            "packets",
            "Packets that arrived; each is in exactly one verdict and reason",
            rows(|tally| tally.packets),
        )?;
        to.counters(
            "bytes",
            "Bytes of these packets, from the Ethernet header on",
            rows(|tally| tally.bytes),
        )?;
        let internal = |what| sample.internal(what);
        to.counter(
            // No reason of its own: these packets are limited by their source, and each is counted
            // there already.
            "malformed_packets",
            "Packets with an invalid IP header whose source could be read",
            internal(Internal::Malformed),
        )?;
        to.counters(
            "events_lost",
            "Events of the data plane that did not reach the daemon: the ring buffer was full, or their kind had sent enough",
            [
                ([("cause", "ring_full")], internal(Internal::EventsLost)),
                // Told apart: these were left out on purpose, so that a flood
                // does not fill the ring; the others are a loss.
                ([("cause", "suppressed")], internal(Internal::EventsSuppressed)),
            ],
        )?;
        // There is none before the first window has ended.
        if let Some(distinct) = sample.distinct {
            to.gauge(
                "distinct_sources",
                "Sources that sent something in the last full window, estimated",
                distinct.sources,
            )?;
            to.in_unit(
                "distinct_sources_standard_error",
                &Unit::Other("ratio".into()),
                "Standard error of limiter_distinct_sources, as a fraction of it",
                distinct.standard_error,
            )?;
            to.in_unit(
                "distinct_sources_window",
                &Unit::Seconds,
                "The window of limiter_distinct_sources",
                distinct.window_s,
            )?;
        }
        Ok(())
    }

    fn table(&self, to: &mut Families<'_>) -> Written {
        let (sample, table) = (&self.0.sample, &self.0.slow.status.table);
        let internal = |what| sample.internal(what);
        to.gauge("tracked_sources", "Sources that have a bucket", sample.tracked())?;
        to.counter("promotions", "Sources that got a bucket", internal(Internal::Promotions))?;
        to.counters(
            "evictions",
            "Of these, in the place of another source, whose bucket was full again or still busy",
            [
                // A full bucket is as good as new. With a busy one a debt is forgiven, which is
                // worth an alert (P2).
                ([("bucket", "full")], internal(Internal::Evictions)),
                ([("bucket", "busy")], internal(Internal::BusyEvictions)),
            ],
        )?;
        to.counter(
            // By default such a source passes unlimited.
            "bucket_misses",
            "Times that a source found no free bucket in its set",
            internal(Internal::SetFull),
        )?;
        to.counter(
            "contended_buckets",
            "Times that two CPUs met on one bucket",
            internal(Internal::Contended),
        )?;
        let busy = table.busy.min(table.occupied);
        let free = u64::from(table.capacity).saturating_sub(table.occupied);
        to.gauges(
            "buckets",
            None,
            "Buckets of the table: free, idle (of a source, but full again) or busy; at most 5 s old",
            [("free", free), ("idle", table.occupied - busy), ("busy", busy)]
                .map(|(state, value)| (("state", state), value)),
        )?;
        to.gauge("table_capacity", "Buckets that the table has", i64::from(table.capacity))?;
        to.gauge("table_sets", "Sets that the table has", i64::from(table.sets))?;
        to.gauge(
            "table_full_sets",
            "Sets in which all buckets are busy; at most 5 s old",
            table.full_sets,
        )?;
        to.gauges(
            "memory",
            Some(&Unit::Bytes),
            "Memory of the data plane, fixed when it is loaded",
            [("table", table.memory_bytes), ("sketch", self.0.slow.status.sketch.memory_bytes)]
                .map(|(part, value)| (("part", part), value)),
        )?;
        to.in_unit(
            // So that who alerts on the table sees how old the figure is,
            // instead of taking it for that of the scrape.
            "table_look_age",
            &Unit::Seconds,
            "How old those metrics are that take a look at the whole table",
            self.0.age.as_secs_f64(),
        )
    }

    fn sketch(&self, to: &mut Families<'_>) -> Written {
        let (sample, sketch) = (&self.0.sample, &self.0.slow.status.sketch);
        to.counter(
            "sketch_additions",
            "Packets added to the sketch",
            sample.internal(Internal::SketchAdds),
        )?;
        to.gauge(
            // Noise at the gate gives every packet a bucket. It tells that the sketch is too
            // narrow before the table fills.
            "sketch_noise_packets",
            "Mean packets of others in a cell: what an estimate is too high by, on average",
            sample.noise,
        )?;
        to.gauge(
            "gate_packets",
            "The smallest gate in force: estimates below it need no bucket",
            i64::from(self.0.slow.gate),
        )?;
        // What came of rounding the width up, not what was asked for.
        to.gauge("sketch_epsilon", "The sketch's error, relative to all packets", sketch.epsilon)?;
        to.gauge("sketch_delta", "The probability that its error is larger", sketch.delta)?;
        to.gauge("sketch_columns", "Columns of the sketch", i64::from(sketch.width))?;
        to.gauge("sketch_rows", "Rows of the sketch", i64::from(sketch.depth))?;
        to.in_unit(
            "sketch_window",
            &Unit::Seconds,
            "The length of an epoch of the sketch",
            sketch.window_ms / 1000.0,
        )
    }

    fn policy(&self, to: &mut Families<'_>) -> Written {
        let slow = &self.0.slow;
        to.gauge("limits", "Limits in force", slow.status.limits)?;
        to.gauge(
            "limits_in_windows",
            "Of those, counted in fixed or sliding windows",
            slow.status.limits_in_windows,
        )?;
        // The name from before "shadow": dashboards and alerts that read it would fall silent with another one.
        to.gauge("trials", "Limits that are tried", slow.shadows)?;
        to.gauges(
            "list_entries",
            None,
            "Entries of the allow and the deny list, bans included",
            [("allow", slow.allowed), ("deny", slow.denied)]
                .map(|(list, value)| (("list", list), value)),
        )?;
        to.gauge("bans", "Sources that are banned by a limit", slow.bans)?;
        to.gauge(
            "unconfirmed_changes",
            "Whether a change waits to be confirmed, or else is reverted",
            i64::from(slow.status.confirm.is_some()),
        )
    }

    fn daemon(&self, to: &mut Families<'_>) -> Written {
        let status = &self.0.slow.status;
        let mode = |mode| if mode == Mode::Native { "native" } else { "generic" };
        let interfaces = &status.interfaces;
        let rows: Vec<Vec<Label<'_>>> = interfaces
            .iter()
            // The mode is a label, as a fallback to generic mode should alert (P5).
            .map(|it| vec![("interface", it.name.as_str()), ("mode", mode(it.mode))])
            .collect();
        to.info("interface", "Interfaces that are attached to, and how", &rows)?;
        to.gauge("interfaces", "Interfaces that are attached to", interfaces.len() as u64)?;
        to.gauge(
            // A number, as alerts compare: which promise is broken is a matter of text.
            "degraded",
            "Whether limits are not enforced as promised: `limiter status` says why",
            i64::from(status.state == Health::Degraded),
        )?;
        to.gauge("warnings", "What `limiter status` warns of", status.warnings.len() as u64)?;
        to.in_unit(
            "uptime",
            &Unit::Seconds,
            "Time since the daemon started",
            self.0.uptime.as_secs_f64(),
        )?;
        let abi = ABI_VERSION.to_string();
        let mut labels = vec![("version", status.version.as_str()), ("abi", abi.as_str())];
        let instance = status.instance.as_ref().map(ToString::to_string);
        // Not `instance`: Prometheus puts the target's address there, and would rename ours.
        labels.extend(instance.iter().map(|name| ("daemon_instance", name.as_str())));
        to.info("build", "The daemon's version and that of its map layouts", &[labels])
    }
}
