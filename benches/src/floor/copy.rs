//! The copy alone: as many bytes as the set has, from memory that stays in cache to where receives would put them.
//!
//! Owns the source.

use super::arena::Arena;
use super::kind::{Into, RECEIVE_BYTES};
use super::pass::Pass;
use super::requests::Requests;

pub(super) fn run(requests: &Requests, into: Into, arena: &mut Arena, pass: &mut Pass) {
    let source = vec![7u8; RECEIVE_BYTES];
    for request in requests.all() {
        let bytes = request.body_bytes;
        let mut left = bytes as usize;
        while left > 0 {
            let room = arena.room(left.min(RECEIVE_BYTES));
            let step = room.len();
            room.copy_from_slice(&source[..step]);
            // Nobody reads what is copied; it must be copied all the same.
            std::hint::black_box(&mut *room);
            left -= step;
            if into == Into::Arena {
                arena.take(step);
            }
        }
        pass.copied(bytes);
    }
}
