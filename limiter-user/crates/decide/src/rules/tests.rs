use super::*;

const SECRET: Secret = Secret([1, 2]);

fn read(text: &str) -> Result<Rules, RuleError> {
    Rules::read([("rules.yaml", text)], &mut Tallies::default())
}

fn path(rules: &Rules, entries: &[Entry<'_>]) -> Option<String> {
    rules.bucket(SECRET, "d", entries, &mut String::new()).map(|found| found.rule.path.clone())
}

#[test]
fn files_that_must_be_refused_are_with_the_line_and_what_is_wrong() {
    let limit = "rate_limit: { unit: day, requests_per_unit: 5 }";
    let pushing = |key, unit, factor, span| {
        format!(
            "domain: d\ndescriptors:\n  - key: {key}\n    rate_limit: {{ {unit}, requests_per_unit: 5, \
             push_down: {{ factor: {factor}, for: {span} }} }}\n"
        )
    };
    let sharing = |more| {
        format!(
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{ unit: day, requests_per_unit: 5, {more} }}\n"
        )
    };
    let cases = [
        ("'''", "rules.yaml:1"),
        ("descriptors:\n", "no domain"),
        ("domain: ''\n", "no domain"),
        ("domain: d\ndescriptors:\n  - value: v\n", "a descriptor without a key"),
        (
            "domain: d\ndescriptors:\n  - key: k\n    value: v\n  - key: k\n    value: v\n",
            "rules.yaml:5: descriptor d.k_v is there twice",
        ),
        ("domain: d\ndomain: e\n", "rules.yaml:2"),
        (
            &sharing("algorithm: fixed-window, scope: cluster"),
            "d.k has scope: cluster, which is for token-bucket",
        ),
        (
            &sharing("on_error: open"),
            "d.k has on_error, which is for scope: cluster, synced and strict",
        ),
        (
            &sharing("algorithm: fixed-window, scope: synced"),
            "d.k has scope: synced, which is for token-bucket",
        ),
        (
            &sharing("scope: cluster, on_error: cluster"),
            "d.k has scope: cluster and on_error: cluster",
        ),
        (
            &sharing("algorithm: fixed-window, scope: strict, on_error: floor"),
            "which the cluster cannot keep: give on_error: closed or open",
        ),
        (
            &sharing("scope: strict, budget: 10%"),
            "d.k has budget or interval, which is for scope: synced",
        ),
        (&sharing("scope: synced, budget: 60%"), "d.k has budget 60 % and interval 100ms"),
        (&sharing("scope: synced, interval: 1ms"), "d.k has budget 10 % and interval 1ms"),
        (&sharing("scope: synced, budget: 1"), "d.k has \"1\": give a budget such as 10%"),
        (&sharing("scope: region"), "rules.yaml:4"),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: foo, requests_per_unit: 5 }\n",
            "unit \"foo\" of d.k is none: give second",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { requests_per_unit: 5 }\n",
            "unit \"\" of d.k is none",
        ),
        (
            &format!(
                "domain: d\ndescriptors:\n  - key: k\n    {}\n",
                limit.replace("rate_limit", "ratelimit")
            ),
            "rules.yaml:4",
        ),
        (
            &format!(
                "domain: d\ndescriptors:\n  - key: k\n    {}\n",
                limit.replace("requests_per_unit", "requestsperunit")
            ),
            "rules.yaml:4",
        ),
        ("domain: d\ndescriptors: [a, b]\n", "rules.yaml:2"),
        (
            &pushing("user", "unit: day", "2", "1m"),
            "d.user has push_down, which is for descriptors with",
        ),
        (
            &pushing("remote_address", "unlimited: true", "2", "1m"),
            "is unlimited and has push_down",
        ),
        (&pushing("remote_address", "unit: day", "1", "1m"), "has factor 1: give 2 to 10000"),
        (&pushing("remote_address", "unit: day", "2", "soon"), "is for \"soon\": give 1s to 30d"),
        (&pushing("remote_address", "unit: day", "2", "60d"), "is for \"60d\": give 1s to 30d"),
        ("0.25: d\n", "rules.yaml:1"),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { name: n, replaces: [{ name: }], unit: day, requests_per_unit: 5 }\n",
            "d.k replaces a limit without a name",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { name: n, replaces: [{ name: n }], unit: day, requests_per_unit: 5 }\n",
            "d.k replaces itself",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unlimited: true, unit: day, requests_per_unit: 5 }\n",
            "d.k is unlimited and has a unit",
        ),
        (
            &format!(
                "domain: d\ndescriptors:\n  - key: k\n    value: v\n    share_threshold: true\n    {limit}\n"
            ),
            "d.k_v has share_threshold",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: -5 }\n",
            "rules.yaml:4",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 5, algorithm: leaky }\n",
            "rules.yaml:4",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 5, algorithm: sliding-window, burst: 3 }\n",
            "d.k: only token-bucket has a burst",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 5, burst: 0 }\n",
            "d.k: the burst is 0",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 500, algorithm: sliding-log }\n",
            "d.k: sliding-log remembers each request",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 5, algorithm: sub-windows, granularity: 7000 }\n",
            "granularity",
        ),
    ];
    for (text, expected) in cases {
        let error = read(text).unwrap_err().to_string();
        assert!(error.starts_with("rules.yaml") && error.contains(expected), "{text}\n{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn a_domain_has_one_file() {
    let file = "domain: d\ndescriptors:\n";
    let tallies = &mut Tallies::default();
    let error = Rules::read([("a.yaml", file), ("b.yaml", file)], tallies).unwrap_err();
    assert_eq!(error.to_string(), "b.yaml: domain d is in another file: each domain has one file");
    let rules = Rules::read([("a.yaml", file), ("b.yaml", "domain: e")], tallies).unwrap();
    assert!(rules.has("d") && rules.has("e") && !rules.has("f"));
    assert!(Rules::read([], tallies).unwrap().all().is_empty());
}

#[test]
fn a_tree_that_is_too_deep_is_refused() {
    let nested = |depth: usize| {
        let open = "{ key: k, descriptors: [".repeat(depth);
        format!("domain: d\ndescriptors: [{open}{}]\n", "] }".repeat(depth))
    };
    assert!(read(&nested(30)).is_ok());
    // By the parser, before its stack ends.
    let error = read(&nested(100_000)).unwrap_err();
    assert!(matches!(error.problem, Problem::Format(_)), "{error}");
}

const PATTERNS: &str = "
domain: d
descriptors:
  - { key: wild, value: foo*, rate_limit: { unit: minute, requests_per_unit: 20 } }
  - { key: wild, value: foo-exact, rate_limit: { unit: minute, requests_per_unit: 20 } }
  - { key: mid, value: bar*b, rate_limit: { unit: minute, requests_per_unit: 20 } }
  - { key: multi, value: a*b*c, rate_limit: { unit: minute, requests_per_unit: 20 } }
  - { key: any, rate_limit: { unit: minute, requests_per_unit: 20 } }
  - { key: shared, value: p/*, share_threshold: true, rate_limit: { unit: minute, requests_per_unit: 20 } }
  - key: shared
    value: q/*
    share_threshold: true
    descriptors:
      - { key: leaf, rate_limit: { unit: minute, requests_per_unit: 20 } }
";

#[test]
fn a_value_is_looked_up_exactly_then_by_pattern_then_not_at_all() {
    let rules = read(PATTERNS).unwrap();
    for (entries, expected) in [
        ([("wild", "foo1")], Some("d.wild_foo*")),
        ([("wild", "foo")], Some("d.wild_foo*")),
        ([("wild", "foo-exact")], Some("d.wild_foo-exact")),
        ([("wild", "fo")], None),
        ([("mid", "bar-b")], Some("d.mid_bar*b")),
        ([("mid", "bar")], None),
        ([("mid", "bab")], None),
        ([("multi", "a-b-c")], Some("d.multi_a*b*c")),
        ([("multi", "abc")], Some("d.multi_a*b*c")),
        ([("multi", "acb")], None),
        ([("any", "")], Some("d.any")),
        ([("any", "thing")], Some("d.any")),
        ([("none", "x")], None),
    ] {
        assert_eq!(path(&rules, &entries).as_deref(), expected, "{entries:?}");
    }
}

#[test]
fn keys_are_apart_by_value_unless_the_pattern_shares_its_limit() {
    let rules = read(PATTERNS).unwrap();
    let of =
        |entries: &[Entry<'_>]| rules.bucket(SECRET, "d", entries, &mut String::new()).unwrap().key;
    assert_ne!(of(&[("wild", "foo1")]), of(&[("wild", "foo2")]));
    assert_ne!(of(&[("any", "a")]), of(&[("any", "b")]));
    assert_eq!(of(&[("shared", "p/a")]), of(&[("shared", "p/b")]));
    let leaf = |file, leaf| of(&[("shared", file), ("leaf", leaf)]);
    assert_eq!(leaf("q/a", "x"), leaf("q/b", "x"));
    assert_ne!(leaf("q/a", "x"), leaf("q/a", "y"));
}

#[test]
fn what_a_rule_says_is_kept() {
    let rules = read(
        "domain: d\ndescriptors:\n  - key: k\n    value: 7\n    detailed_metric: true\n    value_to_metric: true\n    \
         shadow_mode: true\n    metadata: { service: { name: s, number: 3 } }\n    \
         rate_limit: { unit: HOUR, requests_per_unit: 9, name: n, replaces: [{ name: a }, { name: b }], burst: 3 }\n",
    )
    .unwrap();
    let found = rules.bucket(SECRET, "d", &[("k", "7")], &mut String::new()).unwrap();
    let rule = found.rule.as_ref();
    assert_eq!(
        (rule.name.as_str(), rule.replaces.as_slice()),
        ("n", ["a".to_owned(), "b".to_owned()].as_slice())
    );
    assert!(rule.shadow && !rule.quota);
    assert_eq!(rule.metadata["service"]["number"], 3);
    let terms = rule.terms.unwrap();
    assert_eq!((terms.limit.requests, Unit::of(terms.limit.window)), (9, Some(Unit::Hour)));
    assert_eq!(terms.meter.algorithm().unwrap().capacity(), 3);
}
