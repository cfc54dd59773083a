//! Gives the library its soname, `libfuelrail.so.0.1`, as cargo-c does: by what changes when programs must be compiled anew.
#![forbid(unsafe_code)]

use std::env::var;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let [major, minor] = ["MAJOR", "MINOR"].map(|part| var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default());
    let version = if major == "0" { format!("0.{minor}") } else { major };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfuelrail.so.{version}");
}
