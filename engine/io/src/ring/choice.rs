//! The choice of the back-end: by the user's setting, this build and this machine. Made once at start.

use core::fmt;
use core::str::FromStr;

use fuelrail_base::{Error, Kind, Result};

use crate::ring::Ring;
use crate::ring::uring::{UringConfig, UringRing};

/// A back-end of this build that runs on a real kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Backend {
    /// io_uring, driven directly: the fastest.
    Uring,
    /// epoll, with a few threads for files: where io_uring is refused.
    Poll,
    /// io_uring through the runtime of that name.
    #[cfg(feature = "tokio-uring")]
    TokioUring,
    /// io_uring through the executor of that name.
    #[cfg(feature = "glommio")]
    Glommio,
}

impl Backend {
    /// All of this build, best first.
    pub const ALL: &[Backend] = &[
        Backend::Uring,
        Backend::Poll,
        #[cfg(feature = "tokio-uring")]
        Backend::TokioUring,
        #[cfg(feature = "glommio")]
        Backend::Glommio,
    ];

    /// Its name, as `--ring` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Backend::Uring => "uring",
            Backend::Poll => "poll",
            #[cfg(feature = "tokio-uring")]
            Backend::TokioUring => "tokio-uring",
            #[cfg(feature = "glommio")]
            Backend::Glommio => "glommio",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The back-end a user requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RingChoice {
    /// `uring` where the machine allows it, else `poll`, with a notice that says why.
    #[default]
    Auto,
    /// This one, or an error.
    Only(Backend),
}

impl fmt::Display for RingChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingChoice::Auto => f.write_str("auto"),
            RingChoice::Only(backend) => backend.fmt(f),
        }
    }
}

impl From<Backend> for RingChoice {
    fn from(backend: Backend) -> RingChoice {
        RingChoice::Only(backend)
    }
}

impl FromStr for RingChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<RingChoice> {
        if name == "auto" {
            return Ok(RingChoice::Auto);
        }
        if let Some(backend) = Backend::ALL.iter().find(|backend| backend.name() == name) {
            return Ok(RingChoice::Only(*backend));
        }
        let has = Backend::ALL.iter().fold("auto".to_owned(), |names, backend| format!("{names}, {backend}"));
        Err(match name {
            "tokio-uring" | "glommio" => Error::new(Kind::Usage, format!("this build has no ring '{name}'"))
                .with_hint(format!("build it with --features {name}, or use one of {has}")),
            _ => Error::new(Kind::Usage, format!("there is no ring '{name}'")).with_hint(format!("use one of {has}")),
        })
    }
}

impl RingChoice {
    /// The back-end to use here, and a notice for the user.
    ///
    /// # Errors
    /// `Environment`, with cause and cure, when `uring` itself was requested and is refused.
    pub fn settle(self) -> Result<(Backend, Option<String>)> {
        match self {
            RingChoice::Only(Backend::Uring) => try_uring().map(|()| (Backend::Uring, None)),
            RingChoice::Only(backend) => Ok((backend, None)),
            RingChoice::Auto => Ok(match try_uring() {
                Ok(()) => (Backend::Uring, None),
                Err(refusal) => {
                    let notice = format!("ring: poll instead of uring, at a higher cost per byte: {refusal}");
                    (Backend::Poll, Some(notice))
                }
            }),
        }
    }
}

/// Opens a small ring and enters it once: a seccomp filter may allow the one and refuse the other.
fn try_uring() -> Result<()> {
    let mut ring = UringRing::new(&UringConfig { entries: 4, sockets: 1, ..UringConfig::default() })?;
    let now = ring.now();
    ring.wait(Some(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_this_build() {
        assert_eq!("auto".parse::<RingChoice>().unwrap(), RingChoice::default());
        for backend in Backend::ALL {
            assert_eq!(backend.name().parse::<RingChoice>().unwrap(), RingChoice::Only(*backend));
        }
        let absent =
            ["tokio-uring", "glommio"].into_iter().filter(|name| Backend::ALL.iter().all(|b| b.name() != *name));
        for name in absent {
            let error = name.parse::<RingChoice>().unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind(), Kind::Usage);
            assert!(text.contains(&format!("--features {name}")) && text.contains("auto, uring, poll"), "{text}");
        }
        let text = "io-uring".parse::<RingChoice>().unwrap_err().to_string();
        assert!(text.contains("'io-uring'") && text.contains("auto, uring, poll"), "{text}");
    }

    #[test]
    fn a_named_ring_is_never_another() {
        assert_eq!(RingChoice::Only(Backend::Poll).settle().unwrap(), (Backend::Poll, None));
        match RingChoice::Only(Backend::Uring).settle() {
            Ok(settled) => {
                assert_eq!(settled, (Backend::Uring, None));
                assert_eq!(RingChoice::Auto.settle().unwrap(), settled);
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Environment);
                let (backend, notice) = RingChoice::Auto.settle().unwrap();
                assert_eq!(backend, Backend::Poll);
                assert!(notice.is_some_and(|notice| notice.contains(&error.to_string())));
            }
        }
    }
}
