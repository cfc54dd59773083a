//! Requests that are late: a second one, a third, and what is counted.

use super::*;

fn hedge(fetch: FetchId) -> Command {
    Command::Hedge { fetch, block: block(5) }
}

#[test]
fn a_late_fetch_is_asked_for_again_by_an_idle_core_and_answered_once() {
    let (mut planner, began, fetch) = experienced();
    let due = planner.deadline().expect("it watches");
    assert!(due > began.after(Duration::from_millis(30)) && due < began.after(Duration::from_millis(100)));
    assert_eq!(tell(&mut planner, due, TIME_PASSED), [], "a core with work does not look");
    assert_eq!(tell(&mut planner, due, Fact::Idle), [hedge(fetch)]);
    assert_eq!(tell(&mut planner, due, Fact::Idle), [], "one hedge was earned");
    let ms = Duration::from_millis(20);
    let waited = Duration::from_millis(90);
    let fact = Fact::Landed { fetch, first_byte: ms, total: ms, outran: Some(waited) };
    assert_eq!(tell(&mut planner, due.after(ms), fact), [delivered(5, 64, &[], Source::Bucket, None)]);
    let stats = planner.stats();
    assert_eq!((stats.hedges, stats.hedges_won, stats.retries), (1, 1, 0));
    assert_eq!(planner.deadline(), None);
}

#[test]
fn two_hedges_are_all_that_a_fetch_gets() {
    let hedge_config = HedgeConfig { percent: 20, ..HedgeConfig::default() };
    let (mut planner, _, fetch) = experienced_in(&PlannerConfig { cache_bytes: 0, hedge: hedge_config, ..config() });
    let mut now = planner.deadline().expect("it is watched");
    tell(&mut planner, now, Fact::Idle);
    // One that was not sent is none of them.
    tell(&mut planner, now, Fact::Unhedged(fetch));
    for _ in 0..2 {
        now = planner.deadline().expect("it is watched");
        assert_eq!(tell(&mut planner, now, Fact::Idle), [hedge(fetch)]);
    }
    assert_eq!(planner.deadline(), None);
    tell(&mut planner, now, Fact::Halved { fetch, kind: None, second: true });
    assert_eq!(planner.deadline(), None, "nor is it watched again when one of three ends");
}

#[test]
fn a_hedge_that_was_not_sent_is_not_counted_and_comes_again() {
    let (mut planner, _, fetch) = experienced();
    let due = planner.deadline().unwrap();
    assert_eq!(tell(&mut planner, due, Fact::Idle), [hedge(fetch)]);
    assert_eq!(tell(&mut planner, due, Fact::Unhedged(fetch)), []);
    assert_eq!(planner.stats().hedges, 0);
    let again = planner.deadline().unwrap();
    assert!(again > due);
    assert_eq!(tell(&mut planner, again, Fact::Idle), [hedge(fetch)]);
    assert_eq!(tell(&mut planner, again, landed(fetch)).len(), 1, "the first came after all");
    assert_eq!((planner.stats().hedges, planner.stats().hedges_won), (1, 0));
}

#[test]
fn a_server_that_throttles_one_of_two_requests_is_heard_at_once() {
    let (mut planner, _, fetch) = experienced();
    let due = planner.deadline().unwrap();
    tell(&mut planner, due, Fact::Idle);
    tell(&mut planner, due, Fact::Halved { fetch, kind: Some(Kind::Throttled), second: true });
    assert_eq!((planner.stats().throttled, planner.stats().retries), (1, 0));
    assert_eq!(planner.deadline(), None, "nothing is left to spend");
    assert_eq!(tell(&mut planner, due, landed(fetch)).len(), 1);
}
