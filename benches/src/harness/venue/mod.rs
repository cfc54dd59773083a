//! Venues: what contestants read from, and over which link: nginx on loopback or behind a link of its own, or the embedded bucket.
//!
//! Owns the server, the link and the folder if it made it; all are gone when the venue is dropped.

mod nginx;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::ValueEnum;
use fuelrail::{Error, Kind, Result};
use fuelrail_bucket::{Bucket, BucketConfig, Source};
use serde::{Deserialize, Serialize};

use self::nginx::{Nginx, Site};
use super::account::{Account, Place};
use super::shape::Laid;
use super::tool;
use super::tool::embedded;

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
}

/// How a venue is set up.
#[derive(Clone, Debug, Default)]
pub struct VenueConfig {
    pub kind: VenueKind,
    /// For `Netns`: the most the link carries towards the client, bit/s.
    pub link_bits_per_s: Option<u64>,
    /// Whether to serve TLS as well (nginx only).
    pub tls: bool,
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
    nginx: Option<Nginx>,
    _bucket: Option<Bucket>,
    // After the server, so that the namespace is removed once it is empty.
    _link: Option<Link>,
    /// Where keys begin, without and with TLS.
    plain: Option<String>,
    secure: Option<String>,
    /// The authority that signed the server's certificate, where there is TLS of our own.
    pub authority: Option<PathBuf>,
    /// Where contestants run to reach it.
    pub place: Place,
    pub facts: VenueFacts,
    folder: Folder,
}

impl Venue {
    /// Sets a venue up. Objects may be laid into [`Venue::folder`] before or after.
    pub fn open(config: &VenueConfig) -> Result<Venue> {
        validate(config)?;
        let folder = Folder::new(config.folder.as_deref())?;
        let root = folder.path.join("root");
        fs::create_dir_all(&root).map_err(|error| unusable(&root, &error))?;
        let mut venue = Venue {
            nginx: None,
            _bucket: None,
            _link: None,
            plain: None,
            secure: None,
            authority: None,
            place: Place { cores: config.client_cores.clone(), netns: None },
            facts: VenueFacts {
                kind: config.kind,
                server: "embedded bucket".into(),
                mtu: None,
                link_bits_per_s: config.link_bits_per_s,
                server_core: None,
                client_cores: config.client_cores.clone(),
            },
            folder,
        };
        match config.kind {
            VenueKind::Loopback | VenueKind::Netns => venue.open_nginx(config, &root)?,
            VenueKind::Embedded => {
                let source = Source::Directory(root);
                let bucket = embedded(BucketConfig { source, ..BucketConfig::default() })?;
                venue.plain = Some(bucket.url(""));
                venue._bucket = Some(bucket);
            }
        }
        Ok(venue)
    }

    fn open_nginx(&mut self, config: &VenueConfig, root: &Path) -> Result<()> {
        let mut server_place = Place { cores: config.server_core.into_iter().collect(), netns: None };
        let mut address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if config.kind == VenueKind::Netns {
            let link = Link::new(config.link_bits_per_s)?;
            address = SERVER.into();
            (server_place.netns, self.place.netns) = (Some(link.server.clone()), Some(link.client.clone()));
            self.facts.mtu = Some(MTU);
            self._link = Some(link);
        }
        let folder = &self.folder.private;
        if config.tls {
            self.authority = Some(certify(folder, address)?);
        }
        let (tls, directives) = (config.tls, config.nginx_directives.as_str());
        let nginx = Nginx::start(&Site { folder, root, address, tls, directives, place: &server_place })?;
        (self.facts.server, self.facts.server_core) = (nginx.version.clone(), config.server_core);
        self.plain = Some(format!("http://{address}:{}/", nginx.port));
        self.secure = nginx.tls_port.map(|port| format!("https://{address}:{port}/"));
        self.nginx = Some(nginx);
        Ok(())
    }

    /// Where the keys of what was laid begin.
    ///
    /// # Errors
    /// `Usage` for TLS at a venue that has none.
    pub fn uri(&self, laid: &Laid, transport: Transport) -> Result<String> {
        let base = match transport {
            Transport::Plain => &self.plain,
            Transport::Tls => &self.secure,
        };
        let none =
            || Error::new(Kind::Usage, "this venue has no TLS").with_hint("use a venue with nginx, opened with TLS");
        Ok(format!("{}{}", base.as_ref().ok_or_else(none)?, laid.prefix))
    }

    /// The folder whose `root` is served.
    pub fn folder(&self) -> &Path {
        &self.folder.path
    }

    /// Processor time of its nginx so far, s; none of another server.
    pub fn server_cpu_s(&self) -> Option<f64> {
        let nginx = self.nginx.as_ref()?;
        Account::Tree(nginx.process.id()).cpu().ok().map(|cpu| cpu.total_s())
    }
}

fn validate(config: &VenueConfig) -> Result<()> {
    let usage = |cause: &str, cure: &str| Err(Error::new(Kind::Usage, cause).with_hint(cure));
    if config.link_bits_per_s.is_some() && config.kind != VenueKind::Netns {
        return usage("only a link of our own can be held to a rate", "use --venue netns");
    }
    if config.link_bits_per_s.is_some_and(|rate| !(1_000_000..=1_000_000_000_000).contains(&rate)) {
        return usage("the link's rate is outside 1 Mbit/s to 1 Tbit/s", "give bits per second, for example 10gbit");
    }
    if config.tls && config.kind == VenueKind::Embedded {
        return usage("this venue has no TLS", "use --venue loopback or netns");
    }
    if config.kind == VenueKind::Embedded && !config.nginx_directives.is_empty() {
        return usage("directives are for nginx", "use --venue loopback or netns");
    }
    Ok(())
}

/// Writes a certificate for this venue and its key as `server.pem` and `server.key`; returns the file of its authority.
fn certify(folder: &Path, address: IpAddr) -> Result<PathBuf> {
    let made =
        fuelrail_bucket::Certificate::new(address).map_err(|error| Error::new(Kind::Environment, error.to_string()))?;
    for (name, pem) in [("ca.pem", &made.authority), ("server.pem", &made.chain), ("server.key", &made.key)] {
        fs::write(folder.join(name), pem).map_err(|error| unusable(folder, &error))?;
    }
    Ok(folder.join("ca.pem"))
}

/// The folder of the objects, given or made, and one beside it for what is only this venue's: configuration, logs, keys.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    private: PathBuf,
    /// Holds what was made, and removes it.
    _made: tempfile::TempDir,
}

impl Folder {
    fn new(given: Option<&Path>) -> Result<Folder> {
        let temporary = std::env::temp_dir();
        let made = |parent: &Path| tempfile::Builder::new().prefix("fuelrail-bench-").tempdir_in(parent);
        let made = match given {
            Some(_) => made(&temporary),
            None => made(Path::new("/dev/shm")).or_else(|_| made(&temporary)),
        };
        let made = made.map_err(|error| unusable(&temporary, &error))?;
        let path = given.unwrap_or(made.path()).to_path_buf();
        let private = made.path().join("server");
        for folder in [&path, &private] {
            fs::create_dir_all(folder).map_err(|error| unusable(folder, &error))?;
        }
        let path = path.canonicalize().map_err(|error| unusable(&path, &error))?;
        Ok(Folder { path, private, _made: made })
    }
}

fn unusable(folder: &Path, error: &std::io::Error) -> Error {
    Error::new(Kind::File, format!("the folder {}: {error}", folder.display())).with_hint("give another with --dir")
}

/// The server's address, from the range set aside for benchmarks (RFC 2544).
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// What Ethernet carries.
const MTU: u32 = 1500;
/// How much a shaped link lets through at once: a millisecond's worth, and at least four of the kernel's largest packets.
const BURST_BYTES_MIN: u64 = 256 << 10;
/// How long a packet may wait in a shaped link before it is dropped.
const QUEUE: &str = "20ms";

/// Links made by this process so far, for their names.
static LINKS: AtomicU32 = AtomicU32::new(0);

/// Two network namespaces joined by a veth pair at MTU 1500, the server's side held to a rate if asked; removed when dropped. Needs root.
/// Every address inside them is free, so several links never collide and nothing of the host's network is touched.
#[derive(Debug)]
struct Link {
    server: String,
    client: String,
}

impl Link {
    /// Lays the link, held to `bits_per_s` towards the client if given.
    fn new(bits_per_s: Option<u64>) -> Result<Link> {
        let number = LINKS.fetch_add(1, Ordering::Relaxed);
        let name = |side: &str| format!("fuelrail-{}-{number}-{side}", std::process::id());
        // From here on dropping it removes whatever was made.
        let link = Link { server: name("server"), client: name("client") };
        link.lay(bits_per_s).map_err(|error| {
            Error::new(Kind::Environment, format!("a network namespace cannot be made: {}", error.cause()))
                .with_hint("run as root with iproute2 installed, or use --venue loopback")
        })?;
        Ok(link)
    }

    fn lay(&self, bits_per_s: Option<u64>) -> Result<()> {
        let (server, client, mtu) = (self.server.as_str(), self.client.as_str(), MTU.to_string());
        run("ip", &["netns", "add", server])?;
        run("ip", &["netns", "add", client])?;
        let pair = ["link", "add", "server", "netns", server, "mtu", &mtu, "type", "veth"];
        run("ip", &[&pair[..], &["peer", "name", "client", "netns", client, "mtu", &mtu]].concat())?;
        for (netns, device, address) in [(server, "server", SERVER), (client, "client", CLIENT)] {
            run("ip", &["-n", netns, "addr", "add", &format!("{address}/30"), "dev", device])?;
            run("ip", &["-n", netns, "link", "set", device, "up"])?;
            run("ip", &["-n", netns, "link", "set", "lo", "up"])?;
        }
        if let Some(rate) = bits_per_s {
            let burst = (rate / 8 / 1_000).max(BURST_BYTES_MIN).to_string();
            let rate = format!("{rate}bit");
            let shape = ["-n", server, "qdisc", "add", "dev", "server", "root", "tbf"];
            run("tc", &[&shape[..], &["rate", &rate, "burst", &burst, "latency", QUEUE]].concat())?;
        }
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for netns in [&self.server, &self.client] {
            // One that was not made yet is not there.
            let _ = run("ip", &["netns", "del", netns]);
        }
    }
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let what = format!("{program} {}", args.join(" "));
    tool::run(Command::new(program).args(args), &what, &format!("install {program}"))
}

/// Bits per second with a unit: `1gbit`, `500mbit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BitRate(pub u64);

impl FromStr for BitRate {
    type Err = Error;

    fn from_str(text: &str) -> Result<BitRate> {
        let units = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];
        let lower = text.to_ascii_lowercase();
        let found = units.iter().find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?.trim(), factor)));
        let rate = found.and_then(|(number, factor)| Some(number.parse::<f64>().ok()? * factor));
        rate.filter(|rate| rate.is_finite() && *rate >= 1.0).map(|rate| BitRate(rate as u64)).ok_or_else(|| {
            Error::new(Kind::Usage, format!("'{text}' is not a rate")).with_hint("write for example 1gbit or 500mbit")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_carry_units() {
        let rate = |text: &str| text.parse::<BitRate>().map(|rate| rate.0);
        assert_eq!((rate("1gbit").unwrap(), rate("2.5 Mbit").unwrap()), (1_000_000_000, 2_500_000));
        for bad in ["fast", "1", "1gb", "-1gbit", "nanbit"] {
            assert_eq!(rate(bad).unwrap_err().kind(), Kind::Usage, "{bad}");
        }
    }
}
