use super::*;
use crate::OnError;
use crate::prefix::{PrefixError, prefixes_of, source_of};

fn limit(rate: &str, burst: Option<u64>) -> Result<Limit, ModelError> {
    Limit::new(Target::DEFAULT, rate.parse().unwrap(), burst)
}

#[test]
fn targets_are_read_and_written() {
    for (text, long, short) in [
        ("default", "default", "default"),
        ("198.51.100.7", "198.51.100.7/32", "198.51.100.7"),
        ("198.51.100.0/24", "198.51.100.0/24", "198.51.100.0/24"),
        ("2001:DB8::/48", "2001:db8::/48", "2001:db8::/48"),
        ("2001:db8::1", "2001:db8::1/128", "2001:db8::1"),
        ("::ffff:198.51.100.7", "198.51.100.7/32", "198.51.100.7"),
        ("::ffff:198.51.100.0/120", "198.51.100.0/24", "198.51.100.0/24"),
        ("0.0.0.0/0", "0.0.0.0/0", "0.0.0.0/0"),
        ("::/0", "::/0", "::/0"),
        ("default udp:53", "default udp:53", "default udp:53"),
        (
            "Default  TCP/!ack,syn\tAggregate",
            "default tcp/syn,!ack aggregate",
            "default tcp/syn,!ack aggregate",
        ),
        ("10.0.0.0/8 aggregate", "10.0.0.0/8 aggregate", "10.0.0.0/8 aggregate"),
        ("198.51.100.7 47", "198.51.100.7/32 gre", "198.51.100.7 gre"),
        ("2001:db8::1 *:1-9", "2001:db8::1/128 *:1-9", "2001:db8::1 *:1-9"),
        ("default any", "default", "default"),
    ] {
        let target: Target = text.parse().unwrap();
        assert_eq!((target.to_string().as_str(), target.short().as_str()), (long, short));
        assert_eq!(target.to_string().parse(), Ok(target));
    }
    for text in ["", "localhost", "198.51.100", "198.51.100.7/33", "2001:db8::/129", "1.2.3.4/"] {
        let error = text.parse::<Target>().unwrap_err();
        assert!(
            matches!(error, TargetError::Prefix(PrefixError::Unreadable { .. })),
            "{text}: {error}"
        );
    }
    for (text, about) in [
        ("default udp:53 udp:54", "udp:54"),
        ("default aggregate udp:53", "udp:53"),
        ("default everything", "everything"),
        ("default tpc:80", "tpc"),
        ("default tcp/sin", "sin"),
        ("192.0.2.1 aggregate", "192.0.2.1 is a single source"),
        ("2001:db8::1 tcp aggregate", "2001:db8::1 is a single source"),
    ] {
        let error = text.parse::<Target>().unwrap_err();
        assert!(error.to_string().contains(about) && !error.hint().is_empty(), "{text}: {error}");
    }
}

#[test]
fn targets_are_ordered_by_whom_they_are_for() {
    let mut targets: Vec<Target> = [
        "192.0.2.0/24",
        "default udp:53",
        "10.0.0.0/8 aggregate",
        "default aggregate",
        "10.0.0.0/8",
        "default",
        "10.0.0.0/8 icmp",
    ]
    .map(|text| text.parse().unwrap())
    .into();
    targets.sort();
    let sorted: Vec<_> = targets.iter().map(Target::to_string).collect();
    let all =
        ["default", "default aggregate", "default udp:53", "10.0.0.0/8", "10.0.0.0/8 aggregate"];
    assert_eq!(sorted[..5], all);
    assert_eq!(sorted[5..], ["10.0.0.0/8 icmp", "192.0.2.0/24"]);
    // A million of them are kept.
    assert!(size_of::<Target>() <= 50);
}

#[test]
fn prefixes_come_the_longest_first() {
    let prefixes = |text: &str| prefixes_of(text.parse().unwrap()).map(|net| net.to_string());
    let four: Vec<_> = prefixes("192.0.2.128/25").collect();
    assert_eq!(
        (four.len(), four[0].as_str(), four[1].as_str()),
        (26, "192.0.2.128/25", "192.0.2.0/24")
    );
    assert_eq!(four.last().map(String::as_str), Some("0.0.0.0/0"));
    assert_eq!(prefixes("2001:db8::/64").count(), 65);
    assert!(prefixes("::/0").eq(["::/0"]));
}

#[test]
fn a_limit_in_both_units_begins_with_packets() {
    let (packets, bytes) = (limit("1000pps", Some(7)).unwrap(), limit("10mbit", None).unwrap());
    let both = packets.and(bytes.rate, Some(64_000)).unwrap();
    assert_eq!(
        (both.rate, both.burst, both.also.map(|also| also.burst)),
        (packets.rate, 7, Some(64_000))
    );
    let other = limit("10mbit", Some(64_000)).unwrap().and(packets.rate, Some(7)).unwrap();
    assert_eq!(other, both);
    assert_eq!(both.amount.of(both.target), both);
    assert!(matches!(packets.and(packets.rate, None), Err(ModelError::SameUnit { .. })));
    assert!(matches!(packets.and(bytes.rate, Some(9)), Err(ModelError::BurstTooSmall { .. })));
    let shared = Limit { target: "10.0.0.0/8 aggregate".parse().unwrap(), ..packets };
    let ban = Some(Ban { after: 1, factor: 1, lasts: 1, unverified: false });
    assert!(packets.banning(ban).is_ok() && shared.banning(None).is_ok());
    assert_eq!(shared.banning(ban), Err(BanError::Shared.into()));
    assert_eq!(packets.enforced(false).banning(ban), Err(BanError::NotEnforced.into()));
}

#[test]
fn a_reserve_is_of_a_limit_that_sources_share() {
    let shared = "10.0.0.0/8 aggregate".parse().unwrap();
    let each = limit("1000pps", Some(7)).unwrap();
    let reserving = Amount { reserve: 20, ..each.amount };
    assert_eq!(reserving.checked(shared).unwrap().amount, reserving);
    let none = each.reserving(0);
    assert_eq!(none, Ok(each));
    let refused = reserving.checked(each.target);
    assert_eq!(refused, Err(ModelError::ReserveOfOne { target: each.target }));
    let refused = Amount { reserve: 91, ..reserving }.checked(shared);
    assert_eq!(refused, Err(ModelError::ReserveTooLarge { reserve: 91 }));
    assert!(refused.unwrap_err().hint().contains("90"));
}

#[test]
fn host_bits_are_refused_with_the_network() {
    let error = "198.51.100.7/24".parse::<Target>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "198.51.100.7/24 has host bits set; did you mean 198.51.100.0/24?"
    );
    assert!("2001:db8::1/64".parse::<Target>().is_err());
}

#[test]
fn the_default_burst_is_a_second_and_a_fifth() {
    for (rate, burst) in [
        ("1000pps", 1200),
        ("1pps", 2),
        ("400/minute", 8),
        ("1/hour", 1),
        ("10mbit", 1_500_000),
        ("1kbyte/s", FULL_FRAME),
        ("1byte/s", FULL_FRAME),
    ] {
        assert_eq!(limit(rate, None).unwrap().burst, burst, "{rate}");
    }
}

#[test]
fn bursts_have_bounds() {
    assert!(matches!(limit("1000pps", Some(0)), Err(ModelError::BurstTooSmall { .. })));
    assert!(matches!(limit("1mbit", Some(1513)), Err(ModelError::BurstTooSmall { .. })));
    assert!(limit("1mbit", Some(1514)).is_ok());
    // 2^50 ns are 312.75 hours.
    assert!(limit("1/hour", Some(312)).is_ok());
    let error = limit("1/hour", Some(313)).unwrap_err();
    assert!(error.hint().contains("312 packets"), "{}", error.hint());
    // The slowest limits that can be written can be had.
    assert!(limit("1/hour", None).is_ok() && limit("1byte/s", None).is_ok());
}

#[test]
fn targets_inside_a_source_are_refused() {
    let limit =
        |target: &str| Limit { target: target.parse().unwrap(), ..limit("1000pps", None).unwrap() };
    assert!(limit("2001:db8::/64").check_prefix(32, 64).is_ok());
    assert!(limit("198.51.100.7").check_prefix(32, 64).is_ok());
    assert!(limit("default").check_prefix(8, 8).is_ok());
    let error = limit("2001:db8:0:1::9").check_prefix(32, 64).unwrap_err();
    assert!(error.hint().contains("2001:db8:0:1::/64"), "{}", error.hint());
    assert!(error.hint().contains("--ipv6-prefix 128"), "{}", error.hint());
    assert!(limit("198.51.100.7").check_prefix(24, 64).is_err());
    // What is one source cannot be limited as one.
    assert!(limit("198.51.100.0/24 aggregate").check_prefix(32, 64).is_ok());
    for single in ["198.51.100.0/24 aggregate", "2001:db8::/64 aggregate"] {
        let error = limit(single).check_prefix(24, 64).unwrap_err();
        assert!(matches!(error, TargetError::SingleAggregate { .. }), "{error}");
    }
}

#[test]
fn an_address_belongs_to_its_source() {
    let source = |text: &str| source_of(text.parse().unwrap(), 32, 64).to_string();
    assert_eq!(source("2001:db8::1:2:3:4"), "2001:db8::/64");
    assert_eq!(source("198.51.100.7"), "198.51.100.7/32");
    assert_eq!(source("::ffff:198.51.100.7"), "198.51.100.7/32");
    assert_eq!(source("64:ff9b::198.51.100.7"), "198.51.100.7/32");
    assert_eq!(source("64:ff9b:1::198.51.100.7"), "64:ff9b:1::/64");
}

#[test]
fn only_what_a_store_can_lease_is_strict() {
    let strict = Scope::Strict { on_error: OnError::Lease };
    let limit = |text: &str, rate: &str, algorithm| {
        Limit::by(text.parse().unwrap(), algorithm, rate.parse().unwrap(), None).unwrap()
    };
    let bucket = Algorithm::TokenBucket;
    for text in ["default", "10.0.0.0/8", "default udp:53"] {
        assert!(limit(text, "1000pps", bucket).scoped(strict).is_ok(), "{text}");
    }
    assert!(limit("default", "1000pps", bucket).enforced(false).scoped(strict).is_ok());
    let both = limit("default", "1000pps", bucket).and("10mbit".parse().unwrap(), None).unwrap();
    for (limit, why, instead) in [
        (limit("default aggregate", "1000pps", bucket), "ahead", "cluster"),
        (limit("default", "100/minute", Algorithm::FixedWindow), "next one", "token-bucket"),
        (limit("default", "10mbit", bucket), "packets", "cluster"),
        (both, "packets", "packets alone"),
        (limit("default", "5pps", bucket), "10 to 10 million", "cluster"),
        (limit("default", "20000kpps", bucket), "10 to 10 million", "cluster"),
    ] {
        let error = limit.scoped(strict).unwrap_err();
        assert!(error.to_string().contains(why) && error.hint().contains(instead), "{error}");
    }
}
