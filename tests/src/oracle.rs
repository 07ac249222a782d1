//! The textbook token bucket, for comparison: what a limiter should have admitted of packets that
//! came at known times. It shares nothing with the limiter's own arithmetic.

use std::time::Duration;

/// Packets that a bucket of `burst` tokens, full at the start and refilled at `rate` tokens per
/// second, admits of packets at `times`, in ascending order, one token each.
#[must_use]
pub fn admitted(times: &[Duration], rate: f64, burst: f64) -> u64 {
    let mut tokens = burst;
    let mut last = Duration::ZERO;
    let mut count = 0;
    for &time in times {
        tokens = (tokens + (time - last).as_secs_f64() * rate).min(burst);
        last = time;
        if tokens >= 1.0 {
            tokens -= 1.0;
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_bucket_gives_its_burst_at_once() {
        assert_eq!(admitted(&[Duration::ZERO; 30], 10.0, 20.0), 20);
    }

    #[test]
    fn a_flood_gets_burst_and_refill() {
        let times: Vec<_> = (0..=50_000).map(|i| Duration::from_micros(100 * i)).collect();
        let count = admitted(&times, 1000.0, 2000.0);
        assert!(count.abs_diff(7000) <= 1, "{count}");
    }
}
