//! Slots, fillings and windows against a plain model, and their return from other threads.

use std::sync::mpsc;

use fuelrail_base::Kind;
use fuelrail_base::prng::Prng;
use fuelrail_io::{
    Arena, ArenaConfig, Filling, Huge, HugePages, Landed, ReadPin, Region, Scatter, Slot, Waker, Window,
};
use proptest::prelude::*;

pub(crate) fn arena(bytes: u64, slots: usize) -> (Arena, Region) {
    let config = ArenaConfig {
        bytes,
        regions: 1,
        huge_pages: HugePages::Off,
        slots_per_region: slots,
        ..ArenaConfig::default()
    };
    let (arena, mut regions) = Arena::new(&config).unwrap();
    (arena, regions.pop().unwrap())
}

#[test]
fn a_slot_has_its_length_its_alignment_and_its_own_bytes() {
    let (arena, mut region) = arena(1 << 16, 16);
    let mut slots: Vec<Slot> = [1usize, 64, 65, 1_000, 0].iter().map(|len| region.alloc(*len).unwrap()).collect();
    for (i, slot) in slots.iter_mut().enumerate() {
        assert!(slot.is_empty() || (slot.as_ptr() as usize).is_multiple_of(64));
        slot[..].fill(i as u8 + 1);
    }
    for (i, slot) in slots.iter().enumerate() {
        assert!(slot.iter().all(|b| *b == i as u8 + 1));
    }
    assert_eq!(region.free_bytes(), (1 << 16) - 64 - 64 - 128 - 1_024);
    assert_eq!((region.outstanding(), arena.outstanding()), (5, 5));
    slots[3].truncate(10);
    assert_eq!((slots[3].len(), region.free_bytes()), (10, (1 << 16) - 1_280));
    drop(slots);
    assert_eq!(region.outstanding(), 0);
    region.collect();
    assert!(region.free_bytes() == 1 << 16 && region.alloc(1 << 16).is_some());
}

#[test]
fn the_budget_and_the_header_table_are_hard() {
    let (_arena, mut region) = arena(1 << 12, 2);
    assert!(region.alloc((1 << 12) + 1).is_none());
    let all = region.alloc(1 << 12).unwrap();
    assert!(region.alloc(1).is_none(), "no bytes left");
    drop(all);
    let _two = [region.alloc(1).unwrap(), region.alloc(1).unwrap()];
    assert!(region.alloc(1).is_none(), "no headers left");
}

#[test]
fn memory_used_last_is_used_first() {
    let (_arena, mut region) = arena(1 << 20, 16);
    let first = region.alloc(4_096).unwrap();
    let address = first.as_ptr();
    drop(first);
    for _ in 0..10 {
        assert_eq!(region.alloc(4_096).unwrap().as_ptr(), address);
    }
}

#[test]
fn wrong_configurations_are_refused_with_a_cure() {
    for (bytes, regions, slots, kind) in [
        (1 << 20, 0, 10, Kind::Usage),
        (1 << 20, 1, 0, Kind::Usage),
        (4_096, 2, 10, Kind::Budget),
        (0, 1, 10, Kind::Budget),
        (1 << 60, 1, 10, Kind::Budget),
    ] {
        let config = ArenaConfig {
            bytes,
            regions,
            huge_pages: HugePages::Off,
            slots_per_region: slots,
            ..ArenaConfig::default()
        };
        assert_eq!(Arena::new(&config).unwrap_err().kind(), kind, "{config:?}");
    }
}

#[test]
fn the_report_says_which_pages_and_never_exceeds_the_budget() {
    let config = ArenaConfig { bytes: (9 << 20) + 5, regions: 2, ..ArenaConfig::default() };
    let (arena, regions) = Arena::new(&config).unwrap();
    let report = arena.report();
    assert!(report.bytes <= config.bytes && report.bytes == 2 * report.region_bytes);
    assert!(regions.iter().all(|region| region.capacity() == report.region_bytes));
    if let Huge::None(why) = &report.huge {
        assert!(!why.is_empty());
    }
    let small = ArenaConfig { bytes: 1 << 20, ..ArenaConfig::default() };
    let (arena, _regions) = Arena::new(&small).unwrap();
    assert!(matches!(&arena.report().huge, Huge::None(why) if why.contains("smaller than one huge page")));
}

#[test]
fn a_region_aside_comes_last_and_inside_the_budget() {
    let config = ArenaConfig { bytes: (9 << 20) + 7, regions: 2, extra_bytes: (1 << 20) + 7, ..ArenaConfig::default() };
    let (arena, mut regions) = Arena::new(&config).unwrap();
    assert_eq!(regions.iter().map(|r| r.capacity()).collect::<Vec<_>>(), [4 << 20, 4 << 20, 1 << 20]);
    let spans: Vec<_> = arena.region_spans().collect();
    assert_eq!(spans.iter().map(|span| span.1).collect::<Vec<_>>(), [4 << 20, 4 << 20, 1 << 20]);
    assert!(arena.report().bytes <= config.bytes);
    let mut aside = regions.pop().unwrap();
    let slot = aside.alloc(1 << 20).expect("all of it");
    assert_eq!(slot.as_ptr(), spans[2].0);
    assert_eq!(spans[2].0.addr() + spans[2].1, arena.span().0.addr() + arena.span().1);
    assert_eq!(arena.outstanding(), 1);
    let wanting = ArenaConfig { bytes: 1 << 20, extra_bytes: 1 << 20, ..ArenaConfig::default() };
    assert_eq!(Arena::new(&wanting).unwrap_err().kind(), Kind::Budget);
}

#[test]
fn memory_outlives_arena_and_region() {
    let (arena, mut region) = arena(1 << 16, 4);
    let mut filling = region.alloc(100).unwrap().fill();
    let mut window = filling.carve(60).unwrap();
    drop((arena, region, filling));
    assert_eq!(window.put(&[7; 100]), 60);
    assert_eq!(window.bytes(), [7; 60]);
}

#[test]
fn what_is_written_past_the_cursor_counts_when_it_is_said_to() {
    let mut region = arena(1 << 16, 4).1;
    let mut filling = region.alloc(100).unwrap().fill();
    let (mut window, next) = (filling.carve(60).unwrap(), filling.carve(40).unwrap());
    window.put(b"ab");
    let unfilled = window.unfilled_mut();
    assert_eq!(unfilled.len(), 58);
    unfilled[..4].copy_from_slice(b"cdXX");
    assert_eq!(window.bytes(), b"ab");
    window.fill(2);
    assert_eq!((window.bytes(), window.room()), (&b"abcd"[..], 56));
    window.put(&[0; 56]);
    assert!(window.unfilled_mut().is_empty());
    let over = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| window.fill(1)));
    assert!(over.is_err() && next.filled() == 0);
}

#[test]
fn a_scatter_keeps_what_is_not_used_up() {
    let mut region = arena(1 << 16, 4).1;
    let mut into = Scatter::new(region.alloc(100).unwrap());
    into.scratch_mut()[..3].copy_from_slice(b"abc");
    into.keep(3);
    assert!(into.push_head(97) && !into.push_head(1));
    assert!(matches!(into.landed().next(), Some(Landed::Head { from: 3, asked: 97, got: 0 })));
    assert_eq!(&into.scratch()[..3], b"abc");
    into.keep(0);
    assert!(into.push_head(100));
}

#[test]
fn a_filling_seals_only_when_its_windows_are_back() {
    let (_arena, mut region) = arena(1 << 16, 4);
    let mut filling = region.alloc(100).unwrap().fill();
    let mut a = filling.carve(40).unwrap();
    filling.skip(10);
    let b = filling.carve(50).unwrap();
    assert!(filling.carve(1).is_none());
    assert_eq!((filling.at(), filling.windows_out()), (100, 2));
    a.put(&[1; 40]);
    filling = filling.seal().unwrap_err();
    drop(a);
    filling = filling.seal().unwrap_err();
    drop(b);
    let slot = filling.seal().unwrap();
    assert_eq!(slot[..40], [1; 40]);
}

#[test]
fn only_neighbours_join() {
    let (_arena, mut region) = arena(1 << 16, 4);
    let mut filling = region.alloc(64).unwrap().fill();
    let mut other = region.alloc(64).unwrap().fill();
    let (mut a, mut b, c) = (filling.carve(16).unwrap(), filling.carve(16).unwrap(), filling.carve(32).unwrap());
    let stranger = other.carve(8).unwrap();
    b.put(&[2; 4]);
    (a, b) = a.join(b).unwrap_err(); // a is not full, b is begun
    a.put(&[1; 16]);
    let (a, c) = a.join(c).unwrap_err(); // not adjacent
    let (c, stranger) = c.join(stranger).unwrap_err(); // another slot, though the next one in memory
    drop(stranger);
    let mut ab = a.join(b).unwrap();
    assert_eq!((ab.len(), ab.filled(), filling.windows_out()), (32, 20, 2));
    ab.put(&[3; 12]);
    let abc = ab.join(c).unwrap();
    assert_eq!((abc.len(), abc.filled(), abc.room()), (64, 32, 32));
    drop(abc);
    assert_eq!(filling.windows_out(), 0);
}

#[test]
fn a_scatter_refuses_what_does_not_fit() {
    let (_arena, mut region) = arena(1 << 16, 64);
    let mut filling = region.alloc(1_000).unwrap().fill();
    let mut into = Scatter::new(region.alloc(100).unwrap());
    assert!(!into.push_head(0) && into.push_head(60) && !into.push_head(41) && into.push_head(40));
    let mut full = filling.carve(4).unwrap();
    full.put(&[0; 4]);
    assert!(into.push_body(full, 10).is_err(), "a full window");
    assert!(into.push_body(filling.carve(4).unwrap(), 0).is_err(), "at most nothing");
    let mut pushed = 2;
    while into.push_body(filling.carve(4).unwrap(), usize::MAX).is_ok() {
        pushed += 1;
    }
    assert_eq!((pushed, into.pieces(), into.asked()), (32, 32, 100 + 30 * 4));
    let (scratch, pieces) = into.finish();
    assert_eq!((scratch.len(), pieces.len()), (100, 32));
}

#[derive(Clone, Debug)]
enum Step {
    Carve(usize),
    Skip(usize),
    Put(prop::sample::Index, usize, u8),
    Rewind(prop::sample::Index, prop::sample::Index),
    Split(prop::sample::Index, prop::sample::Index),
    Join(prop::sample::Index, prop::sample::Index),
    Drop(prop::sample::Index),
    Lend(prop::sample::Index),
    Return(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    use prop::sample::Index;
    prop_oneof![
        3 => (0usize..60).prop_map(Step::Carve),
        1 => (0usize..20).prop_map(Step::Skip),
        4 => (any::<Index>(), 0usize..40, any::<u8>()).prop_map(|(w, n, b)| Step::Put(w, n, b)),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(w, at)| Step::Rewind(w, at)),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(w, at)| Step::Split(w, at)),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Step::Join(a, b)),
        1 => any::<Index>().prop_map(Step::Drop),
        1 => any::<Index>().prop_map(Step::Lend),
        1 => any::<Index>().prop_map(Step::Return),
    ]
}

/// A window with where the model says it lies.
struct Modelled {
    window: Window,
    start: usize,
    len: usize,
    filled: usize,
    was_read_pinned: bool,
}

impl Modelled {
    /// Whether it may be written to; its own read pins have ended then.
    fn unpins<P>(&mut self, read_pins: &[P]) -> bool {
        self.was_read_pinned &= !read_pins.is_empty();
        self.window.try_unpin()
    }
}

proptest! {
    /// Whatever is carved, split, joined, filled and dropped, the sealed slot is what an array would be.
    #[test]
    fn windows_behave_like_parts_of_an_array(len in 0usize..400, steps in prop::collection::vec(step(), 1..120)) {
        let (_arena, mut region) = arena(1 << 16, 4);
        let mut slot = region.alloc(len).unwrap();
        slot[..].fill(0xEE);
        let mut bytes = vec![0xEEu8; len];
        let mut filling: Filling = slot.fill();
        let mut at = 0;
        let mut live: Vec<Modelled> = Vec::new();
        let mut read_pins: Vec<(ReadPin, Vec<u8>)> = Vec::new();
        for step in steps {
            match step {
                Step::Carve(n) => match filling.carve(n) {
                    Some(window) => {
                        prop_assert!(at + n <= len && window.len() == n);
                        live.push(Modelled { window, start: at, len: n, filled: 0, was_read_pinned: false });
                        at += n;
                    }
                    None => prop_assert!(at + n > len),
                },
                Step::Skip(n) if at + n <= len => {
                    filling.skip(n);
                    at += n;
                }
                Step::Put(w, n, b) if !live.is_empty() => {
                    let w = w.index(live.len());
                    let m = &mut live[w];
                    if !m.unpins(&read_pins) {
                        continue;
                    }
                    let fits = n.min(m.len - m.filled);
                    prop_assert_eq!(m.window.put(&vec![b; n]), fits);
                    bytes[m.start + m.filled..m.start + m.filled + fits].fill(b);
                    m.filled += fits;
                }
                Step::Rewind(w, to) if !live.is_empty() => {
                    let w = w.index(live.len());
                    let m = &mut live[w];
                    if !m.unpins(&read_pins) {
                        continue;
                    }
                    m.filled = to.index(m.filled + 1);
                    m.window.rewind(m.filled);
                }
                Step::Split(w, to) if !live.is_empty() => {
                    let w = w.index(live.len());
                    let m = &mut live[w];
                    let cut = to.index(m.len + 1);
                    let window = m.window.split_off(cut);
                    let tail = Modelled {
                        window,
                        start: m.start + cut,
                        len: m.len - cut,
                        filled: m.filled.saturating_sub(cut),
                        was_read_pinned: m.was_read_pinned,
                    };
                    (m.len, m.filled) = (cut, m.filled.min(cut));
                    live.push(tail);
                }
                Step::Join(a, b) if live.len() >= 2 => {
                    let first = live.swap_remove(a.index(live.len()));
                    let second = live.swap_remove(b.index(live.len()));
                    let fits = first.start + first.len == second.start
                        && (first.filled == first.len || second.filled == 0);
                    match first.window.join(second.window) {
                        Ok(window) => {
                            prop_assert!(fits);
                            let (start, len) = (first.start, first.len + second.len);
                            let filled = first.filled + second.filled;
                            let was_read_pinned = first.was_read_pinned || second.was_read_pinned;
                            live.push(Modelled { window, start, len, filled, was_read_pinned });
                        }
                        Err((one, two)) => {
                            prop_assert!(!fits);
                            live.push(Modelled { window: one, ..first });
                            live.push(Modelled { window: two, ..second });
                        }
                    }
                }
                Step::Drop(w) if !live.is_empty() => drop(live.swap_remove(w.index(live.len()))),
                Step::Lend(w) if !live.is_empty() => {
                    let w = w.index(live.len());
                    let m = &mut live[w];
                    m.was_read_pinned = true;
                    read_pins.push((m.window.read_pin(), bytes[m.start..m.start + m.filled].to_vec()));
                }
                Step::Return(n) if !read_pins.is_empty() => drop(read_pins.swap_remove(n.index(read_pins.len()))),
                _ => {}
            }
            prop_assert_eq!(filling.windows_out(), live.len());
            for m in &live {
                prop_assert_eq!((m.window.len(), m.window.filled()), (m.len, m.filled));
                prop_assert_eq!(m.window.is_read_pinned(), m.was_read_pinned && !read_pins.is_empty());
                prop_assert_eq!(m.window.bytes(), &bytes[m.start..m.start + m.filled]);
            }
        }
        live.clear();
        let slot = filling.seal().map_err(|_| TestCaseError::fail("does not seal"))?;
        prop_assert_eq!(&slot[..], &bytes[..]);
        prop_assert_eq!(slot.is_read_pinned(), !read_pins.is_empty());
        prop_assert!(read_pins.iter().all(|(pinned, expected)| pinned.bytes() == expected));
        drop(slot);
        prop_assert_eq!(region.outstanding(), usize::from(!read_pins.is_empty()));
        read_pins.clear();
        region.collect();
        prop_assert_eq!((region.outstanding(), region.free_bytes()), (0, region.capacity()));
    }
}

/// Slots and windows are dropped on four threads at once while their region hands out more: everything is returned, no
/// byte is shared between two owners, and the region's owner is woken.
#[test]
fn slots_return_from_many_threads() {
    const THREADS: usize = 4;
    const SLOTS: usize = 40_000;
    let (arena, mut region) = arena(1 << 20, 512);
    let waker = Waker::sleeper();
    region.set_waker(waker.clone());
    let (senders, threads): (Vec<_>, Vec<_>) = (0..THREADS)
        .map(|_| {
            let (tx, rx) = mpsc::sync_channel::<(Window, u8)>(32);
            let thread = std::thread::spawn(move || {
                for (mut window, tag) in rx {
                    let len = window.len();
                    window.put(&vec![tag; len]);
                    std::thread::yield_now();
                    assert!(window.bytes().iter().all(|b| *b == tag), "two owners of one byte");
                }
            });
            (tx, thread)
        })
        .unzip();
    let mut prng = Prng::new(1);
    for n in 0..SLOTS {
        let len = prng.below(3_000) as usize;
        let mut slot = region.alloc(len);
        while slot.is_none() {
            // A lost wake-up hangs here for an hour.
            if waker.arm() {
                slot = region.alloc(len);
                if slot.is_none() {
                    waker.sleep(std::time::Duration::from_secs(3600));
                }
            }
            waker.disarm();
            slot = slot.or_else(|| region.alloc(len));
        }
        let mut filling = slot.unwrap().fill();
        for part in 0..THREADS {
            let window = filling.carve(len / THREADS).unwrap();
            senders[(n + part) % THREADS].send((window, n as u8)).unwrap();
        }
    }
    drop(senders);
    for thread in threads {
        thread.join().unwrap();
    }
    region.collect();
    assert_eq!((region.outstanding(), arena.outstanding()), (0, 0));
    assert!(region.free_bytes() == region.capacity() && region.alloc(region.capacity() as usize).is_some());
}

/// What windows wrote on another thread is in the slot sealed here.
#[test]
fn sealing_sees_what_other_threads_wrote() {
    let (_arena, mut region) = arena(1 << 16, 8);
    for round in 0..2_000u32 {
        let mut filling = region.alloc(256).unwrap().fill();
        let threads: Vec<Window> = (0..2).map(|_| filling.carve(128).unwrap()).collect();
        let tag = round as u8;
        let mut slot = None;
        std::thread::scope(|scope| {
            for mut window in threads {
                scope.spawn(move || {
                    window.put(&[tag; 128]);
                });
            }
            while slot.is_none() {
                match filling.seal() {
                    Ok(sealed) => {
                        slot = Some(sealed);
                        return;
                    }
                    Err(back) => filling = back,
                }
                std::thread::yield_now();
            }
        });
        assert!(slot.unwrap().iter().all(|b| *b == tag), "round {round}");
    }
}
