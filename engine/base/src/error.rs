//! The one error type. `kind` decides whether to try again and how a process exits; the text gives cause and hint.

use core::any::Any;
use core::borrow::Borrow;
use core::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// Kinds of errors, by what can be done about them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// Wrong argument, configuration or state given by the caller. Never retried.
    Usage,
    /// The kernel, cgroup, memlock limit or another property of the environment refuses. Never retried.
    Environment,
    /// The memory budget cannot hold what is asked. Never retried.
    Budget,
    /// Could not connect, connection reset, name not resolved. Retried.
    Network,
    /// The server asked to slow down (503, 429). Retried after a longer wait, and the window shrinks.
    Throttled,
    /// The server failed (other 5xx). Retried.
    Server,
    /// The body ended before its length. Retried from the last good byte.
    Truncated,
    /// No bytes for longer than the stall limit. Retried on another connection.
    Stalled,
    /// The peer violates HTTP: malformed head, impossible framing. Retried on another connection.
    Protocol,
    /// Length, range or checksum differ from what was listed or promised. Retried: a healthy replica may answer next.
    Mismatch,
    /// The object's ETag is not the listed one. Retried once in case of a stale replica, then final.
    Changed,
    /// No such object or bucket. Never retried.
    NotFound,
    /// The credentials have expired, or the clocks differ: retried with new ones or corrected time.
    Expired,
    /// The object exists already, where only a new one was to be put. Never retried.
    Exists,
    /// Credentials missing or refused. Never retried.
    Denied,
    /// The server's certificate is not trusted. Never retried.
    Untrusted,
    /// The object's bytes are not the requested picture, or not a sound shard of the stated format. Never retried.
    Undecodable,
    /// A local file could not be read or written. Never retried.
    File,
    /// The program's own code failed: its model, say. Never retried.
    Program,
    /// The loader is shutting down.
    Cancelled,
}

impl Kind {
    /// Whether another attempt may help.
    #[must_use]
    pub fn retryable(self) -> bool {
        use Kind::*;
        match self {
            Network | Throttled | Server | Truncated | Stalled | Protocol | Mismatch | Changed | Expired => true,
            Usage | Environment | Budget | NotFound | Exists | Denied | Untrusted | Undecodable | File | Program
            | Cancelled => false,
        }
    }

    /// The process exit code the command line promises: 1 data or network, 2 usage, 3 environment.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Usage | Kind::Budget => 2,
            Kind::Environment => 3,
            _ => 1,
        }
    }
}

crate::named!(Kind, "a kind of error":
    Usage = "usage",
    Environment = "environment",
    Budget = "budget",
    Network = "network",
    Throttled = "throttled",
    Server = "server",
    Truncated = "truncated",
    Stalled = "stalled",
    Protocol = "protocol",
    Mismatch = "mismatch",
    Changed = "changed",
    NotFound = "not_found",
    Expired = "expired",
    Exists = "exists",
    Denied = "denied",
    Untrusted = "untrusted",
    Undecodable = "undecodable",
    File = "file",
    Program = "program",
    Cancelled = "cancelled",
);

/// An error: what happened, to which object, after how many attempts, and what to do about it. Never holds a secret.
///
/// [`Display`](fmt::Display) is one line, `object 'KEY': CAUSE (after N attempts); HINT`. [`Debug`](fmt::Debug) is the same text for a
/// terminal, with the hint on a line of its own, so that `fn main() -> fuelrail::Result<()>` prints what people can read.
///
/// Two errors are equal when their kinds and texts are; what [`source`](std::error::Error::source) returns is not compared.
#[derive(Clone)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: Kind,
    cause: String,
    object: Option<String>,
    hint: Option<String>,
    attempts: u32,
    source: Option<Arc<Source>>,
}

type Source = dyn std::error::Error + Send + Sync;

const _: () =
    assert!(size_of::<Error>() == size_of::<usize>(), "results of the hot path carry an error of one pointer");

/// Shorthand for results with this error.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    /// A new error. `cause` is a full clause without a final stop: `"connection reset by 10.0.0.1:80"`.
    #[must_use]
    pub fn new(kind: Kind, cause: impl Into<String>) -> Error {
        let (object, hint, source) = (None, None, None);
        Error { inner: Box::new(Inner { kind, cause: cause.into(), object, hint, attempts: 0, source }) }
    }

    /// From an operating-system error number.
    #[must_use]
    pub fn from_errno(kind: Kind, doing: &str, errno: i32) -> Error {
        Error::from_io(kind, doing, io::Error::from_raw_os_error(errno))
    }

    /// From an I/O error, which becomes the source; one of a file has a hint. `doing` is what failed: `"reading /etc/hosts"`.
    #[must_use]
    pub fn from_io(kind: Kind, doing: impl fmt::Display, error: impl Borrow<io::Error>) -> Error {
        let error = error.borrow();
        // An I/O error cannot be cloned: it is made anew from its number, or else from its kind and text.
        let number = error.raw_os_error().map(io::Error::from_raw_os_error);
        let source = number.unwrap_or_else(|| io::Error::new(error.kind(), error.to_string()));
        let failed = Error::new(kind, format!("{doing}: {error}"));
        let hint = if kind == Kind::File { file_hint(error.kind()) } else { None };
        hint.into_iter().fold(failed, Error::with_hint).with_source(source)
    }

    /// Adds what the reader can do about it, in the place of an earlier hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.inner.hint = Some(hint.into());
        self
    }

    /// Adds one more thing that the reader can do, or should know.
    #[must_use]
    pub fn and_hint(self, hint: impl Into<String>) -> Error {
        let hint = hint.into();
        let all = match self.hint() {
            Some(first) => format!("{first}; {hint}"),
            None => hint,
        };
        self.with_hint(all)
    }

    /// The same with another cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Error {
        self.inner.cause = cause.into();
        self
    }

    /// The same with its cause prefixed by `place`: a file, a server, a thread.
    #[must_use]
    pub fn within(mut self, place: impl fmt::Display) -> Error {
        self.inner.cause = format!("{place}: {}", self.inner.cause);
        self
    }

    /// Names the object concerned.
    #[must_use]
    pub fn with_object(mut self, key: impl Into<String>) -> Error {
        self.inner.object = Some(key.into());
        self
    }

    /// Says how many attempts were made.
    #[must_use]
    pub fn with_attempts(mut self, attempts: u32) -> Error {
        self.inner.attempts = attempts;
        self
    }

    /// Sets the underlying error of the system or of a library. Its text belongs in the cause, too.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.inner.source = Some(Arc::new(source));
        self
    }

    /// What kind of error this is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// The bare cause.
    #[must_use]
    pub fn cause(&self) -> &str {
        &self.inner.cause
    }

    /// The key of the object concerned, if it is about one.
    #[must_use]
    pub fn object(&self) -> Option<&str> {
        self.inner.object.as_deref()
    }

    /// How many attempts were made; 0 where it is not about attempts.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.inner.attempts
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.inner.hint.as_deref()
    }

    /// Everything but the hint.
    fn write_cause(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = self.object() {
            write!(f, "object '{}': ", key.escape_debug())?;
        }
        f.write_str(self.cause())?;
        if self.attempts() > 1 { write!(f, " (after {} attempts)", self.attempts()) } else { Ok(()) }
    }
}

/// The message of a caught panic.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

fn file_hint(kind: io::ErrorKind) -> Option<&'static str> {
    use io::ErrorKind::*;
    Some(match kind {
        NotFound | NotADirectory => "check the path for spelling",
        PermissionDenied => "give this user permission, or use another path",
        ReadOnlyFilesystem => "use another path, or look why the file system is read-only (dmesg)",
        StorageFull | QuotaExceeded => "free some space, or use another disk",
        _ => return None,
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_cause(f)?;
        self.hint().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_cause(f)?;
        self.hint().map_or(Ok(()), |hint| write!(f, "\nhint: {hint}"))
    }
}

impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        (self.kind(), self.attempts(), self.cause(), self.object(), self.hint())
            == (other.kind(), other.attempts(), other.cause(), other.object(), other.hint())
    }
}

impl Eq for Error {}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

// An error is immutable: one that was made before a panic can be read after it.
impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn says_object_cause_attempts_and_cure() {
        let error = Error::new(Kind::Truncated, "body ended at byte 10 of 20")
            .with_object("a/b\n.png")
            .with_attempts(4)
            .with_hint("check the server's logs");
        assert_eq!(
            error.to_string(),
            "object 'a/b\\n.png': body ended at byte 10 of 20 (after 4 attempts); check the server's logs"
        );
        let lines =
            "object 'a/b\\n.png': body ended at byte 10 of 20 (after 4 attempts)\nhint: check the server's logs";
        assert_eq!(format!("{error:?}"), lines);
        assert_eq!(
            (error.object(), error.attempts(), error.hint()),
            (Some("a/b\n.png"), 4, Some("check the server's logs"))
        );
        assert!(error.kind().retryable());
        assert_eq!(error.kind().exit_code(), 1);
        assert!(error.and_hint("try again").to_string().ends_with("; check the server's logs; try again"));
    }

    #[test]
    fn the_systems_error_is_its_source() {
        let full = Error::from_errno(Kind::File, "writing x", 28);
        let source = full.source().and_then(|source| source.downcast_ref::<io::Error>()).unwrap();
        assert_eq!(source.kind(), io::ErrorKind::StorageFull);
        let own = io::Error::other("odd");
        let error = Error::from_io(Kind::File, "writing x", &own);
        assert_eq!((error.to_string().as_str(), error.source().unwrap().to_string()), ("writing x: odd", "odd".into()));
        assert_eq!(error, Error::new(Kind::File, "writing x: odd"), "texts are compared");
        assert_ne!(error, Error::new(Kind::Network, "writing x: odd"));
    }
}
