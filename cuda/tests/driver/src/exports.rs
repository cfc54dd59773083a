//! How entry points are written, and what their pointers are.
//!
//! Owns the macro that exports a function under its CUDA name, and the two pointer types through which alone the bodies
//! write to and read from their callers.

use crate::code::{Code, Outcome};
use std::ffi::{CStr, c_char, c_void};

/// A place of the caller that takes a result. Made only by the caller of an entry point.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result.
    pub(crate) fn put(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by CUDA's contract the caller of the entry point keeps this place valid for writing during the call.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Replaces what the caller has there by what becomes of it.
    pub(crate) fn exchange(self, change: impl FnOnce(T) -> Outcome<T>) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by CUDA's contract the caller of the entry point keeps this place valid for reading during the call.
        let before = unsafe { self.0.read_unaligned() };
        self.put(change(before)?)
    }

    /// Writes the result where the caller wants one.
    pub(crate) fn offer(self, value: T) {
        // A null pointer here says that the caller does not want it.
        let _ = self.put(value);
    }
}

impl Out<c_char> {
    /// Writes a text with its closing zero into a buffer of the caller, cut to fit.
    pub(crate) fn put_text(self, text: &str, room: i32) -> Outcome {
        let room = usize::try_from(room).map_err(|_| Code::INVALID_VALUE)?;
        if self.0.is_null() || room == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let bytes = &text.as_bytes()[..text.len().min(room - 1)];
        // SAFETY: the caller keeps `room` bytes valid for writing during the call; text and zero are no more than that.
        unsafe {
            self.0.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.0.add(bytes.len()).write(0);
        }
        Ok(())
    }
}

/// Memory of the caller that is only read. Made only by the caller of an entry point.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl In<c_char> {
    /// The text, up to its zero.
    pub(crate) fn text(self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by CUDA's contract the caller hands over a text that ends in a zero and stays during the call.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// A handle or an address of the caller, as a number: what it means is looked up, it is never followed here.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Handle(*mut c_void);

impl Handle {
    pub(crate) fn number(self) -> u64 {
        self.0 as u64
    }

    pub(crate) fn from_number(number: u64) -> Handle {
        Handle(number as *mut c_void)
    }
}

/// Exports entry points: `fn name(arguments) needs |call, held| body`.
macro_rules! entries {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $needs:ident |$call:ident, $held:ident| $body:expr;)*) => {$(
        /// An entry point of CUDA; its contract is CUDA's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> i32 {
            let $call = stringify!($name);
            let _ = $call;
            $crate::driver::enter($call, $crate::driver::Needs::$needs, |$held| $body)
        }
    )*};
}
pub(crate) use entries;
