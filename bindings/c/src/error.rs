//! The engine's errors as a struct of C strings.

use fuelrail::{Error as Cause, Kind};
use std::any::Any;
use std::ffi::{CString, c_char};
use std::ptr;

/// What happened, and what to do about it. Freed by `fuelrail_error_free`. Its texts are never NULL unless it says so here.
#[repr(C)]
pub struct Error {
    /// One word: `usage`, `environment`, `budget`, `network`, `throttled`, `server`, `truncated`, `stalled`, `protocol`,
    /// `mismatch`, `changed`, `not_found`, `expired`, `exists`, `denied`, `untrusted`, `undecodable`, `file`, `program`, `cancelled`, or
    /// `bug`, which is a fault of this library: please report it.
    pub kind: *const c_char,
    /// The whole error on one line, object and hint included.
    pub message: *const c_char,
    /// The object concerned, or NULL.
    pub object: *const c_char,
    /// What to do about it, or NULL.
    pub hint: *const c_char,
    /// Attempts made, 0 where nothing is tried again.
    pub attempts: u32,
}

impl Error {
    pub(crate) fn of(error: &Cause) -> Error {
        let texts = [Some(error.kind().word()), Some(&*error.to_string()), error.object(), error.hint()];
        Error::new(texts, error.attempts())
    }

    /// For a panic, by what it carries.
    pub(crate) fn bug(panic: &(dyn Any + Send)) -> Error {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let hint = "close the loader, and report this with the program's standard error";
        Error::new([Some("bug"), Some(&format!("fuelrail panicked: {text}; {hint}")), None, Some(hint)], 0)
    }

    fn new([kind, message, object, hint]: [Option<&str>; 4], attempts: u32) -> Error {
        let owned = |text: Option<&str>| text.map_or(ptr::null(), |text| c_text(text).into_raw().cast_const());
        Error { kind: owned(kind), message: owned(message), object: owned(object), hint: owned(hint), attempts }
    }
}

/// Wrong use of this library.
pub(crate) fn usage(cause: impl Into<String>, hint: &str) -> Cause {
    Cause::new(Kind::Usage, cause).with_hint(hint)
}

/// As C has texts. They end at a NUL, so one inside becomes U+FFFD.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}
