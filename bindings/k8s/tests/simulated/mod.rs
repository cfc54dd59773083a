//! Simulated clusters around the shipping pure part, with lagging watches, conflicts, restarts between any two requests, nodes that leave,
//! and loads and agents that fail. Checks invariants after every step, and that every data set becomes ready and is cleaned once faults stop.

mod world;

use world::{Mistake, World};

const SEEDS: u64 = 500;

/// The first seed whose world breaks a rule.
fn first_broken(seeds: u64, mistake: Mistake) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| Some((seed, World::new(seed, mistake).play().err()?)))
}

#[test]
fn no_data_set_is_ready_too_soon_and_nothing_is_left_behind() {
    assert_eq!(first_broken(SEEDS, Mistake::None), None);
}

/// The simulation detects planted mistakes.
#[test]
fn planted_mistakes_are_found() {
    let found = |mistake| first_broken(SEEDS, mistake).map(|(_, why)| why).unwrap_or_default();
    let all = [
        (Mistake::ReadyEarly, "is called ready"),
        (Mistake::GateFirst, "without an affinity"),
        (Mistake::AnyMachine, "is called ready"),
        (Mistake::NoFence, ""),
        (Mistake::ActFirst, ""),
    ];
    for (mistake, why) in all {
        let said = found(mistake);
        eprintln!("{mistake:?}: {}", said.chars().take(100).collect::<String>());
        assert!(!said.is_empty() && said.contains(why), "{mistake:?}: {said}");
    }
}

/// Every event that the worlds are meant to exercise happens in them.
#[test]
fn every_kind_of_trouble_happens() {
    let mut sum = world::Seen::new();
    for seed in 0..100 {
        let mut world = World::new(seed, Mistake::None);
        world.play().unwrap();
        world.seen.iter().for_each(|(what, count)| *sum.entry(what).or_default() += count);
    }
    assert!(sum.len() == 11 && sum.values().all(|&count| count > 100), "{sum:?}");
}
