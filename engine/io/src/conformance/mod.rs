//! One suite for every back-end of [`Ring`](crate::Ring): what any ring must do, checked against peers that follow a script.
//!
//! A [`Harness`] makes rings of one kind and such peers: real sockets on the loopback interface ([`TcpPeers`]),
//! or a simulated host ([`ScriptedHost`]). Each check gets a fresh harness and panics on failure; it never blocks without a
//! limit, so that a broken ring fails instead of hanging.

mod bytes;
mod files;
mod fixture;
mod life;
mod opening;
mod peers;
mod read_pins;

use fixture::Fixture;

pub use fixture::{Check, Harness, Script, pattern};
pub use life::in_fork;
pub use peers::{ScratchFiles, ScriptedHost, TcpPeers};

/// Checks on a ring of so many entries, whose counts are verified afterwards; and others, which make rings of their own.
macro_rules! named {
    ($($entries:literal $module:ident: $($check:ident)*;)* $(others $other_module:ident: $($other:ident)*;)*) => {
        vec![
            $($((stringify!($check), |harness: &mut V| {
                let mut fixture = Fixture::new(harness, $entries);
                $module::$check(&mut fixture);
                fixture.finish();
            }),)*)*
            $($((stringify!($other), $other_module::$other::<V>),)*)*
        ]
    };
}

/// All checks, by name.
pub fn suite<V: Harness>() -> Vec<Check<V>> {
    named! {
        16 bytes: connects_and_is_refused echo_of_a_large_message scatter_at_every_split pieces_resume_where_they_stopped
            end_of_stream_and_reset;
        16 files: what_is_written_is_read a_file_ends_where_it_ends files_open_as_they_are_asked_to
            files_run_out_and_come_back direct_access_is_aligned_or_refused sockets_and_files_together;
        16 life: cancel_races_lose_nothing close_with_operations_in_flight sockets_run_out_and_come_back a_wait_ends_in_time
            a_wake_ends_a_wait no_wake_up_is_lost wakes_do_not_disturb_operations patience_ends_with_its_receive;
        16 read_pins: pinned_bytes_outlive_their_batch a_batch_is_sealed_and_read_while_it_is_pinned
            a_cancelled_write_gives_its_read_pin_back a_padded_window_is_written_and_read_whole;
        16 opening: a_file_is_marked_by_what_was_written an_operation_opens_a_file_and_examines_it
            an_opening_is_cancelled_or_done openings_run_out_of_files;
        64 bytes: many_connections_at_once;
        64 files: many_file_operations_at_once file_operations_are_cancelled_or_done;
        32 files: a_file_closed_at_work_gives_all_back;
        4 life: a_full_ring_gives_the_operation_back;
        1 life: stale_names_are_refused;
        others files: dropped_over_files_memory_is_left_alone;
        others life: dropped_in_flight_memory_is_left_alone dropped_busy_everything_is_returned;
        others read_pins: dropped_at_work_a_ring_gives_read_pins_back;
        others opening: dropped_over_openings_no_file_stays_open;
    }
}
