//! A program that hands out credentials: what a profile's `credential_process` names.
//!
//! The only program that the engine ever runs, and only when a profile asks for it.

use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_wire::sign::{Credential, parse_keys};
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use zeroize::Zeroizing;

/// How long it may take: somebody may have to confirm on a phone.
const PATIENCE: Duration = Duration::from_secs(60);
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Runs `command` in a shell, as the vendor's tools do, and reads what it prints.
///
/// # Errors
/// `Denied` when it fails, takes too long or prints no credentials. Nothing it prints is repeated.
pub(super) fn credential(command: &str) -> Result<Credential> {
    let failed = |why: String| {
        Error::new(Kind::Denied, format!("credential_process {why}")).cure("run the command of the profile by hand")
    };
    let spawned = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = spawned.map_err(|e| failed(format!("cannot be started: {e}")))?;
    let output = child.stdout.take().ok_or_else(|| failed("has no output".into()))?;
    let (tell, told) = mpsc::channel();
    // Not waited for: a child of the program may keep the pipe open for ever.
    let reader = std::thread::Builder::new().name("fuelrail-process".into()).spawn(move || {
        let mut text = Zeroizing::new(Vec::new());
        let read = output.take(OUTPUT_BYTES_MAX).read_to_end(&mut text);
        let _ = tell.send(read.map(|_| text));
    });
    reader.map_err(|e| failed(format!("cannot be read: {e}")))?;
    let Ok(read) = told.recv_timeout(PATIENCE) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(failed(format!("printed nothing for {} s", PATIENCE.as_secs())));
    };
    let text = read.map_err(|e| failed(format!("cannot be read: {e}")))?;
    let status = child.wait().map_err(|e| failed(format!("cannot be waited for: {e}")))?;
    if !status.success() {
        return Err(failed(format!("ended with {status}")));
    }
    parse_keys(&text).map_err(|e| failed(format!("printed something else: {}", e.cause())))
}
