use proptest::prelude::*;

use super::*;

fn rate(text: &str) -> Rate {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn parts(text: &str) -> (u64, u64, Unit) {
    let rate = rate(text);
    (rate.amount(), rate.period_ns(), rate.unit())
}

const S: u64 = 1_000_000_000;

#[test]
fn rates_are_read_exactly() {
    use Unit::{Bytes, Packets};
    for (text, amount, period, unit) in [
        ("1000pps", 1000, S, Packets),
        ("10kpps", 10_000, S, Packets),
        ("2.5kpps", 2500, S, Packets),
        ("2.5pps", 5, 2 * S, Packets),
        ("1kipps", 1024, S, Packets),
        ("400/minute", 400, 60 * S, Packets),
        ("400/min", 400, 60 * S, Packets),
        ("400/m", 400, 60 * S, Packets),
        ("60 packets / hour", 60, 3600 * S, Packets),
        ("5/s", 5, S, Packets),
        ("5/sec", 5, S, Packets),
        ("5/second", 5, S, Packets),
        ("10k/h", 10_000, 3600 * S, Packets),
        ("10mbit", 1_250_000, S, Bytes),
        ("10Mbit/s", 1_250_000, S, Bytes),
        ("10mbyte/s", 10_000_000, S, Bytes),
        ("100kibyte/s", 102_400, S, Bytes),
        ("1mibit", 131_072, S, Bytes),
        ("10bit/s", 5, 4 * S, Bytes),
        ("1.5gbit", 187_500_000, S, Bytes),
    ] {
        assert_eq!(parts(text), (amount, period, unit), "{text}");
    }
}

#[test]
fn rates_are_written_in_the_largest_exact_unit() {
    for (text, written) in [
        ("1000pps", "1000pps"),
        ("10000pps", "10kpps"),
        ("12345pps", "12345pps"),
        ("2.5kpps", "2500pps"),
        ("2.50pps", "2.5pps"),
        ("1000kpps", "1mpps"),
        ("400/minute", "400/minute"),
        ("20k/hour", "20k/hour"),
        ("10000kbit", "10mbit"),
        ("10mbyte/s", "10mbyte/s"),
        ("80mbit", "10mbyte/s"),
        ("100kibyte/s", "100kibyte/s"),
        ("1mibit", "1mibit"),
        ("10bit", "10bit"),
        ("12.5bit", "12.5bit"),
        ("600mbyte/minute", "600mbyte/minute"),
    ] {
        assert_eq!(rate(text).to_string(), written, "{text}");
    }
}

#[test]
fn what_is_no_rate_is_refused_with_a_hint() {
    for (text, hint) in [
        ("5", "5pps"),
        ("10k", "10kpps"),
        ("", "1000pps"),
        ("nan", "1000pps"),
        ("inf", "1000pps"),
        (".5pps", "1000pps"),
        ("1.pps", "1000pps"),
        ("1.2.3pps", "1000pps"),
        ("+5pps", "1000pps"),
        ("-5pps", "1000pps"),
        ("0pps", "1/hour"),
        ("0.0pps", "1/hour"),
        ("10bps", "10bit or 10byte/s"),
        ("10kbps", "10kbit or 10kbyte/s"),
        ("10Mbps", "10mbit or 10mbyte/s"),
        ("10gbps", "10gbit or 10gbyte/s"),
        ("10mb/s", "10mbit or 10mbyte/s"),
        ("5parsecs", "pps"),
        ("5pps/s", "pps"),
        ("5/fortnight", "/minute"),
        ("1e3pps", "pps"),
        ("99999999999999999999999pps", "20 digits"),
        ("99999999999999999999gbyte/s", "1tbyte/s"),
        ("2gpps", "1gpps"),
        ("1bit", "1byte/s"),
        ("0.0000000001pps", "whole number"),
    ] {
        let error = text.parse::<Rate>().expect_err(text);
        assert!(error.hint().contains(hint), "{text}: {error}; hint: {}", error.hint());
    }
}

#[test]
fn bursts_follow_the_rates_unit() {
    for (text, unit, amount) in [
        ("2000", Unit::Packets, 2000),
        ("2k", Unit::Packets, 2000),
        ("2000p", Unit::Packets, 2000),
        ("2000packets", Unit::Packets, 2000),
        ("1 packet", Unit::Packets, 1),
        ("1.5k", Unit::Packets, 1500),
        ("64kbyte", Unit::Bytes, 64_000),
        ("64 kibyte", Unit::Bytes, 65_536),
        ("1mbit", Unit::Bytes, 125_000),
        ("15000byte", Unit::Bytes, 15_000),
    ] {
        assert_eq!(parse_burst(text, unit), Ok(amount), "{text}");
    }
    for (text, unit, hint) in [
        ("2000", Unit::Bytes, "2000byte"),
        ("2k", Unit::Bytes, "2kbyte"),
        ("64kb", Unit::Bytes, "64kbyte"),
        ("64packets", Unit::Bytes, "size"),
        ("1bit", Unit::Bytes, "bytes"),
        ("64kbyte", Unit::Packets, "packets"),
        ("1.5", Unit::Packets, "whole"),
        ("0", Unit::Packets, "one packet"),
        ("-1", Unit::Packets, "number"),
        ("99999999999999999999g", Unit::Packets, "13 days"),
    ] {
        let error = parse_burst(text, unit).expect_err(text);
        assert!(error.hint().contains(hint), "{text}: {error}; hint: {}", error.hint());
    }
}

proptest! {
    #[test]
    fn a_written_rate_reads_as_itself(
        whole in 0u64..2_000_000,
        fraction in proptest::option::of(0u32..1000),
        // The unit, what it is per second, and the least and the most there may be of that.
        (unit, per_second, least, most) in proptest::sample::select(vec![
            ("pps", 1.0, 0.0, 1e9),
            ("kpps", 1e3, 0.0, 1e9),
            ("/s", 1.0, 0.0, 1e9),
            ("/minute", 1.0 / 60.0, 0.0, 1e9),
            ("k/hour", 1.0 / 3.6, 0.0, 1e9),
            ("bit", 0.125, 1.0, 1e12),
            ("kbit/minute", 125.0 / 60.0, 1.0, 1e12),
            ("mibit", 131_072.0, 1.0, 1e12),
            ("byte/s", 1.0, 1.0, 1e12),
            ("kibyte/hour", 1024.0 / 3600.0, 1.0, 1e12),
            ("mbyte/s", 1e6, 1.0, 1e12),
        ]),
    ) {
        let number = fraction.map_or(whole.to_string(), |f| format!("{whole}.{f:03}"));
        let value = per_second * number.parse::<f64>().expect("it is a number");
        let Ok(rate) = format!("{number}{unit}").parse::<Rate>() else {
            prop_assert!(value == 0.0 || value < least || value > most, "{number}{unit} is refused");
            return Ok(());
        };
        prop_assert!((rate.per_second() - value).abs() <= 1e-9 * value);
        let written = rate.to_string();
        prop_assert_eq!(written.parse::<Rate>(), Ok(rate), "{}", written);
    }

    #[test]
    fn reading_a_rate_keeps_its_value(amount in 1u64..1_000_000, period in 0usize..3) {
        let (name, seconds) = [("s", 1), ("minute", 60), ("hour", 3600)][period];
        let read = rate(&format!("{amount}/{name}"));
        prop_assert_eq!((read.amount(), read.period_ns()), (amount, seconds * S));
    }

    #[test]
    fn a_written_burst_reads_as_itself(amount in 1u64.., bytes: bool) {
        let unit = if bytes { Unit::Bytes } else { Unit::Packets };
        let written = format_burst(amount, unit);
        prop_assert_eq!(parse_burst(&written, unit), Ok(amount), "{}", written);
    }

    #[test]
    fn nothing_makes_the_parsers_panic(text in "\\PC{0,30}", tail in "[0-9.kmgtibpsyte/ -]{0,20}") {
        for input in [&text, &tail] {
            let _ = input.parse::<Rate>().map_err(|error| error.hint());
            let _ = parse_burst(input, Unit::Packets).map_err(|error| error.hint());
            let _ = parse_burst(input, Unit::Bytes).map_err(|error| error.hint());
        }
    }
}
