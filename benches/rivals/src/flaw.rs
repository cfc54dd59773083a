//! Why a rival could not run: cause and cure in one line, as the harness prints it.

use std::fmt;

/// What went wrong and what to do about it.
#[derive(Debug)]
pub(crate) struct Flaw {
    cause: String,
    cure: Option<String>,
}

pub(crate) type Result<T, E = Flaw> = std::result::Result<T, E>;

impl Flaw {
    /// From a full clause without a final stop.
    pub(crate) fn new(cause: impl Into<String>) -> Flaw {
        Flaw { cause: cause.into(), cure: None }
    }

    /// From something that failed while `doing`, with every error below it: libraries keep the reason at the bottom.
    pub(crate) fn of(doing: impl fmt::Display, error: impl std::error::Error) -> Flaw {
        let mut cause = format!("{doing}: {error}");
        let mut below = error.source();
        while let Some(error) = below {
            let text = error.to_string();
            if !cause.ends_with(&text) {
                cause.push_str(&format!(": {text}"));
            }
            below = error.source();
        }
        Flaw::new(cause)
    }

    pub(crate) fn cure(mut self, cure: impl Into<String>) -> Flaw {
        self.cure = Some(cure.into());
        self
    }
}

impl fmt::Display for Flaw {
    /// One line, whatever the libraries put into theirs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        f.write_str(&one_line(&self.cause))?;
        self.cure.iter().try_for_each(|cure| write!(f, "; {}", one_line(cure)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flaw_is_one_line_down_to_the_lowest_reason() {
        let io = std::io::Error::other(std::io::Error::other("no\nroute"));
        let flaw = Flaw::of("connecting to 10.0.0.1:80", io).cure("start the server");
        assert_eq!(flaw.to_string(), "connecting to 10.0.0.1:80: no route; start the server");
    }
}
