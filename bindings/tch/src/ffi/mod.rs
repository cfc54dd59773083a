//! The boundary to C++: the only place of this crate with `unsafe`. Everything it exports is safe to call.
//!
//! Owns the declarations of the shim (`shim/*.cpp`) and the handles it gives out. Never decides anything.

mod group;
mod reducer;
mod session;
mod tensor;

pub use group::{Backend, Group};
pub use reducer::Reducer;
pub(crate) use session::{Autocast, random_state, set_random_state};
pub use session::{load_cuda, torch_version};
pub use tensor::tensor_of_bytes;
pub(crate) use tensor::{batch_tensor, device_tensor, feed_stream};

use fuelrail_base::{Error, Kind, Result};
use std::ffi::{CStr, c_char, c_int};

unsafe extern "C" {
    fn fr_text_free(text: *mut c_char);
}

/// The result of a call of the shim: `text` is null, or says why it failed.
fn check(doing: &str, text: *mut c_char) -> Result<()> {
    match text_of(text) {
        None => Ok(()),
        Some(why) => Err(Error::new(Kind::Environment, format!("{doing}: {}", first_lines(&why)))),
    }
}

/// Takes a text that the shim allocated.
fn text_of(text: *mut c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the shim hands out null or a text ending in a zero byte, which is ours from now on; it is freed once, here, after the
    // copy has been made.
    unsafe {
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        fr_text_free(text);
        Some(copy)
    }
}

/// Torch's number of an element kind (`c10::ScalarType`), which tch keeps to itself.
fn code_of(kind: tch::Kind) -> c_int {
    match kind {
        tch::Kind::Uint8 => 0,
        tch::Kind::Int8 => 1,
        tch::Kind::Int16 => 2,
        tch::Kind::Int => 3,
        tch::Kind::Int64 => 4,
        tch::Kind::Half => 5,
        tch::Kind::Float => 6,
        tch::Kind::Double => 7,
        tch::Kind::Bool => 11,
        tch::Kind::BFloat16 => 15,
        other => unreachable!("no tensor of ours has elements of {other:?}"),
    }
}

/// Torch's message, without its stack trace.
fn first_lines(why: &str) -> String {
    let text: Vec<&str> = why.lines().take_while(|line| !line.starts_with("Exception raised from")).take(4).collect();
    text.join(" ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::first_lines;

    #[test]
    fn stack_traces_are_left_out() {
        let text =
            "Connection closed by peer\nException raised from recv at x.cpp:1 (most recent call first):\nframe #0";
        assert_eq!(first_lines(text), "Connection closed by peer");
    }
}
