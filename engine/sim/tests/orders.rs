//! The command `orders`: a table and a document.

use std::process::Command;

fn orders(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_fuelrail-sim")).arg("orders").args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_orders_stand_beside_a_weak_shuffle() {
    let small = ["--samples", "1500", "--batch-size", "25", "--epochs", "3", "--window", "50"];
    let (code, text, error) = orders(&small);
    assert_eq!(code, 0, "{error}");
    for said in
        ["1500 samples over 3 ranks x 25", "global", "sticky", "chunks", "window of 50", "hits in own caches of 50 %"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    let (code, json, error) = orders(&[&small[..], &["--json"]].concat());
    assert_eq!(code, 0, "{error}");
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    let kept = |at: usize| answer["orders"][at]["kept"].as_f64().unwrap();
    assert!(kept(1) > 0.9 && kept(2) > 0.9 && kept(0) < 0.4 && answer["orders"][3]["hit_ratio"].is_null(), "{json}");
    let (code, _, error) = orders(&["--samples", "100", "--batch-size", "64"]);
    assert!(code == 2 && error.contains("one full step"), "{error}");
}
