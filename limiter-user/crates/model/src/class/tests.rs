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
        ("udp:from-53", "udp:from-53"),
        ("*:from-1000-2000", "*:from-1000-2000"),
        ("icmp:8", "icmp:8"),
        ("1:3/4", "icmp:3/4"),
        ("icmpv6:128/0", "icmpv6:128/0"),
        ("udp:fragments", "udp:fragments"),
        ("*:fragments", "*:fragments"),
        ("any@203.0.113.7/32", "any@203.0.113.7"),
        ("udp:53@203.0.113.0/24", "udp:53@203.0.113.0/24"),
        ("tcp/syn,!ack@2001:db8::/32", "tcp/syn,!ack@2001:db8::/32"),
        ("any@64:ff9b::203.0.113.7", "any@203.0.113.7"),
        ("ANY@EACH", "any@each"),
        ("*:53@each", "*:53@each"),
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
        ("icmp:256", "not a type of ICMP", ClassPart::Icmp),
        ("icmp:8/", "not a type of ICMP", ClassPart::Icmp),
        ("icmp:8/0/0", "not a type of ICMP", ClassPart::Icmp),
        ("sctp:from-80", "only TCP and UDP have ports", ClassPart::From),
        ("udp:from-", "neither a port", ClassPart::Ports),
        ("udp:from-0", "0 is not a port", ClassPart::From),
        ("tcp:from-80/syn", "go with a protocol alone", ClassPart::Flags),
        ("tcp:fragments/syn", "go with a protocol alone", ClassPart::Flags),
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
    let dports = ClassText { icmp: Some("8"), dport: Some("8"), ..ClassText::default() };
    assert_eq!(dports.read().unwrap_err().part(), Some(ClassPart::Icmp));
    let udp = ClassText { icmp: Some("8"), proto: Some("udp"), ..ClassText::default() };
    assert!(udp.read().unwrap_err().to_string().contains("only ICMP and ICMPv6"));
    let echo = ClassText { icmp: Some("8"), ..ClassText::default() };
    assert_eq!(echo.read().unwrap(), class("icmp:8"));
    let outside = Flags { mask: 0b10, value: 0b11 };
    assert!(Class::new(None, None, Some(outside)).is_err());
}

/// A packet to a port, from 4000.
fn to(protocol: u8, port: Option<u16>, flags: Option<u8>) -> Shown {
    Shown { protocol, port, flags, from: port.map(|_| 4000), ..Shown::default() }
}

fn icmp(protocol: u8, kind: u8, code: u8) -> Shown {
    Shown { protocol, icmp: Some([kind, code]), ..Shown::default() }
}

fn fragment(protocol: u8) -> Shown {
    Shown { later_fragment: true, ..to(protocol, Some(53), Some(2)) }
}

#[test]
fn packets_match_by_what_is_known_of_them() {
    let dns = class("*:53");
    assert!(dns.matches(&to(UDP, Some(53), None)) && dns.matches(&to(TCP, Some(53), Some(2))));
    assert!(!dns.matches(&to(UDP, Some(54), None)));
    assert!(!dns.matches(&to(UDP, None, None)) && !dns.matches(&fragment(UDP)));
    // An ICMP type is no port.
    assert!(!dns.matches(&to(1, Some(53), None)));
    let syn = class("tcp/syn,!ack");
    assert!(syn.matches(&to(TCP, Some(80), Some(0b00_0010))));
    assert!(syn.matches(&to(TCP, Some(80), Some(0b10_0010))));
    assert!(!syn.matches(&to(TCP, Some(80), Some(0b01_0010))));
    assert!(!syn.matches(&to(TCP, None, None)) && !syn.matches(&to(UDP, Some(80), Some(2))));
    assert!(!syn.matches(&fragment(TCP)));
    assert!(class("udp").matches(&to(UDP, None, None)) && class("47").matches(&to(47, None, None)));
    assert!(class("udp").matches(&fragment(UDP)) && class("*:fragments").matches(&fragment(50)));
    assert!(!class("udp:fragments").matches(&to(UDP, None, None)));
    assert!(class("udp:from-4000").matches(&to(UDP, Some(53), None)));
    assert!(!class("tcp:from-4000").matches(&to(UDP, Some(53), None)));
    assert!(class("icmp:3").matches(&icmp(1, 3, 4)) && !class("icmp:3/1").matches(&icmp(1, 3, 4)));
    assert!(
        !class("icmp:3").matches(&icmp(58, 3, 4)) && !class("icmp:3").matches(&to(1, None, None))
    );
    assert!(Class::ANY.matches(&Shown::default()));
}

#[test]
fn a_packet_is_in_the_most_specific_class() {
    let used = "tcp udp *:53 tcp:50-60 tcp:53 tcp/syn tcp/syn,!ack icmp icmp:3/4 *:from-4000 udp:fragments";
    let used = used.split(' ').collect::<Vec<_>>();
    let classes = Classes::new(used.into_iter().map(class)).unwrap();
    for (packet, found) in [
        (to(TCP, Some(53), Some(0x10)), "*:from-4000"),
        (Shown { from: Some(1), ..to(TCP, Some(53), Some(0x10)) }, "tcp:53"),
        (to(TCP, Some(53), Some(0x02)), "tcp/syn,!ack"),
        (to(TCP, Some(53), Some(0x12)), "tcp/syn"),
        (Shown { from: Some(1), ..to(TCP, Some(54), Some(0x10)) }, "tcp:50-60"),
        (to(TCP, None, None), "tcp"),
        (fragment(TCP), "tcp"),
        (Shown { from: None, ..to(UDP, Some(53), None) }, "*:53"),
        (Shown { from: None, ..to(UDP, Some(54), None) }, "udp"),
        (fragment(UDP), "udp:fragments"),
        (to(1, Some(53), None), "icmp"),
        (icmp(1, 3, 4), "icmp:3/4"),
        (icmp(1, 3, 3), "icmp"),
        (to(50, None, None), "any"),
    ] {
        assert_eq!(classes.find(&packet).to_string(), found, "{packet:?}");
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
        ("udp:from-1-10", "*:from-5-20"),
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
        ("udp:from-1-10", "udp:5-20"),
        ("tcp:from-1-10", "tcp/syn"),
        ("udp:fragments", "*:1-10"),
        ("icmp:3", "icmp:3/4"),
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
    let ports =
        || (1u16..12, 0u16..6).prop_map(|(first, more)| Ports { first, last: first + more });
    let flags = prop::option::of(
        (1u8..8, 0u8..8).prop_map(|(mask, value)| Flags { mask, value: value & mask }),
    );
    let kind = prop_oneof![
        2 => ports().prop_map(Kind::To),
        1 => ports().prop_map(Kind::From),
        1 => (0u8..3, prop::option::of(0u8..3)).prop_map(|(kind, code)| Kind::Icmp { kind, code }),
        1 => Just(Kind::Fragments),
    ];
    let protocol = prop::option::of(prop::sample::select(vec![ICMP, TCP, UDP, ICMPV6]));
    (protocol, prop::option::of(kind), flags)
        .prop_filter_map("no packet matches", |(protocol, kind, flags)| {
            Class::new(protocol, kind, flags).ok()
        })
}

/// Every packet that the classes above tell apart.
fn any_destination() -> impl Strategy<Value = Option<Destination>> {
    let within = |text: &str| Some(Destination::Within(text.parse().unwrap()));
    prop::sample::select(vec![
        None,
        within("10.0.0.0/8"),
        within("10.1.0.0/16"),
        within("192.0.2.1/32"),
        Some(Destination::Each),
    ])
}

fn packets() -> impl Iterator<Item = Shown> {
    let ports = || {
        let known = (1..18).flat_map(|from| (1..18).map(move |port| Some((from, port))));
        known.chain([None]).map(|ports| (ports.map(|it| it.0), ports.map(|it| it.1)))
    };
    let of = |protocol| move |(from, port)| Shown { protocol, from, port, ..Shown::default() };
    let tcp = ports().map(of(TCP)).flat_map(|packet| {
        let flags = packet.port.map_or(vec![None], |_| (0..8).map(Some).collect());
        flags.into_iter().map(move |flags| Shown { flags, ..packet })
    });
    let types = [ICMP, ICMPV6].into_iter().flat_map(|protocol| {
        let known = (0..3).flat_map(move |kind| (0..3).map(move |code| icmp(protocol, kind, code)));
        known.chain([to(protocol, None, None)])
    });
    let fragments = [ICMP, TCP, UDP, ICMPV6, 50].map(fragment);
    tcp.chain(ports().map(of(UDP))).chain(types).chain(fragments).chain([to(50, None, None)])
}

proptest! {
    #[test]
    fn containing_and_overlapping_are_what_packets_say(one in any_class(), other in any_class()) {
        let found: Vec<_> =
            packets().map(|packet| (one.matches(&packet), other.matches(&packet))).collect();
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
        for packet in packets() {
            let found = classes.find(&packet);
            let matching = classes.iter().filter(|class| class.matches(&packet));
            for class in matching {
                // What goes first is not wider in anything that was decided before.
                prop_assert!(found == class || !found.contains(&class), "{} {}", found, class);
            }
            let chain: Vec<_> = classes.chain(found).collect();
            prop_assert!(chain.len() <= MAX_NESTED + 1);
            prop_assert!(chain.iter().all(|wider| wider.matches(&packet)));
            prop_assert_eq!((chain[0], chain.last().copied()), (found, Some(Class::ANY)));
        }
    }

    /// The tables know a packet's kind and the longest prefix that is named for where it goes, and nothing else.
    #[test]
    fn a_class_follows_from_kind_and_destination(
        list in prop::collection::vec((any_class(), any_destination()), 0..10),
    ) {
        let mut classes = Classes::default();
        for (class, destination) in list {
            let _ = classes.add(class.to(destination));
        }
        let (kinds, named) = (classes.kinds(), classes.destinations());
        for packet in packets() {
            let kind = kinds.find(&packet);
            for address in ["10.0.0.1", "10.1.0.1", "192.0.2.1", "2001:db8::1"] {
                let to: IpAddr = address.parse().unwrap();
                let packet = Shown { destination: Some(to), ..packet };
                let longest = named.iter().filter(|net| net.contains(&to));
                let longest = longest.max_by_key(|net| net.prefix_len());
                let known = kind.to(longest.map(|net| Destination::Within(*net)));
                let first = |known: Class| classes.iter().find(|class| class.contains(&known));
                prop_assert_eq!(classes.find(&packet), first(known).unwrap_or(Class::ANY), "{} of {}", packet.protocol, known);
                let known = kind.to(Some(Destination::Each));
                prop_assert_eq!(classes.find_of_destination(&packet), first(known));
            }
        }
    }
}
