//! One line of `fuelrail doctor`: what was probed, the value, its grade, and the cure.

use core::fmt;

/// The grade of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Grade {
    /// As good as it gets.
    Good,
    /// Works, slower or with less.
    Degraded,
    /// Does not work.
    Refused,
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What was probed.
    pub name: String,
    /// What was found.
    pub value: String,
    /// Its grade.
    pub grade: Grade,
    /// What to do, unless it is good.
    pub cure: Option<String>,
}

impl Finding {
    /// As good as it gets.
    pub fn good(name: impl Into<String>, value: impl Into<String>) -> Finding {
        Finding { name: name.into(), value: value.into(), grade: Grade::Good, cure: None }
    }

    /// Works, slower or with less.
    pub fn degraded(name: impl Into<String>, value: impl Into<String>, cure: impl Into<String>) -> Finding {
        Finding { grade: Grade::Degraded, cure: Some(cure.into()), ..Finding::good(name, value) }
    }

    /// Does not work.
    pub fn refused(name: impl Into<String>, value: impl Into<String>, cure: impl Into<String>) -> Finding {
        Finding { grade: Grade::Refused, cure: Some(cure.into()), ..Finding::good(name, value) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.grade {
            Grade::Good => "ok",
            Grade::Degraded => "slower",
            Grade::Refused => "refused",
        };
        write!(f, "{:<24} {mark:<8} {}", self.name, self.value)?;
        match &self.cure {
            Some(cure) => write!(f, "; {cure}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_its_cure() {
        let line = Finding::refused("io_uring", "a filter refuses it", "allow it in the profile").to_string();
        assert!(line.contains("refused") && line.ends_with("; allow it in the profile"), "{line}");
        assert!(Finding::good("kernel", "6.1").to_string().ends_with("6.1"));
    }
}
