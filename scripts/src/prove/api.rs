//! The public items of the crates that programs link, against the listings in the tree: what changes shows in a review.

use super::session::{Finding, Session};
use crate::steps::{cargo_in, need, printed, run, say, target};
use serde_json::json;
use std::collections::BTreeSet;

/// Each package and where its items are listed.
const LISTINGS: [(&str, &str); 2] = [("fuelrail", "engine/api.txt"), ("fuelrail-cuda", "cuda/api.txt")];

/// Lists the items anew, and fails where that differs; the new listing then lies in the tree, to be looked at and committed.
pub(super) fn prove(session: &Session<'_>) -> Finding {
    need(session.root, "public-api")?;
    let (mut passed, mut counts) = (true, json!({}));
    for (package, listing) in LISTINGS {
        let mut document = cargo_in(session.root, ["rustdoc", "--quiet", "--lib", "--package", package, "--"]);
        // What rustdoc knows, as JSON, is not stable; the compiler is the one that is there.
        document.args(["-Zunstable-options", "--output-format", "json", "--cap-lints", "allow"]);
        run(document.env("RUSTC_BOOTSTRAP", "1"))?;
        let known = target(session.root).join("doc").join(package.replace('-', "_")).with_extension("json");
        let items = printed(cargo_in(session.root, ["public-api", "-sss", "--rustdoc-json"]).arg(known))? + "\n";
        let path = session.root.join(listing);
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        let [old, new] = [&before, &items].map(|text| text.lines().collect::<BTreeSet<_>>());
        counts[package] = new.len().into();
        if before != items {
            passed = false;
            old.difference(&new).for_each(|item| say(&format!("- {item}")));
            new.difference(&old).for_each(|item| say(&format!("+ {item}")));
            std::fs::write(&path, items).map_err(|e| format!("cannot write {listing}: {e}"))?;
            say(&format!("{listing} is written anew: commit it if the change is meant"));
        }
    }
    Ok((passed, counts))
}
