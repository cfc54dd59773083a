//! Against a server nobody here wrote: nginx, from files, through a manifest.
//!
//! `scripts/test` installs nginx and sets `FUELRAIL_NGINX=required`; without that, a machine that has none says so and
//! passes.

mod common;

use fuelrail::{Listed, Loader, write_manifest};
use fuelrail_bucket::DataSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running nginx that serves a folder; ended when dropped.
struct Nginx {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
    root: PathBuf,
}

fn program() -> Option<&'static str> {
    ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"].into_iter().find(|p| Path::new(p).exists())
}

impl Nginx {
    fn start() -> Option<Nginx> {
        let Some(program) = program() else {
            assert!(std::env::var_os("FUELRAIL_NGINX").is_none(), "nginx is required here and not installed");
            eprintln!("skipped: this machine has no nginx");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir(&root).unwrap();
        // Workers of a server started by root run as another user: they need to get in.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let dir = folder.path().display();
        let config = format!(
            "worker_processes 1; daemon off; pid {dir}/pid; error_log {dir}/error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; sendfile on; keepalive_requests 50; client_body_temp_path {dir}/b; \
             proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;\n\
             server {{ listen 127.0.0.1:{port}; root {dir}/root; }} }}\n"
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, config).unwrap();
        let process = Command::new(program).arg("-c").arg(&file).stderr(Stdio::null()).spawn().unwrap();
        let server = Nginx { process, port, _folder: folder, root };
        for _ in 0..1_000 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(server);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("nginx did not start listening");
    }

    /// Writes a set and its manifest below the root.
    fn serve(&self, name: &str, set: &DataSet) -> PathBuf {
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
        // SIGTERM lets the master end its workers; a kill would orphan them.
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}

#[test]
fn photos_and_volumes_land_in_place() {
    let Some(nginx) = Nginx::start() else { return };
    let photos = DataSet::photos(300, 3);
    let volumes = DataSet::volumes(4, 3, 0.1);
    for (name, set, batch) in [("photos", &photos, 32), ("volumes", &volumes, 1)] {
        let manifest = nginx.serve(name, set);
        let uri = format!("http://127.0.0.1:{}/{name}/", nginx.port);
        let mut loader = Loader::builder(&uri)
            .manifest(manifest)
            .batch_size(batch)
            .memory_limit("192MiB".parse().unwrap())
            .block_size("1MiB".parse().unwrap())
            .shards(1)
            .build()
            .unwrap();
        let delivered = common::drain(&mut loader, set).unwrap();
        assert_eq!(delivered.order.len() as u64, set.len());
        let stats = loader.stats();
        assert_eq!(stats.bytes, set.total_bytes());
        // nginx closes every connection after 50 answers and says so: nothing of that counts as a failure.
        assert_eq!((stats.retries, stats.given_up), (0, 0), "{stats:?}");
        assert!(stats.copied_bytes_per_byte <= 0.01, "{name}: {stats:?}");
    }
}

#[test]
fn missing_and_shorter_objects_are_typed_errors() {
    let Some(nginx) = Nginx::start() else { return };
    let set = DataSet::photos(5, 1);
    let manifest = nginx.serve("set", &set);
    let uri = format!("http://127.0.0.1:{}/set/", nginx.port);
    let fail = || {
        let loader = Loader::builder(&uri).manifest(manifest.clone()).shuffle(false).shards(1).attempts_max(2);
        loader.memory_limit("64MB".parse().unwrap()).build().unwrap().find_map(Result::err).unwrap()
    };
    let victim = nginx.root.join("set").join(set.key(2));
    let bytes = std::fs::read(&victim).unwrap();
    std::fs::write(&victim, &bytes[..bytes.len() / 2]).unwrap();
    let error = fail();
    assert_eq!((error.kind(), error.object_key()), (fuelrail::Kind::Mismatch, Some(set.key(2).as_str())), "{error}");
    std::fs::remove_file(&victim).unwrap();
    let error = fail();
    assert_eq!((error.kind(), error.object_key()), (fuelrail::Kind::NotFound, Some(set.key(2).as_str())), "{error}");
}
