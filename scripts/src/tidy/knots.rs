//! Knots: modules of one crate that need each other. The graph is between files; its edges are the paths in code that ships.
//!
//! A parent that declares a child (`mod x;`) or hands its names on (`pub use x::Name;`) does not need it. A name reached
//! through such a hand-over counts for the file that defines it.

use crate::house::{House, Problem};
use crate::rooms::Krate;
use crate::source::{PathUse, Source};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Steps through re-exports after which a name is given up: real chains are two or three long.
const HOPS_MAX: usize = 16;

pub(super) fn check(house: &House) -> Vec<Problem> {
    let mut problems = Vec::new();
    for krate in &house.crates {
        for root in house.roots_of(krate) {
            let graph = Graph::new(house, krate, &root);
            problems.extend(graph.knots().iter().map(|knot| graph.problem(knot)));
        }
    }
    problems
}

/// One module: the file it is in, and where in that file.
struct Module<'a> {
    file: &'a str,
    inside: String,
    source: &'a Source,
}

/// The modules of one target and who needs whom.
struct Graph<'a> {
    modules: BTreeMap<String, Module<'a>>,
    /// From file, to file, and the first place that says so.
    edges: BTreeMap<&'a str, BTreeMap<&'a str, (usize, String)>>,
}

impl<'a> Graph<'a> {
    fn new(house: &'a House, krate: &Krate, root: &str) -> Graph<'a> {
        let mut graph = Graph { modules: BTreeMap::new(), edges: BTreeMap::new() };
        graph.enter(house, root, String::new());
        let mut edges: BTreeMap<&str, BTreeMap<&str, (usize, String)>> = BTreeMap::new();
        for (path, module) in &graph.modules {
            let used = module.source.paths.iter().filter(|u| u.module == module.inside && !u.in_test && !u.handed_on);
            for used in used {
                let Some(to) = graph.resolve_use(path, used, &krate.library()) else { continue };
                if to != module.file {
                    let says = || (used.line, used.segments.join("::"));
                    edges.entry(module.file).or_default().entry(to).or_insert_with(says);
                }
            }
        }
        graph.edges = edges;
        graph
    }

    /// Adds the module at `path` in `file`, the modules written inside it, and those its declarations name.
    fn enter(&mut self, house: &'a House, file: &str, path: String) {
        let Some((file, source)) = house.sources.get_key_value(file) else { return };
        self.modules.insert(path.clone(), Module { file, inside: String::new(), source });
        for module in source.modules.iter().filter(|m| !m.in_test) {
            let inside = join(&module.parent, &module.name);
            let child = join(&path, &inside);
            if module.elsewhere {
                let places = candidates(file, path.is_empty(), &inside, module.path.as_deref());
                if let Some(place) = places.iter().find(|place| house.sources.contains_key(*place)) {
                    self.enter(house, place, child);
                }
            } else {
                self.modules.insert(child, Module { file, inside, source });
            }
        }
    }

    fn resolve_use(&self, from: &str, used: &PathUse, library: &str) -> Option<&'a str> {
        let segments: Vec<&str> = used.segments.iter().map(String::as_str).collect();
        // A binary beside a library names it from outside: that is another target, not a module of this one.
        if segments.first() == Some(&library) {
            return None;
        }
        self.resolve(from, &segments, HOPS_MAX)
    }

    /// The file that defines what `segments` name, seen from module `from`; none when it is not of this crate.
    fn resolve(&self, from: &str, segments: &[&str], hops: usize) -> Option<&'a str> {
        if hops == 0 {
            return None;
        }
        let (first, mut rest) = segments.split_first()?;
        let mut at = match *first {
            "crate" => String::new(),
            "self" => from.to_owned(),
            "super" => {
                let mut at = parent(from)?;
                while let Some(("super", after)) = rest.split_first().map(|(s, after)| (*s, after)) {
                    at = parent(&at)?;
                    rest = after;
                }
                at
            }
            name if self.modules.contains_key(&join(from, name)) => join(from, name),
            _ => return self.through_import(from, segments, hops),
        };
        while let Some((segment, after)) = rest.split_first() {
            let module = self.modules.get(&at)?;
            let child = join(&at, segment);
            if self.modules.contains_key(&child) {
                at = child;
                rest = after;
            } else if *segment == "*" || module.source.items.contains(&(module.inside.clone(), (*segment).to_owned())) {
                return Some(module.file);
            } else if let Some(found) = self.named_import(&at, segment) {
                let target: Vec<&str> = found.iter().map(String::as_str).chain(after.iter().copied()).collect();
                return self.resolve(&at, &target, hops - 1);
            } else {
                return self.through_glob(&at, rest, hops).or(Some(module.file));
            }
        }
        Some(self.modules.get(&at)?.file)
    }

    fn named_import(&self, at: &str, name: &str) -> Option<&[String]> {
        let module = self.modules.get(at)?;
        let import = module.source.imports.iter().find(|i| i.module == module.inside && i.name == name)?;
        Some(&import.target)
    }

    fn through_import(&self, from: &str, segments: &[&str], hops: usize) -> Option<&'a str> {
        let target = self.named_import(from, segments[0])?;
        // `use a;` names itself: following it would go round for ever.
        if target == [segments[0]] {
            return None;
        }
        let target: Vec<&str> = target.iter().map(String::as_str).chain(segments[1..].iter().copied()).collect();
        self.resolve(from, &target, hops - 1)
    }

    /// A name that only a glob can have brought in: found where one of the globbed modules defines it.
    fn through_glob(&self, at: &str, rest: &[&str], hops: usize) -> Option<&'a str> {
        let module = self.modules.get(at)?;
        let globs = module.source.imports.iter().filter(|i| i.module == module.inside && i.name == "*");
        for glob in globs {
            let target: Vec<&str> = glob.target.iter().map(String::as_str).collect();
            let Some(file) = self.resolve(at, &target, hops - 1) else { continue };
            let defines =
                |m: &&Module<'_>| m.file == file && m.source.items.contains(&(m.inside.clone(), rest[0].to_owned()));
            if self.modules.values().any(|m| defines(&m)) {
                return Some(file);
            }
        }
        None
    }

    /// Sets of files that reach each other, each of two or more.
    fn knots(&self) -> Vec<BTreeSet<&'a str>> {
        let reach: BTreeMap<&str, BTreeSet<&'a str>> = self.edges.keys().map(|f| (*f, self.reachable(f))).collect();
        let mut knots: Vec<BTreeSet<&'a str>> = Vec::new();
        for (file, reached) in &reach {
            if !reached.contains(file) || knots.iter().any(|k| k.contains(file)) {
                continue;
            }
            let both = reached.iter().filter(|other| reach.get(**other).is_some_and(|back| back.contains(file)));
            knots.push(both.copied().collect());
        }
        knots
    }

    fn reachable(&self, from: &str) -> BTreeSet<&'a str> {
        let mut seen = BTreeSet::new();
        let mut queue: VecDeque<&str> = VecDeque::from([from]);
        while let Some(file) = queue.pop_front() {
            for to in self.edges.get(file).into_iter().flat_map(|m| m.keys()) {
                if seen.insert(*to) {
                    queue.push_back(to);
                }
            }
        }
        seen
    }

    /// A knot, told as its shortest ring of "who needs whom where".
    fn problem(&self, knot: &BTreeSet<&'a str>) -> Problem {
        let ring = knot.iter().filter_map(|start| self.ring(start)).min_by_key(Vec::len).unwrap_or_default();
        let steps: Vec<String> = ring
            .iter()
            .zip(ring.iter().cycle().skip(1))
            .map(|(from, to)| {
                let (line, path) = &self.edges[from][to];
                format!("{from}:{line} names {path}")
            })
            .collect();
        let first = ring.first().copied().unwrap_or_default();
        let line = ring.get(1).map_or(0, |to| self.edges[first][to].0);
        let text =
            format!("{} modules need each other ({}): move what they share below both", knot.len(), steps.join("; "));
        Problem::new(first, line, "knots", text)
    }

    /// The shortest way from a file back to itself.
    fn ring(&self, start: &'a str) -> Option<Vec<&'a str>> {
        let mut before: BTreeMap<&str, &'a str> = BTreeMap::new();
        let mut queue: VecDeque<&'a str> = VecDeque::from([start]);
        while let Some(file) = queue.pop_front() {
            for to in self.edges.get(file)?.keys() {
                if *to == start {
                    let mut way = vec![file];
                    while let Some(earlier) = before.get(way[way.len() - 1]) {
                        way.push(earlier);
                    }
                    way.reverse();
                    return Some(way);
                }
                if self.edges.contains_key(to) && !before.contains_key(to) {
                    before.insert(to, file);
                    queue.push_back(to);
                }
            }
        }
        None
    }
}

fn join(path: &str, name: &str) -> String {
    match (path.is_empty(), name.is_empty()) {
        (true, _) => name.to_owned(),
        (_, true) => path.to_owned(),
        _ => format!("{path}::{name}"),
    }
}

fn parent(path: &str) -> Option<String> {
    if path.is_empty() {
        return None;
    }
    Some(path.rsplit_once("::").map_or_else(String::new, |(above, _)| above.to_owned()))
}

/// Where the body of a module declared in `file` may be.
fn candidates(file: &str, is_root: bool, inside: &str, path: Option<&str>) -> Vec<String> {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    if let Some(path) = path {
        return vec![format!("{folder}/{path}")];
    }
    let below = inside.replace("::", "/");
    let stem = name.trim_end_matches(".rs");
    let base = if is_root || stem == "mod" { folder.to_owned() } else { format!("{folder}/{stem}") };
    vec![format!("{base}/{below}.rs"), format!("{base}/{below}/mod.rs")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::fixture::{house, lines};

    fn knots(files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![("engine/io/Cargo.toml", "[package]\nname = \"fuelrail-io\"")];
        all.extend(files);
        lines(&check(&house(&all)))
    }

    #[test]
    fn two_modules_that_need_each_other_are_a_knot() {
        let found = knots(&[
            ("engine/io/src/lib.rs", "mod a; mod b;"),
            ("engine/io/src/a.rs", "\nuse crate::b::B; pub struct A;"),
            ("engine/io/src/b.rs", "pub struct B;\nfn f() { let _ = vec![super::a::A]; }"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("engine/io/src/a.rs:2: [knots] 2 modules"), "{found:?}");
        assert!(found[0].contains("engine/io/src/b.rs:2 names super::a::A"), "{found:?}");
    }

    #[test]
    fn a_knot_through_a_re_export_and_a_child_folder_is_found() {
        let found = knots(&[
            ("engine/io/src/lib.rs", "mod ring; mod slot; pub use ring::uring::Uring; use slot::Slot as Place;"),
            ("engine/io/src/ring/mod.rs", "pub mod uring;"),
            ("engine/io/src/ring/uring.rs", "pub struct Uring; use crate::Place;"),
            ("engine/io/src/slot.rs", "pub struct Slot; use crate::Uring;"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("2 modules"), "{found:?}");
    }

    #[test]
    fn a_longer_ring_is_told_by_its_shortest_way() {
        let found = knots(&[
            ("engine/io/src/lib.rs", "mod a; mod b; mod c;"),
            ("engine/io/src/a.rs", "use crate::b::*;"),
            ("engine/io/src/b.rs", "use crate::c; fn f() { c::g() }"),
            ("engine/io/src/c.rs", "pub fn g() { crate::a::h() } use self::inner::x; mod inner { pub fn x() {} }"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("3 modules"), "{found:?}");
    }

    #[test]
    fn a_parent_and_child_that_use_each_other_are_a_knot() {
        let found = knots(&[
            ("engine/io/src/lib.rs", "mod a; pub struct Top; fn f() { a::g() }"),
            ("engine/io/src/a.rs", "use super::Top; pub fn g() {}"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn declarations_hand_overs_tests_and_visibility_are_no_edges() {
        let found = knots(&[
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
