//! Compiles the C++ shim against libtorch and lets programs find libtorch where it was at build time.
//!
//! `LD_LIBRARY_PATH` wins over that place (it is a RUNPATH), so one binary serves a CPU-only libtorch here and a CUDA one elsewhere.
#![forbid(unsafe_code)]

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    for name in ["DOCS_RS", "LIBTORCH", "LIBTORCH_INCLUDE", "LIBTORCH_LIB", "LIBTORCH_CXX11_ABI"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed=shim");
    // docs.rs has no libtorch, and links nothing.
    if env::var_os("DOCS_RS").is_some() {
        return;
    }
    let place = |name: &str| env::var_os(name).map(PathBuf::from);
    let Some(root) = place("LIBTORCH") else {
        panic!("LIBTORCH is not set: run `scripts/libtorch`, which fetches a CPU build, and export what it prints");
    };
    let include = place("LIBTORCH_INCLUDE").unwrap_or_else(|| root.clone()).join("include");
    // The folder above `lib`, as torch-sys has it, or, as distributions lay it out, the one the libraries are in.
    let lib = place("LIBTORCH_LIB").unwrap_or_else(|| root.clone());
    let lib = if lib.join("libtorch_cpu.so").exists() { lib } else { lib.join("lib") };
    assert!(
        include.join("torch").is_dir(),
        "no libtorch headers in {}: does LIBTORCH name its folder?",
        include.display()
    );
    compile(&include);
    println!("cargo:rustc-link-search=native={}", lib.display());
    for library in ["torch_cpu", "c10"] {
        println!("cargo:rustc-link-lib={library}");
    }
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
}

fn compile(include: &Path) {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").warnings(false).include(include).include(include.join("torch/csrc/api/include"));
    // The wheel has the headers of c10d but not those of gloo: the few declarations they need are ours.
    if !include.join("gloo/context.h").exists() {
        build.include("shim/gloo_declared");
    }
    if env::var("LIBTORCH_CXX11_ABI").is_ok_and(|abi| abi == "0") {
        build.define("_GLIBCXX_USE_CXX11_ABI", "0");
    }
    for file in ["tensor", "group", "reducer", "session"] {
        build.file(format!("shim/{file}.cpp"));
    }
    build.compile("fuelrail_tch_shim");
}
