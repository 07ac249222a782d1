//! The bucket of a source as the kernel program keeps it, of a fluid.

use cluster::Moment;
use model::Share;

/// A token bucket that runs at a share of its limit. Tokens are counted in the time that the whole limit
/// takes for them: the whole limit's rate is one per second.
///
/// The kernel keeps a time, not tokens: with the share what that time is worth changes. So where the kernel
/// falls back to the floor by itself, tokens shrink in proportion; where the daemon writes a share, it
/// converts the time so that a raise brings no tokens and a lower share clamps them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Bucket {
    tokens: f64,
    at: Moment,
    word: f64,
    until: Moment,
    floor: f64,
}

impl Bucket {
    /// A bucket at the floor, full; `burst` is that of the whole limit, s.
    pub(in super::super) fn full(now: Moment, floor: Share, burst: f64) -> Self {
        // A fluid has no packets. The one that a real bucket holds whatever its share (P1) is
        // beyond this model.
        let floor = floor.part();
        Self { tokens: floor * burst, at: now, word: 0.0, until: Moment(0), floor }
    }

    /// The share that it runs at.
    pub(in super::super) fn share(&self, now: Moment) -> f64 {
        if now < self.until { self.word } else { self.floor }
    }

    fn refill(&mut self, to: Moment, share: f64, burst: f64) {
        let seconds = to.since(self.at).as_secs_f64();
        self.tokens = (self.tokens + share * seconds).min(share * burst);
        self.at = self.at.max(to);
    }

    /// Lets time go by.
    fn advance(&mut self, now: Moment, burst: f64) {
        // The end may lie between two packets: up to it the bucket fills at the share, from then on at the floor.
        if self.at < self.until && now >= self.until {
            self.refill(self.until, self.word, burst);
            self.tokens = if self.word > 0.0 { self.tokens * self.floor / self.word } else { 0.0 };
        }
        let share = self.share(now);
        self.refill(now, share, burst);
    }

    /// Writes a share that holds until a moment.
    pub(in super::super) fn set(&mut self, now: Moment, share: Share, until: Moment, burst: f64) {
        self.advance(now, burst);
        // The tokens stay: if a raise brought any, moving a share to and fro would mint them (P6).
        (self.word, self.until) = (share.part(), until);
        self.tokens = self.tokens.min(self.share(now) * burst);
    }

    /// Changes the floor.
    pub(in super::super) fn set_floor(&mut self, now: Moment, floor: Share, burst: f64) {
        self.advance(now, burst);
        self.floor = floor.part();
        self.tokens = self.tokens.min(self.share(now) * burst);
    }

    /// Offers so many tokens' worth of packets. Returns what is admitted.
    pub(in super::super) fn admit(&mut self, now: Moment, offered: f64, burst: f64) -> f64 {
        self.advance(now, burst);
        let admitted = offered.min(self.tokens.max(0.0));
        self.tokens -= admitted;
        admitted
    }

    /// Takes tokens for packets that others admitted; it may owe up to a burst.
    pub(in super::super) fn debit(&mut self, now: Moment, tokens: f64, burst: f64) {
        self.advance(now, burst);
        // Without an end to its debt a source would be starved for what it was let through
        // elsewhere long ago.
        self.tokens = (self.tokens - tokens).max(-burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: f64 = 2.0;

    fn s(seconds: f64) -> Moment {
        Moment((seconds * 1e9) as u64)
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-6, "{a} is not {b}");
    }

    #[test]
    fn a_raise_brings_no_tokens_and_a_lower_share_clamps() {
        let mut bucket = Bucket::full(s(1.0), Share::from_part(0.1), BURST);
        close(bucket.admit(s(1.0), 1.0, BURST), 0.2);
        bucket.set(s(1.0), Share::from_part(0.5), s(9.0), BURST);
        close(bucket.admit(s(1.0), 1.0, BURST), 0.0);
        close(bucket.admit(s(2.0), 1.0, BURST), 0.5);
        // Full at a half, a tenth of it after the clamp.
        bucket.set(s(6.0), Share::from_part(0.05), s(9.0), BURST);
        close(bucket.admit(s(6.0), 5.0, BURST), 0.1);
    }

    #[test]
    fn it_falls_back_to_the_floor_by_itself() {
        let mut bucket = Bucket::full(s(1.0), Share::from_part(0.1), BURST);
        bucket.admit(s(1.0), 1.0, BURST);
        bucket.set(s(1.0), Share::from_part(0.5), s(3.0), BURST);
        assert_eq!(
            (bucket.share(s(2.999)), bucket.share(s(3.0))),
            (0.5, Share::from_part(0.1).part())
        );
        // 1.0 at the end is half of what it can hold; half of the floor's are 0.1, and 0.1 come in a second.
        close(bucket.admit(s(4.0), 5.0, BURST), 0.2);
        // In the meantime it is all the same whether somebody looks.
        let (mut seen, mut unseen) = (bucket, bucket);
        for bucket in [&mut seen, &mut unseen] {
            bucket.set(s(4.0), Share::from_part(0.8), s(5.0), BURST);
        }
        (401..600).for_each(|i| close(seen.admit(s(f64::from(i) / 100.0), 0.0, BURST), 0.0));
        close(seen.admit(s(6.0), 5.0, BURST), unseen.admit(s(6.0), 5.0, BURST));
    }

    #[test]
    fn a_changed_floor_brings_no_tokens() {
        let mut bucket = Bucket::full(s(1.0), Share::from_part(0.1), BURST);
        bucket.admit(s(1.0), 1.0, BURST);
        bucket.set_floor(s(1.0), Share::from_part(0.4), BURST);
        close(bucket.admit(s(1.0), 1.0, BURST), 0.0);
        close(bucket.admit(s(2.0), 1.0, BURST), 0.4);
        bucket.set_floor(s(9.0), Share::NONE, BURST);
        close(bucket.admit(s(10.0), 1.0, BURST), 0.0);
    }

    #[test]
    fn what_others_admitted_is_owed() {
        let mut bucket = Bucket::full(s(1.0), Share::WHOLE, BURST);
        bucket.debit(s(1.0), 3.0, BURST);
        close(bucket.admit(s(2.0), 1.0, BURST), 0.0);
        close(bucket.admit(s(3.0), 5.0, BURST), 1.0);
        bucket.debit(s(3.0), 1e9, BURST);
        close(bucket.admit(s(6.0), 5.0, BURST), 1.0);
    }
}
