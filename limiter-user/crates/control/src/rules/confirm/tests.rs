use super::*;
use crate::fake::Fake;
use api::Health;
use api::requests::ChangeOptions;
use model::{Limit, Target};

fn limit(target: &str, rate: &str) -> Limit {
    Limit::new(target.parse().unwrap(), rate.parse().unwrap(), None).unwrap()
}

fn within(seconds: u64) -> ChangeOptions {
    ChangeOptions { confirm: Some(Duration::from_secs(seconds)), ..ChangeOptions::default() }
}

/// Sets one limit for good and changes it until confirmed, and adds another one.
fn changed(fake: &Fake, directory: &tempfile::TempDir, seconds: u64) -> Core {
    let mut core = fake.core(directory);
    core.set(&limit("default", "1000pps"), &ChangeOptions::default()).unwrap();
    let list: Changes = [limit("default", "5pps"), limit("192.0.2.1", "9pps")]
        .map(model::Change::Set)
        .into_iter()
        .collect();
    let imported = core.import(list, &within(seconds)).unwrap();
    assert_eq!(imported.changed, 2);
    assert!(imported.applied.confirm.is_some_and(|pending| pending.targets == 2));
    assert_eq!(fake.state().limits.len(), 2);
    core
}

fn assert_reverted(fake: &Fake, core: &Core) {
    assert_eq!(fake.state().limits, [limit("default", "1000pps")]);
    assert_eq!(core.limits().limits.len(), 1);
    assert_eq!(core.status().unwrap().confirm, None);
}

#[test]
fn a_confirmed_change_stays() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = changed(&fake, &directory, 60);
    let pending = core.status().unwrap().confirm.expect("one waits");
    assert!(pending.seconds_left > 50.0 && pending.seconds_left <= 60.0, "{pending:?}");
    assert_eq!(pending.what, "limit for default, limit for 192.0.2.1");
    let report = core.confirm().unwrap();
    assert_eq!((report.outcome.as_str(), report.targets), ("confirmed", 2));
    assert_eq!(core.store.note(NOTE).unwrap(), None);
    assert_eq!(core.revert_overdue(), None);
    assert_eq!(fake.state().limits.len(), 2);
    let error = core.confirm().unwrap_err();
    let hint = error.hint.unwrap();
    assert!(error.code == exit::NEGATIVE && hint.contains("was confirmed at 20"), "{hint}");
}

#[test]
fn an_aborted_change_is_reverted_at_once() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = changed(&fake, &directory, 60);
    assert_eq!(core.abort().unwrap().outcome, "reverted");
    assert_reverted(&fake, &core);
    assert_eq!(core.store.note(NOTE).unwrap(), None);
    let hint = core.confirm().unwrap_err().hint.unwrap();
    assert!(hint.contains("was reverted with --abort at 20") && !hint.contains("time"), "{hint}");
}

#[test]
fn who_has_aborted_a_change_is_told() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = changed(&fake, &directory, 60);
    assert!(core.abort().is_ok());
    core.set(&limit("192.0.2.9", "1pps"), &within(60)).unwrap();
    core.told.by = Some(By::dashboard());
    core.abort().unwrap();
    core.told.by = Some(By::user(0));
    let hint = core.confirm().unwrap_err().hint.unwrap();
    assert!(hint.contains("was reverted with --abort by dashboard at 20"), "{hint}");
}

#[test]
fn nothing_else_changes_meanwhile() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = changed(&fake, &directory, 60);
    let other = limit("192.0.2.9", "1pps");
    for refused in [
        core.set(&other, &ChangeOptions::default()).map(drop),
        core.set(&other, &within(9)).map(drop),
        core.import(Changes::default(), &ChangeOptions::default()).map(drop),
        core.unset(&Target::DEFAULT, &ChangeOptions::default()).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(error.hint.is_some_and(|hint| hint.contains("limiter confirm --abort")));
        assert_eq!(error.code, exit::NEGATIVE);
    }
    // To ask what would change is no change.
    let asked = ChangeOptions { dry_run: true, ..ChangeOptions::default() };
    assert_eq!(core.set(&other, &asked).unwrap().applied.dry_run.unwrap().added.len(), 1);
    core.abort().unwrap();
    core.set(&other, &ChangeOptions::default()).unwrap();
}

#[test]
fn what_is_overdue_is_reverted_and_tried_again() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = changed(&fake, &directory, 1);
    assert!(core.revert_overdue().is_some_and(|wait| wait <= Duration::from_secs(1)));
    std::thread::sleep(Duration::from_millis(1050));
    fake.state().fail_publish = true;
    assert_eq!(core.revert_overdue(), Some(RETRY));
    let status = core.status().unwrap();
    assert!(status.confirm.is_some_and(|pending| pending.problem.is_some()));
    assert_eq!(status.state, Health::Degraded);
    assert_eq!(fake.state().limits.len(), 2);
    // Not again at once.
    assert!(core.revert_overdue().is_some());
    std::thread::sleep(RETRY);
    assert_eq!(core.revert_overdue(), None);
    assert_reverted(&fake, &core);
    assert!(
        core.confirm().unwrap_err().hint.unwrap().contains("not confirmed in time and reverted at")
    );
}

#[test]
fn a_crash_only_delays_it() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    drop(changed(&fake, &directory, 1));
    // In time: it still waits.
    let mut core = fake.core(&directory);
    core.resume_unconfirmed().unwrap();
    core.enforce().unwrap();
    assert_eq!(fake.state().limits.len(), 2);
    assert!(core.set(&limit("192.0.2.9", "1pps"), &ChangeOptions::default()).is_err());
    drop(core);
    std::thread::sleep(Duration::from_millis(1050));
    let mut core = fake.core(&directory);
    core.resume_unconfirmed().unwrap();
    core.enforce().unwrap();
    assert_reverted(&fake, &core);
    assert_eq!(core.store.note(NOTE).unwrap(), None);
}

#[test]
fn a_change_that_fails_leaves_nothing_to_revert() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = fake.core(&directory);
    fake.state().fail_publish = true;
    core.set(&limit("default", "5pps"), &within(60)).unwrap_err();
    assert_eq!(core.status().unwrap().confirm, None);
    assert_eq!(core.store.note(NOTE).unwrap(), None);
    // What changes nothing needs no confirmation.
    core.set(&limit("default", "5pps"), &ChangeOptions::default()).unwrap();
    let again = core.set(&limit("default", "5pps"), &within(60)).unwrap();
    assert_eq!((again.changed, again.applied.confirm), (false, None));
    for seconds in [0, 86_401] {
        let error = core.set(&limit("default", "9pps"), &within(seconds)).unwrap_err();
        assert!(error.code == exit::USAGE && error.hint.is_some());
    }
}

#[test]
fn a_note_that_makes_no_sense_is_told() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = changed(&fake, &directory, 1);
    let whole = core.store.note(NOTE).unwrap().unwrap();
    drop(core);
    let half = &whole[..whole.len() / 2];
    for damaged in ["", "{}", half, &whole.replace("192.0.2.1/32", "nobody")] {
        let mut core = fake.core(&directory);
        core.store.set_note(NOTE, Some(damaged)).unwrap();
        core.resume_unconfirmed().unwrap();
        let status = core.status().unwrap();
        assert_eq!(status.state, Health::Degraded, "{damaged}");
        let told = status.warnings.iter().any(|text| text.contains("may still be in force"));
        assert!(told, "{status:?}");
        assert_eq!(core.store.note(NOTE).unwrap(), None);
    }
}

#[tokio::test]
async fn the_watch_reverts_in_time() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let shared = Shared::new(fake.core(&directory));
    let watching = tokio::spawn({
        let shared = shared.clone();
        async move { watch(&shared).await }
    });
    shared.with(|core| core.set(&limit("default", "5pps"), &within(1))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(fake.state().limits.len(), 1);
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert!(fake.state().limits.is_empty());
    watching.abort();
}
