//! The import table: what manifests depend on and what sources name, against the rows of `rooms`.

use crate::house::{House, Problem};
use crate::rooms::{Krate, Room, library_name};
use std::collections::BTreeMap;

pub(super) fn check(house: &House) -> Vec<Problem> {
    let mut problems = Vec::new();
    let libraries: BTreeMap<String, &str> = house.crates.iter().map(|k| (k.library(), k.package.as_str())).collect();
    for krate in &house.crates {
        let manifest = krate.path("Cargo.toml");
        let Some(room) = krate.room() else {
            let text =
                format!("crate '{}' has no row in the import table: add one in scripts/src/rooms.rs", krate.package);
            problems.push(Problem::new(&manifest, 0, "imports", text));
            continue;
        };
        if room.folder != krate.folder {
            let text = format!("crate '{}' lives in {}, not here", room.package, room.folder);
            problems.push(Problem::new(&manifest, 0, "imports", text));
        }
        check_manifest(krate, room, &libraries, &manifest, &mut problems);
        check_sources(house, krate, room, &libraries, &mut problems);
    }
    problems
}

fn check_manifest(
    krate: &Krate,
    room: &Room,
    libraries: &BTreeMap<String, &str>,
    manifest: &str,
    problems: &mut Vec<Problem>,
) {
    let mut look = |table: &toml::Table| {
        for (section, in_test) in [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)] {
            let Some(entries) = table.get(section).and_then(|t| t.as_table()) else { continue };
            for (key, value) in entries {
                let renamed = value.as_table().and_then(|t| t.get("package")).and_then(|p| p.as_str());
                let package = renamed.unwrap_or(key);
                if libraries.contains_key(&library_name(package)) && !allows(room, package, in_test) {
                    problems.push(Problem::new(manifest, 0, "imports", refusal(room, package, in_test)));
                }
            }
        }
    };
    look(&krate.manifest);
    if let Some(targets) = krate.manifest.get("target").and_then(|t| t.as_table()) {
        targets.values().filter_map(|t| t.as_table()).for_each(look);
    }
}

fn check_sources(
    house: &House,
    krate: &Krate,
    room: &Room,
    libraries: &BTreeMap<String, &str>,
    problems: &mut Vec<Problem>,
) {
    for (path, source) in house.sources_of(krate) {
        let inside = path.strip_prefix(&krate.folder).unwrap_or(path).trim_start_matches('/');
        let test_target = ["tests/", "benches/", "examples/", "fuzz/"].iter().any(|f| inside.starts_with(f));
        for used in &source.paths {
            let Some(package) = used.segments.first().and_then(|first| libraries.get(first)) else { continue };
            let in_test = test_target || used.in_test;
            if *package != krate.package && !allows(room, package, in_test) {
                problems.push(Problem::new(path, used.line, "imports", refusal(room, package, in_test)));
            }
        }
    }
}

fn allows(room: &Room, package: &str, in_test: bool) -> bool {
    room.imports.contains(&package) || (in_test && (room.test_imports.contains(&package) || room.package == package))
}

fn refusal(room: &Room, package: &str, in_test: bool) -> String {
    let who = if in_test { "tests of" } else { "the room" };
    let mut allowed = room.imports.to_vec();
    if in_test {
        allowed.extend(room.test_imports);
    }
    let allowed = if allowed.is_empty() { "nothing of ours".to_owned() } else { allowed.join(", ") };
    format!("{who} {} may not import {package} (allowed: {allowed}): doors are one-way", room.folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::fixture::{house, lines};

    const BASE: (&str, &str) = ("engine/base/Cargo.toml", "[package]\nname = \"fuelrail-base\"");
    const IO: (&str, &str) = ("engine/io/Cargo.toml", "[package]\nname = \"fuelrail-io\"");

    #[test]
    fn a_manifest_against_the_table_is_refused() {
        let plan = "[package]\nname = \"fuelrail-plan\"\n[dependencies]\nfuelrail-base.workspace = true\n\
                    [dev-dependencies]\nfuelrail-io.workspace = true\n\
                    [target.'cfg(unix)'.dependencies]\nsneaky = { package = \"fuelrail-io\", path = \"../io\" }";
        let found = lines(&check(&house(&[BASE, IO, ("engine/plan/Cargo.toml", plan)])));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("tests of engine/plan may not import fuelrail-io"), "{found:?}");
        assert!(found[1].contains("the room engine/plan may not import fuelrail-io"), "{found:?}");
    }

    #[test]
    fn a_path_against_the_table_is_refused_where_it_stands() {
        let plan = "fn f() {\n    let _ = fuelrail_io::ring();\n}\n#[cfg(test)] mod tests { use fuelrail_plan::x; }";
        let found = lines(&check(&house(&[
            BASE,
            IO,
            ("engine/plan/Cargo.toml", "[package]\nname = \"fuelrail-plan\""),
            ("engine/plan/src/lib.rs", plan),
        ])));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("engine/plan/src/lib.rs:2: [imports]"), "{found:?}");
    }

    #[test]
    fn tests_may_import_what_the_row_grants_tests() {
        let bucket = ("benches/bucket/Cargo.toml", "[package]\nname = \"fuelrail-bucket\"");
        let flow = "[package]\nname = \"fuelrail-flow\"\n[dev-dependencies]\nfuelrail-bucket.workspace = true";
        let found = lines(&check(&house(&[
            bucket,
            ("engine/flow/Cargo.toml", flow),
            ("engine/flow/tests/all.rs", "use fuelrail_bucket::Bucket;"),
            ("engine/flow/src/lib.rs", "use fuelrail_bucket::Bucket;"),
        ])));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("engine/flow/src/lib.rs:1:"), "{found:?}");
    }

    #[test]
    fn a_crate_without_a_row_or_out_of_place_is_refused() {
        let found = lines(&check(&house(&[
            ("engine/extra/Cargo.toml", "[package]\nname = \"fuelrail-extra\""),
            ("engine/elsewhere/Cargo.toml", "[package]\nname = \"fuelrail-io\""),
        ])));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("lives in engine/io") && found[1].contains("has no row"), "{found:?}");
    }
}
