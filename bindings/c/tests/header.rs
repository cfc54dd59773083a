//! The header is what the functions say, compiles everywhere, and the library exports these functions and nothing else.

use crate::programs::{PACKAGE, compiled, library};
use object::{Object as _, ObjectSymbol as _};
use std::collections::BTreeSet;
use std::path::Path;

/// `include/fuelrail.h` is what this says. `FUELRAIL_BLESS=1` writes it.
#[test]
fn the_header_is_that_of_the_functions() {
    let place = Path::new(PACKAGE);
    let config = cbindgen::Config::from_file(place.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in ["ffi", "error", "loader", "batch"] {
        builder = builder.with_src(place.join(format!("src/{file}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    let path = place.join("include/fuelrail.h");
    if std::env::var_os("FUELRAIL_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let text = String::from_utf8(text).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "set FUELRAIL_BLESS=1 to write it anew");
}

/// `symbols` lists them: what leaves it, or comes to it, is a change that programs see.
#[test]
fn the_library_exports_its_functions_and_nothing_else() {
    let bytes = std::fs::read(library()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let exported = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    let exported: BTreeSet<String> = exported.map(|symbol| symbol.name().unwrap().to_owned()).collect();
    // A checksum's crate has an interface for C of its own, where another crate of the same build asks for it: not in `scripts/clib`'s.
    let exported: BTreeSet<String> = exported.into_iter().filter(|name| !name.starts_with("crc_fast_")).collect();
    let listed = include_str!("symbols").lines().map(str::to_owned).collect();
    assert_eq!(exported, listed, "bindings/c/tests/symbols");
    let header = std::fs::read_to_string(Path::new(PACKAGE).join("include/fuelrail.h")).unwrap();
    assert!(exported.iter().all(|name| header.contains(&format!("{name}("))), "all are in the header");
}

#[test]
fn the_header_compiles_as_c99_and_as_cpp() {
    let alone = "#include <fuelrail.h>\nint main(void) { return fuelrail_version() == 0; }\n";
    for (file, standard) in [("alone.c", "-std=c99"), ("alone.cpp", "-std=c++17")] {
        compiled(file, alone, &[standard, "-pedantic", "-Wextra"]);
    }
}
