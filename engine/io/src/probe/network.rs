//! The network cards: speed, MTU, driver, queues and receive ring.
//!
//! Reads `/sys/class/net` below a root folder; ring sizes come from the kernel when that root is this machine's. Changes nothing.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::{fs, mem};

use super::finding::Finding;

/// One network card that is up.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Nic {
    /// The interface.
    pub name: String,
    /// Its driver.
    pub driver: Option<String>,
    /// Its speed as the driver reports it, Mbit/s; virtual cards often report none.
    pub speed_mbit_per_s: Option<u64>,
    /// Largest packet, bytes.
    pub mtu: u64,
    /// Receive queues.
    pub receive_queues: usize,
    /// Descriptors of the receive ring: now, and at most.
    pub receive_ring: Option<(u32, u32)>,
}

/// A receive ring below this is emptied too late when a core is busy with something else for a millisecond.
const RING_ENOUGH: u32 = 1024;

/// The cards (not loopback, bridges and the like) that are not down, by name.
pub(super) fn nics(root: &Path) -> Vec<Nic> {
    let entries = fs::read_dir(root.join("sys/class/net")).into_iter().flatten().flatten();
    let mut found: Vec<Nic> = entries.filter_map(|entry| nic(root, &entry.path())).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn nic(root: &Path, folder: &Path) -> Option<Nic> {
    let name = folder.file_name()?.to_str()?.to_owned();
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok().map(|text| text.trim().to_owned());
    if !folder.join("device").exists() || read("operstate").is_some_and(|state| state == "down") {
        return None;
    }
    let driver = fs::read_link(folder.join("device/driver")).ok();
    let queues = fs::read_dir(folder.join("queues")).into_iter().flatten().flatten();
    let receive_queues = queues.filter(|queue| queue.file_name().to_string_lossy().starts_with("rx-")).count();
    let here = root == Path::new("/");
    Some(Nic {
        driver: driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
        // Unknown is -1 or an error.
        speed_mbit_per_s: read("speed").and_then(|text| text.parse().ok()),
        mtu: read("mtu").and_then(|text| text.parse().ok()).unwrap_or(0),
        receive_queues,
        receive_ring: here.then(|| receive_ring(&name)).flatten(),
        name,
    })
}

/// Reads the card's receive ring from its driver. `None` when it reports none.
fn receive_ring(interface: &str) -> Option<(u32, u32)> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const GET_RING: u32 = 0x10;
    let mut words = [GET_RING, 0, 0, 0, 0, 0, 0, 0, 0];
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).ok()?;
    // SAFETY: an all-zero `ifreq` is a valid value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the kernel reads the name and writes the result, of the size of `ethtool_ringparam`, to `words`; both live until
    // after the call.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) };
    (rc == 0).then_some((words[5], words[1]))
}

pub(super) fn findings(nics: &[Nic]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = nics.iter().map(card).collect();
    if nics.is_empty() {
        findings.push(Finding::degraded(
            "network card",
            "none is visible",
            "in a container, host networking shows the cards; loopback and tunnels need none",
        ));
    }
    findings
}

fn card(nic: &Nic) -> Finding {
    let name = format!("network card {}", nic.name);
    let speed = match nic.speed_mbit_per_s {
        Some(mbit) if mbit >= 1000 => format!("{} Gbit/s", mbit as f64 / 1000.0),
        Some(mbit) => format!("{mbit} Mbit/s"),
        None => "speed unknown".to_owned(),
    };
    let driver = nic.driver.as_deref().unwrap_or("driver unknown");
    let ring = nic.receive_ring.map_or(String::new(), |(now, most)| format!(", receive ring {now} of {most}"));
    let value = format!("{driver}, {speed}, MTU {}, {} receive queue(s){ring}", nic.mtu, nic.receive_queues);
    match nic.receive_ring {
        Some((now, most)) if now < RING_ENOUGH && most > now => {
            let cure = format!("packets are lost when a core is late: ethtool -G {} rx {}", nic.name, most.min(4096));
            Finding::degraded(name, value, cure)
        }
        _ => Finding::good(name, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::finding::Grade;
    use crate::tree::Tree;

    #[test]
    fn cards_are_read_and_what_is_no_card_is_not() {
        let tree = Tree::new(&[("sys/class/net/lo/mtu", "65536\n"), ("sys/class/net/eth1/operstate", "down\n")]);
        for (file, text) in [("mtu", "9001\n"), ("speed", "100000\n"), ("operstate", "up\n")] {
            tree.add(&format!("sys/class/net/eth0/{file}"), text);
        }
        tree.add("sys/class/net/eth0/queues/rx-0/rps_cpus", "0\n");
        tree.add("sys/class/net/eth0/queues/rx-1/rps_cpus", "0\n");
        tree.add("sys/class/net/eth0/queues/tx-0/xps_cpus", "0\n");
        tree.add("sys/class/net/eth1/device/vendor", "0x1d0f\n");
        tree.link("sys/class/net/eth0/device/driver", "../../../../bus/pci/drivers/ena");
        let found = nics(tree.root());
        let wanted = Nic {
            name: "eth0".into(),
            driver: Some("ena".into()),
            speed_mbit_per_s: Some(100_000),
            mtu: 9001,
            receive_queues: 2,
            receive_ring: None,
        };
        assert_eq!(found, [wanted]);
        let line = &findings(&found)[0];
        assert_eq!((line.name.as_str(), line.grade), ("network card eth0", Grade::Good));
        assert_eq!(line.value, "ena, 100 Gbit/s, MTU 9001, 2 receive queue(s)");
    }

    #[test]
    fn small_rings_and_no_card_have_a_cure() {
        let nic =
            Nic { name: "eth0".into(), driver: Some("ena".into()), receive_ring: Some((256, 8192)), ..Nic::default() };
        let small = &findings(&[nic])[0];
        assert_eq!(small.grade, Grade::Degraded);
        assert!(small.cure.as_deref().unwrap().contains("ethtool -G eth0 rx 4096"), "{small}");
        assert_eq!(findings(&[])[0].grade, Grade::Degraded);
    }
}
