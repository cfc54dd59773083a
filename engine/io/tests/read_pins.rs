//! Read pins and padded windows: nothing that is pinned is written, and padding does not count as room.

use crate::slots::arena;
use fuelrail_io::Scatter;

/// While bytes are read-pinned every way to write to them refuses, and afterwards none does.
#[test]
fn what_is_pinned_is_not_written() {
    fn refuses(what: impl FnOnce()) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).is_err()
    }
    let (_arena, mut region) = arena(1 << 16, 4);
    let mut filling = region.alloc(100).unwrap().fill();
    let (mut window, mut other) = (filling.carve(60).unwrap(), filling.carve(40).unwrap());
    window.put(&[1; 50]);
    let pinned = window.read_pin();
    assert!(window.is_read_pinned() && !other.is_read_pinned(), "a window that was never pinned is not concerned");
    assert_eq!((filling.windows_out(), other.put(&[2; 40]), pinned.bytes()), (2, 40, &[1; 50][..]));
    assert!(refuses(|| assert_eq!(window.put(&[9]), 1)) && refuses(|| window.rewind(0)));
    assert!(refuses(|| window.unfilled_mut()[0] = 9));
    let mut tail = window.split_off(55);
    assert!(tail.is_read_pinned() && refuses(|| tail.unfilled_mut()[0] = 9), "the tail of a pinned window");
    window.fill(5);
    let mut window = window.join(tail).unwrap();
    assert!(window.is_read_pinned() && refuses(|| assert_eq!(window.put(&[9]), 1)), "joined of what was pinned");
    let mut into = Scatter::new(region.alloc(64).unwrap());
    assert!(refuses(|| drop(into.push_body(window, 1))), "a receive into pinned bytes");
    drop(other);
    let mut slot = filling.seal().unwrap();
    assert!(slot.is_read_pinned() && slot[..50] == [1; 50] && refuses(|| slot[0] = 9));
    assert!(refuses(|| drop(Scatter::new(slot))), "scratch memory that is pinned");
    assert_eq!(region.outstanding(), 2, "the read pin alone keeps the slot");
    std::thread::spawn(move || assert_eq!(*pinned, [1; 50])).join().unwrap();
    region.collect();
    assert_eq!(region.outstanding(), 1);
    let mut filling = region.alloc(100).unwrap().fill();
    let mut window = filling.carve(100).unwrap();
    window.put(&[3; 100]);
    drop(window.read_pin());
    window.rewind(0);
    assert_eq!((window.put(&[4; 100]), window.is_read_pinned()), (100, false));
    drop(window);
    let slot = filling.seal().unwrap();
    assert!(!slot.is_read_pinned());
}

/// A window whose readers are done is written to, whatever pins its neighbours have meanwhile: pins end with the last reader.
#[test]
fn loans_of_a_neighbour_do_not_bring_back_those_that_ended() {
    let (_arena, mut region) = arena(1 << 16, 4);
    let scratch = region.alloc(64).unwrap();
    let mut filling = region.alloc(100).unwrap().fill();
    let (mut window, mut other) = (filling.carve(60).unwrap(), filling.carve(40).unwrap());
    window.put(&[1; 60]);
    other.put(&[2; 40]);
    let pinned = window.read_pin();
    assert!(!window.try_unpin(), "it is being read");
    drop(pinned);
    assert!(window.try_unpin());
    let neighbour = other.read_pin();
    assert!(window.try_unpin() && other.is_read_pinned());
    window.rewind(0);
    let mut into = Scatter::new(scratch);
    assert!(into.push_body(window, 60).is_ok(), "a receive fills it again");
    drop((into, other));
    assert_eq!(*neighbour, [2; 40]);
}

/// Padding belongs to its window, counts nowhere, and goes with the end of what is split.
#[test]
fn padding_is_nobodys_room() {
    let (_arena, mut region) = arena(1 << 16, 4);
    let mut slot = region.alloc(2_048).unwrap();
    slot[..].fill(0xEE);
    let mut filling = slot.fill();
    assert!(filling.carve_padded(100, 2_049).is_none());
    let mut padded = filling.carve_padded(1_000, 1_024).unwrap();
    let mut plain = filling.carve(1_000).unwrap();
    assert_eq!((padded.len(), padded.room(), filling.at()), (1_000, 1_000, 2_024));
    assert_eq!((padded.put(&[1; 2_000]), plain.put(&[2; 2_000])), (1_000, 1_000));
    let (padded, plain) = padded.join(plain).unwrap_err();
    let (mut head, mut plain) = (padded, plain);
    assert!(plain.read_pin_padded(512).is_none() && head.read_pin_padded(4096).is_none(), "not padded so far");
    assert_eq!(plain.read_pin_padded(8).unwrap().len(), 1_000, "whole units need no padding");
    let tail = head.split_off(500);
    assert_eq!(head.read_pin_padded(500).unwrap().len(), 500);
    assert!(head.read_pin_padded(512).is_none(), "the padding is the tail's");
    let mut whole = head.join(tail).unwrap();
    let pinned = whole.read_pin_padded(512).unwrap();
    assert!(
        pinned.len() == 1_024 && pinned[..1_000] == [1; 1_000] && pinned[1_000..] == [0; 24],
        "zeroes, not what was there"
    );
    drop((whole, plain));
    let slot = filling.seal().unwrap();
    assert_eq!((&slot[1_000..1_024], slot.is_read_pinned()), (&[0; 24][..], true));
}
