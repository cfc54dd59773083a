//! Venues: what contestants read from, and over which link. nginx on loopback or behind a link of its own, the embedded
//! bucket, or any HTTP bucket there is.
//!
//! Owns the server, the link and the folder if it made it; all are gone when the venue is dropped.

mod certificate;
mod netns;
mod nginx;
mod tool;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use fuelrail::{Error, Kind, Result};
use fuelrail_bucket::{Bucket, BucketConfig, Source};
use serde::{Deserialize, Serialize};

use self::netns::Link;
use self::nginx::{Nginx, Site};
use super::place::Place;
use super::shape::Laid;
use crate::embedded;

pub use certificate::Certificate;

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VenueKind {
    /// nginx on 127.0.0.1.
    #[default]
    Loopback,
    /// nginx in a network namespace, over a veth pair at MTU 1500. Needs root.
    Netns,
    /// The embedded bucket on 127.0.0.1, in the harness's own process. For tests: it is no server to measure against.
    Embedded,
    /// A bucket that is already there.
    #[value(skip)]
    External,
}

/// How a venue is set up.
#[derive(Clone, Debug, Default)]
pub struct VenueConfig {
    pub kind: VenueKind,
    /// For `Netns`: the most the link carries towards the client, bit/s.
    pub link_bits_per_s: Option<u64>,
    /// Whether to serve TLS as well (nginx only).
    pub tls: bool,
    /// For `External`: the URI that keys are appended to.
    pub uri: Option<String>,
    /// The folder for objects and logs. None makes one in `/dev/shm`, else in the temporary folder, and removes it.
    pub folder: Option<PathBuf>,
    /// The core the server is bound to. None leaves it free.
    pub server_core: Option<usize>,
    /// The cores contestants are bound to. Empty leaves them free.
    pub client_cores: Vec<usize>,
    /// More directives for nginx's server block, for rivals that want a listing.
    pub nginx_directives: String,
}

impl VenueConfig {
    /// A venue as results are published from, on a machine with two cores or more: the server on the first, contestants on
    /// the second.
    pub fn pinned(kind: VenueKind) -> VenueConfig {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut config = VenueConfig { kind, ..VenueConfig::default() };
        if cores > 1 {
            (config.server_core, config.client_cores) = (Some(0), vec![1]);
        }
        config
    }
}

/// Plain or encrypted.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// HTTP.
    #[default]
    Plain,
    /// HTTPS: TLS 1.3 with AES-128-GCM.
    Tls,
}

/// What a result says about its venue. Never names a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VenueFacts {
    pub kind: VenueKind,
    /// The server and its version, where it is ours.
    pub server: String,
    /// Largest packet of the link, where it is ours, bytes.
    pub mtu: Option<u32>,
    /// What the link was held to, bit/s.
    pub link_bits_per_s: Option<u64>,
    pub server_core: Option<usize>,
    /// The contestants' cores; empty for any.
    pub client_cores: Vec<usize>,
}

/// A venue that stands. Dropping it takes it down.
#[derive(Debug)]
pub struct Venue {
    server: Server,
    certificate: Option<Certificate>,
    // Behind the server, so that a namespace goes when nobody is left in it.
    _link: Option<Link>,
    place: Place,
    facts: VenueFacts,
    folder: Folder,
}

#[derive(Debug)]
enum Server {
    Nginx { address: IpAddr, nginx: Nginx },
    Embedded(Bucket),
    External(String),
}

impl Venue {
    /// Sets a venue up. Objects may be laid into [`Venue::folder`] before or after.
    pub fn open(config: &VenueConfig) -> Result<Venue> {
        validate(config)?;
        let folder = Folder::new(config.folder.as_deref())?;
        let root = folder.path().join("root");
        fs::create_dir_all(&root).map_err(|error| unusable(&root, &error))?;
        let mut facts = VenueFacts {
            kind: config.kind,
            server: "external".into(),
            mtu: None,
            link_bits_per_s: config.link_bits_per_s,
            server_core: config.server_core,
            client_cores: config.client_cores.clone(),
        };
        let mut place = Place { cores: config.client_cores.clone(), netns: None };
        let (mut certificate, mut link) = (None, None);
        let server = match config.kind {
            VenueKind::Loopback | VenueKind::Netns => {
                let mut server_place = Place { cores: config.server_core.into_iter().collect(), netns: None };
                let mut address = IpAddr::V4(Ipv4Addr::LOCALHOST);
                if config.kind == VenueKind::Netns {
                    let laid = Link::new(config.link_bits_per_s)?;
                    address = netns::SERVER.into();
                    (server_place.netns, place.netns) = (Some(laid.server().into()), Some(laid.client().into()));
                    facts.mtu = Some(netns::MTU);
                    link = Some(laid);
                }
                let private = folder.private()?;
                certificate = config.tls.then(|| certificate::make(&private, address)).transpose()?;
                let site = Site {
                    folder: &private,
                    root: &root,
                    address,
                    certificate: certificate.as_ref(),
                    directives: &config.nginx_directives,
                    place: &server_place,
                };
                let nginx = Nginx::start(&site)?;
                facts.server = nginx.version.clone();
                Server::Nginx { address, nginx }
            }
            VenueKind::Embedded => {
                facts.server = "embedded bucket".into();
                facts.server_core = None;
                Server::Embedded(embedded(&root)?)
            }
            VenueKind::External => {
                facts.server_core = None;
                let uri = config.uri.clone().unwrap_or_default();
                Server::External(if uri.ends_with('/') { uri } else { format!("{uri}/") })
            }
        };
        Ok(Venue { server, certificate, _link: link, place, facts, folder })
    }

    /// Where the keys of what was laid begin. For an external bucket, its URI.
    pub fn uri(&self, laid: &Laid, transport: Transport) -> Result<String> {
        let none = || Error::new(Kind::Usage, "this venue has no TLS").cure("use a venue with nginx, opened with TLS");
        match (&self.server, transport) {
            (Server::Nginx { address, nginx }, Transport::Plain) => {
                Ok(format!("http://{address}:{}/{}", nginx.port, laid.prefix))
            }
            (Server::Nginx { address, nginx }, Transport::Tls) => {
                Ok(format!("https://{address}:{}/{}", nginx.tls_port.ok_or_else(none)?, laid.prefix))
            }
            (Server::Embedded(bucket), Transport::Plain) => Ok(bucket.url(&laid.prefix)),
            (Server::External(uri), transport) if uri.starts_with("https:") == (transport == Transport::Tls) => {
                Ok(uri.clone())
            }
            _ => Err(none()),
        }
    }

    /// The authority that signed the server's certificate, where there is TLS of our own.
    pub fn authority(&self) -> Option<&Path> {
        self.certificate.as_ref().map(|certificate| certificate.authority.as_path())
    }

    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The folder whose `root` is served.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Processor time of its nginx so far, s; none of another server.
    pub fn server_cpu_s(&self) -> Option<f64> {
        let Server::Nginx { nginx, .. } = &self.server else { return None };
        nginx.account().cpu().ok().map(|cpu| cpu.total_s())
    }

    pub fn facts(&self) -> &VenueFacts {
        &self.facts
    }
}

fn validate(config: &VenueConfig) -> Result<()> {
    let usage = |cause: &str, cure: &str| Err(Error::new(Kind::Usage, cause).cure(cure));
    let ours = matches!(config.kind, VenueKind::Loopback | VenueKind::Netns);
    if config.link_bits_per_s.is_some() && config.kind != VenueKind::Netns {
        return usage("only a link of our own can be held to a rate", "use --venue netns");
    }
    if config.link_bits_per_s.is_some_and(|rate| !(1_000_000..=1_000_000_000_000).contains(&rate)) {
        return usage("the link's rate is outside 1 Mbit/s to 1 Tbit/s", "give bits per second, for example 10gbit");
    }
    if config.tls && config.kind == VenueKind::Embedded {
        return usage("this venue has no TLS", "use --venue loopback or netns");
    }
    if config.uri.is_some() != (config.kind == VenueKind::External) {
        return usage("a URI and an external bucket go together", "give --uri alone, or --venue alone");
    }
    if !ours && !config.nginx_directives.is_empty() {
        return usage("directives are for nginx", "use --venue loopback or netns");
    }
    Ok(())
}

fn embedded(root: &Path) -> Result<Bucket> {
    let config = BucketConfig { source: Source::Directory(root.to_path_buf()), ..BucketConfig::default() };
    embedded::start(config)
}

/// A folder given, or one made and removed.
#[derive(Debug)]
enum Folder {
    Given { folder: PathBuf, private: tempfile::TempDir },
    Made(tempfile::TempDir),
}

impl Folder {
    fn new(given: Option<&Path>) -> Result<Folder> {
        let shared_memory = Path::new("/dev/shm");
        let parent = if shared_memory.is_dir() { shared_memory.to_path_buf() } else { std::env::temp_dir() };
        let made = |parent: &Path| {
            let made = tempfile::Builder::new().prefix("fuelrail-bench-").tempdir_in(parent);
            made.map_err(|error| unusable(parent, &error))
        };
        match given {
            None => Ok(Folder::Made(made(&parent).or_else(|_| made(&std::env::temp_dir()))?)),
            Some(folder) => {
                fs::create_dir_all(folder).map_err(|error| unusable(folder, &error))?;
                let folder = folder.canonicalize().map_err(|error| unusable(folder, &error))?;
                Ok(Folder::Given { private: made(&std::env::temp_dir())?, folder })
            }
        }
    }

    fn path(&self) -> &Path {
        match self {
            Folder::Given { folder, .. } => folder,
            Folder::Made(made) => made.path(),
        }
    }

    /// A folder for what is only this venue's: configuration, logs, keys. Always removed.
    fn private(&self) -> Result<PathBuf> {
        let private = match self {
            Folder::Given { private, .. } => private.path().to_path_buf(),
            Folder::Made(made) => made.path().join("server"),
        };
        fs::create_dir_all(&private).map_err(|error| unusable(&private, &error))?;
        Ok(private)
    }
}

fn unusable(folder: &Path, error: &std::io::Error) -> Error {
    Error::new(Kind::File, format!("the folder {}: {error}", folder.display())).cure("give another with --dir")
}
