//! One walk along the sources of a credential, and what each had to say.

use fuelrail_base::{Error, Kind, Result, WallTime};
use fuelrail_wire::sign::Credential;

/// A credential just got.
#[derive(Clone, Debug)]
pub(super) struct Fetched {
    pub(super) credential: Credential,
    /// When it was handed out, by the clock of whoever did: its expiry is by the same clock.
    pub(super) at: Option<WallTime>,
    /// Asking again brings the same: it stands in the process' own environment.
    pub(super) fixed: bool,
}

impl Fetched {
    pub(super) fn new(credential: Credential) -> Fetched {
        Fetched { credential, at: None, fixed: false }
    }
}

/// What a source had.
#[derive(Debug)]
pub(super) enum Source {
    /// A credential.
    Found(Fetched),
    /// Nothing, for this reason: the next one is asked.
    Nothing(String),
}

/// The sources asked so far.
#[derive(Debug, Default)]
pub(super) struct Walk {
    nothing: Vec<String>,
}

impl Walk {
    /// Takes what the source called `name` had. `Some` ends the walk.
    ///
    /// # Errors
    /// When the source is set up and does not work: to go on would be to ask as somebody else.
    pub(super) fn take(&mut self, name: &str, source: Result<Source>) -> Result<Option<Fetched>> {
        match source {
            Ok(Source::Found(fetched)) => Ok(Some(fetched)),
            Ok(Source::Nothing(why)) => {
                self.nothing.push(format!("{name}: {why}"));
                Ok(None)
            }
            Err(error) => {
                self.nothing.push(format!("{name}: {error}"));
                Err(Error::new(kind_of(&error), format!("no credentials: {}", self.nothing.join("; "))))
            }
        }
    }

    /// The walk ended with nothing.
    pub(super) fn empty(self) -> Error {
        Error::new(Kind::Denied, format!("no credentials were found: {}", self.nothing.join("; ")))
            .cure("set up one of these, or set anonymous = true (FUELRAIL_ANONYMOUS=true) if the bucket is public")
    }
}

/// Whoever refuses to hand out credentials will not change its mind; a service that did not answer may.
fn kind_of(error: &Error) -> Kind {
    if error.kind().retryable() { error.kind() } else { Kind::Denied }
}
