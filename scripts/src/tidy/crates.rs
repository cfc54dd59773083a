//! What the crates may do, as data: import each other, hold `unsafe` code. A new row or entry is a change of the design: say so in
//! `engine/docs/ARCHITECTURE.md`.

use super::workspace::{Dependency, Package, Workspace};

/// Each crate, the members it may depend on, and those that its tests may besides; without the project's name in front.
const MAY_IMPORT: &[(&str, &str, &str)] = &[
    ("base", "", ""),
    ("cost", "base", ""),
    ("plan", "base", ""),
    ("wire", "base", ""),
    ("format", "base", ""),
    ("io", "base", ""),
    ("flow", "base plan wire io", "bucket"),
    ("fuelrail", "base plan wire io flow format", "bucket"),
    ("sim", "base plan wire io flow fuelrail", ""),
    ("cuda", "base fuelrail", "bucket cuda-driver"),
    ("cuda-driver", "", ""),
    ("bucket", "", ""),
    ("rivals", "", "bucket"),
    ("cli", "base cost plan format fuelrail sim bucket cuda", ""),
    ("python", "fuelrail cuda", ""),
    ("c", "fuelrail", "bucket"),
    ("k8s", "", ""),
    ("benches", "base cost plan fuelrail sim bucket cli cuda", ""),
    ("tch", "base cost fuelrail cuda", "bucket cuda-driver"),
    ("xtask", "", ""),
];

/// Where the roots of targets lie that need not forbid `unsafe`. The libraries of the bindings allow it to their module `ffi` alone.
const UNSAFE: &[&str] =
    &["engine/io/", "cuda/", "bindings/c/src/lib.rs", "bindings/python/src/lib.rs", "bindings/tch/src/lib.rs"];
const FORBID: &str = "#![forbid(unsafe_code)]";

pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    let packages = &workspace.packages;
    let unused = packages.iter().flat_map(|package| unused(workspace, package));
    let mut problems: Vec<String> = packages.iter().flat_map(imports).chain(unused).collect();
    for root in packages.iter().flat_map(|package| &package.targets).map(|target| &target.src_path) {
        let text = workspace.files.get(root).map(String::as_str).unwrap_or_default();
        if !UNSAFE.iter().any(|place| root.starts_with(place)) && !text.lines().any(|line| line == FORBID) {
            problems.push(format!("{root}: outside {} the root of a target says {FORBID}", UNSAFE.join(", ")));
        }
    }
    problems
}

/// Dependencies of a package that its row does not allow.
fn imports(package: &Package) -> Vec<String> {
    let short = |name: &str| name.trim_start_matches("fuelrail-").to_owned();
    let Some((_, allowed, by_tests)) = MAY_IMPORT.iter().find(|(name, ..)| *name == short(&package.name)) else {
        return vec![format!("{}: add a row for it to scripts/src/tidy/crates.rs", package.name)];
    };
    let members = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
    let refused = members.filter(|d| {
        let by_tests = by_tests.split(' ').filter(|_| d.kind.as_deref() == Some("dev"));
        !allowed.split(' ').chain(by_tests).any(|allowed| allowed == short(&d.name))
    });
    let said = |d: &Dependency| {
        format!("{}: may not depend on {}, only on: {allowed}; tests: {by_tests}", package.name, d.name)
    };
    refused.map(said).collect()
}

/// Dependencies that no file of the package names.
fn unused(workspace: &Workspace, package: &Package) -> Vec<String> {
    let is_named = |library: &str| {
        // The one package here whose library has another name.
        let library = if library == "md_5" { "md5" } else { library };
        let forms = [format!("{library}::"), format!("use {library};"), format!("use {library} as ")];
        workspace.sources(package).any(|(_, text)| forms.iter().any(|form| text.contains(form)))
    };
    let libraries = package.dependencies.iter().map(|d| d.rename.as_ref().unwrap_or(&d.name).replace('-', "_"));
    let unused = libraries.filter(|library| !is_named(library));
    unused.map(|library| format!("{}: no file names the dependency {library}: remove it", package.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, members: &[(&str, bool)]) -> Package {
        let dependency = |(name, is_test): &(&str, bool)| Dependency {
            name: (*name).to_owned(),
            rename: None,
            kind: is_test.then(|| "dev".to_owned()),
            path: Some(String::new()),
        };
        Package {
            name: name.to_owned(),
            dependencies: members.iter().map(dependency).collect(),
            ..Workspace::of(&[]).packages.remove(0)
        }
    }

    #[test]
    fn dependencies_against_the_table_and_unknown_crates_are_found() {
        let found = |name, members: &[_]| imports(&package(name, members)).len();
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
        let engine = package("fuelrail", &[("slab", false), ("md-5", false)]);
        let found = |file, text| unused(&Workspace::of(&[(file, text)]), &engine).len();
        assert_eq!(found("engine/src/lib.rs", "use slab; use md5::Md5;"), 0);
        assert_eq!(found("engine/src/lib.rs", "use crate::slab; // md_5"), 2);
        assert_eq!(found("engine/io/src/lib.rs", "use slab::Slab;"), 2);
    }

    #[test]
    fn roots_that_do_not_forbid_unsafe_are_found() {
        let found = |root| check(&Workspace::of(&[("engine/src/lib.rs", root)]));
        assert_eq!(found("//! Docs.\n#![forbid(unsafe_code)]\n"), Vec::<String>::new());
        assert_eq!(found("#![deny(unsafe_code)]").len(), 1);
    }
}
