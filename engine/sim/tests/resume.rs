//! Killed at any moment and resumed on another number of ranks: every sample exactly once over the joined lives.

use fuelrail_plan::order::OrderName;
use fuelrail_sim::{LifeShape, Scenario, run};

fn life(world: u32, kill: Option<(u64, u64)>) -> LifeShape {
    LifeShape { world, kill_after_steps: kill.map(|(steps, _)| steps), kill_after_events: kill.map_or(0, |(_, e)| e) }
}

/// A hundred kills at different steps and moments within them, over worlds of 3, then 2, then 4 ranks, under each order.
/// The checkers see that every sample comes once an epoch; in the global order all samples come in one order besides.
#[test]
fn three_ranks_then_two_then_four() {
    let mut whole = None;
    let mut lives = 0;
    for (order, at) in OrderName::ALL.into_iter().flat_map(|order| (0..50).map(move |at| (order, at))) {
        let mut scenario = Scenario::draw(77);
        (scenario.order, scenario.shuffle) = (order, true);
        scenario.sizes = (0..150).map(|n| 100 + 61 * n).collect();
        (scenario.samples, scenario.total_bytes) = (150, scenario.sizes.iter().sum());
        (scenario.batch_size, scenario.epochs, scenario.drop_last, scenario.hopeless) = (4, 3, false, Vec::new());
        scenario.loader.room_bytes = 256 << 10;
        scenario.loader.bad_samples = "raise";
        scenario.lockstep = at % 2 == 0;
        // 39 steps in all for three ranks: the first kill falls into the first epoch or the second.
        scenario.lives =
            vec![life(3, Some((at * 24 / 50, at * 7 % 50))), life(2, Some((at % 7, at * 3 % 50))), life(4, None)];
        let report = run(&scenario);
        assert!(report.is_sound(), "{order}, killed at {at}: {report}");
        assert_eq!(report.samples, 450);
        if order == OrderName::Global {
            let hash = whole.get_or_insert_with(|| report.content_hash.clone());
            assert_eq!(*hash, report.content_hash, "killed at {at}");
        }
        lives += report.lives;
    }
    assert!(lives >= 280, "{lives} lives: the kills came too late to mean anything");
}
