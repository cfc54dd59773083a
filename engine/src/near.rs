//! Near which NUMA node the loaders of this process sit, and whether their memory is there.
//!
//! Owns the count of seats given out. Places no thread: that is `layout`'s.

use crate::config::Config;
use crate::layout::Seating;
use fuelrail_io::Topology;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Nodes that are counted apart; further ones share a count, which costs them nothing but a less even seating.
const NODES_MAX: usize = 64;
/// Seats given to the loaders of this process so far: near each node, and near none.
static SEATS_TAKEN: [AtomicUsize; NODES_MAX + 1] = [const { AtomicUsize::new(0) }; NODES_MAX + 1];

/// Takes seats near a node; how many were taken there before.
fn take_seats(near: Option<u16>, seats: usize) -> usize {
    let at = near.map_or(NODES_MAX, |node| usize::from(node) % NODES_MAX);
    SEATS_TAKEN[at].fetch_add(seats, Ordering::Relaxed)
}

/// The notice that no shard can sit where it was asked to.
fn unavailable(config: &Config, topology: &Topology) -> Option<String> {
    let node = config.near?;
    (!topology.cores.iter().any(|core| core.node == usize::from(node))).then(|| {
        format!(
            "near: none of the cores this process may use is on NUMA node {node}; shards sit on others. Widen the cpuset, or name \
             one of {:?}",
            topology.nodes
        )
    })
}

/// Seats for all shards, behind those of ranks and loaders before, where they are bound to their cores.
pub(crate) fn seat(config: &Config, topology: &Topology, notices: &mut Vec<String>) -> Option<Seating> {
    notices.extend(unavailable(config, topology));
    let shards = usize::from(config.shards);
    let taken = config.rank as usize * shards + take_seats(config.near, shards);
    config.pin.then(|| Seating::new(topology, config.near, taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_counted_for_each_node() {
        let (a, b) = (take_seats(Some(61), 2), take_seats(Some(62), 2));
        assert_eq!((take_seats(Some(61), 1), take_seats(Some(62), 1)), (a + 2, b + 2));
    }

    #[test]
    fn a_node_without_cores_of_ours_is_said() {
        let here = Topology::here();
        let near = |node| unavailable(&Config { near: node, ..Config::default() }, &here);
        assert!(near(Some(60_000)).unwrap().contains("NUMA node 60000"));
        assert_eq!(near(Some(here.cores[0].node as u16)), None);
        assert_eq!(near(None), None);
    }
}
