//! What is told of the cluster that a host is in.

use prometheus_client::registry::Unit;

use super::page::{Families, Label, Written};
use control::scrape::Clustered;

pub(super) fn write(cluster: &Clustered, to: &mut Families<'_>) -> Written {
    let ratio = Unit::Other("ratio".into());
    to.gauge(
        "cluster_members",
        "Hosts of the cluster that are there, this one included",
        cluster.members as u64,
    )?;
    to.gauge(
        // SWIM suspects before it declares dead: an alert on this comes seconds before shares lie
        // idle.
        "cluster_suspects",
        "Of these, those that somebody has not heard of for a while",
        cluster.suspects as u64,
    )?;
    to.in_unit(
        "cluster_home",
        &ratio,
        "The part of each limit of the cluster that is this host's own",
        cluster.home,
    )?;
    to.gauge(
        "cluster_keys",
        "Sources under limits of the cluster that this host asks others for grants for",
        cluster.keys as u64,
    )?;
    to.gauge(
        // Such a source may lose packets that its limit would allow, so this is worth an alert.
        "cluster_left_out",
        "Sources beside them that have their floor here and no more, because more send at once than this host has the \
         time to divide among hosts",
        cluster.left_out as u64,
    )?;
    to.gauge(
        "cluster_untracked",
        "Sources beside them that have half of this host's own part here, because it has no room to divide them",
        cluster.untracked as u64,
    )?;
    // Labelled by region, which the configuration names. Labels by host would be a new series for
    // each one that comes and goes.
    let regions = || cluster.regions.iter();
    to.gauges(
        "cluster_region_members",
        None,
        "Hosts of a region that are there",
        regions().map(|(name, members, _)| (("region", name.as_str()), *members as u64)),
    )?;
    to.gauges(
        "cluster_region_home",
        Some(&ratio),
        "The part of each limit of the cluster that is the own of a region's hosts, as they have said",
        regions().map(|(name, _, home)| (("region", name.as_str()), *home)),
    )?;
    let loans = ["borrowed", "lent"].into_iter().zip(cluster.loans);
    to.gauges(
        "cluster_region_loans",
        None,
        "Sources that this host owns of which it has borrowed from other regions, or lent to them",
        loans.map(|(loans, count)| (("loans", loans), count as u64)),
    )?;
    // Absent until a question was answered: 0 s would read as a perfect network.
    if let Some(lag) = cluster.lag {
        let quantiles = [("0.5", lag.p50), ("0.9", lag.p90), ("0.99", lag.p99), ("1", lag.max)];
        to.gauges(
            "cluster_lag",
            Some(&Unit::Seconds),
            "Round trips of questions to other hosts, of some minutes",
            quantiles.map(|(quantile, ms)| (("quantile", quantile), ms / 1e3)),
        )?;
    }
    let frames = ["received", "sent", "lost"].into_iter().zip(cluster.frames);
    to.counters(
        "cluster_frames",
        "Frames of other hosts that were listened to, frames that were sent, and those of either that were \
         lost on this host",
        frames.map(|(what, count)| ([("frames", what)], count)),
    )?;
    to.counters(
        // By reason alone: the sender's address is not proven, and a forger would choose the
        // number of series.
        "cluster_refused_packets",
        "Packets that were rejected; `limiter peers` explains the reasons",
        cluster.refused.iter().map(|(reason, count)| ([("reason", *reason)], *count)),
    )?;
    let overage = || cluster.overage.iter();
    let label = |limit| -> Label<'_> { ("limit", limit) };
    to.gauges(
        "cluster_overage",
        Some(&ratio),
        "Packets that all hosts let through of the source that used most of a limit in the last seconds, \
         over what one bucket of that limit would have",
        overage().map(|it| (label(it.limit.as_str()), it.ratio)),
    )?;
    to.gauges(
        // A gauge of its own, so that an alert compares the two and needs no knowledge of
        // partition policies.
        "cluster_overage_bound",
        Some(&ratio),
        "What limiter_cluster_overage_ratio is at the most: 1, but for limits that may be exceeded while \
         hosts are lost",
        overage().map(|it| (label(it.limit.as_str()), it.bound)),
    )
}
