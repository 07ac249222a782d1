use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// What a frame has room for.
const MAX_LEN: usize = 1149;

fn share() -> impl Strategy<Value = Share> {
    prop_oneof![
        Just(Share::NONE),
        Just(Share::WHOLE),
        (0_u64..=1 << 32).prop_map(Share::from_units),
        any::<u64>().prop_map(Share::from_units),
    ]
}

fn report((key, demand, in_use, majority): (u64, Share, u32, bool)) -> Report {
    Report { key: KeyId::from_hash(key), demand, in_use, majority }
}

fn attempt() -> impl Strategy<Value = Attempt> {
    any::<(u64, u64)>().prop_map(|(number, by)| Attempt { number, by: HostId(by) })
}

fn tally() -> impl Strategy<Value = Tally> {
    (attempt(), any::<u32>(), share()).prop_map(|(counted, hosts, lacking)| Tally {
        counted,
        hosts,
        lacking,
    })
}

fn standing() -> impl Strategy<Value = Standing> {
    let accepted = proptest::option::of((attempt(), tally()));
    let renewed = proptest::option::of(1..u64::MAX);
    (attempt(), attempt(), accepted, attempt(), share(), renewed).prop_map(
        |(promised, counted, accepted, voided, home, renewed)| Standing {
            promised,
            counted,
            accepted,
            voided,
            home,
            renewed,
        },
    )
}

fn recount() -> impl Strategy<Value = (Option<Tally>, Option<Standing>, Option<Ask>)> {
    use proptest::option::of;
    let step = prop_oneof![
        Just(Step::Promise),
        Just(Step::Count),
        Just(Step::Release),
        Just(Step::Void),
        tally().prop_map(Step::Accept)
    ];
    let ask = (attempt(), step).prop_map(|(attempt, step)| Ask { attempt, step });
    (of(tally()), of(standing()), of(ask))
}

prop_compose! {
    fn message()(
        sent: u64,
        echo: Option<u64>,
        views in vec(any::<u64>(), 1..5),
        delegated in share(),
        spans in [0_u64..5_000_000_000, 0_u64..5_000_000_000],
        majority in share(),
        votes in vec((any::<u64>(), share()), 0..20),
        reports in vec((any::<u64>(), share(), any::<u32>(), any::<bool>()), 0..400),
        grants in vec((any::<u64>(), share(), 1..=u32::MAX), 0..400),
        transfers in vec((any::<u64>(), any::<u64>()), 0..100),
        received in vec(any::<u64>(), 0..300),
        asks in vec((any::<u64>(), share(), any::<u32>(), any::<bool>()), 0..50),
        loans in vec((any::<u64>(), share(), 1..=u32::MAX, 0_u64..5_000_000_000), 0..50),
        far: bool,
        era: u64,
        renewal: [bool; 2],
        recount in recount(),
    ) -> Message {
        let (tally, standing, ask) = recount;
        Message {
            era,
            counts: renewal[0],
            renews: renewal[1],
            tally,
            standing,
            ask,
            sent: Moment(sent),
            echo: echo.map(Moment),
            views: views.into_iter().map(ViewId).collect(),
            delegated,
            delegated_for: Duration::from_nanos(spans[0]),
            majority,
            majority_for: Duration::from_nanos(spans[1]),
            votes: votes
                .into_iter()
                .map(|(host, known)| Vote { host: HostId(host), known })
                .collect(),
            reports: reports.into_iter().map(report).collect(),
            asks: asks.into_iter().map(report).collect(),
            loans: loans
                .into_iter()
                .map(|(key, share, number, lasts)| Loan {
                    key: KeyId::from_hash(key),
                    share,
                    number,
                    lasts: Duration::from_nanos(lasts),
                })
                .collect(),
            far,
            grants: grants
                .into_iter()
                .map(|(key, share, number)| Grant { key: KeyId::from_hash(key), share, number })
                .collect(),
            granted_for: Duration::from_nanos(spans[1]),
            transfers: transfers
                .into_iter()
                .map(|(number, units)| Transfer { number, share: Share::from_units(units) })
                .collect(),
            received,
        }
    }
}

proptest! {
    #[test]
    fn parts_make_up_the_message_and_give_no_more(message in message()) {
        let parts = encode(&message, MAX_LEN);
        let mut whole = Message::default();
        for part in &parts {
            prop_assert!(part.len() <= MAX_LEN);
            let read = decode(part).unwrap();
            prop_assert_eq!((read.sent, read.echo), (message.sent, message.echo));
            prop_assert_eq!(&read.views, &message.views);
            prop_assert!(read.delegated <= message.delegated);
            prop_assert!(read.delegated_for <= message.delegated_for);
            prop_assert!(read.granted_for <= message.granted_for);
            prop_assert!(read.majority <= message.majority);
            prop_assert!(read.majority_for <= message.majority_for);
            prop_assert!(read.grants.is_empty() || message.granted_for.as_millis() == read.granted_for.as_millis());
            prop_assert_eq!(read.far, message.far);
            whole.reports.extend(read.reports);
            whole.asks.extend(read.asks);
            whole.loans.extend(read.loans);
            whole.votes.extend(read.votes);
            whole.grants.extend(read.grants);
            whole.transfers.extend(read.transfers);
            whole.received.extend(read.received);
        }
        prop_assert_eq!(&whole.transfers, &message.transfers);
        prop_assert_eq!(&whole.received, &message.received);
        prop_assert_eq!(whole.reports.len(), message.reports.len());
        prop_assert_eq!(whole.asks.len(), message.asks.len());
        prop_assert_eq!(whole.loans.len(), message.loans.len());
        for (read, sent) in whole.loans.iter().zip(&message.loans) {
            prop_assert_eq!((read.key, read.number), (sent.key, sent.number));
            prop_assert!(read.share <= sent.share && read.lasts <= sent.lasts);
        }
        let reports = whole.reports.iter().zip(&message.reports);
        for (read, sent) in reports.chain(whole.asks.iter().zip(&message.asks)) {
            prop_assert_eq!((read.key, read.in_use), (sent.key, sent.in_use));
            prop_assert_eq!(read.majority, sent.majority);
            prop_assert!(read.demand >= sent.demand || sent.demand.part() > 1000.0);
        }
        prop_assert_eq!(whole.votes.len(), message.votes.len());
        for (read, sent) in whole.votes.iter().zip(&message.votes) {
            prop_assert_eq!(read.host, sent.host);
            prop_assert!(read.known <= sent.known);
        }
        prop_assert_eq!(whole.grants.len(), message.grants.len());
        for (read, sent) in whole.grants.iter().zip(&message.grants) {
            prop_assert_eq!((read.key, read.number), (sent.key, sent.number));
            prop_assert!(read.share <= sent.share);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..1200)) {
        if let Ok(message) = decode(&bytes) {
            prop_assert!(encode(&message, MAX_LEN).iter().all(|part| decode(part).is_ok()));
        }
    }

    #[test]
    fn a_part_cut_short_gives_no_more_than_the_whole(message in message(), cut in 0_usize..1200) {
        let part = encode(&message, MAX_LEN).remove(0);
        let cut = cut.min(part.len());
        if let Ok(read) = decode(&part[..cut]) {
            prop_assert!(read.grants.len() <= message.grants.len());
        }
    }
}

#[test]
fn who_has_nothing_tells_that_it_would_delegate() {
    let span = Duration::from_millis(1500);
    let message = Message { views: vec![ViewId(1)], delegated_for: span, ..Message::default() };
    let read = decode(&encode(&message, MAX_LEN)[0]).unwrap();
    assert_eq!((read.delegated, read.delegated_for), (Share::NONE, span));
}

#[test]
fn what_is_delegated_by_too_many_views_or_none_is_not_delegated() {
    let delegated = Share::from_part(0.25);
    let span = Duration::from_secs(1);
    let views = (0..=MAX_VIEWS as u64).map(ViewId).collect();
    let message = Message { views, delegated, delegated_for: span, ..Message::default() };
    let read = decode(&encode(&message, MAX_LEN)[0]).unwrap();
    assert_eq!((read.delegated, read.views.len()), (Share::NONE, 0));
    // Flags, sent, share, span, no view.
    let mut bytes = vec![DELEGATED];
    bytes.extend([0; 8]);
    bytes.extend([0x40, 0, 100, 0]);
    assert_eq!(decode(&bytes), Err(Malformed));
}

#[test]
fn a_hot_key_costs_little() {
    let report = |key| Report {
        key: KeyId::from_hash(key),
        demand: Share::from_part(0.3),
        in_use: 77,
        majority: false,
    };
    let grant = |key| Grant {
        key: KeyId::from_hash(key),
        share: Share::from_part(0.3),
        number: 1_000_000 + key as u32,
    };
    let message = Message {
        echo: Some(Moment(1)),
        views: vec![ViewId(1)],
        reports: (0..40).map(report).collect(),
        grants: (0..40).map(grant).collect(),
        ..Message::default()
    };
    let parts = encode(&message, MAX_LEN);
    assert_eq!(parts.len(), 1);
    assert!(parts[0].len() <= 40 + 80 * 11, "{}", parts[0].len());
}
