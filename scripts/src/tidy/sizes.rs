//! Screens, not scrolls: files of about 500 lines, functions of about 70. Excesses that exist are listed with their size in
//! the ratchet; they may only shrink, and leave the list when they fit.

use crate::house::{House, Problem};
use std::collections::BTreeMap;

/// The list of known excesses: one a line, `lines path` or `lines path::Type::function`.
pub const RATCHET: &str = "scripts/tidy-ratchet.txt";

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

/// What is measured: a file or a function by name, with its size.
#[derive(Clone, Debug)]
struct Measure {
    path: String,
    line: usize,
    lines: usize,
    max: usize,
}

pub(super) fn check(house: &House) -> Vec<Problem> {
    let measures = measures(house);
    let (ratchet, mut problems) = read_ratchet(house.tree.text(RATCHET).unwrap_or_default());
    for (name, m) in measures.iter().filter(|(_, m)| m.lines > m.max) {
        let text = match ratchet.get(name.as_str()) {
            None => format!("{name} has {} lines, the limit is {}: split it", m.lines, m.max),
            Some((_, allowed)) if m.lines > *allowed => {
                format!("{name} grew from {allowed} to {} lines: an excess may only shrink", m.lines)
            }
            Some(_) => continue,
        };
        problems.push(Problem::new(&m.path, m.line, "sizes", text));
    }
    for (name, (line, allowed)) in &ratchet {
        let text = match measures.get(*name) {
            None => format!("{name} is gone: remove its entry"),
            Some(m) if m.lines <= m.max => format!("{name} fits now ({} lines): remove its entry", m.lines),
            Some(m) if m.lines < *allowed => {
                format!("{name} shrank to {} lines: tighten its entry (cargo x tidy --tighten)", m.lines)
            }
            Some(_) => continue,
        };
        problems.push(Problem::new(RATCHET, *line, "sizes", text));
    }
    problems
}

/// The ratchet's text with every entry lowered to the present size and those no longer needed left out. It never gains one.
pub fn tightened(house: &House) -> String {
    let measures = measures(house);
    let text = house.tree.text(RATCHET).unwrap_or_default();
    let mut result = String::new();
    for line in text.lines() {
        let line = match entry(line) {
            None => line.to_owned(),
            Some((allowed, name)) => match measures.get(name).filter(|m| m.lines > m.max) {
                None => continue,
                Some(m) => format!("{} {name}", m.lines.min(allowed)),
            },
        };
        result.push_str(&line);
        result.push('\n');
    }
    result
}

/// Every file and function by the name the ratchet uses. Of functions with one name in one file (two `fmt`), the longest counts.
fn measures(house: &House) -> BTreeMap<String, Measure> {
    let mut all: BTreeMap<String, Measure> = BTreeMap::new();
    for (path, source) in &house.sources {
        let lines = house.tree.text(path).unwrap_or_default().lines().count();
        all.insert(path.clone(), Measure { path: path.clone(), line: 0, lines, max: FILE_LINES_MAX });
        for function in &source.functions {
            let measure =
                Measure { path: path.clone(), line: function.line, lines: function.lines, max: FUNCTION_LINES_MAX };
            let entry = all.entry(format!("{path}::{}", function.name)).or_insert_with(|| measure.clone());
            if function.lines > entry.lines {
                *entry = measure;
            }
        }
    }
    all
}

/// Entries by name, with line and allowed size; and complaints about lines that are none.
fn read_ratchet(text: &str) -> (BTreeMap<&str, (usize, usize)>, Vec<Problem>) {
    let mut entries = BTreeMap::new();
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        match entry(line) {
            Some((allowed, name)) => {
                entries.insert(name, (index + 1, allowed));
            }
            None => {
                let text = "not an entry: write `lines path` or `lines path::Type::function`";
                problems.push(Problem::new(RATCHET, index + 1, "sizes", text));
            }
        }
    }
    (entries, problems)
}

fn entry(line: &str) -> Option<(usize, &str)> {
    let (lines, name) = line.split_once(' ')?;
    Some((lines.parse().ok()?, name.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::fixture::{house, lines};

    fn long_file(lines: usize) -> String {
        "// line\n".repeat(lines)
    }

    fn long_function(lines: usize) -> String {
        format!("impl S {{\nfn long() {{\n{}}}\n}}\n", "    f();\n".repeat(lines - 2))
    }

    #[test]
    fn new_excesses_are_refused() {
        let found = lines(&check(&house(&[
            ("a.rs", &long_file(500)),
            ("b.rs", &long_file(501)),
            ("c.rs", &long_function(70)),
            ("d.rs", &long_function(71)),
        ])));
        assert_eq!(
            found,
            [
                "b.rs: [sizes] b.rs has 501 lines, the limit is 500: split it",
                "d.rs:2: [sizes] d.rs::S::long has 71 lines, the limit is 70: split it",
            ]
        );
    }

    #[test]
    fn a_known_excess_may_only_shrink_and_then_leave() {
        let with = |function: usize, ratchet: &str| {
            lines(&check(&house(&[("d.rs", &long_function(function)), (RATCHET, ratchet)])))
        };
        assert_eq!(with(80, "# known\n\n80 d.rs::S::long\n"), Vec::<String>::new());
        assert!(with(81, "80 d.rs::S::long")[0].contains("grew from 80 to 81"));
        assert!(with(79, "80 d.rs::S::long")[0].contains("shrank to 79"));
        assert!(with(60, "80 d.rs::S::long")[0].contains("fits now"));
        assert!(with(60, "80 d.rs::S::gone")[0].contains("is gone"));
        assert!(with(60, "many d.rs")[0].contains("not an entry"));
    }

    #[test]
    fn tightening_lowers_and_drops_but_never_adds() {
        let ratchet = "# known\n90 a.rs::S::long\n75 b.rs::S::long\n99 c.rs::S::long\n";
        let house = house(&[
            ("a.rs", &long_function(80)),
            ("b.rs", &long_function(85)),
            ("c.rs", &long_function(10)),
            ("d.rs", &long_function(95)),
            (RATCHET, ratchet),
        ]);
        assert_eq!(tightened(&house), "# known\n80 a.rs::S::long\n75 b.rs::S::long\n");
    }
}
