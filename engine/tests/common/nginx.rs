//! nginx as a test's server.

use super::PATIENCE;
use super::process::PORTS_TRIED_MAX;
use super::skip::skip_or_fail;
use fuelrail::{Listed, write_manifest};
use fuelrail_bucket::DataSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running nginx that serves a folder; ended when dropped.
pub struct Nginx {
    process: Child,
    port: u16,
    folder: tempfile::TempDir,
    root: PathBuf,
}

fn program() -> Option<&'static str> {
    ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"].into_iter().find(|p| Path::new(p).exists())
}

impl Nginx {
    /// A server over plain HTTP. `None` on a machine without nginx, if `FUELRAIL_SKIP` allows that.
    pub fn start() -> Option<Nginx> {
        Nginx::start_with("", |_| Ok(String::new()))
    }

    /// As [`start`](Nginx::start), with a suffix for its `listen` and what else its server's block holds; `settings` may
    /// put files into the folder it is given.
    pub fn start_with(listen: &str, settings: impl Fn(&Path) -> std::io::Result<String>) -> Option<Nginx> {
        let Some(program) = program() else {
            skip_or_fail("nginx", "it is not installed");
            return None;
        };
        let mut servers = (0..PORTS_TRIED_MAX).map(|_| Nginx::run(program, listen, &settings));
        let server = servers.find_map(|mut server| server.listens().then_some(server));
        Some(server.unwrap_or_else(|| panic!("nginx ended before it listened, on {PORTS_TRIED_MAX} ports")))
    }

    fn run(program: &str, listen: &str, settings: &impl Fn(&Path) -> std::io::Result<String>) -> Nginx {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir(&root).unwrap();
        // Workers of a server started by root run as another user: they need to get in.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let settings = settings(folder.path()).unwrap();
        let dir = folder.path().display();
        let config = format!(
            "worker_processes 1; daemon off; pid {dir}/pid; error_log {dir}/error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; sendfile on; keepalive_requests 50; client_body_temp_path {dir}/b; \
             proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;\n\
             server {{ listen 127.0.0.1:{port} {listen}; root {dir}/root; {settings} }} }}\n"
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, config).unwrap();
        let process = Command::new(program).arg("-c").arg(&file).stderr(Stdio::null()).spawn().unwrap();
        Nginx { process, port, folder, root }
    }

    /// Waits until it does, which is when it writes its number: on its port another program may answer. False when it ends instead.
    fn listens(&mut self) -> bool {
        let begun = Instant::now();
        while self.process.try_wait().unwrap().is_none() {
            if self.folder.path().join("pid").exists() {
                return true;
            }
            assert!(begun.elapsed() < PATIENCE, "nginx runs and does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder it serves.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Writes a set and its manifest below the root.
    pub fn serve(&self, name: &str, set: &DataSet) -> PathBuf {
        set.write_to(&self.root.join(name), |_| {}).unwrap();
        let objects: Vec<Listed> =
            (0..set.len()).map(|i| Listed { key: set.key(i), size: set.size(i), etag: None }).collect();
        let manifest = self.root.join(format!("{name}.tsv"));
        write_manifest(&manifest, &objects).unwrap();
        manifest
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM lets the master end its workers; a kill would orphan them. One that has ended leaves its number to others.
        if let Ok(None) = self.process.try_wait() {
            let _ = Command::new("kill").arg(self.process.id().to_string()).status();
            let _ = self.process.wait();
        }
    }
}
