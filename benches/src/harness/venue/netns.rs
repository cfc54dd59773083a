//! A link of its own: two network namespaces joined by a veth pair at MTU 1500, its server's side held to a rate if asked.
//!
//! Owns the namespaces and removes them. Needs root. Inside them every address is free, so several links never collide and
//! nothing of the host's network is touched.

use std::net::Ipv4Addr;
use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use fuelrail::{Error, Kind, Result};

use crate::harness::tool;

/// The server's address, from the range set aside for benchmarks (RFC 2544).
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// What Ethernet carries.
pub(super) const MTU: u32 = 1500;
/// How much a shaped link lets through at once: a millisecond's worth, and at least four of the kernel's largest packets.
const BURST_BYTES_MIN: u64 = 256 << 10;
/// How long a packet may wait in a shaped link before it is dropped.
const QUEUE: &str = "20ms";

/// Links made by this process so far, for their names.
static LINKS: AtomicU32 = AtomicU32::new(0);

/// Two namespaces and the link between them.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) server: String,
    pub(super) client: String,
}

impl Link {
    /// Lays the link, held to `bits_per_s` towards the client if given.
    pub(super) fn new(bits_per_s: Option<u64>) -> Result<Link> {
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
