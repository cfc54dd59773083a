//! Results: bars and the page; from passes whose figures are known.
use fuelrail_benches::harness::result::SCHEMA;
use fuelrail_benches::harness::{
    Bar, Contested, Findings, Heat, Metric, Pass, Relation, Scored, SetFacts, Transport, VenueFacts, VenueKind,
};
use fuelrail_benches::report::results_html;
use fuelrail_cli::machine::Machine;

/// A pass of 1 GB in 1 000 objects that took so much processor time.
fn pass(cpu_s: f64) -> Pass {
    Pass {
        bytes: 1_000_000_000,
        objects: 1_000,
        wall_s: 0.5,
        cpu_user_s: cpu_s / 4.0,
        cpu_system_s: cpu_s * 3.0 / 4.0,
        first_batch_us: Some((cpu_s * 1e4) as u64),
        peak_memory_bytes: 64 << 20,
        hash: None,
        facts: [("copied_bytes_per_byte".to_owned(), 0.001)].into(),
    }
}

fn score(name: &str, warm: &[f64], cold: &[f64]) -> Scored {
    Scored {
        name: name.to_owned(),
        settings: "plain <settings>".into(),
        accounting: "cgroup cpu.stat".into(),
        passes: warm.iter().copied().map(pass).collect(),
        cold_passes: cold.iter().copied().map(pass).collect(),
        ..Scored::default()
    }
}

fn set() -> SetFacts {
    SetFacts {
        name: "large".into(),
        scale: Some(1.0),
        objects: 1_000,
        bytes: 1_000_000_000,
        batch_size: 1,
        arena_bytes: 512 << 20,
        hash: None,
    }
}

fn findings(scores: Vec<Scored>, bars: &[Bar]) -> Findings {
    Findings {
        schema: SCHEMA,
        question: "line".into(),
        machine: Machine::here(),
        venue: VenueFacts {
            kind: VenueKind::Loopback,
            server: "nginx/1.22".into(),
            mtu: None,
            link_bits_per_s: None,
            server_core: Some(0),
            client_cores: vec![1],
        },
        config: [("scale".to_owned(), "1".to_owned())].into(),
        contests: vec![Contested::new(set(), Transport::Plain, scores, bars)],
        notices: Vec::new(),
        wall_s: 1.0,
    }
}

#[test]
fn bars_are_judged_round_by_round_against_the_cheapest() {
    let bar = |to: &[&str], bound| Bar::ratio("ours", to, Metric::CpuSPerGb, bound);
    let mut dead = score("dead", &[0.1], &[]);
    dead.failure = Some("gone".into());
    let mut away = dead.clone();
    (away.name, away.absence) = ("away".into(), Some("not installed".into()));
    // The machine is three times slower in the last round; the ratio is 1.1 in every one.
    let scores = vec![
        score("ours", &[0.22, 0.22, 0.66], &[0.5]),
        score("dear", &[0.4, 0.4, 1.2], &[]),
        score("cheap", &[0.2, 0.2, 0.6], &[0.3]),
        dead,
        away,
    ];
    let cold = Bar {
        of: "ours".into(),
        to: vec!["cheap".into()],
        metric: Metric::FirstBatchUs,
        heat: Heat::Cold,
        relation: Relation::Difference,
        bound: 1_999.0,
    };
    let alone = Bar {
        relation: Relation::Alone,
        to: vec![],
        metric: Metric::CopiedBytesPerByte,
        bound: 0.01,
        heat: Heat::Warm,
        ..cold.clone()
    };
    let bars = [
        bar(&["dear", "cheap"], 1.15),
        bar(&["cheap"], 1.05),
        bar(&["dead"], 2.0),
        bar(&["absent"], 2.0),
        cold,
        alone,
        bar(&["away"], 2.0),
    ];
    let judged = &findings(scores, &bars).contests[0].bars;
    assert_eq!((judged[0].holds, judged[0].against.as_deref()), (Some(true), Some("cheap")));
    let measured = judged[0].measured.unwrap();
    assert!((measured.median - 1.1).abs() < 1e-9 && (measured.max - 1.1).abs() < 1e-9, "{measured:?}");
    assert_eq!(judged[1].holds, Some(false));
    for (number, why) in [(2, "dead failed"), (3, "absent took no part"), (6, "away is not installed")] {
        assert_eq!((judged[number].holds, judged[number].not_judged.as_deref()), (None, Some(why)));
        assert!(judged[number].text().contains("NOT JUDGED"), "{}", judged[number].text());
    }
    assert_eq!((judged[4].holds, judged[4].measured.unwrap().median), (Some(false), 2_000.0));
    assert_eq!((judged[5].holds, judged[5].against.as_deref()), (Some(true), None));
}

#[test]
fn rates_are_of_what_a_pass_received() {
    let received = |share: f64| Pass { facts: [("received_bytes_per_byte".to_owned(), share)].into(), ..pass(0.3) };
    let rates = |pass: &Pass| [pass.cpu_s_per_gb(), pass.cpu_us_per_object(), pass.gb_per_s()];
    assert_eq!(rates(&received(1.0)), rates(&pass(0.3)));
    assert_eq!(rates(&received(2.0)), [Some(0.15), Some(150.0), Some(4.0)], "half is the next pass's");
    assert_eq!(rates(&received(0.5)), [Some(0.6), Some(600.0), Some(1.0)], "half came with the pass before");
    assert_eq!(rates(&received(0.0)), [None, None, Some(0.0)]);
}

#[test]
fn cold_and_warm_are_never_mixed() {
    let result = findings(vec![score("a", &[1.0, 2.0, 3.0], &[10.0])], &[]);
    let scored = &result.contests[0].contestants[0];
    let warm = scored.warm[&Metric::CpuSPerGb];
    assert_eq!((warm.median, warm.min, warm.max, warm.count), (2.0, 1.0, 3.0, 3));
    assert_eq!(scored.cold[&Metric::CpuSPerGb].max, 10.0);
    assert_eq!(scored.warm[&Metric::CpuUsPerObject].median, 2_000.0);
    assert_eq!(scored.warm[&Metric::GbPerS].median, 2.0);
}

#[test]
fn the_page_stands_alone_and_holds_every_figure() {
    let bars = [Bar::ratio("fuelrail", &["floor-recv"], Metric::CpuSPerGb, 1.1)];
    let mut dead = score("<b>rival</b>", &[], &[]);
    dead.failure = Some("no module".into());
    let scores = vec![score("floor-recv", &[0.2, 0.21], &[]), score("fuelrail", &[0.205, 0.22], &[]), dead];
    let result = findings(scores, &bars);
    let page = results_html(&[("line.json".to_owned(), serde_json::to_value(&result).unwrap())]).unwrap();
    for word in ["<span class=\"rail\">1</span> of 1 criteria hold", "no module", "0.2125 (0.205–0.22)", "<svg "] {
        assert!(page.contains(word), "{word}");
    }
    assert!(page.contains("&lt;b&gt;rival") && !page.contains("<b>rival"), "names are text");
    assert!(
        !page.contains("http://") && !page.contains("https://") && !page.contains("<script"),
        "nothing from outside"
    );
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(!page.contains("NaN") && !page.contains("inf"), "every place is a number");
}
