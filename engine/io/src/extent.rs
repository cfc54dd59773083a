//! An extent allocator: first fit at the lowest address, in 64-byte granules, with coalescing.
//!
//! The free pieces sit in a treap (Seidel, Aragon, 1996) ordered by address; every node knows the longest piece below
//! it, so the lowest fit, the longest piece and the neighbours of a freed piece are each found in O(log pieces), and
//! the node table does not grow once it has seen its largest number of pieces. Owns numbers only, no memory.

use fuelrail_base::prng::mix64;

/// Allocation granularity and alignment, in bytes: one cache line.
pub const EXTENT_GRANULE: u64 = 64;

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    offset: u64,
    len: u64,
    /// Longest piece in this subtree.
    longest: u64,
    left: u32,
    right: u32,
}

/// Free and used parts of `0..capacity` bytes.
#[derive(Clone, Debug)]
pub struct Extents {
    nodes: Vec<Node>,
    spare: Vec<u32>,
    root: u32,
    capacity: u64,
    free: u64,
}

impl Extents {
    /// `bytes` of free space, rounded down to a multiple of [`EXTENT_GRANULE`], with room for `pieces` free pieces before the table grows.
    pub fn with_pieces(bytes: u64, pieces: usize) -> Extents {
        let capacity = bytes - bytes % EXTENT_GRANULE;
        let mut extents = Extents {
            nodes: Vec::with_capacity(pieces),
            spare: Vec::with_capacity(pieces),
            root: NIL,
            capacity,
            free: capacity,
        };
        if capacity > 0 {
            extents.insert(0, capacity);
        }
        extents
    }

    /// Takes `len` bytes (rounded up to the granule) at the lowest address where they fit; returns the offset. `None`
    /// when no free piece is that long, or when `len` is zero.
    pub fn alloc(&mut self, len: u64) -> Option<u64> {
        let len = rounded(len)?;
        if len == 0 {
            return None;
        }
        let offset = self.lowest_fit(len)?;
        self.take(offset, len);
        Some(offset)
    }

    /// Takes `len` bytes if they fit anywhere, else the whole longest free piece: `(offset, bytes)` with
    /// `bytes <= len`. `None` when nothing is free, or when `len` is zero.
    pub fn alloc_up_to(&mut self, len: u64) -> Option<(u64, u64)> {
        let longest = self.largest();
        if len == 0 || longest == 0 {
            return None;
        }
        let len = len.min(longest);
        self.alloc(len).map(|offset| (offset, len))
    }

    /// Frees `len` bytes at `offset`, as allocated, or any granule-aligned part of an allocation.
    ///
    /// # Panics
    /// When part of it lies outside, is misaligned, or is free already.
    pub fn free(&mut self, offset: u64, len: u64) {
        let Some(len) = rounded(len).filter(|len| *len > 0) else { return };
        assert!(offset.is_multiple_of(EXTENT_GRANULE), "offset {offset} is not a granule boundary");
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.capacity), "{offset}+{len} lies outside");
        let (mut from, mut end) = (offset, offset + len);
        let (before, after) = self.neighbours(offset);
        if let Some(before) = before {
            assert!(before.offset + before.len <= offset, "{offset}+{len} is free already");
            if before.offset + before.len == offset {
                self.remove(before.offset);
                from = before.offset;
            }
        }
        if let Some(after) = after {
            assert!(end <= after.offset, "{offset}+{len} is free already");
            if after.offset == end {
                self.remove(after.offset);
                end = after.offset + after.len;
            }
        }
        self.insert(from, end - from);
        self.free += len;
    }

    /// Bytes in all.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes free.
    pub fn free_bytes(&self) -> u64 {
        self.free
    }

    /// Length of the longest free piece.
    pub fn largest(&self) -> u64 {
        self.longest(self.root)
    }

    fn take(&mut self, offset: u64, len: u64) {
        let whole = self.remove(offset);
        if whole > len {
            self.insert(offset + len, whole - len);
        }
        self.free -= len;
    }

    fn longest(&self, at: u32) -> u64 {
        if at == NIL { 0 } else { self.nodes[at as usize].longest }
    }

    /// Treap priority: a hash of the address, so the shape depends on the set of pieces only.
    fn priority(&self, at: u32) -> u64 {
        mix64(self.nodes[at as usize].offset)
    }

    fn lowest_fit(&self, len: u64) -> Option<u64> {
        let mut at = self.root;
        if self.longest(at) < len {
            return None;
        }
        loop {
            let node = &self.nodes[at as usize];
            if self.longest(node.left) >= len {
                at = node.left;
            } else if node.len >= len {
                return Some(node.offset);
            } else {
                at = node.right;
            }
        }
    }

    /// The last piece that starts at or before `offset`, and the first after it.
    fn neighbours(&self, offset: u64) -> (Option<Node>, Option<Node>) {
        let (mut at, mut before, mut after) = (self.root, None, None);
        while at != NIL {
            let node = self.nodes[at as usize];
            if node.offset <= offset {
                (before, at) = (Some(node), node.right);
            } else {
                (after, at) = (Some(node), node.left);
            }
        }
        (before, after)
    }

    fn insert(&mut self, offset: u64, len: u64) {
        let node = Node { offset, len, longest: len, left: NIL, right: NIL };
        let new = match self.spare.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 free pieces")
            }
        };
        let (left, right) = self.split(self.root, offset);
        let left = self.merge(left, new);
        self.root = self.merge(left, right);
    }

    /// Removes the piece that starts at `offset`; returns its length.
    fn remove(&mut self, offset: u64) -> u64 {
        let (left, rest) = self.split(self.root, offset);
        let (piece, right) = self.split(rest, offset + 1);
        assert!(piece != NIL, "a free piece starts at {offset}");
        self.root = self.merge(left, right);
        self.spare.push(piece);
        self.nodes[piece as usize].len
    }

    /// Splits a subtree into pieces before `offset` and pieces from it on.
    fn split(&mut self, at: u32, offset: u64) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        if self.nodes[at as usize].offset < offset {
            let (left, right) = self.split(self.nodes[at as usize].right, offset);
            self.nodes[at as usize].right = left;
            self.refresh(at);
            (at, right)
        } else {
            let (left, right) = self.split(self.nodes[at as usize].left, offset);
            self.nodes[at as usize].left = right;
            self.refresh(at);
            (left, at)
        }
    }

    /// Joins two subtrees, all of `left` before all of `right`.
    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL || right == NIL {
            return if left == NIL { right } else { left };
        }
        if self.priority(left) > self.priority(right) {
            let joined = self.merge(self.nodes[left as usize].right, right);
            self.nodes[left as usize].right = joined;
            self.refresh(left);
            left
        } else {
            let joined = self.merge(left, self.nodes[right as usize].left);
            self.nodes[right as usize].left = joined;
            self.refresh(right);
            right
        }
    }

    fn refresh(&mut self, at: u32) {
        let Node { len, left, right, .. } = self.nodes[at as usize];
        self.nodes[at as usize].longest = len.max(self.longest(left)).max(self.longest(right));
    }
}

fn rounded(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(EXTENT_GRANULE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const G: u64 = EXTENT_GRANULE;

    /// The plain model: one flag per granule.
    struct Model(Vec<bool>);

    impl Model {
        fn runs(&self) -> Vec<(u64, u64)> {
            let mut runs = Vec::new();
            let mut start = None;
            for (i, used) in self.0.iter().chain([&true]).enumerate() {
                match (used, start) {
                    (false, None) => start = Some(i),
                    (true, Some(from)) => {
                        runs.push((from as u64 * G, (i - from) as u64 * G));
                        start = None;
                    }
                    _ => {}
                }
            }
            runs
        }

        fn first_fit(&self, len: u64) -> Option<u64> {
            let need = len.next_multiple_of(G);
            self.runs().into_iter().find(|(_, run)| *run >= need).map(|(offset, _)| offset)
        }

        fn mark(&mut self, offset: u64, len: u64, used: bool) {
            for granule in &mut self.0[(offset / G) as usize..((offset + len).div_ceil(G)) as usize] {
                assert_ne!(*granule, used, "model and extents disagree");
                *granule = used;
            }
        }
    }

    proptest! {
        #[test]
        fn behaves_like_the_flag_per_granule_model(
            granules in 1u64..200,
            steps in prop::collection::vec((0u8..4, 1u64..2_000, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut extents = Extents::with_pieces(granules * G + 7, 0);
            let mut model = Model(vec![false; granules as usize]);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (what, len, pick) in steps {
                match what {
                    0 => {
                        let expected = model.first_fit(len);
                        prop_assert_eq!(extents.alloc(len), expected);
                        if let Some(offset) = expected {
                            model.mark(offset, len, true);
                            live.push((offset, len));
                        }
                    }
                    1 => {
                        let longest = model.runs().iter().map(|run| run.1).max().unwrap_or(0);
                        let expected = (longest > 0).then(|| (model.first_fit(len.min(longest)).unwrap(), len.min(longest)));
                        prop_assert_eq!(extents.alloc_up_to(len), expected);
                        if let Some((offset, len)) = expected {
                            model.mark(offset, len, true);
                            live.push((offset, len));
                        }
                    }
                    _ if !live.is_empty() => {
                        let (offset, len) = live.swap_remove(pick.index(live.len()));
                        extents.free(offset, len);
                        model.mark(offset, len, false);
                    }
                    _ => {}
                }
                let runs = model.runs();
                prop_assert_eq!(extents.free_bytes(), runs.iter().map(|run| run.1).sum::<u64>());
                prop_assert_eq!(extents.largest(), runs.iter().map(|run| run.1).max().unwrap_or(0));
                prop_assert_eq!(extents.nodes.len() - extents.spare.len(), runs.len(), "pieces are coalesced");
            }
        }
    }

    #[test]
    fn does_not_grow_its_table_in_steady_state() {
        let mut extents = Extents::with_pieces(1 << 20, 300);
        let before = (extents.nodes.capacity(), extents.spare.capacity());
        for round in 0..50u64 {
            let taken: Vec<u64> = (0..256).map(|i| extents.alloc(64 + (i * round) % 1_000).unwrap()).collect();
            for (i, offset) in taken.iter().enumerate().rev().step_by(2).chain(taken.iter().enumerate().step_by(2)) {
                extents.free(*offset, 64 + (i as u64 * round) % 1_000);
            }
            assert_eq!(extents.largest(), 1 << 20);
        }
        assert_eq!((extents.nodes.capacity(), extents.spare.capacity()), before);
    }

    #[test]
    fn zero_lengths_and_overflow_are_refused() {
        let mut extents = Extents::with_pieces(1 << 12, 0);
        assert_eq!((extents.alloc(0), extents.alloc(u64::MAX), extents.alloc_up_to(0)), (None, None, None));
        extents.free(0, 0);
        assert_eq!(extents.free_bytes(), 1 << 12);
        assert_eq!(extents.alloc_up_to(u64::MAX), Some((0, 1 << 12)));
        assert_eq!(extents.alloc_up_to(1), None);
        assert_eq!(Extents::with_pieces(63, 0).capacity(), 0);
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn a_double_free_is_caught() {
        let mut extents = Extents::with_pieces(1 << 12, 0);
        let offset = extents.alloc(100).unwrap();
        extents.free(offset, 100);
        extents.free(offset, 100);
    }
}
