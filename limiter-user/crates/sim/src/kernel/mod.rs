//! What a host's kernel does with the packets of sources.

mod fluid;
mod packets;

use cluster::Moment;
use model::{Limit, Share};

use fluid::Bucket;
pub(super) use packets::Packets;

/// What it is told of each source, by its number.
#[derive(Clone, Debug)]
pub(super) enum Kernel {
    /// A fluid of the limit, for many sources and long runs.
    Fluid {
        /// The limit's burst, in the time that its rate takes for it, s.
        burst: f64,
        floor: Share,
        /// When the machine has started, if that was within the run: buckets were empty.
        booted: Option<Moment>,
        buckets: Vec<Option<Bucket>>,
    },
    /// Whole packets, judged by the program's own code.
    Packets(Box<Packets>),
}

impl Kernel {
    /// One that admits a fluid of so many sources.
    pub(super) fn fluid(burst: f64, sources: usize) -> Self {
        // No floor until the daemon says what it is: a kernel must not admit what nobody has granted (P6).
        Self::Fluid { burst, floor: Share::NONE, booted: None, buckets: vec![None; sources] }
    }

    /// One that judges packets under a `limit` that so many hosts share. A machine that is to be copied `records` what
    /// happens to it.
    pub(super) fn packets(limit: Limit, hosts: usize, sources: usize, records: bool) -> Self {
        Self::Packets(Box::new(Packets::new(limit, hosts, sources, records)))
    }

    /// The same after the machine has started.
    pub(super) fn boot(&mut self, now: Moment) {
        match self {
            Self::Fluid { floor, booted, buckets, .. } => {
                (*floor, *booted) = (Share::NONE, Some(now));
                buckets.fill(None);
            }
            Self::Packets(packets) => **packets = packets.anew(),
        }
    }

    /// Packets of a source come, as many as take `offered` seconds of the whole limit. Returns how many of them came
    /// whole by now, and of those how many it admits, in the same unit.
    pub(super) fn admit(&mut self, source: usize, now: Moment, offered: f64) -> (f64, f64) {
        match self {
            Self::Fluid { burst, floor, booted, buckets } => {
                let new = || {
                    let earned = booted.map_or(f64::INFINITY, |at| now.since(at).as_secs_f64());
                    Bucket::full(now, *floor, burst.min(earned))
                };
                let bucket = buckets[source].get_or_insert_with(new);
                (offered, bucket.admit(now, offered, *burst))
            }
            Self::Packets(packets) => packets.admit(source, now, offered),
        }
    }

    /// The share that it goes by.
    pub(super) fn share(&self, source: usize, now: Moment) -> f64 {
        match self {
            Self::Fluid { floor, buckets, .. } => {
                buckets[source].map_or(floor.part(), |bucket| bucket.share(now))
            }
            Self::Packets(packets) => packets.share(source, now),
        }
    }

    /// Writes a share that holds until a moment.
    pub(super) fn set(&mut self, source: usize, now: Moment, share: Share, until: Moment) {
        match self {
            // As in the kernel, where a share lies beside the bucket: without one there is nothing to write to.
            Self::Fluid { burst, buckets, .. } => {
                buckets[source].iter_mut().for_each(|it| it.set(now, share, until, *burst));
            }
            Self::Packets(packets) => packets.set(source, now, share, until),
        }
    }

    /// Changes the floor.
    pub(super) fn set_floor(&mut self, now: Moment, share: Share) {
        match self {
            Self::Fluid { burst, floor, buckets, .. } => {
                *floor = share;
                buckets.iter_mut().flatten().for_each(|it| it.set_floor(now, share, *burst));
            }
            Self::Packets(packets) => packets.set_floor(now, share),
        }
    }

    /// Takes tokens for packets that others admitted, as schemes do that count afterwards.
    pub(super) fn debit(&mut self, source: usize, now: Moment, tokens: f64) {
        if let Self::Fluid { burst, buckets, .. } = self {
            buckets[source].iter_mut().for_each(|it| it.debit(now, tokens, *burst));
        }
    }
}
