//! `unsafe` has three rooms, and the pure rooms have their bans: the lines that make the compiler and clippy hold the rest.

use crate::house::{House, Problem};
use crate::rooms::{Krate, Unsafety};

/// What the bans of a pure room must at least name.
const PURE_BANS: &[&str] =
    &["std::time::Instant::now", "std::time::SystemTime::now", "std::thread::spawn", "std::fs::", "std::net::"];

pub(super) fn check(house: &House) -> Vec<Problem> {
    let mut problems = Vec::new();
    for krate in &house.crates {
        let Some(room) = krate.room() else { continue };
        if room.unsafety == Unsafety::Forbidden {
            for root in house.roots_of(krate) {
                if house.sources.get(&root).is_some_and(|s| !s.forbids_unsafe) {
                    let text = "a crate root outside the rooms of unsafe opens with #![forbid(unsafe_code)]";
                    problems.push(Problem::new(&root, 0, "safety", text));
                }
            }
        }
        check_unsafe(house, krate, room.unsafety, &mut problems);
        if room.pure {
            check_bans(house, krate, &mut problems);
        }
    }
    problems
}

fn check_unsafe(house: &House, krate: &Krate, unsafety: Unsafety, problems: &mut Vec<Problem>) {
    for (path, source) in house.sources_of(krate) {
        let allowed = match unsafety {
            Unsafety::Documented => true,
            Unsafety::Edge => path == krate.path("src/ffi.rs") || path.starts_with(&krate.path("src/ffi/")),
            Unsafety::Forbidden => false,
        };
        if !allowed {
            for line in &source.unsafe_lines {
                let text = "unsafe lives in engine/io, cuda and the src/ffi edge of bindings only";
                problems.push(Problem::new(path, *line, "safety", text));
            }
        }
    }
}

fn check_bans(house: &House, krate: &Krate, problems: &mut Vec<Problem>) {
    let path = krate.path(".clippy.toml");
    let Some(text) = house.tree.text(&path) else {
        let text = "a pure room bans clocks, threads, files and sockets in its .clippy.toml: write one";
        problems.push(Problem::new(&path, 0, "safety", text));
        return;
    };
    for ban in PURE_BANS.iter().filter(|ban| !text.contains(**ban)) {
        problems.push(Problem::new(&path, 0, "safety", format!("a pure room bans {ban}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::fixture::{house, lines};

    #[test]
    fn a_root_that_does_not_forbid_is_found() {
        let found = lines(&check(&house(&[
            ("engine/Cargo.toml", "[package]\nname = \"fuelrail\""),
            ("engine/src/lib.rs", "#![deny(unsafe_code)]"),
            ("engine/src/bin/extra.rs", "fn main() {}"),
            ("engine/io/Cargo.toml", "[package]\nname = \"fuelrail-io\""),
            ("engine/io/src/lib.rs", "pub fn f() { unsafe { g() } }"),
        ])));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("engine/src/lib.rs: [safety]"), "{found:?}");
        assert!(found[1].starts_with("engine/src/bin/extra.rs: [safety]"), "{found:?}");
    }

    #[test]
    fn unsafe_outside_its_rooms_is_found_also_in_tests() {
        let found = lines(&check(&house(&[
            ("engine/flow/Cargo.toml", "[package]\nname = \"fuelrail-flow\""),
            ("engine/flow/tests/t.rs", "\nfn f() { unsafe { g() } }"),
            ("bindings/c/Cargo.toml", "[package]\nname = \"fuelrail-c\""),
            ("bindings/c/src/ffi.rs", "fn f() { unsafe { g() } }"),
            ("bindings/c/src/batch.rs", "fn f() { unsafe { g() } }"),
        ])));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().any(|l| l.starts_with("engine/flow/tests/t.rs:2:")), "{found:?}");
        assert!(found.iter().any(|l| l.starts_with("bindings/c/src/batch.rs:1:")), "{found:?}");
    }

    #[test]
    fn a_pure_room_without_its_bans_is_found() {
        let plan = ("engine/plan/Cargo.toml", "[package]\nname = \"fuelrail-plan\"");
        let found = lines(&check(&house(&[plan])));
        assert_eq!(found.len(), 1, "{found:?}");
        let some = PURE_BANS[1..].join("\n");
        let found = lines(&check(&house(&[plan, ("engine/plan/.clippy.toml", &some)])));
        assert_eq!(found, [format!("engine/plan/.clippy.toml: [safety] a pure room bans {}", PURE_BANS[0])]);
    }
}
