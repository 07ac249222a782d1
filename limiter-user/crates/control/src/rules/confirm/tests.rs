use super::*;
use crate::Core;
use crate::fake::Fake;
use crate::rules::limits;
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
    limits::set(&mut core.rules, &limit("default", "1000pps"), &ChangeOptions::default()).unwrap();
    let list: Changes = [limit("default", "5pps"), limit("192.0.2.1", "9pps")]
        .map(model::Change::Set)
        .into_iter()
        .collect();
    let imported = limits::import(&mut core.rules, list, &within(seconds)).unwrap();
    assert_eq!(imported.changed, 2);
    assert!(imported.applied.confirm.is_some_and(|pending| pending.targets == 2));
    assert_eq!(fake.state().limits.len(), 2);
    core
}

fn assert_reverted(fake: &Fake, core: &Core) {
    assert_eq!(fake.state().limits, [limit("default", "1000pps")]);
    assert_eq!(limits::list(&core.rules).limits.len(), 1);
    assert_eq!(core.status().unwrap().confirm, None);
}

#[test]
fn a_confirmed_change_stays() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = changed(&fake, &directory, 60);
    let pending = core.status().unwrap().confirm.expect("one waits");
    assert!(pending.seconds_left > 50.0 && pending.seconds_left <= 60.0, "{pending:?}");
    assert_eq!(pending.what, "limit for default, limit for 192.0.2.1");
    let report = confirm(&mut core.rules).unwrap();
    assert_eq!((report.outcome.as_str(), report.targets), ("confirmed", 2));
    assert_eq!(core.rules.store.note(NOTE).unwrap(), None);
    assert_eq!(revert_overdue(&mut core.rules), None);
    assert_eq!(fake.state().limits.len(), 2);
    let error = confirm(&mut core.rules).unwrap_err();
    let hint = error.hint.unwrap();
    assert!(error.code == exit::NEGATIVE && hint.contains("was confirmed at 20"), "{hint}");
}

#[test]
fn an_aborted_change_is_reverted_at_once() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = changed(&fake, &directory, 60);
    assert_eq!(abort(&mut core.rules).unwrap().outcome, "reverted");
    assert_reverted(&fake, &core);
    assert_eq!(core.rules.store.note(NOTE).unwrap(), None);
    let hint = confirm(&mut core.rules).unwrap_err().hint.unwrap();
    assert!(hint.contains("was reverted with --abort at 20") && !hint.contains("time"), "{hint}");
}

#[test]
fn who_has_aborted_a_change_is_told() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = changed(&fake, &directory, 60);
    assert!(abort(&mut core.rules).is_ok());
    limits::set(&mut core.rules, &limit("192.0.2.9", "1pps"), &within(60)).unwrap();
    core.rules.events.by = Some(By::dashboard());
    abort(&mut core.rules).unwrap();
    core.rules.events.by = Some(By::user(0));
    let hint = confirm(&mut core.rules).unwrap_err().hint.unwrap();
    assert!(hint.contains("was reverted with --abort by dashboard at 20"), "{hint}");
}

#[test]
fn nothing_else_changes_meanwhile() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = changed(&fake, &directory, 60);
    let other = limit("192.0.2.9", "1pps");
    for refused in [
        limits::set(&mut core.rules, &other, &ChangeOptions::default()).map(drop),
        limits::set(&mut core.rules, &other, &within(9)).map(drop),
        limits::import(&mut core.rules, Changes::default(), &ChangeOptions::default()).map(drop),
        limits::unset(&mut core.rules, &Target::DEFAULT, &ChangeOptions::default()).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(error.hint.is_some_and(|hint| hint.contains("limiter confirm --abort")));
        assert_eq!(error.code, exit::NEGATIVE);
    }
    // To ask what would change is no change.
    let asked = ChangeOptions { dry_run: true, ..ChangeOptions::default() };
    assert_eq!(
        limits::set(&mut core.rules, &other, &asked).unwrap().applied.dry_run.unwrap().added.len(),
        1
    );
    abort(&mut core.rules).unwrap();
    limits::set(&mut core.rules, &other, &ChangeOptions::default()).unwrap();
}

#[test]
fn what_is_overdue_is_reverted_and_tried_again() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = changed(&fake, &directory, 1);
    assert!(revert_overdue(&mut core.rules).is_some_and(|wait| wait <= Duration::from_secs(1)));
    std::thread::sleep(Duration::from_millis(1050));
    fake.state().fail_publish = true;
    assert_eq!(revert_overdue(&mut core.rules), Some(RETRY));
    let status = core.status().unwrap();
    assert!(status.confirm.is_some_and(|pending| pending.problem.is_some()));
    assert_eq!(status.state, Health::Degraded);
    assert_eq!(fake.state().limits.len(), 2);
    // Not again at once.
    assert!(revert_overdue(&mut core.rules).is_some());
    std::thread::sleep(RETRY);
    assert_eq!(revert_overdue(&mut core.rules), None);
    assert_reverted(&fake, &core);
    assert!(
        confirm(&mut core.rules)
            .unwrap_err()
            .hint
            .unwrap()
            .contains("not confirmed in time and reverted at")
    );
}

#[test]
fn a_crash_only_delays_it() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    drop(changed(&fake, &directory, 1));
    // In time: it still waits.
    let mut core = fake.core(&directory);
    resume(&mut core.rules).unwrap();
    core.rules.enforce().unwrap();
    assert_eq!(fake.state().limits.len(), 2);
    assert!(
        limits::set(&mut core.rules, &limit("192.0.2.9", "1pps"), &ChangeOptions::default())
            .is_err()
    );
    drop(core);
    std::thread::sleep(Duration::from_millis(1050));
    let mut core = fake.core(&directory);
    resume(&mut core.rules).unwrap();
    core.rules.enforce().unwrap();
    assert_reverted(&fake, &core);
    assert_eq!(core.rules.store.note(NOTE).unwrap(), None);
}

#[test]
fn a_change_that_fails_leaves_nothing_to_revert() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = fake.core(&directory);
    fake.state().fail_publish = true;
    limits::set(&mut core.rules, &limit("default", "5pps"), &within(60)).unwrap_err();
    assert_eq!(core.status().unwrap().confirm, None);
    assert_eq!(core.rules.store.note(NOTE).unwrap(), None);
    // What changes nothing needs no confirmation.
    limits::set(&mut core.rules, &limit("default", "5pps"), &ChangeOptions::default()).unwrap();
    let again = limits::set(&mut core.rules, &limit("default", "5pps"), &within(60)).unwrap();
    assert_eq!((again.changed, again.applied.confirm), (false, None));
    for seconds in [0, 86_401] {
        let error =
            limits::set(&mut core.rules, &limit("default", "9pps"), &within(seconds)).unwrap_err();
        assert!(error.code == exit::USAGE && error.hint.is_some());
    }
}

#[test]
fn a_note_that_makes_no_sense_is_told() {
    let (fake, directory) = (Fake::default(), tempfile::tempdir().unwrap());
    let mut core = changed(&fake, &directory, 1);
    let whole = core.rules.store.note(NOTE).unwrap().unwrap();
    drop(core);
    let half = &whole[..whole.len() / 2];
    for damaged in ["", "{}", half, &whole.replace("192.0.2.1/32", "nobody")] {
        let mut core = fake.core(&directory);
        core.rules.store.set_note(NOTE, Some(damaged)).unwrap();
        resume(&mut core.rules).unwrap();
        let status = core.status().unwrap();
        assert_eq!(status.state, Health::Degraded, "{damaged}");
        let told = status.warnings.iter().any(|text| text.contains("may still be in force"));
        assert!(told, "{status:?}");
        assert_eq!(core.rules.store.note(NOTE).unwrap(), None);
    }
}
