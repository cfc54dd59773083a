//! Requests that are late: a second one, a third, and what is counted.

use super::*;

fn hedge(fetch: FetchId) -> Command {
    Command::Hedge { fetch, block: block(5) }
}

#[test]
fn a_late_fetch_is_asked_for_again_by_an_idle_core_and_answered_once() {
    let (mut brain, began, fetch) = experienced();
    let due = brain.deadline().expect("it watches");
    assert!(due > began.after(Duration::from_millis(30)) && due < began.after(Duration::from_millis(100)));
    assert_eq!(tell(&mut brain, due, TIME_PASSED), [], "a core with work does not look");
    assert_eq!(tell(&mut brain, due, Fact::Idle), [hedge(fetch)]);
    assert_eq!(tell(&mut brain, due, Fact::Idle), [], "one hedge was earned");
    let ms = Duration::from_millis(20);
    let waited = Duration::from_millis(90);
    let fact = Fact::Landed { fetch, first_byte: ms, total: ms, outran: Some(waited) };
    assert_eq!(tell(&mut brain, due.after(ms), fact), [delivered(5, 64, &[], Source::Bucket, None)]);
    let stats = brain.stats();
    assert_eq!((stats.hedges, stats.hedges_won, stats.retries), (1, 1, 0));
    assert_eq!(brain.deadline(), None);
}

#[test]
fn two_hedges_are_all_that_a_fetch_gets() {
    let hedge_config = HedgeConfig { percent: 20, ..HedgeConfig::default() };
    let (mut brain, _, fetch) = experienced_in(&BrainConfig { cache_bytes: 0, hedge: hedge_config, ..config() });
    let mut now = brain.deadline().expect("it is watched");
    tell(&mut brain, now, Fact::Idle);
    // One that was not sent is none of them.
    tell(&mut brain, now, Fact::Unhedged(fetch));
    for _ in 0..2 {
        now = brain.deadline().expect("it is watched");
        assert_eq!(tell(&mut brain, now, Fact::Idle), [hedge(fetch)]);
    }
    assert_eq!(brain.deadline(), None);
    tell(&mut brain, now, Fact::Halved { fetch, kind: None, second: true });
    assert_eq!(brain.deadline(), None, "nor is it watched again when one of three ends");
}

#[test]
fn a_hedge_that_was_not_sent_is_not_counted_and_comes_again() {
    let (mut brain, _, fetch) = experienced();
    let due = brain.deadline().unwrap();
    assert_eq!(tell(&mut brain, due, Fact::Idle), [hedge(fetch)]);
    assert_eq!(tell(&mut brain, due, Fact::Unhedged(fetch)), []);
    assert_eq!(brain.stats().hedges, 0);
    let again = brain.deadline().unwrap();
    assert!(again > due);
    assert_eq!(tell(&mut brain, again, Fact::Idle), [hedge(fetch)]);
    assert_eq!(tell(&mut brain, again, landed(fetch)).len(), 1, "the first came after all");
    assert_eq!((brain.stats().hedges, brain.stats().hedges_won), (1, 0));
}

#[test]
fn a_server_that_throttles_one_of_two_requests_is_heard_at_once() {
    let (mut brain, _, fetch) = experienced();
    let due = brain.deadline().unwrap();
    tell(&mut brain, due, Fact::Idle);
    tell(&mut brain, due, Fact::Halved { fetch, kind: Some(Kind::Throttled), second: true });
    assert_eq!((brain.stats().throttled, brain.stats().retries), (1, 0));
    assert_eq!(brain.deadline(), None, "nothing is left to spend");
    assert_eq!(tell(&mut brain, due, landed(fetch)).len(), 1);
}
