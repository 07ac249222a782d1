//! The older text format of Prometheus, for whoever does not ask for OpenMetrics.

use std::collections::HashMap;

/// What a family is called in the older format, and its type.
fn older<'a>(name: &'a str, kind: &'a str) -> (&'a str, &'static str, &'a str) {
    match kind {
        "counter" => (name, "_total", kind),
        // The older format knows neither type.
        "info" => (name, "_info", "gauge"),
        "unknown" => (name, "", "untyped"),
        _ => (name, "", kind),
    }
}

/// The same metrics in the Prometheus text format 0.0.4: there the type belongs to the name that the
/// samples have.
pub fn classic(openmetrics: &str) -> String {
    let kinds: HashMap<&str, &str> = openmetrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    let mut text = String::with_capacity(openmetrics.len() + (1 << 10));
    for line in openmetrics.lines() {
        let mut words = line.splitn(4, ' ');
        let (Some("#"), Some(what), Some(name)) = (words.next(), words.next(), words.next()) else {
            // The older format has no end mark.
            if line != "# EOF" {
                text.push_str(line);
                text.push('\n');
            }
            continue;
        };
        let (name, suffix, kind) = older(name, kinds.get(name).copied().unwrap_or("unknown"));
        let rest = match what {
            "HELP" => words.next().unwrap_or_default(),
            "TYPE" => kind,
            // Units are only in the names.
            _ => continue,
        };
        text.push_str(&format!("# {what} {name}{suffix} {rest}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_infos_have_the_names_of_their_samples() {
        let openmetrics = "\
# HELP a_b Some help, a # too
# TYPE a_b counter
a_b_total{x=\"# y\"} 5
# HELP c_seconds Help
# TYPE c_seconds gauge
# UNIT c_seconds seconds
c_seconds 0.5
# HELP d Help
# TYPE d info
d_info{v=\"1\"} 1
# EOF
";
        let wanted = "\
# HELP a_b_total Some help, a # too
# TYPE a_b_total counter
a_b_total{x=\"# y\"} 5
# HELP c_seconds Help
# TYPE c_seconds gauge
c_seconds 0.5
# HELP d_info Help
# TYPE d_info gauge
d_info{v=\"1\"} 1
";
        assert_eq!(classic(openmetrics), wanted);
    }
}
