//! What a machine answers, and whether that is within the bounds.

use serde_json::{Value, json};

use super::plan::{Boot, SCENARIOS};

/// What each row has in it.
const NUMBERS: [&str; 5] =
    ["verified_instructions", "admitted", "expected", "offered", "conforming_dropped"];
/// Admitted of what is expected.
const MIN: f64 = 0.97;
const MAX: f64 = 1.005;

/// The columns of [`table`].
pub(super) const HEADER: &str = "kernel                       cpus jit  table scenario       verified  admitted   \
                                 expected  ratio   offered dropped";

/// The rows in what a machine has printed. What it has not come to is a row of its own, with the reason.
pub(super) fn rows(boot: &Boot, release: &str, text: &str) -> Vec<Value> {
    let printed = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let printed: Vec<_> = printed.filter(Value::is_object).collect();
    let row = |scenario: &&str| {
        let row = printed.iter().find(|row| row["scenario"] == **scenario);
        row.cloned().unwrap_or_else(|| {
            let error = tools::last_lines(text);
            json!({
                "release": release, "cpus": boot.cpus, "jit": boot.jit, "scenario": scenario,
                "table": boot.table, "loads": false, "error": error,
            })
        })
    };
    SCENARIOS.iter().chain(&boot.links()).map(row).collect()
}

/// The row of a kernel that is too old, from what the daemon says there.
pub(super) fn refusal(release: &str, cpus: u32, status: u8, text: &str) -> Value {
    let reason = text.lines().find(|line| line.contains("Linux") && line.contains("too old"));
    // Killed by a signal or after a panic it has not refused.
    let refused = (1..=99).contains(&status) && reason.is_some();
    json!({
        "release": release, "cpus": cpus, "jit": true, "scenario": "refused", "loads": false,
        "refused": refused, "error": reason.unwrap_or(text).trim(),
    })
}

/// Why a row is not as it has to be.
pub(super) fn complaint(row: &Value) -> Option<String> {
    if row["scenario"] == "refused" {
        return (row["refused"] != true).then(|| format!("is not refused: {}", row["error"]));
    }
    if row["loads"] != true {
        return Some(format!("has no figures: {}", row["error"].as_str().unwrap_or_default()));
    }
    if let Some(name) = NUMBERS.iter().find(|&&name| !row[name].is_number()) {
        return Some(format!("has no {name}"));
    }
    let number = |name: &str| row[name].as_f64().unwrap_or_default();
    let (offered, expected) = (number("offered"), number("expected"));
    let (ratio, dropped) = (ratio(row), number("conforming_dropped"));
    if dropped > 0.0 {
        return Some(format!("has dropped {dropped} packets of senders below their limit"));
    }
    // Not more than the limit would prove nothing.
    if offered <= expected {
        return Some(format!("has offered {offered} only, where {expected:.0} may pass"));
    }
    (!(MIN..=MAX).contains(&ratio))
        .then(|| format!("has admitted {ratio:.4} of what is expected, not {MIN} to {MAX}"))
}

fn ratio(row: &Value) -> f64 {
    let number = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
    number("admitted") / number("expected")
}

pub(super) fn table(rows: &[Value]) -> String {
    let mut text = String::new();
    for row in rows {
        let word = |name: &str| match &row[name] {
            Value::String(text) => text.clone(),
            Value::Bool(is) => if *is { "on" } else { "off" }.to_owned(),
            Value::Number(number) if number.is_f64() => {
                format!("{:.1}", number.as_f64().unwrap_or_default())
            }
            Value::Number(number) => number.to_string(),
            _ => "-".to_owned(),
        };
        let ratio = ratio(row);
        let ratio = if ratio.is_nan() { "-".to_owned() } else { format!("{ratio:.4}") };
        text += &format!(
            "{:<28} {:>4} {:<3} {:>6} {:<14} {:>8} {:>9} {:>10} {ratio:>6} {:>9} {:>7}\n",
            word("release"),
            word("cpus"),
            word("jit"),
            word("table"),
            word("scenario"),
            word("verified_instructions"),
            word("admitted"),
            word("expected"),
            word("offered"),
            word("conforming_dropped")
        );
    }
    text
}

/// How a row is named where it is outside.
pub(super) fn name(row: &Value) -> String {
    let (release, scenario) = (row["release"].as_str(), row["scenario"].as_str());
    let jit = if row["jit"] == false { ", without the JIT" } else { "" };
    format!(
        "{} with {} CPU(s){jit}, {}",
        release.unwrap_or("?"),
        row["cpus"],
        scenario.unwrap_or("?")
    )
}

#[cfg(test)]
mod tests {
    use super::{super::plan, *};

    fn row(admitted: f64, offered: u64, dropped: u64) -> Value {
        json!({
            "release": "6.1.0", "cpus": 2, "jit": false, "scenario": "source", "loads": true,
            "verified_instructions": 1, "admitted": admitted, "expected": 1000.0,
            "offered": offered, "conforming_dropped": dropped,
        })
    }

    #[test]
    fn rows_have_to_be_within_the_bounds() {
        assert_eq!(complaint(&row(1005.0, 5000, 0)), None);
        assert_eq!(complaint(&row(970.0, 5000, 0)), None);
        let is = |row: Value, what: &str| {
            let text = complaint(&row).unwrap();
            assert!(text.contains(what), "{text}");
        };
        is(row(1006.0, 5000, 0), "1.0060");
        is(row(969.0, 5000, 0), "0.9690");
        is(row(1000.0, 1000, 0), "offered");
        is(row(1000.0, 5000, 1), "dropped 1 packets");
        let mut without = row(1000.0, 5000, 0);
        without["expected"] = Value::Null;
        is(without, "no expected");
        assert_eq!(name(&row(0.0, 0, 0)), "6.1.0 with 2 CPU(s), without the JIT, source");
        assert!(table(&[row(1000.0, 5000, 0)]).contains(" 1.0000 "));
    }

    #[test]
    fn what_is_missing_is_a_row_with_the_reason() {
        let boot = plan::full()[0];
        let text = format!("a warning\n{}\nthe daemon has ended\n", row(1000.0, 5000, 0));
        let rows = rows(&boot, "6.1.0", &text);
        assert_eq!(rows.len(), SCENARIOS.len());
        assert_eq!(rows[0]["loads"], true);
        assert_eq!(rows[1]["loads"], false);
        assert!(complaint(&rows[1]).unwrap().contains("the daemon has ended"));
    }

    #[test]
    fn a_refusal_names_the_kernel() {
        let text = "error: Linux 5.10.0 is too old: a feature needs 5.17";
        assert_eq!(complaint(&refusal("5.10.0", 1, 1, text)), None);
        assert!(complaint(&refusal("5.10.0", 1, 1, "permission denied")).is_some());
        assert!(complaint(&refusal("5.10.0", 1, 0, text)).is_some());
    }
}
