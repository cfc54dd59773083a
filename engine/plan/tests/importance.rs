//! Importance: what a draw promises, exactly and over many seeds, and when draws are made.

use fuelrail_base::{Kind, SampleId, prng::Prng};
use fuelrail_plan::importance::{Draw, Horizons, ImportanceConfig, Keepsake, Mode, ONE};
use proptest::prelude::*;

/// Random rates of a data set, as many in all as there are samples; `spread` is how uneven they are.
fn rates(samples: usize, spread: u64, prng: &mut Prng) -> Vec<u16> {
    let one = u64::from(ONE);
    let mut rates: Vec<u64> = vec![one; samples];
    for _ in 0..samples * 2 {
        let (from, to) = (prng.below(samples as u64) as usize, prng.below(samples as u64) as usize);
        let moved = prng.below(one * spread).min(rates[from]).min(63 * one - rates[to]);
        rates[from] -= moved;
        rates[to] += moved;
    }
    rates.into_iter().map(|rate| rate as u16).collect()
}

proptest! {
    #[test]
    fn places_and_samples_are_each_others_inverse(samples in 1usize..400, spread in 1u64..4, seed: u64) {
        let mut prng = Prng::new(seed);
        let rates = rates(samples, spread, &mut prng);
        let draw = Draw::new(rates.clone(), prng.next(), true).unwrap();
        let mut times = vec![0u64; samples];
        for place in 0..draw.places() {
            let place = SampleId(place);
            let sample = draw.sample_in(place);
            times[sample.0 as usize] += 1;
            prop_assert!(draw.places_of(sample).any(|one| one == place));
        }
        for (sample, (times, rate)) in times.iter().zip(&rates).enumerate() {
            let places: Vec<u64> = draw.places_of(SampleId(sample as u64)).map(|place| place.0).collect();
            prop_assert_eq!(places.len() as u64, *times);
            prop_assert_eq!(places.first().copied(), (*times > 0).then_some(sample as u64), "its own place first");
            let rate = u64::from(*rate);
            let one = u64::from(ONE);
            prop_assert!((rate / one..=rate.div_ceil(one)).contains(times), "{} times at a rate of {}", times, rate);
        }
        prop_assert_eq!(times.iter().sum::<u64>(), samples as u64);
        prop_assert_eq!(draw.distinct(), times.iter().filter(|times| **times > 0).count() as u64);
        // The floor: no draw has fewer samples in it than the rates below one say, rounded down.
        let at_least: u64 = rates.iter().map(|rate| u64::from((*rate).min(ONE))).sum::<u64>() / u64::from(ONE);
        prop_assert!(draw.distinct() >= at_least, "{} of at least {}", draw.distinct(), at_least);
    }
}

#[test]
fn over_all_starts_every_sample_comes_exactly_as_often_as_its_rate_says() {
    let mut prng = Prng::new(11);
    let rates = rates(150, 2, &mut prng);
    let (mut times, word) = (vec![0u64; rates.len()], prng.next() >> 10 << 10);
    for start in 0..u64::from(ONE) {
        let draw = Draw::new(rates.clone(), word | start, true).unwrap();
        (0..150).for_each(|sample| times[sample as usize] += draw.places_of(SampleId(sample)).count() as u64);
    }
    let rates: Vec<u64> = rates.into_iter().map(u64::from).collect();
    assert_eq!(times, rates);
}

#[test]
fn even_teeth_do_not_comb_out_every_second_key() {
    // Half as often as once, all of them, but for a few that come often: a comb over keys in order would take one parity.
    let rates: Vec<u16> = (0..6_144).map(|at| if at < 4_096 { ONE / 2 } else { 2 * ONE }).collect();
    for seed in 0..50 {
        let draw = Draw::new(rates.clone(), Prng::new(seed).next(), true).unwrap();
        let taken = |odd: u64| (0..2_048).filter(|at| draw.places_of(SampleId(2 * at + odd)).count() > 0).count();
        let (even, odd) = (taken(0), taken(1));
        assert_eq!(even + odd, 2_048, "half of them come");
        assert!((900..1_150).contains(&even), "seed {seed}: {even} even keys and {odd} odd ones");
    }
}

#[test]
fn rates_that_do_not_fill_the_epoch_are_refused() {
    assert_eq!(Draw::new(vec![ONE, ONE - 1], 0, true).unwrap_err().kind(), Kind::Usage);
}

const STEP: u64 = 20;

fn horizons(config: ImportanceConfig, samples: u64, seed: u64) -> Horizons {
    Horizons::new(config, samples, seed, STEP, 0, None).unwrap()
}

/// A loss that goes with the sample, and some noise.
fn loss(sample: u64, prng: &mut Prng) -> f32 {
    ((sample % 17) as f64 / 4.0 + prng.unit()) as f32
}

/// Reports the steps that end from `from` (not included) to `to`, each over random samples; what is random is of the step.
fn report(horizons: &mut Horizons, samples: u64, from: u64, to: u64) {
    let mut end = from;
    while end < to {
        let step_end = (end + STEP).min((end / samples + 1) * samples);
        let mut prng = Prng::new(step_end);
        let step: Vec<(SampleId, f32)> = (end..step_end)
            .map(|_| {
                let sample = prng.below(samples);
                (SampleId(sample), loss(sample, &mut prng))
            })
            .collect();
        let (ids, losses): (Vec<_>, Vec<_>) = step.into_iter().unzip();
        horizons.report(step_end, &ids, &losses).unwrap();
        end = step_end;
    }
}

/// The draw of epoch 2 of a run whose every step was reported.
fn drawn(config: ImportanceConfig, samples: u64, seed: u64) -> Horizons {
    let mut horizons = horizons(config, samples, seed);
    report(&mut horizons, samples, 0, 2 * samples);
    horizons
}

fn times(draw: &Draw) -> Vec<u64> {
    (0..draw.places()).map(|sample| draw.places_of(SampleId(sample)).count() as u64).collect()
}

#[test]
fn no_rate_is_below_the_floor_and_no_sample_comes_more_often_than_the_cap() {
    let mut bound = [false; 2];
    for (coverage, replay) in [(0.9, 1), (0.9, 2), (0.95, 3), (1.0, 3), (0.1, 63), (0.001, 2)] {
        for samples in [1, 7, 300, 1_999] {
            let config = ImportanceConfig { coverage, replay, ..ImportanceConfig::default() };
            let horizons = drawn(config, samples, samples);
            let draw = horizons.draw(2).unwrap();
            let floor = (coverage * f64::from(ONE)).ceil() as u16;
            for sample in (0..samples).map(SampleId) {
                let rate = draw.rate(sample);
                assert!(rate >= floor && rate <= replay as u16 * ONE, "{rate} at {coverage} and {replay}");
                bound[0] |= rate == floor && floor < ONE;
                assert!(f64::from(draw.weight(sample)) <= 1.0 / coverage + 1e-6);
            }
            let times = times(draw);
            assert!(times.iter().all(|times| *times <= u64::from(replay)));
            bound[1] |= times.contains(&2);
            let distinct = times.iter().filter(|times| **times > 0).count() as f64;
            assert!(distinct >= (coverage * samples as f64).floor(), "{distinct} of {samples} at {coverage}");
        }
    }
    assert_eq!(bound, [true; 2], "the floor held something up, and something came twice");
}

/// A function of the samples that has much to do with how often they are drawn: the hardest case for a biased mean.
fn value(sample: u64) -> f64 {
    ((sample % 17) as f64).powi(2) + sample as f64 / 300.0
}

#[test]
fn the_weighted_mean_over_an_epoch_is_the_plain_mean() {
    let samples = 600;
    let plain = (0..samples).map(value).sum::<f64>() / samples as f64;
    let means = |config: ImportanceConfig| -> (f64, f64) {
        let means: Vec<f64> = (0..2_000)
            .map(|seed| {
                let horizons = drawn(config, samples, seed);
                let draw = horizons.draw(2).unwrap();
                let weighted = |place| {
                    let sample = draw.sample_in(SampleId(place));
                    f64::from(draw.weight(sample)) * value(sample.0)
                };
                (0..samples).map(weighted).sum::<f64>() / samples as f64
            })
            .collect();
        let mean = means.iter().sum::<f64>() / means.len() as f64;
        let variance = means.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / (means.len() - 1) as f64;
        (mean, (variance / means.len() as f64).sqrt())
    };
    for coverage in [0.5, 0.9, 0.97] {
        let (mean, error) = means(ImportanceConfig { coverage, replay: 1 + u32::from(coverage > 0.6), ..on() });
        assert!((mean - plain).abs() < 4.0 * error + 1e-9, "{coverage}: {mean} +- {error}, plain {plain}");
    }
    // The canary: without weights the same draws are biased, and the test sees it.
    let (mean, error) = means(ImportanceConfig { weights: false, ..on() });
    assert!((mean - plain).abs() > 20.0 * error, "unweighted: {mean} +- {error}, plain {plain}");
}

fn on() -> ImportanceConfig {
    ImportanceConfig::default()
}

#[test]
fn golden_vectors() {
    let pinned = |mode, cached_samples| {
        let horizons = drawn(ImportanceConfig { mode, cached_samples, ..on() }, 64, 7);
        let draw = horizons.draw(2).unwrap();
        (0..16).map(|place| draw.sample_in(SampleId(place)).0).collect::<Vec<u64>>()
    };
    assert_eq!(pinned(Mode::On, 0), [0, 1, 27, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(pinned(Mode::Shade, 16), [8, 1, 8, 3, 17, 9, 8, 1, 8, 9, 8, 26, 12, 9, 27, 9]);
    assert_eq!(pinned(Mode::ShadeCorrected, 16), [63, 27, 31, 31, 12, 28, 31, 27, 8, 12, 31, 30, 12, 13, 27, 28]);
    let horizons = drawn(on(), 64, 7);
    let rates: Vec<u16> = (0..8).map(|sample| horizons.draw(2).unwrap().rate(SampleId(sample))).collect();
    assert_eq!(rates, [1024, 1024, 866, 832, 1024, 952, 1061, 1024]);
}

#[test]
fn shade_sees_a_third_of_the_samples_and_ours_nearly_all() {
    let coverage = |mode| {
        let config = ImportanceConfig { mode, cached_samples: 4_000, ..on() };
        let horizons = drawn(config, 10_000, 3);
        let draw = horizons.draw(2).unwrap();
        assert_eq!(times(draw).iter().sum::<u64>(), 10_000);
        draw.distinct() as f64 / 10_000.0
    };
    let (shipped, corrected, ours) = (coverage(Mode::Shade), coverage(Mode::ShadeCorrected), coverage(Mode::On));
    assert!((0.25..0.45).contains(&shipped), "{shipped}");
    assert!((0.25..0.45).contains(&corrected), "{corrected}");
    assert!(ours > 0.85, "{ours}");
}

#[test]
fn what_shade_has_cached_is_replayed() {
    let config = |replay| ImportanceConfig { mode: Mode::ShadeCorrected, replay, cached_samples: 100, ..on() };
    let held_share = |replay| {
        let horizons = drawn(config(replay), 1_000, 3);
        let kept = horizons.keepsake(2_000);
        let mut ranked: Vec<u32> = (0..1_000).filter(|at| !kept.scores[*at as usize].is_nan()).collect();
        ranked.sort_by(|a, b| kept.scores[*b as usize].total_cmp(&kept.scores[*a as usize]).then(a.cmp(b)));
        let times = times(horizons.draw(2).unwrap());
        ranked[..100].iter().map(|at| times[*at as usize]).sum::<u64>() as f64
    };
    // The scores have moved on since the draw, by the lag: most of the most important are still the same.
    assert!(held_share(3) > 1.8 * held_share(1), "{} and {}", held_share(3), held_share(1));
}

#[test]
fn nobody_reports_and_every_epoch_is_plain_and_known_in_time() {
    for mode in Mode::ALL {
        for samples in [1, 50, 1_000, 100_000] {
            let mut horizons = horizons(ImportanceConfig { mode, ..on() }, samples, 1);
            let mut begin = 0;
            while begin < 5 * samples {
                horizons.asked(begin);
                let known = horizons.known();
                assert!(known.settled() > begin / samples, "{mode}: asked at {begin} of {samples}");
                assert!(known.draw(begin / samples).is_none());
                begin = (begin + STEP).min((begin / samples + 1) * samples);
            }
        }
    }
}

#[test]
fn the_next_epoch_is_known_half_a_lag_before_it_begins_whoever_reports() {
    let samples = 8_000;
    let mut silent = horizons(on(), samples, 1);
    silent.asked(samples - 501);
    assert_eq!(silent.known().settled(), 1);
    silent.asked(samples - 500);
    assert_eq!(silent.known().settled(), 2);
    let mut told = horizons(on(), samples, 1);
    report(&mut told, samples, 0, 7_000 - STEP);
    assert_eq!(told.known().settled(), 1);
    report(&mut told, samples, 7_000 - STEP, 7_000);
    assert_eq!(told.known().settled(), 2);
}

#[test]
fn ranks_that_ask_and_report_at_other_moments_draw_the_same() {
    let samples = 3_000;
    for mode in [Mode::Shade, Mode::ShadeCorrected, Mode::On] {
        let config = ImportanceConfig { mode, cached_samples: 500, ..on() };
        let run = |seed: u64| {
            let (mut horizons, mut prng) = (horizons(config, samples, 5), Prng::new(seed));
            let (mut asked, mut reported, mut draws) = (0, 0, Vec::new());
            // Reports lag behind by up to half of the lag: 187 samples, 9 steps.
            while reported < 4 * samples {
                if asked < 4 * samples && asked - reported <= 160 && prng.chance(0.5) {
                    horizons.asked(asked);
                    if asked % samples == 0 {
                        draws.push(horizons.draw(asked / samples).cloned());
                    }
                    asked += STEP;
                } else if reported < asked {
                    report(&mut horizons, samples, reported, reported + STEP);
                    reported += STEP;
                }
            }
            draws
        };
        let first = run(0);
        assert!(first[0].is_none() && first[1..].iter().all(Option::is_some));
        assert_ne!(first[2], first[3]);
        (1..20).for_each(|seed| assert_eq!(run(seed), first, "{mode}, seed {seed}"));
    }
}

#[test]
fn a_report_that_comes_after_its_draw_is_refused() {
    let samples = 8_000;
    let mut horizons = horizons(on(), samples, 1);
    report(&mut horizons, samples, 0, 4_000);
    horizons.asked(samples - 500);
    let late = horizons.report(7_000, &[SampleId(3)], &[1.0]).unwrap_err();
    assert_eq!(late.kind(), Kind::Usage);
    assert!(late.to_string().contains("500 samples"), "{late}");
    // What belongs to the next draw is welcome, once and in order.
    horizons.report(7_020, &[SampleId(3)], &[1.0]).unwrap();
    horizons.report(7_020, &[SampleId(3)], &[1.0]).unwrap_err();
    horizons.report(7_010, &[SampleId(3)], &[1.0]).unwrap_err();
}

#[test]
fn a_report_that_is_refused_settles_no_epoch() {
    let samples = 8_000;
    let mut horizons = horizons(on(), samples, 1);
    report(&mut horizons, samples, 0, 4_000);
    let settled = horizons.known().settled();
    // Steps are missing up to this one, which ends after the moment of the next draw.
    for (ids, losses) in [(vec![SampleId(3)], vec![1.0_f32; 2]), (vec![SampleId(samples)], vec![1.0])] {
        assert_eq!(horizons.report(7_020, &ids, &losses).unwrap_err().kind(), Kind::Usage);
        assert_eq!(horizons.known().settled(), settled);
    }
    assert!(horizons.report(7_020, &[SampleId(3)], &[1.0]).unwrap(), "the caller has to hear of the draw");
    assert_eq!(horizons.known().settled(), settled + 1);
}

#[test]
fn a_run_that_goes_on_draws_the_same_in_other_steps_too() {
    let samples = 3_000;
    for stop in [0, 20, 1_500, 2_640, 2_980, 3_000, 5_000, 5_980, 8_020] {
        let mut whole = horizons(on(), samples, 5);
        report(&mut whole, samples, 0, stop);
        whole.asked(stop);
        let kept: Keepsake = whole.keepsake(stop);
        let mut rest = Horizons::new(on(), samples, 5, STEP, stop, Some(kept.clone())).unwrap();
        for horizons in [&mut whole, &mut rest] {
            report(horizons, samples, stop, 4 * samples);
        }
        assert_eq!(whole.draw(4), rest.draw(4), "stopped at {stop}");
        assert_eq!(whole.draw(3), rest.draw(3), "stopped at {stop}");
        assert_eq!(whole.keepsake(0).smoothing, rest.keepsake(0).smoothing, "stopped at {stop}");
        // On another number of ranks steps are of another length; the epoch it stopped in is still the one it was.
        let other = Horizons::new(on(), samples, 5, 3 * STEP, stop, Some(kept.clone())).unwrap();
        assert_eq!(other.known().draw(stop / samples), kept.draws[0].as_ref());
        assert_eq!(kept.first, stop / samples);
    }
}

#[test]
fn what_was_kept_of_another_run_is_refused() {
    let horizons = drawn(on(), 1_000, 5);
    let kept = horizons.keepsake(1_980);
    let resumed = |samples, start, kept| Horizons::new(on(), samples, 5, STEP, start, Some(kept)).map(|_| ());
    assert!(resumed(1_000, 2_000, kept.clone()).is_ok());
    for (samples, start) in [(999, 2_000), (1_000, 900), (1_000, 9_000), (1_000, 1_980)] {
        let error = resumed(samples, start, kept.clone()).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{samples} samples, from {start}");
    }
}
