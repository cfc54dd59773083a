//! What the crates may do, as data: import each other, hold `unsafe` code, read clocks. A new row or entry is a change of the design: say so
//! in `engine/docs/ARCHITECTURE.md`.

use super::workspace::{Crate, Workspace};

/// Each crate, the members it may depend on, and those that its tests may besides; without the project's name in front.
const MAY_IMPORT: &[(&str, &str, &str)] = &[
    ("base", "", ""),
    ("plan", "base", ""),
    ("wire", "base", ""),
    ("io", "base", ""),
    ("flow", "base plan wire io", "bucket"),
    ("fuelrail", "base plan wire io flow", "bucket"),
    ("sim", "base plan wire io flow fuelrail", ""),
    ("cuda", "base fuelrail", "bucket cuda-driver"),
    ("cuda-driver", "", ""),
    ("bucket", "", ""),
    ("rivals", "", "bucket"),
    ("cli", "base plan fuelrail sim bucket cuda", ""),
    ("benches", "base plan fuelrail bucket cli cuda", ""),
    ("tch", "base fuelrail cuda", "bucket"),
    ("xtask", "", ""),
];

/// Where the roots of targets lie that need not forbid `unsafe`. The trainer's library allows it to its module `ffi` alone.
const UNSAFE: &[&str] = &["engine/io/", "cuda/", "bindings/tch/src/lib.rs"];
const FORBID: &str = "#![forbid(unsafe_code)]";

/// Where nothing but the arguments may enter, and what the `.clippy.toml` there must ban at least.
const PURE: &[&str] = &["engine/plan", "engine/wire"];
const BANS: &[&str] = &[
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "std::thread::spawn",
    "std::fs::File",
    "std::net::TcpStream",
];

pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    let unused = workspace.crates.iter().flat_map(|krate| unused(workspace, krate));
    let mut problems: Vec<String> = workspace.crates.iter().flat_map(imports).chain(unused).collect();
    for (_, root) in workspace.crates.iter().flat_map(|krate| &krate.targets) {
        let text = workspace.files.get(root).map(String::as_str).unwrap_or_default();
        if !UNSAFE.iter().any(|place| root.starts_with(place)) && !text.lines().any(|line| line == FORBID) {
            problems.push(format!("{root}: outside {} the root of a target says {FORBID}", UNSAFE.join(", ")));
        }
    }
    for folder in PURE {
        let text = workspace.files.get(&format!("{folder}/.clippy.toml")).map(String::as_str).unwrap_or_default();
        let missing = BANS.iter().filter(|ban| !text.contains(**ban));
        problems.extend(missing.map(|ban| format!("{folder}/.clippy.toml: a crate without side effects bans {ban}")));
    }
    problems
}

/// Dependencies of a crate that its row does not allow.
fn imports(krate: &Crate) -> Vec<String> {
    let short = |name: &str| name.trim_start_matches("fuelrail-").to_owned();
    let Some((_, allowed, by_tests)) = MAY_IMPORT.iter().find(|(name, ..)| *name == short(&krate.name)) else {
        return vec![format!("{}: add a row for {} to scripts/src/tidy/crates.rs", krate.folder, krate.name)];
    };
    let may = |name: &str, is_test: bool| {
        allowed.split(' ').chain(by_tests.split(' ').filter(|_| is_test)).any(|allowed| allowed == short(name))
    };
    let refused = krate.members.iter().filter(|(name, is_test)| !may(name, *is_test));
    refused
        .map(|(name, _)| format!("{}: may not depend on {name}, only on: {allowed}; tests: {by_tests}", krate.folder))
        .collect()
}

/// Dependencies that no file of the crate names.
fn unused(workspace: &Workspace, krate: &Crate) -> Vec<String> {
    let names = |library: &str| {
        // The one package here whose library has another name.
        let library = if library == "md_5" { "md5" } else { library };
        let forms = [format!("{library}::"), format!("use {library};"), format!("use {library} as ")];
        workspace
            .files_of(krate)
            .any(|(path, text)| path.ends_with(".rs") && forms.iter().any(|form| text.contains(form)))
    };
    let unused = krate.libraries.iter().filter(|library| !names(library));
    unused.map(|library| format!("{}: no file names the dependency {library}: remove it", krate.folder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_against_the_table_and_unknown_crates_are_found() {
        let found = |name: &str, dependencies: &[(&str, bool)]| {
            let members = dependencies.iter().map(|(name, is_test)| ((*name).to_owned(), *is_test)).collect();
            imports(&Crate { name: name.to_owned(), members, ..Crate::default() }).len()
        };
        assert_eq!(
            found("fuelrail-plan", &[("fuelrail-base", false), ("fuelrail-io", false), ("fuelrail-io", true)]),
            2
        );
        assert_eq!(found("fuelrail-flow", &[("fuelrail-bucket", true), ("fuelrail-io", true)]), 0);
        assert_eq!(found("fuelrail-flow", &[("fuelrail-bucket", false)]), 1);
        assert_eq!(found("fuelrail-extra", &[]), 1);
    }

    #[test]
    fn dependencies_that_no_file_of_the_crate_names_are_found() {
        let krate = Crate {
            folder: "engine".to_owned(),
            libraries: vec!["slab".to_owned(), "md_5".to_owned()],
            ..Crate::default()
        };
        let found = |file, text| unused(&Workspace::of(&[(file, text)]), &krate).len();
        assert_eq!(found("engine/src/lib.rs", "use slab; use md5::Md5;"), 0);
        assert_eq!(found("engine/src/lib.rs", "use crate::slab; // md_5"), 2);
        assert_eq!(found("engine/io/src/lib.rs", "use slab::Slab;"), 2);
    }

    #[test]
    fn roots_that_do_not_forbid_unsafe_and_missing_bans_are_found() {
        let bans = BANS.join("\n");
        let files = |root, bans| {
            [("engine/src/lib.rs", root), ("engine/plan/.clippy.toml", bans), ("engine/wire/.clippy.toml", bans)]
        };
        let found = |root, bans| check(&Workspace::of(&files(root, bans)));
        assert_eq!(found("//! Docs.\n#![forbid(unsafe_code)]\n", &bans), Vec::<String>::new());
        assert_eq!(found("#![deny(unsafe_code)]", &bans).len(), 1);
        assert_eq!(found(FORBID, &BANS[1..].join("\n")).len(), 2);
    }
}
