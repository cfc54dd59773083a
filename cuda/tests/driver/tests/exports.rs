//! The driver exports what CUDA 11.4 exports and its own control functions, nothing else.

use fuelrail_cuda_driver::under_driver;
use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;

/// The functions of CUDA 11.4.
fn cuda_11_4() -> BTreeSet<&'static str> {
    include_str!("../cuda-11.4-symbols.txt").lines().filter(|line| !line.starts_with('#')).collect()
}

fn exported() -> BTreeSet<String> {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let bytes = std::fs::read(folder.join("libfuelrail_cuda_driver.so")).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let defined = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    defined.map(|symbol| symbol.name().unwrap().to_owned()).collect()
}

#[test]
fn nothing_outside_cuda_11_4_is_exported() {
    let (known, exported) = (cuda_11_4(), exported());
    let strangers: Vec<&String> = exported
        .iter()
        .filter(|name| !known.contains(name.as_str()) && !name.starts_with("fuelrail_driver_"))
        .collect();
    assert!(strangers.is_empty(), "not in CUDA 11.4: {strangers:?}");
    assert!(exported.contains("cuMemcpyHtoDAsync_v2") && exported.contains("fuelrail_driver_report"));
}

#[test]
fn the_list_is_sorted_and_knows_old_from_new() {
    let lines: Vec<&str> = include_str!("../cuda-11.4-symbols.txt").lines().filter(|l| !l.starts_with('#')).collect();
    assert!(lines.is_sorted());
    let known = cuda_11_4();
    for old in ["cuInit", "cuMemAlloc_v2", "cuEventElapsedTime"] {
        assert!(known.contains(old), "{old}");
    }
    for new in
        ["cuEventElapsedTime_v2", "cuLibraryLoadData", "cuLaunchKernelEx", "cuCtxSetFlags", "cuGetProcAddress_v2"]
    {
        assert!(!known.contains(new), "{new}");
    }
}

#[test]
fn a_name_that_is_no_test_is_found_out() {
    let outcome = std::panic::catch_unwind(|| under_driver("there_is_no_such_test", &Default::default()));
    assert!(outcome.is_err());
}
