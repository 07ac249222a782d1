//! What `envoyproxy/ratelimit` documents of its rules, as tables of our own.

use std::sync::Arc;
use std::time::Duration;

use limiter_common::atomic::AtomicU64;

use crate::act::Act;
use crate::decider::{Decision, Item, Key, begin, decide};
use crate::key::{Entry, Secret};
use crate::overrides::{Keeper, Overrides};
use crate::rules::{Rules, Tallies, key};
use crate::shared::{Floor, Floors, Shared};
use crate::side::{self, Side};
use crate::states::States;
use crate::synced::Synced;
use crate::table::{self, Table};
use limiter_common::share::FLOORS;
use model::meter::{Choice, Limit, ticks};
use model::{Share, Stance};

type Memory = Vec<AtomicU64>;

fn memory(bytes: usize) -> Memory {
    (0..bytes / 8).map(|_| AtomicU64::new(0)).collect()
}

pub(crate) fn states(keys: u64) -> States<Memory> {
    let table = Table::create(memory(table::bytes(keys)), Secret([1, 2]), 0).unwrap();
    let side = Side::open(memory(side::bytes(keys, side::LONG)));
    States { table, side, shared: None, synced: None }
}

/// To take one unit of a descriptor.
const fn item<'a>(entries: &'a [Entry<'a>]) -> Item<'a> {
    let key = Key::Descriptor { domain: "rl", entries };
    Item { key, limit: None, act: Act::Take, cost: 1 }
}

/// A server with some rules, and its clock.
struct Server {
    states: States<Memory>,
    rules: Rules,
    overrides: Overrides,
    now: Duration,
}

impl Server {
    fn new(rules: &str) -> Self {
        let rules = Rules::read([("test.yaml", rules)], &mut Tallies::default()).unwrap();
        // At the beginning of a window of each unit.
        Self {
            states: states(1_000),
            rules,
            overrides: Overrides::default(),
            now: Duration::from_secs(365 * 86_400 * 42),
        }
    }

    fn ask(&self, items: &[Item<'_>]) -> Decision {
        decide(&self.states, &self.rules, &self.overrides, items, ticks(self.now)).unwrap()
    }

    /// Whether requests about descriptors of such entries are admitted, `times` in a row.
    fn admits(&self, descriptors: &[&[Entry<'_>]], times: usize) -> Vec<bool> {
        let items: Vec<_> = descriptors.iter().map(|entries| item(entries)).collect();
        (0..times).map(|_| !self.ask(&items).over).collect()
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }
}

const EXAMPLE: &str = "
domain: rl
descriptors:
  - key: foo
    rate_limit: { unit: minute, requests_per_unit: 2 }
    descriptors:
      - key: bar
        rate_limit: { unit: minute, requests_per_unit: 3 }
      - key: bar
        value: banned
        rate_limit: { name: banned_limit, unit: minute, requests_per_unit: 0 }
      - key: bar
        value: listed
      - key: baz
        value: shady
        rate_limit: { unit: minute, requests_per_unit: 3 }
        shadow_mode: true
      - key: bay
        rate_limit: { unlimited: true }
  - key: cluster
    value: override
    rate_limit:
      replaces: [{ name: banned_limit }]
      unit: minute
      requests_per_unit: 2
  - key: service
    value: one
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: service
    value: two
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 2 }
";

#[test]
fn a_descriptor_is_held_to_the_rule_that_ends_where_it_does() {
    let server = Server::new(EXAMPLE);
    let cases: [(&[Entry<'_>], usize); 7] = [
        (&[("foo", "a")], 2),
        (&[("foo", "b")], 2),
        (&[("foo", "a"), ("bar", "x")], 3),
        (&[("foo", "a"), ("bar", "banned")], 0),
        // No limit: another key, more entries than the rules have, a value that is listed without one.
        (&[("other", "a")], 5),
        (&[("foo", "a"), ("bar", "x"), ("more", "y")], 5),
        (&[("foo", "a"), ("bar", "listed")], 5),
    ];
    for (entries, admitted) in cases {
        let admits = server.admits(&[entries], 5);
        assert_eq!(admits.iter().filter(|&&admitted| admitted).count(), admitted, "{entries:?}");
    }
}

#[test]
fn answers_tell_limit_remaining_and_when_it_renews() {
    let server = Server::new(EXAMPLE);
    let ask = |entries| server.ask(&[item(entries)]).statuses.remove(0);
    let entries: &[Entry<'_>] = &[("foo", "a")];
    let first = ask(entries);
    assert_eq!((first.over, first.remaining), (false, 1));
    let limit = first.terms.map(|terms| terms.limit);
    assert_eq!(limit, Some(Limit::new(2, Duration::from_secs(60))));
    assert_eq!(first.reset, Some(Duration::from_secs(30)));
    ask(entries);
    let third = ask(entries);
    assert_eq!((third.over, third.remaining), (true, 0));
    // When one more is admitted.
    assert_eq!(third.reset, Some(Duration::from_secs(30)));
    let unlimited = ask(&[("foo", "a"), ("bay", "x")]);
    assert_eq!((unlimited.over, unlimited.remaining), (false, u32::MAX.into()));
    assert_eq!(ask(&[("none", "a")]).terms, None);
    let banned = ask(&[("foo", "a"), ("bar", "banned")]);
    assert_eq!((banned.over, banned.reset), (true, None));
}

#[test]
fn all_descriptors_are_charged_or_none() {
    let server = Server::new(EXAMPLE);
    let (foo, bar): (&[Entry<'_>], &[Entry<'_>]) = (&[("foo", "a")], &[("foo", "a"), ("bar", "x")]);
    assert_eq!(server.admits(&[foo], 2), [true, true]);
    // `foo` is used up, so nothing of `bar` is.
    assert_eq!(server.admits(&[bar, foo], 4), [false; 4]);
    assert_eq!(server.admits(&[bar], 4), [true, true, true, false]);
    // The same key twice costs twice.
    let other: &[Entry<'_>] = &[("foo", "b"), ("bar", "x")];
    assert_eq!(server.admits(&[other, other], 2), [true, false]);
    assert_eq!(server.admits(&[other], 2), [true, false]);
}

#[test]
fn a_shadow_counts_and_denies_nobody() {
    let server = Server::new(EXAMPLE);
    let shady: &[Entry<'_>] = &[("foo", "a"), ("baz", "shady")];
    assert_eq!(server.admits(&[shady], 5), [true; 5]);
    let status = server.ask(&[item(shady)]).statuses.remove(0);
    assert_eq!((status.over, status.shadowed, status.remaining), (false, true, 0));
    // With a limit of its own there is no shadow.
    let limit = Some(Limit::new(1, Duration::from_secs(86_400)));
    assert!(server.ask(&[Item { limit, ..item(shady) }]).over);
}

#[test]
fn a_rule_replaces_others_by_their_names() {
    let server = Server::new(EXAMPLE);
    let (banned, instead): (&[Entry<'_>], &[Entry<'_>]) =
        (&[("foo", "a"), ("bar", "banned")], &[("cluster", "override")]);
    assert_eq!(server.admits(&[banned], 1), [false]);
    assert_eq!(server.admits(&[banned, instead], 3), [true, true, false]);
}

#[test]
fn quotas_deny_only_together_and_owe_what_was_used_already() {
    let mut server = Server::new(EXAMPLE);
    let (one, two): (&[Entry<'_>], &[Entry<'_>]) = (&[("service", "one")], &[("service", "two")]);
    assert_eq!(server.admits(&[one, two], 3), [true, true, false]);
    server.wait(120);
    // Asked before, debited afterwards: what was begun below the limit may end above it.
    let peek = Item { act: Act::Peek, cost: 0, ..item(two) };
    let debit = |cost| Item { cost, ..item(two) };
    for _ in 0..3 {
        assert!(!server.ask(&[peek]).over);
        server.ask(&[debit(1)]);
    }
    assert!(server.ask(&[peek]).over);
    server.wait(31);
    assert!(!server.ask(&[peek]).over);
    // As much again at most is owed.
    server.ask(&[debit(1_000)]);
    server.wait(61);
    assert!(!server.ask(&[peek]).over);
}

#[test]
fn what_is_owed_beyond_a_limit_keeps_no_other_key_from_being_charged() {
    let server = Server::new(EXAMPLE);
    let (foo, bar): (&[Entry<'_>], &[Entry<'_>]) = (&[("foo", "a")], &[("foo", "a"), ("bar", "x")]);
    let debit = Item { act: Act::Owe, cost: 3, ..item(foo) };
    assert!(!server.ask(&[debit, item(bar)]).over);
    let left = |entries| server.ask(&[Item { cost: 0, ..item(entries) }]).statuses[0].remaining;
    assert_eq!((left(foo), left(bar)), (0, 2));
}

#[test]
fn units_are_given_back() {
    let server = Server::new(EXAMPLE);
    let entries: &[Entry<'_>] = &[("foo", "a")];
    let refund = Item { act: Act::Refund, ..item(entries) };
    assert_eq!(server.admits(&[entries], 3), [true, true, false]);
    assert!(!server.ask(&[refund]).over);
    assert_eq!(server.admits(&[entries], 2), [true, false]);
    // A request that is denied gives nothing back, and tells how the key stands.
    let other: &[Entry<'_>] = &[("foo", "a"), ("bar", "banned")];
    let denied = server.ask(&[item(other), refund]);
    assert!(denied.over && !denied.statuses[1].over && denied.statuses[1].terms.is_some());
    assert_eq!(server.admits(&[entries], 1), [false]);
    // No more than there was.
    for _ in 0..5 {
        server.ask(&[refund]);
    }
    assert_eq!(server.admits(&[entries], 3), [true, true, false]);
}

#[test]
fn each_algorithm_keeps_its_bound_in_each_unit() {
    for (algorithm, at_once, after) in [
        ("token-bucket", 20, 20),
        ("fixed-window", 20, 20),
        ("sliding-window", 20, 0),
        ("sub-windows", 20, 0),
        ("sliding-log", 20, 0),
    ] {
        for (unit, seconds) in [
            ("second", 1),
            ("minute", 60),
            ("hour", 3_600),
            ("day", 86_400),
            ("week", 7 * 86_400),
            ("month", 30 * 86_400),
            ("year", 365 * 86_400),
        ] {
            let mut server = Server::new(&format!(
                "domain: rl\ndescriptors:\n  - key: k\n    rate_limit: \
                 {{ unit: {unit}, requests_per_unit: 20, algorithm: {algorithm} }}\n"
            ));
            let admitted = |server: &Server| {
                server.admits(&[&[("k", "v")]], 25).into_iter().filter(|&admitted| admitted).count()
            };
            assert_eq!(admitted(&server), at_once, "{algorithm} {unit}");
            // A window later everything is there again, or is about to be.
            server.wait(seconds);
            let now = admitted(&server);
            assert!(now == at_once || now == after, "{algorithm} {unit}: {now}");
            server.wait(2 * seconds);
            assert_eq!(admitted(&server), at_once, "{algorithm} {unit}");
        }
    }
}

#[test]
fn who_keeps_asking_far_above_its_limit_is_to_be_denied_by_the_kernel() {
    let mut server = Server::new(
        "
domain: rl
descriptors:
  - key: route
    descriptors:
      - key: remote_address
        rate_limit: { unit: second, requests_per_unit: 4, push_down: { factor: 5, for: 10m } }
  - key: remote_address
    shadow_mode: true
    rate_limit: { unit: second, requests_per_unit: 4, push_down: { factor: 5, for: 10m } }
",
    );
    let entries = |address| [("route", "api"), ("remote_address", address)];
    let pushes = |server: &Server, address, cost| {
        let entries = entries(address);
        server.ask(&[Item { cost, ..item(&entries) }]).statuses[0].pushes_down
    };
    // 4 pass, 16 more are denied, and then it is five times the limit.
    let first: Vec<bool> = (0..21).map(|_| pushes(&server, "192.0.2.1", 1)).collect();
    assert_eq!(first.iter().position(|pushes| *pushes), Some(20), "{first:?}");
    // It begins anew: the kernel is not told with each request.
    assert_eq!((0..16).filter(|_| pushes(&server, "192.0.2.1", 1)).count(), 0);
    assert!(pushes(&server, "192.0.2.1", 1));
    // A single request is not far above, whatever it costs; five of them are.
    assert_eq!(
        [1000; 5].map(|cost| pushes(&server, "192.0.2.2", cost)),
        [false, false, false, false, true]
    );
    // Who asks four times as much as it may, for ever, is denied that, and no more.
    for _ in 0..100 {
        assert_eq!((0..16).filter(|_| pushes(&server, "192.0.2.3", 1)).count(), 0);
        server.wait(1);
    }
    // A shadow only counts.
    let shadow = [("remote_address", "192.0.2.4")];
    assert!((0..100).all(|_| !server.ask(&[item(&shadow)]).statuses[0].pushes_down));
}

#[test]
fn a_descriptor_may_have_a_limit_of_its_own() {
    let rules = "domain: rl\ndescriptors:\n- key: user\n  rate_limit: {unit: second, requests_per_unit: 2}\n\
                 - key: path\n  value: /a*\n  share_threshold: true\n  \
                 rate_limit: {unit: second, requests_per_unit: 2}\n";
    let mut server = Server::new(rules);
    let secret = server.states.table.secret();
    let set = |server: &mut Server, entry: Entry<'_>, rate: &str, end| {
        let key = key(secret, "rl", &[entry]);
        server.overrides.set(key, Limit::of_rate(rate).unwrap(), end).unwrap();
        key
    };
    let admitted = |server: &Server, entry: Entry<'_>| {
        let admitted = server.admits(&[&[entry]], 10).into_iter();
        admitted.filter(|admitted| *admitted).count()
    };
    let end = ticks(server.now) + ticks(Duration::from_secs(5));
    set(&mut server, ("user", "7"), "5/second", Some(end));
    // A limit where there is no rule, and of its own where a pattern shares one.
    let alone = set(&mut server, ("tier", "free"), "1/hour", None);
    set(&mut server, ("path", "/ab"), "4/second", None);
    assert_eq!(server.overrides.len(), 3);
    let all = |server: &Server| {
        [
            ("user", "7"),
            ("user", "8"),
            ("tier", "free"),
            ("tier", "gold"),
            ("path", "/ab"),
            ("path", "/ac"),
        ]
        .map(|entry| admitted(server, entry))
    };
    assert_eq!(all(&server), [5, 2, 1, 10, 4, 2]);
    server.wait(4);
    assert_eq!(all(&server), [5, 2, 0, 10, 4, 2]);
    server.wait(1);
    server.overrides.unset(alone);
    assert_eq!(all(&server), [2, 2, 10, 10, 4, 2]);
}

#[test]
fn who_only_looks_under_a_lower_limit_forgets_nothing() {
    let mut server = Server::new("domain: rl\ndescriptors: []\n");
    let entries = [("user", "7")];
    let key = key(server.states.table.secret(), "rl", &entries);
    let set = |server: &mut Server, rate: &str| {
        server.overrides.set(key, Limit::of_rate(rate).unwrap(), None).unwrap();
    };
    set(&mut server, "2/hour");
    assert_eq!(server.admits(&[&entries], 3), [true, true, false]);
    // All that can be owed under this one is a minute.
    set(&mut server, "2/minute");
    for (act, cost) in [(Act::Peek, 1), (Act::Take, 0)] {
        server.ask(&[Item { act, cost, ..item(&entries) }]);
    }
    set(&mut server, "2/hour");
    assert_eq!(server.admits(&[&entries], 1), [false]);
}

#[test]
fn all_hosts_know_a_key_that_they_share_by_one_hash() {
    let text = "domain: rl\ndescriptors:\n  - key: user\n    rate_limit: { unit: second, requests_per_unit: 5, scope: \
                cluster }\n  - key: path\n    value: a*\n    share_threshold: true\n    rate_limit: { unit: second, \
                requests_per_unit: 5, scope: cluster, on_error: open }\n  - key: own\n    rate_limit: { unit: second, \
                requests_per_unit: 5 }\n";
    let rules = Rules::read([("test.yaml", text)], &mut Tallies::default()).unwrap();
    let shared = |secret: Secret, entry: Entry<'_>, own: Option<Limit>| {
        let mut overrides = Overrides::default();
        if let Some(limit) = own {
            overrides.set(key(secret, "rl", &[entry]), limit, None).unwrap();
        }
        let whose = ("rl", &[entry][..]);
        overrides.find(&rules, secret, whose, 0, &mut String::new()).unwrap().keeper
    };
    let (one, two) = (Secret([1, 2]), Secret([3, 4]));
    let user = shared(one, ("user", "7"), None);
    assert!(user != Keeper::Host && user == shared(two, ("user", "7"), None));
    assert_ne!(user, shared(one, ("user", "8"), None));
    assert_eq!(shared(one, ("path", "ab"), None), shared(two, ("path", "ac"), None));
    assert_eq!(shared(one, ("own", "7"), None), Keeper::Host);
    // A limit of its own is shared, too, but not where each host has to keep it.
    let limit = Limit::new(9, Duration::from_secs(1));
    let by = |algorithm| shared(two, ("user", "7"), Some(Limit { algorithm, ..limit }));
    assert_eq!(by(Choice::TokenBucket), user);
    assert_eq!(by(Choice::SlidingLog), Keeper::Host);
    // Its pattern's other keys are not this one.
    assert_ne!(shared(one, ("path", "ab"), Some(limit)), shared(one, ("path", "ab"), None));
}

#[test]
fn a_descriptor_without_a_share_is_answered_as_its_rule_says() {
    let text = |on_error| {
        format!(
            "domain: rl\ndescriptors:\n  - key: user\n    rate_limit: {{ unit: second, requests_per_unit: 5, scope: \
             cluster, on_error: {on_error} }}\n"
        )
    };
    for (on_error, over) in [("floor", true), ("closed", true), ("open", false)] {
        let mut server = Server::new(&text(on_error));
        let memory = memory(side::bytes(10, side::SHORT));
        server.states.shared =
            Some(Shared::new(Arc::new(Side::open(memory).unwrap()), Secret([1, 2])));
        let decision = server.ask(&[item(&[("user", "7")])]);
        assert_eq!((decision.over, decision.statuses[0].alone), (over, true), "{on_error}");
        let tally = &server.rules.all()[0].tally;
        assert_eq!(tally.alone.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}

#[test]
fn a_share_is_used_only_where_all_hosts_stay_away_from_the_store() {
    for scope in ["strict", "synced"] {
        let mut server = Server::new(&format!(
            "domain: rl\ndescriptors:\n  - key: user\n    rate_limit: {{ unit: second, requests_per_unit: 100, scope: \
             {scope}, on_error: cluster }}\n"
        ));
        let side = Arc::new(Side::open(memory(side::bytes(10, side::SHORT))).unwrap());
        let shared = Shared::new(Arc::clone(&side), Secret([1, 2]));
        let share = Share::from_part(0.5).times(1, FLOORS);
        let all = vec![Floor { at: 1, share, hosts: 2 }];
        shared.set_floors(Floors { all, full: true, until: u64::MAX });
        server.states.shared = Some(shared);
        server.states.synced = Some(Synced::new(side, Secret([1, 2])));
        let Server { states, rules, overrides, now } = &server;
        let (shared, synced) = (states.shared.as_ref().unwrap(), states.synced.as_ref().unwrap());
        let entries = [("user", "7")];
        // The store does not answer: how many requests of a hundred would have asked it.
        let ask = |stance| {
            shared.set_stance(stance, u64::MAX);
            let asks = || {
                let items = [item(&entries)];
                let mut begun = begin(states, rules, overrides, &items, ticks(*now)).unwrap();
                let asks = begun.questions(states, ticks(*now)).unwrap().is_some();
                begun.finish(states, ticks(*now));
                asks
            };
            (0..100).filter(|_| asks()).count()
        };
        assert_eq!((ask(Stance::Between), shared.count(), synced.count()), (0, 0, 0), "{scope}");
        // One call that fails is answered by the floor, and asks for no share.
        assert!(ask(Stance::Store) >= 90 && shared.count() == 0, "{scope}");
        assert_eq!((ask(Stance::Escrow), shared.count()), (0, 1), "{scope}");
        // What nobody renews ends.
        shared.set_stance(Stance::Escrow, ticks(*now));
        assert_eq!(shared.stance(ticks(*now)), Stance::Between);
    }
}
