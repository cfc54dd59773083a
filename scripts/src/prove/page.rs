//! `engine/docs/PROOFS.md`, made from the record: what each part checks, whether it passed, when and at which commit, and what was counted.

use serde_json::{Map, Value};

/// Where the page is, from the root.
pub(super) const PAGE: &str = "engine/docs/PROOFS.md";
const HEAD: &str = "# Latest checks

What takes too long to be run for every change, and how it last ended. `cargo x prove` writes this page from
[`proof.json`](../../benches/results/proof.json); [How it is kept true](decisions/proof.md) describes all tests.
What has no line below has not been run yet.
";

/// The page of these parts, each with what it checks.
pub(super) fn page(parts: &[(String, String)], records: &Map<String, Value>) -> String {
    let mut text = HEAD.to_owned();
    for (part, about) in parts {
        text += &format!("\n## {part}\n\n{about}.\n\n");
        for (key, record) in records.iter().filter(|(key, _)| key.split(' ').next() == Some(part.as_str())) {
            let outcome = if record["passed"] == true { "passed" } else { "**failed**" };
            let [date, commit, counts] = ["date", "commit", "counts"].map(|field| shown(&record[field]));
            let line = format!("- {key}: {outcome} on {date} at {commit}; {counts}");
            text.extend([line.trim_end_matches("; "), "\n"]);
        }
    }
    text
}

/// Of a list its words, or how many there are of longer texts.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| format!("{name} {}", shown(value))).collect::<Vec<_>>().join(", ")
        }
        Value::Array(items) if items.is_empty() || items.iter().any(|item| shown(item).contains(' ')) => {
            items.len().to_string()
        }
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(" "),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
