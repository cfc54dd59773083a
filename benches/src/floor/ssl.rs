//! The floor over TLS: a blocking `SSL_read` loop in C on the system's OpenSSL, compiled when it is asked for.
//!
//! Owns the way from the source, which is part of this program, to a contestant. Where there is no compiler or no OpenSSL to
//! compile against, the error says so: nothing else takes its place.

use std::path::Path;
use std::process::Command;

use fuelrail::Result;

use crate::harness::Contestant;
use crate::harness::tool::{run, write};

const SOURCE: &str = include_str!("../../floor/ssl_read.c");
const CURE: &str = "install a C compiler and OpenSSL's headers (apt-get install gcc libssl-dev)";

/// The contestant, compiled into `folder`. `authority` is what the server's certificate is checked against; with
/// `read_ahead` OpenSSL asks the kernel for more than one record at a time.
pub fn compiled(folder: &Path, authority: &Path, read_ahead: bool) -> Result<Contestant> {
    let (source, program) = (folder.join("ssl_read.c"), folder.join("ssl_read"));
    if !program.exists() {
        write(&source, SOURCE)?;
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-o"]).arg(&program).arg(&source);
        run(compile.args(["-lssl", "-lcrypto"]), "the TLS floor cannot be compiled", CURE)?;
    }
    let name = if read_ahead { "floor-ssl-ahead" } else { "floor-ssl" };
    let mut contestant = Contestant::new(name, program, ["--ca"]);
    contestant.args.push(authority.into());
    contestant.args.extend(read_ahead.then(|| "--read-ahead".into()));
    Ok(contestant)
}
