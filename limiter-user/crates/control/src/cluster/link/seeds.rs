//! Where seeds are: names become addresses again and again, since they move.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::net::NetError;
use hickory_resolver::proto::rr::RData;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How often names are looked up: soon again where one was not found, at last, and where all were.
const PAUSES: [Duration; 3] =
    // At boot the resolver is often not up yet, hence the quick start. Later the bound spares the
    // name server.
    [Duration::from_secs(1), Duration::from_secs(30), Duration::from_secs(30)];

/// Names that are looked up at once.
// Each lookup takes a thread of the runtime's pool, which work on the core shares.
const AT_ONCE: usize = 8;

/// Addresses of a seed, at most.
// Each address is greeted. A name with thousands of them would turn greetings into a flood.
const MAX_ADDRESSES: usize = 64;

/// How long a name may take.
// Longer than a resolver's own first timeout of five seconds, so that its second server has a
// chance.
const TIMEOUT: Duration = Duration::from_secs(10);

/// One seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// As it is configured: an address or a name with a port, or the name of a service.
    pub name: String,
    /// Where it was found last.
    pub addresses: Vec<SocketAddr>,
    /// Why it was not found the last time.
    pub error: Option<String>,
}

impl Seed {
    /// One that has not been looked for.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), addresses: Vec::new(), error: None }
    }

    /// Takes what was found for it. What was found before stays if it cannot be found now. Returns whether it
    /// was.
    fn take(&mut self, found: Result<Vec<SocketAddr>, String>) -> bool {
        let error = match found {
            Ok(addresses) => {
                // Name servers rotate their answers. Sorted ones compare equal, so a mere rotation
                // is no change.
                let addresses: BTreeSet<_> = addresses.into_iter().take(MAX_ADDRESSES).collect();
                if !addresses.is_empty() {
                    self.addresses = addresses.into_iter().collect();
                    self.error = None;
                    return true;
                }
                "it has no address".to_owned()
            }
            Err(error) => error,
        };
        // A warning for each attempt would fill the log while a name server is down.
        if self.error.as_ref() != Some(&error) {
            tracing::warn!("cannot find the seed {}: {error}; trying again", self.name);
            self.error = Some(error);
        }
        false
    }
}

/// Asks where a name with a port, or a service, is.
async fn resolve(name: String) -> Result<Vec<SocketAddr>, String> {
    let found = async {
        if !name.contains(':') {
            return resolve_service(&name).await.map_err(|error| error.to_string());
        }
        let addresses = tokio::net::lookup_host(name).await.map_err(|error| error.to_string())?;
        // Here too, so that a hostile answer is never kept whole.
        Ok(addresses.take(MAX_ADDRESSES).collect())
    };
    let late = |_| Err(format!("no answer within {} s", TIMEOUT.as_secs()));
    tokio::time::timeout(TIMEOUT, found).await.unwrap_or_else(late)
}

/// Asks the system's name servers for the SRV records of a service, and where those whom they name are. Of members all
/// are greeted: priorities and weights say nothing here.
async fn resolve_service(name: &str) -> Result<Vec<SocketAddr>, NetError> {
    // Anew each time: the file that names the servers may change while the daemon runs.
    let resolver = TokioResolver::builder_tokio()?.build()?;
    let records = resolver.srv_lookup(name).await?;
    let (mut found, mut failure) = (Vec::new(), None);
    for record in records.answers().iter().take(MAX_ADDRESSES) {
        let RData::SRV(service) = &record.data else { continue };
        match resolver.lookup_ip(service.target.clone()).await {
            Ok(hosts) => found.extend(hosts.iter().map(|host| SocketAddr::new(host, service.port))),
            // One that has gone, while its record has not, leaves the others.
            Err(error) => failure = Some(error),
        }
        if found.len() >= MAX_ADDRESSES {
            break;
        }
    }
    match failure {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// Looks for all of them, some at a time: one that nobody answers for does not hold up the others long. Returns
/// whether all were found.
async fn look_once<R, F>(known: &mut [Seed], resolve: &R) -> bool
where
    R: Fn(String) -> F,
    F: Future<Output = Result<Vec<SocketAddr>, String>> + Send + 'static,
{
    let mut all = true;
    for part in known.chunks_mut(AT_ONCE) {
        let mut looking = JoinSet::new();
        for (at, seed) in part.iter().enumerate() {
            let found = resolve(seed.name.clone());
            looking.spawn(async move { (at, found.await) });
        }
        while let Some(looked) = looking.join_next().await {
            // A lookup that panicked says nothing; the seed keeps what it had.
            let Ok((at, found)) = looked else { continue };
            all &= part.get_mut(at).is_none_or(|seed| seed.take(found));
        }
    }
    all
}

/// Those that are wanted from now on; what is known of them stays.
fn take_over(known: &[Seed], wanted: &[String]) -> Vec<Seed> {
    let former = |name: &String| known.iter().find(|seed| seed.name == *name).cloned();
    wanted.iter().map(|name| former(name).unwrap_or_else(|| Seed::new(name))).collect()
}

/// Keeps looking for all that are wanted, until nobody wants to know.
pub(super) async fn look(seeds: watch::Sender<Vec<Seed>>, wanted: watch::Receiver<Vec<String>>) {
    look_by(seeds, wanted, resolve, PAUSES).await;
}

async fn look_by<R, F>(
    seeds: watch::Sender<Vec<Seed>>,
    mut wanted: watch::Receiver<Vec<String>>,
    resolve: R,
    pauses: [Duration; 3],
) where
    R: Fn(String) -> F,
    F: Future<Output = Result<Vec<SocketAddr>, String>> + Send + 'static,
{
    let mut pause = pauses[0];
    loop {
        // What was found for a seed stays with it when the list changes.
        let mut known = take_over(&seeds.borrow(), &wanted.borrow_and_update());
        let looked = async {
            let found = look_once(&mut known, &resolve).await;
            // An unchanged list must not wake the link and the data plane.
            seeds.send_if_modified(|before| {
                let changed = *before != known;
                *before = known;
                changed
            });
            // Names that were found move seldom; one that was not may come up any second.
            let (wait, next) =
                if found { (pauses[2], pauses[0]) } else { (pause, (2 * pause).min(pauses[1])) };
            tokio::time::sleep(wait).await;
            next
        };
        pause = tokio::select! {
            next = looked => next,
            // What has begun is of no use any more. It has published all of its result or nothing.
            Ok(()) = wanted.changed() => pauses[0],
            () = seeds.closed() => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn what_was_found_stays_and_what_was_not_is_told() {
        let mut seed = Seed::new("127.0.0.1:7946");
        assert!(seed.take(resolve(seed.name.clone()).await));
        assert_eq!(seed.addresses, [([127, 0, 0, 1], 7946).into()]);
        seed.name = "no port".to_owned();
        assert!(!seed.take(resolve(seed.name.clone()).await));
        assert!(seed.error.is_some() && seed.addresses.len() == 1);
    }

    /// What names are at present, and how often any was looked up.
    type Names = Arc<Mutex<(BTreeMap<String, [u8; 4]>, usize)>>;

    fn names() -> Names {
        Arc::default()
    }

    fn move_to(names: &Names, name: &str, to: [u8; 4]) {
        names.lock().unwrap().0.insert(name.to_owned(), to);
    }

    fn begin(
        names: &Names,
        seeds: &[&str],
    ) -> (watch::Receiver<Vec<Seed>>, watch::Sender<Vec<String>>) {
        let seeds: Vec<String> = seeds.iter().map(ToString::to_string).collect();
        let (tell, told) = watch::channel(take_over(&[], &seeds));
        let (want, wanted) = watch::channel(seeds);
        let names = Arc::clone(names);
        let resolve = move |name: String| {
            let mut names = names.lock().unwrap();
            names.1 += 1;
            let found = names.0.get(&name).map(|at| vec![SocketAddr::from((*at, 7700))]);
            async move { found.ok_or_else(|| "no such name".to_owned()) }
        };
        // A thousandth of the real ones.
        tokio::spawn(look_by(tell, wanted, resolve, PAUSES.map(|pause| pause / 1000)));
        (told, want)
    }

    async fn until(told: &mut watch::Receiver<Vec<Seed>>, fits: impl FnMut(&Vec<Seed>) -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(20), told.wait_for(fits)).await;
        waited.expect("in time").unwrap();
    }

    fn is_at(seed: &Seed, at: [u8; 4]) -> bool {
        seed.addresses == [SocketAddr::from((at, 7700))] && seed.error.is_none()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_name_that_moves_is_followed_and_one_that_comes_is_found() {
        let names = names();
        move_to(&names, "a", [192, 0, 2, 1]);
        let (mut told, _want) = begin(&names, &["a", "b"]);
        until(&mut told, |seeds| is_at(&seeds[0], [192, 0, 2, 1]) && seeds[1].error.is_some())
            .await;
        move_to(&names, "b", [192, 0, 2, 2]);
        until(&mut told, |seeds| is_at(&seeds[1], [192, 0, 2, 2])).await;
        move_to(&names, "a", [192, 0, 2, 9]);
        until(&mut told, |seeds| is_at(&seeds[0], [192, 0, 2, 9])).await;
        // Who is gone from the DNS may be there still.
        names.lock().unwrap().0.clear();
        until(&mut told, |seeds| seeds.iter().all(|seed| seed.error.is_some())).await;
        assert_eq!(told.borrow()[0].addresses, [SocketAddr::from(([192, 0, 2, 9], 7700))]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn other_seeds_are_taken_at_once_and_known_ones_stay() {
        let names = names();
        move_to(&names, "a", [192, 0, 2, 1]);
        move_to(&names, "b", [192, 0, 2, 2]);
        let (mut told, want) = begin(&names, &["a", "gone"]);
        until(&mut told, |seeds| is_at(&seeds[0], [192, 0, 2, 1])).await;
        want.send(vec!["b".into(), "a".into()]).unwrap();
        until(&mut told, |seeds| seeds.len() == 2 && is_at(&seeds[0], [192, 0, 2, 2])).await;
        assert!(is_at(&told.borrow()[1], [192, 0, 2, 1]) && told.borrow()[1].name == "a");
        // None is a choice, too.
        want.send(Vec::new()).unwrap();
        until(&mut told, Vec::is_empty).await;
        // Nobody wants to know: nothing is looked up any more.
        drop(told);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let looked = names.lock().unwrap().1;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(names.lock().unwrap().1, looked);
    }
}
