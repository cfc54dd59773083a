//! The one error type. `kind` decides whether to try again and how a process exits; the text gives cause and cure.

use core::fmt;

/// What went wrong, by what can be done about it.
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
    /// The peer does not speak HTTP as agreed: garbage head, impossible framing. Retried on another connection.
    Protocol,
    /// Length, range or checksum differ from what was listed or promised. Retried: a healthy replica may answer next.
    Mismatch,
    /// The object's ETag is not the listed one. Retried once in case of a stale replica, then final.
    Changed,
    /// No such object or bucket. Never retried.
    NotFound,
    /// The credentials have ended, or the clocks differ: retried, with new ones or the time corrected.
    Expired,
    /// An object is there where only a new one was to be put. Never retried.
    Exists,
    /// Credentials missing or refused. Never retried.
    Denied,
    /// The server's certificate is not to be trusted. Never retried.
    Untrusted,
    /// The object's bytes are not the picture that was asked for. Never retried.
    Undecodable,
    /// A local file could not be read or written. Never retried.
    File,
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
            Usage | Environment | Budget | NotFound | Exists | Denied | Untrusted | Undecodable | File | Cancelled => {
                false
            }
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

    /// The kind as one lower-case word, for JSON and logs.
    #[must_use]
    pub fn word(self) -> &'static str {
        use Kind::*;
        match self {
            Usage => "usage",
            Environment => "environment",
            Budget => "budget",
            Network => "network",
            Throttled => "throttled",
            Server => "server",
            Truncated => "truncated",
            Stalled => "stalled",
            Protocol => "protocol",
            Mismatch => "mismatch",
            Changed => "changed",
            NotFound => "not_found",
            Expired => "expired",
            Exists => "exists",
            Denied => "denied",
            Untrusted => "untrusted",
            Undecodable => "undecodable",
            File => "file",
            Cancelled => "cancelled",
        }
    }
}

/// An error with its kind, its cause, the object it concerns and what to do about it. Never holds a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Inner {
    kind: Kind,
    cause: String,
    object: Option<String>,
    cure: Option<String>,
    attempts: u32,
}

/// Shorthand used on every floor.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    /// A new error. `cause` is a full clause without a final stop: `"connection reset by 10.0.0.1:80"`.
    #[must_use]
    pub fn new(kind: Kind, cause: impl Into<String>) -> Error {
        Error { inner: Box::new(Inner { kind, cause: cause.into(), object: None, cure: None, attempts: 0 }) }
    }

    /// From an operating-system error number.
    #[must_use]
    pub fn from_errno(kind: Kind, doing: &str, errno: i32) -> Error {
        Error::new(kind, format!("{doing}: {}", std::io::Error::from_raw_os_error(errno)))
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn cure(mut self, cure: impl Into<String>) -> Error {
        self.inner.cure = Some(cure.into());
        self
    }

    /// The same with another cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Error {
        self.inner.cause = cause.into();
        self
    }

    /// The same with its cause behind where it happened: a file, a server, a thread.
    #[must_use]
    pub fn within(mut self, place: impl fmt::Display) -> Error {
        self.inner.cause = format!("{place}: {}", self.inner.cause);
        self
    }

    /// Adds one more thing that the reader can do, or should know.
    #[must_use]
    pub fn and_cure(mut self, cure: impl Into<String>) -> Error {
        let cure = cure.into();
        self.inner.cure = Some(match self.inner.cure.take() {
            Some(first) => format!("{first}; {cure}"),
            None => cure,
        });
        self
    }

    /// Names the object concerned.
    #[must_use]
    pub fn object(mut self, key: impl Into<String>) -> Error {
        self.inner.object = Some(key.into());
        self
    }

    /// Says how many attempts were made.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Error {
        self.inner.attempts = attempts;
        self
    }

    /// What kind of error this is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// The object named, if any.
    #[must_use]
    pub fn object_key(&self) -> Option<&str> {
        self.inner.object.as_deref()
    }

    /// The bare cause.
    #[must_use]
    pub fn cause(&self) -> &str {
        &self.inner.cause
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { cause, object, cure, attempts, .. } = &*self.inner;
        if let Some(key) = object {
            write!(f, "object '{}': ", key.escape_debug())?;
        }
        f.write_str(cause)?;
        if *attempts > 1 {
            write!(f, " (after {attempts} attempts)")?;
        }
        if let Some(cure) = cure {
            write!(f, "; {cure}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_object_cause_attempts_and_cure() {
        let error = Error::new(Kind::Truncated, "body ended at byte 10 of 20")
            .object("a/b\n.png")
            .attempts(4)
            .cure("check the server's logs");
        assert_eq!(
            error.to_string(),
            "object 'a/b\\n.png': body ended at byte 10 of 20 (after 4 attempts); check the server's logs"
        );
        assert!(error.kind().retryable());
        assert_eq!(error.kind().exit_code(), 1);
        assert!(error.and_cure("try again").to_string().ends_with("; check the server's logs; try again"));
    }
}
