//! The import table of the house as data: which room may import which, and what else is special about a room.
//!
//! Owns the table and the list of crates found in the tree. A change here is a design change: say so in
//! `engine/docs/ARCHITECTURE.md`. Never reads Rust sources.

use crate::tree::Tree;

/// What one room may do.
#[derive(Debug)]
pub struct Room {
    /// Package name in its manifest.
    pub package: &'static str,
    /// Folder from the root.
    pub folder: &'static str,
    /// Packages of ours it may depend on.
    pub imports: &'static [&'static str],
    /// Packages of ours its tests may depend on besides.
    pub test_imports: &'static [&'static str],
    /// Whether `unsafe` is allowed in it.
    pub unsafety: Unsafety,
    /// Whether it is pure: no clock, threads, files, sockets or ambient randomness.
    pub pure: bool,
}

/// Where a room may write `unsafe`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsafety {
    /// Nowhere: every crate root says `#![forbid(unsafe_code)]`.
    Forbidden,
    /// Anywhere in the room, each block with its SAFETY note.
    Documented,
    /// Only in the file `src/ffi.rs` or the folder `src/ffi/`.
    Edge,
}

const FLOORS: &[&str] =
    &["fuelrail-base", "fuelrail-plan", "fuelrail-wire", "fuelrail-io", "fuelrail-flow", "fuelrail"];

const fn room(package: &'static str, folder: &'static str, imports: &'static [&'static str]) -> Room {
    Room { package, folder, imports, test_imports: &[], unsafety: Unsafety::Forbidden, pure: false }
}

/// The house, from the ground up. Rooms that later issues build are listed already: a row costs nothing until its crate exists.
pub const ROOMS: &[Room] = &[
    room("fuelrail-base", "engine/base", &[]),
    Room { pure: true, ..room("fuelrail-plan", "engine/plan", &["fuelrail-base"]) },
    Room { pure: true, ..room("fuelrail-wire", "engine/wire", &["fuelrail-base"]) },
    Room { unsafety: Unsafety::Documented, ..room("fuelrail-io", "engine/io", &["fuelrail-base"]) },
    Room {
        test_imports: &["fuelrail-bucket"],
        ..room("fuelrail-flow", "engine/flow", &["fuelrail-base", "fuelrail-plan", "fuelrail-wire", "fuelrail-io"])
    },
    Room {
        test_imports: &["fuelrail-bucket"],
        ..room(
            "fuelrail",
            "engine",
            &["fuelrail-base", "fuelrail-plan", "fuelrail-wire", "fuelrail-io", "fuelrail-flow"],
        )
    },
    room("fuelrail-sim", "engine/sim", FLOORS),
    Room {
        unsafety: Unsafety::Documented,
        test_imports: &["fuelrail-bucket", "fuelrail-cuda-driver"],
        ..room("fuelrail-cuda", "cuda", &["fuelrail-base", "fuelrail"])
    },
    // A stand-in for libcuda on machines without one: for tests, imports nothing of ours and is never shipped.
    Room { unsafety: Unsafety::Documented, ..room("fuelrail-cuda-driver", "cuda/tests/driver", &[]) },
    room("fuelrail-bucket", "benches/bucket", &[]),
    Room { test_imports: &["fuelrail-bucket"], ..room("fuelrail-rivals", "benches/rivals", &[]) },
    room(
        "fuelrail-benches",
        "benches",
        &["fuelrail-base", "fuelrail-plan", "fuelrail", "fuelrail-bucket", "fuelrail-cli", "fuelrail-cuda"],
    ),
    room(
        "fuelrail-cli",
        "bindings/cli",
        &["fuelrail-base", "fuelrail-plan", "fuelrail", "fuelrail-sim", "fuelrail-bucket", "fuelrail-cuda"],
    ),
    Room { unsafety: Unsafety::Edge, ..binding("fuelrail-c", "bindings/c") },
    Room { unsafety: Unsafety::Edge, ..binding("fuelrail-python", "bindings/python") },
    Room { unsafety: Unsafety::Edge, ..binding("fuelrail-tch", "bindings/tch") },
    binding("fuelrail-k8s", "bindings/k8s"),
    room("xtask", "scripts", &[]),
];

const fn binding(package: &'static str, folder: &'static str) -> Room {
    Room {
        test_imports: &["fuelrail-bucket"],
        ..room(package, folder, &["fuelrail-base", "fuelrail", "fuelrail-cuda"])
    }
}

/// One crate found in the tree.
#[derive(Debug)]
pub struct Krate {
    /// Package name.
    pub package: String,
    /// Folder from the root; empty for the root itself.
    pub folder: String,
    /// Its manifest, parsed.
    pub manifest: toml::Table,
}

impl Krate {
    /// Its row in the table.
    pub fn room(&self) -> Option<&'static Room> {
        ROOMS.iter().find(|room| room.package == self.package)
    }

    /// Path of a file inside it, from the root of the project.
    pub fn path(&self, inside: &str) -> String {
        if self.folder.is_empty() { inside.to_owned() } else { format!("{}/{inside}", self.folder) }
    }

    /// The name its library has in source text.
    pub fn library(&self) -> String {
        library_name(&self.package)
    }
}

/// The name a package's library has in source text.
pub fn library_name(package: &str) -> String {
    package.replace('-', "_")
}

/// Every crate of the workspace that is in the tree. Fuzz targets are a workspace of their own and not listed: they are
/// compiled with a sanitizer and import the one crate they feed.
///
/// # Errors
/// The path and the complaint, when a manifest is not valid TOML.
pub fn crates(tree: &Tree) -> Result<Vec<Krate>, (String, String)> {
    let mut found = Vec::new();
    for (path, text) in tree.texts() {
        let Some(folder) = path.strip_suffix("Cargo.toml").map(|f| f.trim_end_matches('/')) else { continue };
        let manifest: toml::Table = text.parse().map_err(|e: toml::de::Error| (path.to_owned(), e.to_string()))?;
        if manifest.contains_key("workspace") && !folder.is_empty() || folder.ends_with("/fuzz") {
            continue;
        }
        let name = manifest.get("package").and_then(|p| p.get("name")).and_then(|n| n.as_str());
        let Some(package) = name.map(str::to_owned) else { continue };
        found.push(Krate { package, folder: folder.to_owned(), manifest });
    }
    Ok(found)
}

/// The crate a file belongs to: the one with the longest folder that contains it.
pub fn owner<'a>(crates: &'a [Krate], path: &str) -> Option<&'a Krate> {
    crates
        .iter()
        .filter(|k| k.folder.is_empty() || path.strip_prefix(&k.folder).is_some_and(|rest| rest.starts_with('/')))
        .max_by_key(|k| k.folder.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_no_way_back() {
        // A room may import only rooms listed above it or, for rooms not built yet, ones whose own imports never lead back.
        fn reaches(from: &str, to: &str, fuel: usize) -> bool {
            assert!(fuel > 0, "the table has a cycle through {from}");
            let room = ROOMS.iter().find(|r| r.package == from).expect("every import has a row");
            room.imports.iter().any(|i| *i == to || reaches(i, to, fuel - 1))
        }
        for room in ROOMS {
            assert!(!reaches(room.package, room.package, 32), "{} imports itself", room.package);
        }
    }

    #[test]
    fn files_belong_to_the_innermost_crate() {
        let tree = Tree::of(&[
            ("engine/Cargo.toml", "[package]\nname = \"fuelrail\""),
            ("engine/io/Cargo.toml", "[package]\nname = \"fuelrail-io\""),
            ("engine/fuzz/Cargo.toml", "[workspace]\n[package]\nname = \"fuzz\""),
        ]);
        let crates = crates(&tree).unwrap();
        assert_eq!(crates.len(), 2);
        assert_eq!(owner(&crates, "engine/io/src/lib.rs").unwrap().package, "fuelrail-io");
        assert_eq!(owner(&crates, "engine/iodine.rs").unwrap().package, "fuelrail");
        assert!(owner(&crates, "benches/src/lib.rs").is_none());
    }
}
