//! DLCache's weight of a node, by which pods and the shares of a data set are placed.
//!
//! `weight(n) = [free GPUs of n ≥ requested] + E_n/E + (1 − E_ex/E) · storage(n)/Σ storage`, with E the data set, E_n its part on n, and
//! E_ex its part that some node holds. The highest weight goes first, ties by name, and shares are placed first-fit along that order.
//!
//! Three things differ from the paper. E counts **bytes**, not chunks: the last share of a set may be small, and a node that holds it
//! should not weigh as much as one that holds a large one. The first term is the **share of a job's ranks** that the node has GPUs for,
//! which for one rank is the paper's 0 or 1: a job of eight ranks prefers the node that takes all eight to eight nodes that take one
//! each. And each placed rank takes its GPUs off the node before the next rank is weighed, so that ranks do not all go to one node.

/// What the weight of a node depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name, which breaks ties.
    pub name: String,
    /// GPUs that are not allocated.
    pub free_gpus: u64,
    /// Capacity for blocks on its disk.
    pub storage_bytes: u64,
    /// Bytes of the data set that it holds.
    pub held_bytes: u64,
}

/// What is to be placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// GPUs that each rank requests.
    pub gpus: u64,
    /// Ranks that are to be placed.
    pub ranks: u64,
    /// Bytes of the data set; 0 if unknown.
    pub total_bytes: u64,
    /// … that at least one node holds.
    pub anywhere_bytes: u64,
}

/// The weight of each candidate, from 0 to 3.
pub fn weights(candidates: &[Candidate], demand: &Demand) -> Vec<f64> {
    let storage: u64 = candidates.iter().map(|node| node.storage_bytes).sum();
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part.min(whole) as f64 / whole as f64 };
    let absent = 1.0 - share(demand.anywhere_bytes, demand.total_bytes);
    let ranks = demand.ranks.max(1);
    let weigh = |node: &Candidate| {
        let fitting = node.free_gpus.checked_div(demand.gpus).unwrap_or(ranks);
        share(fitting, ranks) + share(node.held_bytes, demand.total_bytes) + absent * share(node.storage_bytes, storage)
    };
    candidates.iter().map(weigh).collect()
}

/// The candidates' indexes, highest weight first, ties by name.
pub fn order(candidates: &[Candidate], weights: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    let by_name = |a: usize, b: usize| candidates[a].name.cmp(&candidates[b].name);
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then_with(|| by_name(a, b)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three nodes: 10 chunks of one byte, storage 100, 100 and 200, a job of one rank that requests 2 GPUs.
    fn weighed(free: [u64; 3], held: [u64; 3], anywhere: u64) -> ([f64; 3], &'static str) {
        let node = |n: usize| Candidate {
            name: format!("n{}", n + 1),
            free_gpus: free[n],
            storage_bytes: [100, 100, 200][n],
            held_bytes: held[n],
        };
        let (nodes, demand) =
            ([node(0), node(1), node(2)], Demand { gpus: 2, ranks: 1, total_bytes: 10, anywhere_bytes: anywhere });
        let weights = weights(&nodes, &demand);
        ([weights[0], weights[1], weights[2]], ["n1", "n2", "n3"][order(&nodes, &weights)[0]])
    }

    fn near(found: ([f64; 3], &str), weights: [f64; 3], first: &str) {
        assert_eq!(found.1, first);
        assert!(found.0.iter().zip(weights).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
    }

    #[test]
    fn the_table_of_dlcache() {
        near(weighed([4, 4, 4], [0, 0, 0], 0), [1.25, 1.25, 1.5], "n3");
        near(weighed([4, 4, 0], [2, 6, 0], 8), [1.25, 1.65, 0.1], "n2");
        near(weighed([1, 1, 1], [10, 0, 0], 10), [1.0, 0.0, 0.0], "n1");
        // (d): equal weights go by name, also where n3's larger disk no longer counts.
        near(weighed([4, 4, 4], [0, 0, 0], 10), [1.0, 1.0, 1.0], "n1");
    }

    #[test]
    fn a_job_of_many_ranks_goes_where_most_of_them_fit() {
        let node =
            |name: &str, free_gpus| Candidate { name: name.to_owned(), free_gpus, storage_bytes: 1, held_bytes: 0 };
        let nodes = [node("a", 2), node("b", 8), node("c", 7)];
        let ordered = |ranks, gpus| {
            let demand = Demand { gpus, ranks, total_bytes: 0, anywhere_bytes: 0 };
            order(&nodes, &weights(&nodes, &demand))
        };
        assert_eq!(ordered(4, 2), [1, 2, 0]);
        assert_eq!(ordered(1, 2), [0, 1, 2]);
        assert_eq!(ordered(4, 0), [0, 1, 2], "a job without GPUs fits everywhere");
    }
}
