//! Import cycles between the files of one target, by the paths in code that ships.
//!
//! A parent that declares a child (`mod x;`) or hands its names on (`pub use x::Name;`) does not import it; a name reached through such a
//! hand-over counts for the file that defines it.

use super::source::{Source, join};
use super::workspace::Workspace;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    let targets = workspace.crates.iter().flat_map(|krate| &krate.targets);
    let roots = targets.filter(|(kind, _)| kind == "bin" || kind.ends_with("lib")).map(|(_, root)| root);
    roots.flat_map(|root| Graph::new(&workspace.sources, root).cycles()).collect()
}

/// The modules of one target and the imports between their files.
#[derive(Default)]
struct Graph<'a> {
    /// The files, by the paths of their modules.
    modules: BTreeMap<String, (&'a str, &'a Source)>,
    /// From file, to file, and the first place that says so.
    imports: BTreeMap<&'a str, BTreeMap<&'a str, String>>,
}

impl<'a> Graph<'a> {
    fn new(sources: &'a BTreeMap<String, Source>, root: &str) -> Graph<'a> {
        let mut graph = Graph::default();
        graph.enter(sources, root, root.rsplit_once('/').map_or("", |(folder, _)| folder), "");
        let mut imports: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
        for (at, (file, source)) in &graph.modules {
            for (path, line) in &source.paths {
                if let Some(to) = graph.resolve(at, path).filter(|to| to != file) {
                    let said = || format!("{file}:{line} names {}", path.join("::"));
                    imports.entry(file).or_default().entry(to).or_insert_with(said);
                }
            }
        }
        graph.imports = imports;
        graph
    }

    /// Adds the module in `file`, and those that it declares in files of `folder`.
    fn enter(&mut self, sources: &'a BTreeMap<String, Source>, file: &str, folder: &str, path: &str) {
        let Some((file, source)) = sources.get_key_value(file) else { return };
        self.modules.insert(path.to_owned(), (file, source));
        for child in &source.children {
            let stem = format!("{folder}/{}", child.replace("::", "/"));
            for place in [format!("{stem}.rs"), format!("{stem}/mod.rs")] {
                self.enter(sources, &place, &stem, &join(path, child));
            }
        }
    }

    /// The file that defines what `path` names, seen from the module `at`; none when that is not in this target.
    fn resolve(&self, at: &str, path: &[String]) -> Option<&'a str> {
        let parent = |at: &str| at.rsplit_once("::").map_or(String::new(), |(parent, _)| parent.to_owned());
        let (mut at, mut rest) = match path.first()?.as_str() {
            "crate" => (String::new(), &path[1..]),
            "self" => (at.to_owned(), &path[1..]),
            first if first == "super" || self.modules.contains_key(&join(at, first)) => (at.to_owned(), path),
            _ => return None,
        };
        while let Some((name, after)) = rest.split_first() {
            let next = if name == "super" { parent(&at) } else { join(&at, name) };
            let (file, source) = self.modules.get(&at)?;
            if self.modules.contains_key(&next) {
                (at, rest) = (next, after);
            } else if source.items.contains(name) {
                return Some(file);
            } else {
                // Handed on from elsewhere: from the one file that defines the name, if it is one.
                let mut definers = self.modules.values().filter(|(_, source)| source.items.contains(name));
                return Some(
                    definers.next().filter(|_| definers.next().is_none()).map_or(file, |(definer, _)| definer),
                );
            }
        }
        Some(self.modules.get(&at)?.0)
    }

    /// Cycles that share no file, until every cycle has a file in one of them.
    fn cycles(&self) -> Vec<String> {
        let next =
            |left: &BTreeSet<&'a str>, file: &str| self.imports[file].keys().copied().find(|to| left.contains(to));
        let (mut left, mut problems): (BTreeSet<&str>, _) = (self.imports.keys().copied().collect(), Vec::new());
        loop {
            // A file that imports none of those left is in no cycle.
            while let Some(file) = left.iter().copied().find(|file| next(&left, file).is_none()) {
                left.remove(file);
            }
            let Some(&first) = left.first() else { return problems };
            let mut way = vec![first];
            let ring = loop {
                let to = next(&left, way[way.len() - 1]).expect("each of those left imports one of them");
                match way.iter().position(|file| *file == to) {
                    Some(at) => break way.split_off(at),
                    None => way.push(to),
                }
            };
            let steps = ring.iter().zip(ring.iter().cycle().skip(1)).map(|(from, to)| self.imports[from][to].as_str());
            let steps = steps.collect::<Vec<_>>().join("; ");
            problems.push(format!("{}: import cycle ({steps}): move what these modules share below them", ring[0]));
            left.retain(|file| !ring.contains(file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        check(&Workspace::of(files))
    }

    #[test]
    fn modules_that_import_each_other_are_found() {
        let found = cycles(&[
            ("engine/io/src/lib.rs", "mod a; mod b;"),
            ("engine/io/src/a.rs", "\nuse crate::b::B; pub struct A;"),
            ("engine/io/src/b.rs", "pub struct B;\nfn f() { let _ = vec![super::a::A]; }"),
        ]);
        let steps = "engine/io/src/a.rs:2 names crate::b::B; engine/io/src/b.rs:2 names super::a::A";
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("engine/io/src/a.rs: import cycle ({steps})")), "{found:?}");
    }

    #[test]
    fn cycles_through_re_exports_folders_globs_and_parents_are_found() {
        let re_export = [
            ("engine/io/src/lib.rs", "mod ring; mod slot; pub use ring::uring::Uring; use slot::Slot;"),
            ("engine/io/src/ring/mod.rs", "pub mod uring;"),
            ("engine/io/src/ring/uring.rs", "pub struct Uring; use crate::Slot;"),
            ("engine/io/src/slot.rs", "pub struct Slot; use crate::Uring;"),
        ];
        let longer = [
            ("engine/io/src/lib.rs", "mod a; mod b; mod c;"),
            ("engine/io/src/a.rs", "use crate::b::*;"),
            ("engine/io/src/b.rs", "use crate::c; fn f() { c::g() }"),
            ("engine/io/src/c.rs", "pub fn g() { crate::a::h() } use self::inner::x; mod inner { pub fn x() {} }"),
        ];
        let parent = [
            ("engine/io/src/lib.rs", "mod a; pub struct Top; fn f() { a::g() }"),
            ("engine/io/src/a.rs", "use super::Top; pub fn g() {}"),
        ];
        let glob = [
            ("engine/io/src/lib.rs", "mod a; mod b; pub use a::*;"),
            ("engine/io/src/a.rs", "pub struct A; use crate::b::B;"),
            ("engine/io/src/b.rs", "pub struct B; use super::A;"),
        ];
        for (files, files_in_it) in [(&re_export[..], 2), (&longer, 3), (&parent, 2), (&glob, 2)] {
            let found = cycles(files);
            assert!(found.len() == 1 && found[0].matches(" names ").count() == files_in_it, "{found:?}");
        }
    }

    #[test]
    fn declarations_hand_overs_tests_and_visibility_are_no_imports() {
        let found = cycles(&[
            ("engine/io/src/lib.rs", "mod a; mod b; pub use a::A; pub struct Top;\n#[cfg(test)] mod tests;"),
            (
                "engine/io/src/a.rs",
                "use crate::Top; use std::fmt; pub struct A;\n#[cfg(test)] mod tests { use crate::b; }",
            ),
            ("engine/io/src/b.rs", "use crate::a::A; pub(super) struct B; pub(in crate::a) struct C;"),
            ("engine/io/src/tests.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
