use super::*;

fn limit(rate: &str, burst: Option<u64>) -> Result<LimitSpec, ModelError> {
    LimitSpec::new(Target::Default, rate.parse().unwrap(), burst)
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
    ] {
        let target: Target = text.parse().unwrap();
        assert_eq!((target.to_string().as_str(), target.short().as_str()), (long, short));
        assert_eq!(target.to_string().parse(), Ok(target));
    }
    for text in ["", "localhost", "198.51.100", "198.51.100.7/33", "2001:db8::/129", "1.2.3.4/"] {
        let error = text.parse::<Target>().unwrap_err();
        assert!(matches!(error, ModelError::Target { .. }), "{text}: {error}");
    }
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
    let limit = |target: &str| LimitSpec {
        target: target.parse().unwrap(),
        ..limit("1000pps", None).unwrap()
    };
    assert!(limit("2001:db8::/64").check_prefix(32, 64).is_ok());
    assert!(limit("198.51.100.7").check_prefix(32, 64).is_ok());
    assert!(limit("default").check_prefix(8, 8).is_ok());
    let error = limit("2001:db8:0:1::9").check_prefix(32, 64).unwrap_err();
    assert!(error.hint().contains("2001:db8:0:1::/64"), "{}", error.hint());
    assert!(error.hint().contains("--ipv6-prefix 128"), "{}", error.hint());
    assert!(limit("198.51.100.7").check_prefix(24, 64).is_err());
}

#[test]
fn an_address_belongs_to_its_source() {
    let source = |text: &str| source_of(text.parse().unwrap(), 32, 64).to_string();
    assert_eq!(source("2001:db8::1:2:3:4"), "2001:db8::/64");
    assert_eq!(source("198.51.100.7"), "198.51.100.7/32");
    assert_eq!(source("::ffff:198.51.100.7"), "198.51.100.7/32");
}
