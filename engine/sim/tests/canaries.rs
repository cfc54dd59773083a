//! Every planted bug is caught, by the check that is there for it.

use fuelrail_sim::{Canary, Checker, Scenario, run, run_with_canary};

fn checkers(canary: Canary) -> &'static [Checker] {
    match canary {
        Canary::LostCompletion => &[Checker::Starvation, Checker::Liveness],
        Canary::LateTimer => &[Checker::Starvation],
        Canary::FlippedByte | Canary::EarlySlot => &[Checker::Content],
        Canary::BatchTwice | Canary::SwappedSamples => &[Checker::Order],
        Canary::LeakedSlot => &[Checker::Memory],
        Canary::SkippedStep | Canary::DoubleStep => &[Checker::ExactlyOnce],
        Canary::HiddenRetries => &[Checker::Counters],
    }
}

#[test]
fn every_canary_is_caught() {
    for canary in Canary::ALL {
        for seed in 0..5 {
            let report = run_with_canary(&Scenario::draw(seed), canary);
            let violation =
                report.violations.first().unwrap_or_else(|| panic!("{canary} lives, seed {seed}: {report}"));
            assert!(checkers(canary).contains(&violation.checker), "{canary}, seed {seed}: {report}");
            assert!(report.replay_command().ends_with(canary.word()));
        }
    }
}

/// Without its bug, the scenario a canary is shown in is sound: it is the bug that is caught.
#[test]
fn the_scenarios_of_canaries_are_sound() {
    for canary in Canary::ALL {
        for seed in 0..3 {
            let shown = run_with_canary(&Scenario::draw(seed), canary).scenario;
            let report = run(&shown);
            assert!(report.is_sound(), "{canary}, seed {seed}: {report}");
        }
    }
}

#[test]
fn canaries_have_names() {
    for canary in Canary::ALL {
        assert_eq!(canary.word().parse::<Canary>().unwrap(), canary);
    }
    let refusal = "tweety".parse::<Canary>().unwrap_err().to_string();
    assert!(refusal.contains("lost-completion"), "{refusal}");
}
