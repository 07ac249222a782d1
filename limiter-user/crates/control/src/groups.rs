//! Sums over sources: by prefix and by class.

use std::collections::HashMap;

use ipnet::IpNet;
use tokio::sync::Mutex;

use super::handle::CoreHandle;
use api::error::Failure;
use model::Class;
use model::rollup::{Rollup, Sums, family};
use model::traffic::Whose;

/// Buckets that are summed up at once: about a millisecond's work, then the core is free for others.
const AT_ONCE: usize = 16_384;

/// One sum over all sources at a time: it may need some megabytes for a moment.
static TURN: Mutex<()> = Mutex::const_new(());

/// Two looks apart from each other make a rate; the core is free for others in between.
///
/// # Errors
/// If the data plane cannot be read.
pub async fn prepare(shared: &CoreHandle, whose: Whose) -> Result<(), Failure> {
    while let Some(wait) = shared.with(move |core| Ok(core.prepare_top(whose))).await? {
        tokio::time::sleep(wait).await;
    }
    Ok(())
}

/// All sources by prefix; those of some families alone, if some are named.
///
/// # Errors
/// If the data plane cannot be read.
pub async fn by_prefix(
    shared: &CoreHandle,
    families: Option<Vec<IpNet>>,
) -> Result<Rollup, Failure> {
    let families =
        families.map(|families| families.into_iter().collect::<std::collections::HashSet<_>>());
    sum(shared, Rollup::default(), move |rollup, member, sums| {
        if families.as_ref().is_none_or(|families| families.contains(&family(member.source))) {
            rollup.add(&member.source, sums);
        }
    })
    .await
}

/// All sources by class of packets.
///
/// # Errors
/// If the data plane cannot be read.
pub async fn by_class(shared: &CoreHandle) -> Result<HashMap<Class, Sums>, Failure> {
    sum(shared, HashMap::new(), |classes, member, sums| {
        classes.entry(member.class).or_insert_with(Sums::default).add(sums);
    })
    .await
}

/// Adds every source to `sums`, some at a time.
async fn sum<T: Send + 'static>(
    shared: &CoreHandle,
    mut sums: T,
    add: impl Fn(&mut T, &model::source::Member, &Sums) + Send + 'static,
) -> Result<T, Failure> {
    let _turn = TURN.lock().await;
    prepare(shared, Whose::Sources).await?;
    let buckets = shared.with(|core| Ok(core.plane().buckets())).await?;
    let mut add = Box::new(add);
    for first in (0..buckets).step_by(AT_ONCE) {
        let part = first..buckets.min(first + AT_ONCE);
        (sums, add) = shared
            .with(move |core| {
                core.top.members(core.plane(), part, &mut |member, offered| {
                    add(&mut sums, &member, &Sums::new(&member, offered));
                });
                Ok((sums, add))
            })
            .await?;
    }
    Ok(sums)
}
