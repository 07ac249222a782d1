//! A token bucket over intervals of time.

/// What a frame costs and what a bucket holds, as durations: at least, and at most.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    /// Of the frame.
    pub cost: (i128, i128),
    /// Of the bucket.
    pub burst: (i128, i128),
}

/// When a bucket will be full again: at the earliest, and at the latest.
#[derive(Clone, Copy, Debug)]
pub struct Bucket(pub i128, pub i128);

impl Bucket {
    /// Whether a frame is admitted that came between `now.0` and `now.1`; `None` if it depends on
    /// when.
    #[must_use]
    pub fn admits(&self, now: (i128, i128), charge: Charge) -> Option<bool> {
        let (least, most) = ((self.0 - now.1).max(0), (self.1 - now.0).max(0));
        // A frame longer than the burst takes all of a full bucket.
        let fits = most + charge.cost.1 <= charge.burst.0;
        if fits || most == 0 && charge.cost.0 > charge.burst.1 {
            Some(true)
        } else if least + charge.cost.0.min(charge.burst.0) > charge.burst.1 {
            Some(false)
        } else {
            None
        }
    }

    /// Takes in what became of the frame, and what that tells of the bucket.
    pub fn settle(&mut self, now: (i128, i128), charge: Charge, admitted: bool) {
        // A bucket holds no less than nothing, also when it has become smaller.
        let empty = (now.0 + charge.burst.0, now.1 + charge.burst.1);
        if admitted {
            self.0 = self.0.max(now.0) + charge.cost.0;
            let most = empty.1.max(now.1 + charge.cost.1);
            self.1 = (self.1.max(now.1) + charge.cost.1).min(most);
        } else {
            self.0 = self.0.max(empty.0 - charge.cost.1).min(empty.0);
            self.1 = self.1.min(empty.1);
        }
        debug_assert!(self.0 <= self.1, "{self:?} at {now:?} under {charge:?}");
    }

    /// Takes in that the limit was changed: the bucket owes no more than an empty one.
    pub fn clamp(&mut self, now: (i128, i128), charge: Charge) {
        self.0 = self.0.min(now.0 + charge.burst.0);
        self.1 = self.1.min(now.1 + charge.burst.1);
    }

    /// Takes in that the frame was dropped, perhaps without a look at the bucket.
    pub fn wait(&mut self, now: (i128, i128), charge: Charge) {
        self.0 = self.0.min(now.0 + charge.burst.0);
    }
}

/// What is taken from each of a limit's tiers: the second one only where there are two.
pub type Charges = (Charge, Option<Charge>);

/// The bucket of each of two tiers. Of a limit with one, the second stays as it is.
#[derive(Clone, Copy, Debug)]
pub struct Buckets {
    /// Of the first tier.
    pub first: Bucket,
    /// Of the second one.
    pub second: Bucket,
}

impl Buckets {
    /// Full for ever.
    pub const FULL: Self = Self { first: Bucket(0, 0), second: Bucket(0, 0) };

    /// As [`Bucket::admits`], by both tiers.
    #[must_use]
    pub fn admits(&self, now: (i128, i128), (first, second): Charges) -> Option<bool> {
        match (self.first.admits(now, first), second.map(|charge| self.second.admits(now, charge)))
        {
            (first, None | Some(Some(true))) => first,
            (Some(false), _) | (_, Some(Some(false))) => Some(false),
            (_, Some(None)) => None,
        }
    }

    /// As [`Bucket::settle`]: both tiers are charged or none, and the second one is not looked at if the
    /// first denies.
    pub fn settle(&mut self, now: (i128, i128), charges: Charges, admitted: bool) {
        let (first, second) = charges;
        let Some(second) = second else { return self.first.settle(now, first, admitted) };
        if admitted {
            self.first.settle(now, first, true);
            self.second.settle(now, second, true);
            return;
        }
        match (self.first.admits(now, first), self.second.admits(now, second)) {
            (Some(false), _) | (None, Some(true)) => self.first.settle(now, first, false),
            (Some(true), _) => self.second.settle(now, second, false),
            (None, _) => self.wait(now, charges),
        }
    }

    /// As [`Bucket::clamp`].
    pub fn clamp(&mut self, now: (i128, i128), (first, second): Charges) {
        self.first.clamp(now, first);
        if let Some(second) = second {
            self.second.clamp(now, second);
        }
    }

    /// As [`Bucket::wait`].
    pub fn wait(&mut self, now: (i128, i128), (first, second): Charges) {
        self.first.wait(now, first);
        if let Some(second) = second {
            self.second.wait(now, second);
        }
    }

    /// What is known if it is either this or `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let either = |a: Bucket, b: Bucket| Bucket(a.0.min(b.0), a.1.max(b.1));
        Self { first: either(self.first, other.first), second: either(self.second, other.second) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Charge = Charge { cost: (100, 100), burst: (1000, 1000) };

    #[test]
    fn a_burst_then_one_at_a_time() {
        let mut bucket = Bucket(0, 0);
        for _ in 0..10 {
            assert_eq!(bucket.admits((5000, 5000), TEN), Some(true));
            bucket.settle((5000, 5000), TEN, true);
        }
        assert_eq!(bucket.admits((5010, 5020), TEN), Some(false));
        assert_eq!(bucket.admits((5095, 5105), TEN), None);
        assert_eq!(bucket.admits((5110, 5120), TEN), Some(true));
    }

    #[test]
    fn a_verdict_narrows_what_is_known() {
        let mut bucket = Bucket(900, 950);
        assert_eq!(bucket.admits((10, 20), TEN), None);
        let mut denied = bucket;
        denied.settle((10, 20), TEN, false);
        assert!(denied.0 == 910 && denied.1 == 950, "{denied:?}");
        bucket.settle((10, 20), TEN, true);
        assert!(bucket.0 == 1000 && bucket.1 == 1020, "{bucket:?}");
    }

    #[test]
    fn two_tiers_are_charged_both_or_not_at_all() {
        let small = Charge { cost: (100, 100), burst: (200, 200) };
        let mut both = Buckets::FULL;
        let now = (5000, 5000);
        for admitted in [true, true, false, false] {
            assert_eq!(both.admits(now, (TEN, Some(small))), Some(admitted));
            both.settle(now, (TEN, Some(small)), admitted);
        }
        assert_eq!((both.first.0, both.first.1), (5200, 5200), "not charged for what was dropped");
        assert_eq!((both.second.0, both.second.1), (5200, 5200));
        assert_eq!(both.admits(now, (TEN, None)), Some(true), "one tier alone");
    }
}
