//! Listings in several places at once: every key once and in order, whatever the keys look like and whenever pages come.

use fuelrail_base::Kind;
use fuelrail_base::prng::Prng;
use fuelrail_plan::sweep::{PageRequest, Stretch, Sweep};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A bucket of keys in order, and what it does with what it is asked.
struct Model {
    keys: Vec<String>,
    page_keys: usize,
    knows_start_after: bool,
}

struct Run {
    keys: Vec<String>,
    requests: usize,
    /// Rounds in which everything on its way was answered: what the listing takes in round trips.
    rounds: usize,
}

impl Model {
    fn new(mut keys: Vec<String>, page_keys: usize) -> Model {
        keys.sort_unstable();
        keys.dedup();
        Model { keys, page_keys, knows_start_after: true }
    }

    fn answer(&self, prefixes: &[String], ask: &PageRequest) -> (Vec<&str>, Option<String>) {
        let after = ask.token.as_ref().or(ask.after.as_ref().filter(|_| self.knows_start_after));
        let prefix = prefixes[ask.prefix].as_str();
        let begin = self.keys.partition_point(|key| key.as_str() < prefix || after.is_some_and(|after| key <= after));
        let rest = self.keys[begin..].iter().take_while(|key| key.starts_with(prefix));
        let page: Vec<&str> = rest.take(self.page_keys).map(String::as_str).collect();
        let more = self.keys.get(begin + page.len()).is_some_and(|key| key.starts_with(prefix));
        let next = if more { page.last().map(|key| (*key).to_owned()) } else { None };
        (page, next)
    }

    /// Answers come in any order: `seed` draws it. Seed 0 answers all that is on its way, round by round.
    fn list(&self, prefixes: &[&str], width: usize, seed: u64) -> Run {
        let prefixes: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
        let mut sweep = Sweep::new(prefixes.clone(), width, true);
        let mut prng = Prng::new(seed);
        let mut brought: BTreeMap<Stretch, Vec<String>> = BTreeMap::new();
        let (mut flying, mut requests, mut rounds) = (Vec::new(), 0, 0);
        while !sweep.is_done() {
            while let Some(ask) = sweep.next_request() {
                requests += 1;
                flying.push(ask);
                assert!(flying.len() <= width);
            }
            rounds += 1;
            let answered = if seed == 0 {
                core::mem::take(&mut flying)
            } else {
                vec![flying.swap_remove(prng.below(flying.len() as u64) as usize)]
            };
            for ask in answered {
                let (keys, next) = self.answer(&prefixes, &ask);
                let kept = sweep.answered(ask.stretch, keys.len(), |n| keys[n], next).unwrap();
                let keys = keys[..kept].iter().map(ToString::to_string);
                brought.entry(ask.stretch).or_default().extend(keys);
            }
        }
        let keys = sweep.in_order().flat_map(|stretch| brought.remove(&stretch).unwrap_or_default()).collect();
        assert!(brought.values().all(Vec::is_empty), "what is kept belongs to a stretch in the order");
        Run { keys, requests, rounds }
    }
}

/// Shapes of keys that people and machines make.
fn shapes() -> Vec<(&'static str, Vec<String>)> {
    let n = 20_000;
    let mut prng = Prng::new(7);
    vec![
        ("flat numbers", (0..n).map(|i| format!("train/{i:09}.jpg")).collect()),
        ("classes", (0..n).map(|i| format!("train/n{:08}/{i}.JPEG", i % 1000 * 97)).collect()),
        ("hashes", (0..n).map(|_| format!("{:016x}", prng.next())).collect()),
        ("uuids in upper case", (0..n).map(|_| format!("U/{:016X}", prng.next())).collect()),
        ("shards", (0..n).map(|i| format!("set/shard-{:05}-of-20000.tar", i)).collect()),
        ("one deep folder", (0..n).map(|i| format!("{}{i:05}", "a/".repeat(400))).collect()),
        ("letters beyond ASCII", (0..n).map(|i| format!("ünï/{}{i}", char::from_u32(0x4E00 + i).unwrap())).collect()),
        ("all in one corner", (0..n).map(|i| format!("z/zzzzzzzzzzzzzzzz/~{i:06}")).collect()),
        ("prefixes of each other", (0..900).map(|i| "k".repeat(i + 1)).collect()),
        ("few", (0..3).map(|i| format!("k{i}")).collect()),
        ("none", Vec::new()),
    ]
}

#[test]
fn every_key_comes_once_and_in_order_whatever_the_keys_are() {
    for (shape, keys) in shapes() {
        for (page_keys, width) in [(1000, 8), (61, 8), (1000, 1), (37, 3)] {
            let model = Model::new(keys.clone(), page_keys);
            for seed in 0..3 {
                let run = model.list(&[""], width, seed);
                assert!(run.keys == model.keys, "{shape}, pages of {page_keys}, {width} at once, seed {seed}");
                let pages = model.keys.len().div_ceil(page_keys).max(1);
                assert!(run.requests <= pages + pages / 4 + 40, "{shape}: {} requests for {pages} pages", run.requests);
            }
        }
    }
}

#[test]
fn pages_of_one_key() {
    let keys: Vec<String> = (0..500).map(|i| format!("p/{:x}", i * 7)).collect();
    let model = Model::new(keys, 1);
    for seed in 0..50 {
        assert!(model.list(&["p/"], 8, seed).keys == model.keys, "seed {seed}");
    }
}

#[test]
fn likely_keys_take_a_fraction_of_the_round_trips() {
    for (shape, keys) in shapes().into_iter().take(5) {
        let model = Model::new(keys, 50);
        let pages = model.keys.len() / 50;
        let run = model.list(&[""], 8, 0);
        assert!(run.rounds * 3 < pages, "{shape}: {} rounds for {pages} pages", run.rounds);
        assert_eq!(model.list(&[""], 1, 0).requests, pages, "one at a time is one walk");
    }
}

#[test]
fn a_short_listing_costs_no_request_more() {
    let model = Model::new((0..2000).map(|i| format!("{i:05}")).collect(), 1000);
    assert_eq!(model.list(&[""], 8, 0).requests, 2);
    assert_eq!(Model::new(Vec::new(), 1000).list(&["nothing/"], 8, 0).requests, 1);
}

#[test]
fn prefixes_are_walked_side_by_side() {
    let keys = (0..5000).map(|i| format!("{}/{i:04}", ["train", "val", "test"][i % 3])).collect();
    let model = Model::new(keys, 10);
    let run = model.list(&["train/", "val/"], 8, 3);
    let wanted: Vec<&String> = model.keys.iter().filter(|key| !key.starts_with("test/")).collect();
    assert!(run.keys.iter().eq(wanted));
}

#[test]
fn a_server_that_ignores_start_after_is_walked_once() {
    let model = Model { knows_start_after: false, ..Model::new((0..3000).map(|i| format!("{i:05}")).collect(), 50) };
    let run = model.list(&[""], 8, 5);
    assert!(run.keys == model.keys);
    assert!(run.requests <= 61, "one guess and no more: {}", run.requests);
}

#[test]
fn keys_out_of_order_are_taken_as_they_come_or_refused() {
    let mut sweep = Sweep::new(vec![String::new()], 8, true);
    let ask = sweep.next_request().unwrap();
    let kept = sweep.answered(ask.stretch, 3, |n| ["c", "a", "b"][n], Some("t".into())).unwrap();
    assert_eq!(kept, 3);
    for n in 0..20 {
        let ask = sweep.next_request().unwrap();
        assert_eq!(sweep.next_request(), None, "what has no order cannot be split");
        sweep.answered(ask.stretch, 1, |_| "a", Some(format!("t{n}"))).unwrap();
    }
    let mut sweep = Sweep::new(vec![String::new()], 1, true);
    for token in [Some("x"), Some("x")] {
        let ask = sweep.next_request().unwrap();
        let answered = sweep.answered(ask.stretch, 0, |_| "", token.map(Into::into));
        if ask.token.is_some() {
            assert_eq!(answered.unwrap_err().kind(), Kind::Protocol);
        }
    }
}

proptest! {
    #[test]
    fn any_keys_at_all(
        keys in proptest::collection::btree_set("[a-c/0-2é\u{7f}\u{10ffff}]{1,6}", 0..300),
        page_keys in 1..20_usize,
        width in 1..9_usize,
        seed in 1..u64::MAX,
    ) {
        let model = Model::new(keys.into_iter().collect(), page_keys);
        prop_assert_eq!(model.list(&[""], width, seed).keys, model.keys);
    }
}
