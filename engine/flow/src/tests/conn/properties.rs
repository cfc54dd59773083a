//! What must hold for any responses and any chopping.

use super::cases::{self, Heads};
use super::plain::{Case, End, Ended, Script, expected};
use super::rig::{Chops, play};
use crate::conn::{Asked, HeadPredictor};
use fuelrail_base::Kind;
use fuelrail_base::limits::SCRATCH_BYTES;
use fuelrail_base::prng::Prng;
use fuelrail_io::SimFaults;

/// A predictor that has seen some of this server, or none of it.
fn some_predictor(prng: &mut Prng) -> HeadPredictor {
    let mut predictor = HeadPredictor::default();
    for _ in 0..prng.below(4) {
        let case = cases::case(prng, 0);
        let response = cases::good(prng, &case, Heads::Constant);
        predictor = play(&[case], &whole(vec![response]), Chops::none(), predictor).predictor;
    }
    predictor
}

fn whole(responses: Vec<Vec<u8>>) -> Script {
    let cut = responses.iter().map(Vec::len).sum();
    Script { responses, extra: Vec::new(), cut, end: End::Stall }
}

fn draw(prng: &mut Prng) -> (Vec<Case>, Script) {
    let cases: Vec<Case> = (0..1 + prng.below(12) as u32).map(|at| cases::case(prng, at)).collect();
    let script = cases::script(prng, &cases);
    (cases, script)
}

/// A predictor that knows the heads of all these.
fn taught(cases: &[Case]) -> HeadPredictor {
    let mut predictor = HeadPredictor::default();
    for case in cases {
        let mut case = case.clone();
        case.asked.fetch.place = 0;
        let script = whole(vec![cases::good(&mut Prng::new(0), &case, Heads::Constant)]);
        predictor = play(&[case], &script, Chops::none(), predictor).predictor;
    }
    predictor
}

fn good_run(prng: &mut Prng, heads: Heads) -> (Vec<Case>, Script) {
    let cases: Vec<Case> = (0..1 + prng.below(12) as u32).map(|at| cases::case(prng, at)).collect();
    let script = whole(cases.iter().map(|case| cases::good(prng, case, heads)).collect());
    (cases, script)
}

/// What the window of a served request holds.
fn content(case: &Case) -> Vec<u8> {
    let first = case.asked.first - case.before.len() as u64;
    cases::bytes(case.asked.sample.0, first, case.window_len() as u64)
}

#[test]
fn any_responses_in_any_pieces_are_what_a_plain_parse_says() {
    let (mut landed, mut failed, mut unserved) = (0, 0, 0);
    for seed in 0..1_000 {
        let mut prng = Prng::new(seed);
        let (cases, script) = draw(&mut prng);
        let predictor = some_predictor(&mut prng);
        let chops = Chops::draw(&mut prng);
        let played = play(&cases, &script, chops, predictor);
        let expected = expected(&cases, &script);
        assert_eq!(played.ended, expected, "seed {seed}: {chops:?} cut {} {:?}", script.cut, script.end);
        landed += expected.iter().filter(|e| matches!(e, Ended::Landed(_))).count();
        failed += expected.iter().filter(|e| matches!(e, Ended::Failed(..))).count();
        unserved += expected.iter().filter(|e| matches!(e, Ended::Unserved(_))).count();
    }
    let met = format!("{landed} landed, {failed} failed, {unserved} unserved");
    assert!(landed > 1_000 && failed > 500 && unserved > 1_000, "{met}");
}

#[test]
fn nothing_is_copied_while_heads_are_as_predicted() {
    for seed in 0..200 {
        let mut prng = Prng::new(seed);
        let (cases, script) = good_run(&mut prng, Heads::Constant);
        let chops = Chops::draw(&mut prng);
        let played = play(&cases, &script, chops, taught(&cases));
        let expected: Vec<Ended> = cases.iter().map(|case| Ended::Landed(content(case))).collect();
        assert_eq!(played.ended, expected, "seed {seed}");
        assert_eq!(played.copied_bytes, 0, "seed {seed}: {chops:?}");
        assert_eq!(played.predictor.wrong, 0, "seed {seed}");
    }
}

#[test]
fn pipelined_responses_come_in_few_receives() {
    let cases: Vec<Case> = (0..12).map(|at| cases::case(&mut Prng::new(9), at)).collect();
    let script = whole(cases.iter().map(|case| cases::good(&mut Prng::new(0), case, Heads::Constant)).collect());
    let played = play(&cases, &script, Chops::none(), taught(&cases[..1]));
    assert!(played.ended.iter().all(|e| matches!(e, Ended::Landed(_))));
    // The first piece arrives alone; all others are waiting when it has been taken.
    assert!(played.receives <= 2, "{} receives for {} responses", played.receives, cases.len());
}

#[test]
fn heads_that_vary_cost_copies_and_never_bytes() {
    let mut copied = 0;
    for seed in 0..200 {
        let mut prng = Prng::new(seed);
        let (cases, script) = good_run(&mut prng, Heads::Always);
        let played = play(&cases, &script, Chops::draw(&mut prng), some_predictor(&mut prng));
        let expected: Vec<Ended> = cases.iter().map(|case| Ended::Landed(content(case))).collect();
        assert_eq!(played.ended, expected, "seed {seed}");
        copied += played.copied_bytes;
    }
    assert!(copied > 0);
}

#[test]
fn the_stream_may_end_at_every_byte() {
    let mut prng = Prng::new(4);
    let cases: Vec<Case> = (0..4)
        .map(|at| {
            loop {
                let case = cases::case(&mut prng, at);
                if case.asked.object_len < 310 {
                    return case;
                }
            }
        })
        .collect();
    let mut script = whole(cases.iter().map(|case| cases::good(&mut prng, case, Heads::Constant)).collect());
    let predictor = taught(&cases);
    for cut in 0..=script.cut {
        for end in [End::Finish, End::Reset, End::Stall] {
            (script.cut, script.end) = (cut, end);
            for chops in [Chops::none(), Chops::draw(&mut prng)] {
                let played = play(&cases, &script, chops, predictor.clone());
                assert_eq!(played.ended, expected(&cases, &script), "cut {cut} {end:?} {chops:?}");
            }
        }
    }
}

#[test]
fn whatever_the_ring_does_windows_hold_a_right_start() {
    let (mut landed, mut failed) = (0, 0);
    for seed in 0..600 {
        let mut prng = Prng::new(seed);
        let heads = if prng.chance(0.5) { Heads::Constant } else { Heads::Sometimes };
        let (cases, script) = good_run(&mut prng, heads);
        let faults = SimFaults { fatal_errno: prng.unit() * 0.1, ..SimFaults::swarm(seed) };
        let chops = Chops { faults, ..Chops::draw(&mut prng) };
        let predictor = some_predictor(&mut prng);
        for (case, ended) in cases.iter().zip(play(&cases, &script, chops, predictor).ended) {
            match ended {
                Ended::Landed(bytes) => {
                    assert_eq!(bytes, content(case), "seed {seed}");
                    landed += 1;
                }
                Ended::Failed(kind, bytes) => {
                    assert!(matches!(kind, Kind::Network | Kind::Stalled), "seed {seed}: {kind:?}");
                    assert!(content(case).starts_with(&bytes) && bytes.len() >= case.before.len(), "seed {seed}");
                    failed += 1;
                }
                Ended::Unserved(bytes) => assert_eq!(bytes, case.before, "seed {seed}"),
            }
        }
    }
    assert!(landed > 500 && failed > 50, "{landed} landed, {failed} failed");
}

#[test]
fn a_head_predicted_longer_than_the_scratch_memory_is_probed() {
    let case = |at, len| Case {
        asked: Asked { first: 0, len, object_len: len, ..cases::case(&mut Prng::new(0), at).asked },
        before: Vec::new(),
    };
    let cases = [case(0, 9), case(1, 10)];
    let head = |len: u64, head_len: usize| {
        let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nX-Pad: ");
        let pad = "p".repeat(head_len - text.len() - 4);
        format!("{text}{pad}\r\n\r\n").into_bytes()
    };
    let answer = |case: &Case, head_len| [head(case.asked.len, head_len), content(case)].concat();
    let script = whole(vec![answer(&cases[0], SCRATCH_BYTES), answer(&cases[1], 300)]);
    let played = play(&cases, &script, Chops { at_once: false, ..Chops::none() }, HeadPredictor::default());
    assert_eq!(played.ended, expected(&cases, &script));
    assert!(played.ended.iter().all(|e| matches!(e, Ended::Landed(_))), "{:?}", played.ended);
}

#[test]
fn a_flood_of_interim_responses_ends_the_connection() {
    let case = cases::case(&mut Prng::new(3), 0);
    let flood = b"HTTP/1.1 102 Processing\r\n\r\n".repeat(700);
    let script = whole(vec![flood]);
    let played = play(&[case], &script, Chops::none(), HeadPredictor::default());
    assert_eq!(played.ended, [Ended::Failed(Kind::Protocol, Vec::new())]);
}

#[test]
fn a_body_that_is_whole_when_its_framing_breaks_off_still_has_to_fit_its_checksum() {
    let digits = b"123456789";
    let asked = Asked {
        fetch: fuelrail_plan::planner::FetchId { place: 0, serial: 0 },
        sample: fuelrail_base::SampleId(0),
        first: 0,
        len: 9,
        object_len: 9,
        whole: true,
        etag: None,
        second: false,
        rank: None,
    };
    for (sum, lands) in [("y/Q5Jg==", true), ("y/Q5Jw==", false)] {
        let head = format!("HTTP/1.1 200 OK\r\nx-amz-checksum-crc32: {sum}\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n");
        let response = [head.as_bytes(), digits, b"\r\n"].concat();
        let script = Script { cut: response.len(), responses: vec![response], extra: Vec::new(), end: End::Reset };
        let case = Case { asked, before: Vec::new() };
        let ended = play(&[case], &script, Chops::none(), HeadPredictor::default()).ended;
        let expected = if lands { Ended::Landed(digits.to_vec()) } else { Ended::Failed(Kind::Mismatch, Vec::new()) };
        assert_eq!(ended, [expected]);
    }
}
