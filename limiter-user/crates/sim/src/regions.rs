//! Regions: which hosts are near to each other, and what goes between those that are not.

use serde::{Deserialize, Serialize};

use cluster::membership::MAX_REGION_LEN;

/// A region of a scenario. Hosts that are in a row are in one region unless each region names its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionPart {
    /// Its name.
    pub name: String,
    /// Its hosts, from 0; said of all regions or of none.
    pub hosts: Option<Vec<usize>>,
    /// This part of the hosts instead; regions that say neither have the rest in equal parts.
    pub part: Option<f64>,
}

/// What hosts of different regions have sent each other, after warming up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Between {
    /// All of them together, bytes per second.
    pub bytes_per_second: f64,
    /// The host that sent most, bytes per second.
    pub most_per_host: f64,
}

impl Between {
    /// The larger one of each figure.
    pub(super) const fn worse(self, other: Self) -> Self {
        Self {
            bytes_per_second: self.bytes_per_second.max(other.bytes_per_second),
            most_per_host: self.most_per_host.max(other.most_per_host),
        }
    }
}

/// The number of the region of each of so many hosts: all are in one if there are no parts.
///
/// # Errors
/// What does not fit together.
pub(super) fn assign(parts: &[RegionPart], hosts: usize) -> Result<Vec<usize>, String> {
    for (at, part) in parts.iter().enumerate() {
        if !(1..=MAX_REGION_LEN).contains(&part.name.len()) {
            return Err(format!("a region's name has 1 to {MAX_REGION_LEN} bytes"));
        }
        if parts[..at].iter().any(|other| other.name == part.name) {
            return Err(format!("two regions are called {}", part.name));
        }
    }
    // Half named and half counted would leave open whose hosts the named ones are taken from.
    let named = parts.iter().filter(|part| part.hosts.is_some()).count();
    let regions = match named {
        0 => in_a_row(parts, hosts)?,
        _ if named == parts.len() && parts.iter().all(|part| part.part.is_none()) => {
            by_name(parts, hosts)?
        }
        _ => return Err("all regions say `hosts`, or none does".into()),
    };
    match (0..parts.len()).find(|region| !regions.contains(region)) {
        Some(empty) => Err(format!("region {} has no host", parts[empty].name)),
        None => Ok(regions),
    }
}

fn by_name(parts: &[RegionPart], hosts: usize) -> Result<Vec<usize>, String> {
    let mut regions = vec![None; hosts];
    for (number, part) in parts.iter().enumerate() {
        for &host in part.hosts.iter().flatten() {
            match regions.get_mut(host) {
                None => return Err(format!("there is no host {host}: the last is {}", hosts - 1)),
                Some(Some(_)) => return Err(format!("host {host} is in two regions")),
                Some(region) => *region = Some(number),
            }
        }
    }
    let all: Vec<usize> = regions.iter().map_while(|region| *region).collect();
    match all.len() == hosts {
        true => Ok(all),
        false => Err(format!("host {} is in no region", all.len())),
    }
}

fn in_a_row(parts: &[RegionPart], hosts: usize) -> Result<Vec<usize>, String> {
    let said = parts.iter().filter_map(|part| part.part);
    // Three parts of 0.334 are meant to be all: the sum may be a little over one.
    if said.clone().any(|part| !(0.0..=1.0).contains(&part)) || said.clone().sum::<f64>() > 1.001 {
        return Err("the parts of regions are numbers from 0 to 1, and 1 together at most".into());
    }
    let silent = parts.iter().filter(|part| part.part.is_none()).count();
    let each = (1.0 - said.sum::<f64>()).max(0.0) / silent.max(1) as f64;
    let mut sum = 0.0;
    let ends = parts.iter().map(|part| {
        sum += part.part.unwrap_or(each);
        (sum * hosts as f64).round() as usize
    });
    let ends: Vec<usize> = ends.collect();
    // What rounding leaves is the last one's.
    let last = parts.len().saturating_sub(1);
    Ok((0..hosts).map(|host| ends.partition_point(|end| *end <= host).min(last)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(texts: &[&str]) -> Vec<RegionPart> {
        let part = |text: &&str| toml::from_str(text).unwrap();
        texts.iter().map(part).collect()
    }

    #[test]
    fn hosts_are_in_the_regions_that_are_said() {
        assert_eq!(assign(&[], 3), Ok(vec![0, 0, 0]));
        let three = parts(&["name = \"a\"", "name = \"b\"", "name = \"c\""]);
        assert_eq!(assign(&three, 6), Ok(vec![0, 0, 1, 1, 2, 2]));
        assert_eq!(assign(&three, 4), Ok(vec![0, 1, 1, 2]));
        let half = parts(&["name = \"a\"\npart = 0.5", "name = \"b\"", "name = \"c\""]);
        assert_eq!(assign(&half, 8), Ok(vec![0, 0, 0, 0, 1, 1, 2, 2]));
        let named = parts(&["name = \"a\"\nhosts = [0, 2]", "name = \"b\"\nhosts = [1]"]);
        assert_eq!(assign(&named, 3), Ok(vec![0, 1, 0]));
    }

    #[test]
    fn what_does_not_fit_is_told() {
        for (texts, hosts, about) in [
            (&["name = \"a\"", "name = \"a\""][..], 4, "two regions"),
            (&["name = \"\""], 4, "name"),
            (&["name = \"a\"", "name = \"b\""], 1, "has no host"),
            (&["name = \"a\"\npart = 0.7", "name = \"b\"\npart = 0.7"], 4, "together"),
            (&["name = \"a\"\nhosts = [0]", "name = \"b\""], 2, "or none"),
            (&["name = \"a\"\nhosts = [0]", "name = \"b\"\nhosts = [2]"], 2, "no host 2"),
            (&["name = \"a\"\nhosts = [0, 1]", "name = \"b\"\nhosts = [1]"], 2, "in two"),
            (&["name = \"a\"\nhosts = [0]"], 2, "in no region"),
        ] {
            let problem = assign(&parts(texts), hosts).unwrap_err();
            assert!(problem.contains(about), "{problem}");
        }
    }
}
