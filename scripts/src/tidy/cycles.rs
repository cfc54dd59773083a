//! Import cycles between the files of one target, by the paths in code that ships: `crate::…`, `super::…`, and those that begin with a module
//! of the file. Reads lines as rustfmt leaves them: items of a file's top level stand at the left edge.
//!
//! A parent that declares a child or hands its names on (`pub use x::Name;`) does not import it; a name reached through such a hand-over
//! counts for the file that defines it.

use super::workspace::Workspace;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    let targets = workspace.packages.iter().flat_map(|package| &package.targets);
    let roots = targets.filter(|target| target.kind.iter().any(|kind| kind == "bin" || kind.ends_with("lib")));
    let roots: BTreeSet<&str> =
        roots.filter_map(|target| target.src_path.rsplit_once('/')).map(|(root, _)| root).collect();
    let mut targets: BTreeMap<&str, BTreeMap<String, Module<'_>>> = BTreeMap::new();
    for (file, text) in &workspace.files {
        let inside = |root: &&str| file.strip_prefix(*root).is_some_and(|rest| rest.starts_with('/'));
        let Some(root) = roots.iter().filter(|root| inside(root)).max_by_key(|root| root.len()) else { continue };
        let Some(path) = file[root.len() + 1..].strip_suffix(".rs") else { continue };
        let path = if matches!(path, "lib" | "main") { "" } else { path.trim_end_matches("/mod") };
        if path.split('/').all(|name| name != "tests") {
            targets.entry(root).or_default().entry(path.replace('/', "::")).or_insert(Module::read(file, text));
        }
    }
    targets.values().flat_map(cycles).collect()
}

struct Module<'a> {
    file: &'a str,
    /// What ships of it, without comments.
    text: String,
    /// What it defines.
    items: BTreeSet<String>,
}

impl<'a> Module<'a> {
    fn read(file: &'a str, text: &str) -> Module<'a> {
        let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let (mut kept, mut items, mut for_tests, mut hands_on) = (String::new(), BTreeSet::new(), false, false);
        for line in text.lines() {
            let line = line.split_once("//").map_or(line, |(code, _)| code);
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
            let is_item = |word: &str| matches!(word, "fn" | "struct" | "enum" | "union" | "type" | "static" | "trait");
            hands_on |= line.starts_with("pub") && words.clone().any(|word| word == "use");
            if !for_tests && !hands_on && !line.trim_start().starts_with("#[") {
                kept += line;
                kept.push('\n');
            }
            if !line.starts_with(' ') && words.any(is_item) {
                items.extend(words.next().map(str::to_owned));
            } else if let Some((name, _)) = line.split_once("const ").and_then(|(_, rest)| rest.split_once(':')) {
                items.insert(name.to_owned());
            }
            hands_on &= !line.contains(';');
            for_tests = line.starts_with("#[cfg(test)]") || for_tests && !line.ends_with([';', '}']);
        }
        Module { file, text: kept, items }
    }
}

/// The imports of all cycles.
fn cycles(modules: &BTreeMap<String, Module<'_>>) -> Vec<String> {
    let mut imports: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for (at, module) in modules {
        for path in paths(modules, at, &module.text) {
            if let Some(to) = resolve(modules, &path).filter(|to| *to != module.file) {
                imports.entry(module.file).or_default().insert(to, format!("{} names crate{path}", module.file));
            }
        }
    }
    // A file that imports none of those left, or that none of them imports, is in no cycle.
    loop {
        let importing: BTreeSet<&str> = imports.keys().copied().collect();
        let imported: BTreeSet<&str> = imports.values().flat_map(BTreeMap::keys).copied().collect();
        let left = importing.intersection(&imported).copied().collect::<BTreeSet<_>>();
        imports.retain(|file, to| {
            to.retain(|file, _| left.contains(file));
            left.contains(file) && !to.is_empty()
        });
        if imports.len() == importing.len() {
            break;
        }
    }
    let said = |(to, said): (&&str, &String)| format!("{said}, and {to} imports it: move what they share below them");
    imports.values().flat_map(|to| to.iter().map(said)).collect()
}

/// The paths that a module names within its crate, each name with `::` in front.
fn paths(modules: &BTreeMap<String, Module<'_>>, at: &str, text: &str) -> Vec<String> {
    let parent = |at: &str| at.rsplit_once("::").map_or(String::new(), |(parent, _)| parent.to_owned());
    let absolute = |at: &str| if at.is_empty() { String::new() } else { format!("::{at}") };
    let children = modules.keys().filter(|child| !child.is_empty() && parent(child) == at);
    let children = children.map(|child| (child.rsplit("::").next().unwrap_or_default(), absolute(at)));
    let mut found = Vec::new();
    for (name, base) in children.chain([("crate", String::new()), ("super", absolute(&parent(at)))]) {
        for (begin, _) in text.match_indices(&format!("{name}::")) {
            if !text[..begin].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':')) {
                let begin = if matches!(name, "crate" | "super") { begin + name.len() + 2 } else { begin };
                leaves(&text[begin..], &base, &mut found);
            }
        }
    }
    found
}

/// Reads the leaves of the path or `use` tree at the beginning of `text`; gives what follows it.
fn leaves<'a>(text: &'a str, base: &str, found: &mut Vec<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut inner) = text.strip_prefix('{') {
        while !inner.trim_start().starts_with('}') && !inner.is_empty() {
            let rest = leaves(inner, base, found);
            inner = &rest[rest.find([',', '}']).unwrap_or(rest.len())..];
            inner = inner.strip_prefix(',').unwrap_or(inner);
        }
        return inner.trim_start().strip_prefix('}').unwrap_or_default();
    }
    let (name, rest) = text.split_at(text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len()));
    let path = match name {
        "super" => base.rsplit_once("::").map_or(String::new(), |(parent, _)| parent.to_owned()),
        "" | "self" => base.to_owned(),
        _ => format!("{base}::{name}"),
    };
    match rest.strip_prefix("::") {
        Some(rest) => leaves(rest, &path, found),
        None => {
            found.push(path);
            rest
        }
    }
}

/// The file that defines what a path names: the deepest module of it; or, where that only hands the name on, the one that defines it.
fn resolve<'a>(modules: &BTreeMap<String, Module<'a>>, path: &str) -> Option<&'a str> {
    let path = path.trim_start_matches("::");
    let (mut at, mut rest) = (path, "");
    while !modules.contains_key(at) {
        (at, rest) = at.rsplit_once("::").map_or(("", path), |(module, _)| (module, &path[module.len() + 2..]));
    }
    let (module, name) = (&modules[at], rest.split("::").next().unwrap_or_default());
    if name.is_empty() || module.items.contains(name) {
        return Some(module.file);
    }
    let mut definers = modules.values().filter(|module| module.items.contains(name));
    Some(definers.next().filter(|_| definers.next().is_none()).map_or(module.file, |definer| definer.file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        check(&Workspace::of(files))
    }

    #[test]
    fn modules_that_import_each_other_are_found() {
        let re_export = [
            ("engine/io/src/lib.rs", "mod ring;\nmod slot;\npub use ring::uring::Uring;\nuse slot::Slot;"),
            ("engine/io/src/ring/mod.rs", "pub mod uring;"),
            ("engine/io/src/ring/uring.rs", "pub struct Uring;\nuse crate::Slot;"),
            ("engine/io/src/slot.rs", "pub struct Slot;\nuse crate::Uring;"),
        ];
        let longer = [
            ("engine/io/src/a.rs", "use crate::b::*;"),
            ("engine/io/src/b.rs", "use crate::{c::{self, g as h}};\nfn f() { c::g() }"),
            ("engine/io/src/c.rs", "pub fn g() { vec![super::a::h()] }"),
        ];
        let parent = [
            ("engine/io/src/lib.rs", "mod a;\npub struct Top;\nfn f() { a::g() }"),
            ("engine/io/src/a.rs", "use super::Top;\npub fn g() {}"),
        ];
        for (files, files_in_it) in [(&re_export[..], 2), (&longer, 3), (&parent, 2)] {
            let found = cycles(files);
            assert_eq!(found.len(), files_in_it, "{found:?}");
        }
    }

    #[test]
    fn declarations_hand_overs_comments_and_tests_are_no_imports() {
        let found = cycles(&[
            (
                "engine/io/src/lib.rs",
                "mod a;\nmod b;\npub use a::{\n    A,\n};\npub struct Top;\n#[cfg(test)]\nmod tests;",
            ),
            (
                "engine/io/src/a.rs",
                "use crate::Top;\npub struct A; // crate::b\n#[cfg(test)]\nmod tests {\n use crate::b;\n}",
            ),
            ("engine/io/src/b.rs", "use crate::a::A;\n#[cfg(test)]\nuse super::c;\npub(super) struct B;"),
            ("engine/io/src/c.rs", "use super::b;"),
            ("engine/io/src/tests.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
