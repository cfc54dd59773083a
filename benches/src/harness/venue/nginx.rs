//! nginx as the server to read from: one worker, files in place, plain HTTP and, when asked, TLS 1.3 with AES-128-GCM.
//!
//! Owns the process and ends it. Never installs it.

use std::fs;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fuelrail::{Error, Kind, Result};

use crate::harness::account::Place;
use crate::harness::tool;

/// What it serves and where.
#[derive(Debug)]
pub(super) struct Site<'a> {
    /// Folder for its configuration, logs and temporary files.
    pub(super) folder: &'a Path,
    pub(super) root: &'a Path,
    pub(super) address: IpAddr,
    pub(super) tls: bool,
    /// More directives for its `server` blocks.
    pub(super) directives: &'a str,
    pub(super) place: &'a Place,
}

#[derive(Debug)]
pub(super) struct Nginx {
    pub(super) process: Child,
    pub(super) port: u16,
    pub(super) tls_port: Option<u16>,
    pub(super) version: String,
}

/// A free port may be taken by another process before nginx binds it.
const ATTEMPTS_MAX: u32 = 5;
/// How often, and with what pause, it is looked whether nginx listens.
const LOOKS_MAX: u32 = 2_000;
const LOOK_PAUSE: Duration = Duration::from_millis(5);

impl Nginx {
    pub(super) fn start(site: &Site<'_>) -> Result<Nginx> {
        let program = program()?;
        let mut last = None;
        for _ in 0..ATTEMPTS_MAX {
            match attempt(&program, site) {
                Ok(nginx) => return Ok(nginx),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is at least one attempt"))
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM lets the master end its workers; a kill would orphan them.
        let pid = self.process.id().to_string();
        let asked = Command::new("kill").arg(pid).stderr(Stdio::null()).status();
        if asked.is_ok_and(|status| status.success()) {
            for _ in 0..LOOKS_MAX {
                if !matches!(self.process.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(LOOK_PAUSE);
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program() -> Result<PathBuf> {
    let known = ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx", "/usr/local/bin/nginx"];
    known.iter().map(PathBuf::from).find(|path| path.exists()).ok_or_else(|| {
        Error::new(Kind::Environment, "nginx is not installed")
            .with_hint("install it (apt-get install nginx-light) or use --venue embedded")
    })
}

fn attempt(program: &Path, site: &Site<'_>) -> Result<Nginx> {
    let (port, tls_port) = (free_port(site.address)?, site.tls.then(|| free_port(site.address)).transpose()?);
    let (file, version) = (site.folder.join("nginx.conf"), version(program));
    tool::write(&file, configuration(site, port, tls_port, &version))?;
    let args = ["-c".into(), file.clone().into_os_string(), "-e".into(), log(site).into_os_string()];
    let mut command = site.place.command(None, program, &args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Its own group: Ctrl-C reaches the harness alone, which ends it in order.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let process = command.spawn().map_err(|error| Error::new(Kind::Environment, format!("starting nginx: {error}")))?;
    let mut nginx = Nginx { process, port, tls_port, version };
    for _ in 0..LOOKS_MAX {
        if let Ok(Some(status)) = nginx.process.try_wait() {
            return Err(refused(site, &format!("it ends with {status}")));
        }
        // Written when it listens on all its ports.
        let listening = fs::read_to_string(site.folder.join("pid")).unwrap_or_default();
        if listening.trim() == nginx.process.id().to_string() {
            return Ok(nginx);
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    Err(refused(site, "it does not listen"))
}

/// A port that is free for this process now. In a namespace of its own every port is; loopback is asked.
fn free_port(address: IpAddr) -> Result<u16> {
    let listener = TcpListener::bind((if address.is_loopback() { address } else { [127, 0, 0, 1].into() }, 0));
    let port = listener.and_then(|listener| listener.local_addr()).map(|addr| addr.port());
    port.map_err(|error| Error::new(Kind::Environment, format!("no free port: {error}")))
}

/// A contestant idles while others have their turn, for hours where those are slow: its connections stay.
const KEEP: &str = "1000h";

/// Whether this nginx ends a connection when it is an hour old, idle or not, unless told otherwise.
fn ends_by_age(version: &str) -> bool {
    let numbers = version.split(['/', ' ']).nth(1).unwrap_or_default().split('.').map(|part| part.parse().unwrap_or(0));
    numbers.collect::<Vec<u32>>() >= vec![1, 19, 10]
}

fn configuration(site: &Site<'_>, port: u16, tls_port: Option<u16>, version: &str) -> String {
    let age = if ends_by_age(version) { format!("  keepalive_time {KEEP};\n") } else { String::new() };
    let (folder, root, address) = (site.folder.display(), site.root.display(), site.address);
    // Root's workers would become another user, who may not read a private folder.
    let user = if rustix::process::geteuid().is_root() { "user root;\n" } else { "" };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("  {name}_temp_path \"{folder}/{name}\";\n"))
        .concat();
    let secure = tls_port.map_or_else(String::new, |port| {
        format!(
            "    listen {address}:{port} ssl;\n    ssl_certificate \"{folder}/server.pem\";\n    ssl_certificate_key \"{folder}/server.key\";\n\
             \x20   ssl_protocols TLSv1.3;\n    ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;\n",
        )
    });
    format!(
        "{user}worker_processes 1;\ndaemon off;\npid \"{folder}/pid\";\nerror_log \"{log}\";\n\
         events {{ worker_connections 4096; }}\nhttp {{\n  access_log off;\n  sendfile on;\n\
         \x20 default_type application/octet-stream;\n  keepalive_requests 1000000000;\n  keepalive_timeout {KEEP};\n{age}{temporary}\
         \x20 server {{\n    listen {address}:{port};\n{secure}    root \"{root}\";\n{}\n  }}\n}}\n",
        site.directives,
        log = log(site).display(),
    )
}

fn log(site: &Site<'_>) -> PathBuf {
    site.folder.join("error.log")
}

fn version(program: &Path) -> String {
    let output = Command::new(program).arg("-v").output();
    let words = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default();
    words.trim().rsplit(": ").next().filter(|word| !word.is_empty()).unwrap_or("nginx").to_owned()
}

fn refused(site: &Site<'_>, why: &str) -> Error {
    let words = fs::read_to_string(log(site)).unwrap_or_default();
    let last = words.lines().last().unwrap_or("its log is empty").to_owned();
    Error::new(Kind::Environment, format!("nginx does not start: {why}; {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_connections_is_set_where_it_can_be() {
        let told = ["nginx/1.18.0", "nginx/1.19.9", "nginx/1.19.10", "nginx/1.22.1 (Debian)", "nginx/2.0.0", "nginx"];
        assert_eq!(told.map(ends_by_age), [false, false, true, true, true, false]);
    }
}
