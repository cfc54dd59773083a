//! A process of its own: what others allocate meanwhile would be counted.
#![cfg(target_env = "gnu")]

use fuelrail_io::{give_back_freed, memory_use};

/// After one large piece, glibc keeps all that many pieces of a size which it does not map one by one leave free.
#[test]
fn what_is_freed_is_gone() {
    give_back_freed();
    let before = memory_use().rss_bytes;
    for _ in 0..3 {
        drop(vec![1_u8; 24 << 20]);
        let pieces: Vec<Vec<u8>> = (0..640).map(|_| vec![1; 64 << 10]).collect();
        assert!(memory_use().rss_bytes >= before + (40 << 20));
        drop(pieces);
    }
    let after = memory_use().rss_bytes;
    assert!(after < before + (8 << 20), "{before} bytes before, {after} after");
}
