use proptest::prelude::*;

use super::*;

fn class(text: &str) -> Class {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn classes_are_read_and_written() {
    for (text, written) in [
        ("udp:53", "udp:53"),
        ("TCP:80-443", "tcp:80-443"),
        ("tcp:80-80", "tcp:80"),
        ("tcp/syn,!ack", "tcp/syn,!ack"),
        ("6/!ACK,Syn", "tcp/syn,!ack"),
        ("tcp:443/rst", "tcp:443/rst"),
        ("icmp", "icmp"),
        ("1", "icmp"),
        ("47", "gre"),
        ("200", "200"),
        ("*:53", "*:53"),
        ("*:53/syn", "tcp:53/syn"),
        ("any", "any"),
    ] {
        assert_eq!(class(text).to_string(), written, "{text}");
        assert_eq!(class(written), class(text), "{text}");
    }
    let syn = ClassText { syn: true, ..ClassText::default() }.read().unwrap();
    assert_eq!(syn.to_string(), "tcp/syn,!ack");
    let dns = ClassText { dport: Some("53"), ..ClassText::default() }.read().unwrap();
    assert_eq!(dns, class("*:53"));
}

#[test]
fn what_is_no_class_is_refused_with_a_remedy() {
    for (text, about, part) in [
        ("", "\"\" is not a protocol", ClassPart::Protocol),
        ("tpc:80", "\"tpc\" is not a protocol", ClassPart::Protocol),
        ("256", "not a protocol", ClassPart::Protocol),
        ("+6", "not a protocol", ClassPart::Protocol),
        ("*", "not a protocol", ClassPart::Protocol),
        ("any:53", "not a protocol", ClassPart::Protocol),
        ("tcp:", "neither a port", ClassPart::Ports),
        ("tcp:http", "neither a port", ClassPart::Ports),
        ("tcp:65536", "neither a port", ClassPart::Ports),
        ("tcp:1-2-3", "neither a port", ClassPart::Ports),
        ("tcp:0", "0 is not a port", ClassPart::Ports),
        ("tcp:0-1023", "0 is not a port", ClassPart::Ports),
        ("tcp:443-80", "ends before", ClassPart::Ports),
        ("icmp:8", "only TCP and UDP have ports", ClassPart::Ports),
        ("sctp:80", "only TCP and UDP have ports", ClassPart::Ports),
        ("udp/syn", "only TCP has flags", ClassPart::Flags),
        ("tcp/", "not a TCP flag", ClassPart::Flags),
        ("tcp/syn,,ack", "not a TCP flag", ClassPart::Flags),
        ("tcp/sin", "\"sin\" is not a TCP flag", ClassPart::Flags),
        ("tcp/syn,!syn", "contradict", ClassPart::Flags),
        ("tcp/!syn,syn", "contradict", ClassPart::Flags),
    ] {
        let error = text.parse::<Class>().unwrap_err();
        assert!(error.to_string().contains(about), "{text}: {error}");
        assert_eq!(error.part(), Some(part), "{text}");
        assert!(!error.hint().is_empty());
    }
    let both = ClassText { syn: true, tcp_flags: Some("rst"), ..ClassText::default() };
    assert!(both.read().unwrap_err().to_string().contains("short for"));
    let outside = Flags { mask: 0b10, value: 0b11 };
    assert!(Class::new(None, None, Some(outside)).is_err());
}

#[test]
fn packets_match_by_what_is_known_of_them() {
    let dns = class("*:53");
    assert!(dns.matches(UDP, Some(53), None) && dns.matches(TCP, Some(53), Some(2)));
    assert!(!dns.matches(UDP, Some(54), None));
    assert!(!dns.matches(UDP, None, None), "a fragment has no port");
    // An ICMP type is no port.
    assert!(!dns.matches(1, Some(53), None));
    let syn = class("tcp/syn,!ack");
    assert!(syn.matches(TCP, Some(80), Some(0b00_0010)));
    assert!(syn.matches(TCP, Some(80), Some(0b10_0010)));
    assert!(!syn.matches(TCP, Some(80), Some(0b01_0010)));
    assert!(!syn.matches(TCP, None, None) && !syn.matches(UDP, Some(80), Some(2)));
    assert!(class("udp").matches(UDP, None, None) && class("47").matches(47, None, None));
    assert!(Class::ANY.matches(0, None, None));
}

#[test]
fn a_packet_is_in_the_most_specific_class() {
    let used = ["tcp", "udp", "*:53", "tcp:50-60", "tcp:53", "tcp/syn", "tcp/syn,!ack", "icmp"];
    let classes = Classes::new(used.map(class)).unwrap();
    for (protocol, port, flags, found) in [
        (TCP, Some(53), Some(0x10), "tcp:53"),
        (TCP, Some(53), Some(0x02), "tcp/syn,!ack"),
        (TCP, Some(53), Some(0x12), "tcp/syn"),
        (TCP, Some(54), Some(0x10), "tcp:50-60"),
        (TCP, None, None, "tcp"),
        (UDP, Some(53), None, "*:53"),
        (UDP, Some(54), None, "udp"),
        (1, Some(53), None, "icmp"),
        (50, None, None, "any"),
    ] {
        let text = classes.find(protocol, port, flags).to_string();
        assert_eq!(text, found, "{protocol} {port:?} {flags:?}");
    }
    let chain =
        |text: &str| classes.chain(class(text)).map(|class| class.to_string()).collect::<Vec<_>>();
    assert_eq!(chain("tcp:53"), ["tcp:53", "*:53", "tcp:50-60", "tcp", "any"]);
    assert_eq!(chain("tcp/syn,!ack"), ["tcp/syn,!ack", "tcp/syn", "tcp", "any"]);
    assert_eq!(chain("*:53"), ["*:53", "any"]);
    assert_eq!(chain("any"), ["any"]);
}

#[test]
fn classes_that_nothing_orders_are_refused() {
    for (old, new) in [
        ("tcp:50-60", "tcp:55-65"),
        ("tcp:50-60", "*:55-60000"),
        ("udp:1-10", "*:10-20"),
        ("tcp/syn", "tcp/ack"),
        ("tcp/syn", "tcp:80/rst"),
        ("tcp:50-60/syn", "tcp:55-65/syn"),
    ] {
        for (old, new) in [(old, new), (new, old)].map(|(a, b)| (class(a), class(b))) {
            let mut classes = Classes::new([class("icmp"), old]).unwrap();
            assert_eq!(classes.add(new), Err(ClassError::Overlap { new, old }));
            assert_eq!(classes.len(), 2);
            let text = ClassError::Overlap { new, old }.to_string();
            assert!(text.contains(&old.to_string()) && text.contains(&new.to_string()));
        }
    }
    for (one, other) in [
        ("tcp:50-60", "udp:55-65"),
        ("tcp:50-60", "tcp:61-65"),
        ("tcp:50-60", "tcp:55-60"),
        ("tcp/syn", "tcp/!syn,rst"),
        ("tcp:80/syn", "tcp:81/ack"),
        ("tcp:50-60/syn", "tcp:55-65/syn,!ack"),
        ("tcp:50-60", "tcp:55-65/syn"),
        ("*:50-60", "icmp"),
    ] {
        Classes::new([one, other].map(class)).unwrap();
    }
}

#[test]
fn classes_are_bounded() {
    let ports = |number: usize| class(&format!("tcp:{number}"));
    let mut classes = Classes::new((1..=MAX_CLASSES).map(ports)).unwrap();
    let one_more = ports(MAX_CLASSES + 1);
    assert_eq!(classes.add(one_more), Err(ClassError::TooMany { new: one_more }));
    classes.add(ports(1)).unwrap();
    classes.add(Class::ANY).unwrap();
    assert_eq!(classes.len(), MAX_CLASSES);
    let nested = ["tcp", "tcp:1-1000", "tcp:1-100", "tcp:1-10"].map(class);
    let mut classes = Classes::new(nested).unwrap();
    let deepest = class("tcp:5");
    assert_eq!(classes.add(deepest), Err(ClassError::TooDeep { new: deepest, class: deepest }));
    // Also if the widest comes last.
    let widest = class("*:1-2000");
    let class = class("tcp:1-10");
    assert_eq!(classes.add(widest), Err(ClassError::TooDeep { new: widest, class }));
    assert_eq!(classes.len(), MAX_NESTED);
}

fn any_class() -> impl Strategy<Value = Class> {
    let protocol = prop::option::of(prop::sample::select(vec![1, TCP, UDP]));
    let ports = prop::option::of(
        (1u16..12, 0u16..6).prop_map(|(first, more)| Ports { first, last: first + more }),
    );
    let flags = prop::option::of(
        (1u8..8, 0u8..8).prop_map(|(mask, value)| Flags { mask, value: value & mask }),
    );
    (protocol, ports, flags).prop_filter_map("no packet matches", |(protocol, ports, flags)| {
        Class::new(protocol, ports, flags).ok()
    })
}

/// Every packet that the classes above tell apart.
fn packets() -> impl Iterator<Item = (u8, Option<u16>, Option<u8>)> {
    let ports = || (1..18).map(Some).chain([None]);
    let tcp = ports().flat_map(|port| {
        let flags = (0..8).map(Some).chain([None]);
        flags.map(move |flags| (TCP, port, flags))
    });
    tcp.chain(ports().map(|port| (UDP, port, None))).chain([(1, None, None), (50, None, None)])
}

proptest! {
    #[test]
    fn containing_and_overlapping_are_what_packets_say(one in any_class(), other in any_class()) {
        let both = |(protocol, port, flags)| {
            (one.matches(protocol, port, flags), other.matches(protocol, port, flags))
        };
        let found: Vec<_> = packets().map(both).collect();
        prop_assert_eq!(one.overlaps(&other), found.contains(&(true, true)));
        prop_assert_eq!(other.overlaps(&one), one.overlaps(&other));
        if one.contains(&other) {
            prop_assert!(found.iter().all(|found| *found != (false, true)), "{one} {other}");
            prop_assert!(one.cmp_precedence(&other).is_ge(), "{one} {other}");
        }
        prop_assert_eq!(one.to_string().parse::<Class>(), Ok(one));
    }

    #[test]
    fn whatever_is_used_together_has_one_order(list in prop::collection::vec(any_class(), 0..12)) {
        let mut classes = Classes::default();
        for class in list {
            let before = classes.clone();
            if classes.add(class).is_err() {
                prop_assert_eq!(&classes, &before);
            }
        }
        for (protocol, port, flags) in packets() {
            let found = classes.find(protocol, port, flags);
            let matching = classes.iter().filter(|class| class.matches(protocol, port, flags));
            for class in matching {
                // What goes first is not wider in anything that was decided before.
                prop_assert!(found == class || !found.contains(&class), "{} {}", found, class);
            }
            let chain: Vec<_> = classes.chain(found).collect();
            prop_assert!(chain.len() <= MAX_NESTED + 1);
            prop_assert!(chain.iter().all(|wider| wider.matches(protocol, port, flags)));
            prop_assert_eq!((chain[0], chain.last().copied()), (found, Some(Class::ANY)));
        }
    }
}
