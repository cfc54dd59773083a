//! What can be made to go wrong: single calls that fail, copies that never end, devices that are lost.
//!
//! Owns the texts of the faults and the counting of calls and copies. Never acts: it only says that the moment has come.

use crate::code::Code;
use std::fmt;

/// Something that goes wrong. Calls and copies are counted from the moment the fault is set, the first is number 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// One call fails with this code and does nothing else.
    Fail {
        /// Entry point, as linked: `cuMemAlloc_v2`.
        entry: String,
        /// Which call of it.
        call: u64,
        /// What it returns.
        code: Code,
    },
    /// From a moment on a device is lost: every call about it returns this code, its pending work is thrown away. It is the device whose context
    /// is current at the call, or that makes the copy; with no moment it is all of them.
    Lose {
        /// The moment.
        when: When,
        /// What everything returns.
        code: Code,
    },
    /// One copy never ends, nor does anything after it in its stream.
    Hang {
        /// Which copy, in the order in which copies come to run.
        copy: u64,
    },
}

/// A moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum When {
    /// At this call of this entry point.
    Call(String, u64),
    /// When this copy comes to run, on whatever stream.
    Copy(u64),
    /// At once.
    Now,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Fail { entry, call, code } => write!(f, "fail {entry} {call} {code}"),
            Fault::Lose { when: When::Call(entry, call), code } => write!(f, "lose {entry} {call} {code}"),
            Fault::Lose { when: When::Copy(copy), code } => write!(f, "lose copy {copy} {code}"),
            Fault::Lose { when: When::Now, code } => write!(f, "lose now {code}"),
            Fault::Hang { copy } => write!(f, "hang copy {copy}"),
        }
    }
}

/// Reads faults separated by semicolons.
pub(crate) fn parse_faults(text: &str) -> Result<Vec<Fault>, String> {
    text.split(';').map(str::trim).filter(|part| !part.is_empty()).map(parse_fault).collect()
}

fn parse_fault(text: &str) -> Result<Fault, String> {
    let wrong = || {
        format!("'{text}' is no fault: 'fail ENTRY N CODE', 'lose ENTRY|copy N CODE', 'lose now CODE' or 'hang copy N'")
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |word: &str| word.parse::<u64>().ok().filter(|n| *n > 0).ok_or_else(wrong);
    let code = |word: &str| Code::named(word).ok_or(format!("the driver has no result '{word}'"));
    match words[..] {
        ["fail", entry, n, c] => Ok(Fault::Fail { entry: entry.to_owned(), call: number(n)?, code: code(c)? }),
        ["lose", "now", c] => Ok(Fault::Lose { when: When::Now, code: code(c)? }),
        ["lose", "copy", n, c] => Ok(Fault::Lose { when: When::Copy(number(n)?), code: code(c)? }),
        ["lose", entry, n, c] => Ok(Fault::Lose { when: When::Call(entry.to_owned(), number(n)?), code: code(c)? }),
        ["hang", "copy", n] => Ok(Fault::Hang { copy: number(n)? }),
        _ => Err(wrong()),
    }
}

/// What a fault asks for at this call or copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blow {
    /// Return this code and do nothing.
    Fail(Code),
    /// The device is lost with this code.
    Lose(Code),
    /// Never end.
    Hang,
}

/// The faults that are still to come, each with what is left to count.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    waiting: Vec<(Fault, u64)>,
}

impl Faults {
    /// Replaces the list; what must happen at once is returned.
    pub(crate) fn arm(&mut self, faults: &[Fault]) -> Option<Code> {
        let mut now = None;
        self.waiting.clear();
        for fault in faults {
            let left = match fault {
                Fault::Fail { call, .. } | Fault::Lose { when: When::Call(_, call), .. } => *call,
                Fault::Lose { when: When::Copy(copy), .. } | Fault::Hang { copy } => *copy,
                Fault::Lose { when: When::Now, code } => {
                    now = Some(*code);
                    continue;
                }
            };
            self.waiting.push((fault.clone(), left));
        }
        now
    }

    /// Counts a call of an entry point.
    pub(crate) fn at_call(&mut self, name: &str) -> Option<Blow> {
        self.count(|fault| match fault {
            Fault::Fail { entry, code, .. } if entry == name => Some(Blow::Fail(*code)),
            Fault::Lose { when: When::Call(entry, _), code } if entry == name => Some(Blow::Lose(*code)),
            _ => None,
        })
    }

    /// Counts a copy that comes to run.
    pub(crate) fn at_copy(&mut self) -> Option<Blow> {
        self.count(|fault| match fault {
            Fault::Hang { .. } => Some(Blow::Hang),
            Fault::Lose { when: When::Copy(_), code } => Some(Blow::Lose(*code)),
            _ => None,
        })
    }

    fn count(&mut self, concerns: impl Fn(&Fault) -> Option<Blow>) -> Option<Blow> {
        let mut blow = None;
        self.waiting.retain_mut(|(fault, left)| {
            let Some(due) = concerns(fault) else { return true };
            *left -= 1;
            if *left == 0 {
                blow.get_or_insert(due);
            }
            *left > 0
        });
        blow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_fails_and_no_other() {
        let mut faults = Faults::default();
        let list = parse_faults("fail cuMemAlloc_v2 2 CUDA_ERROR_OUT_OF_MEMORY; hang copy 1").unwrap();
        assert_eq!(faults.arm(&list), None);
        assert_eq!(faults.at_call("cuMemAlloc_v2"), None);
        assert_eq!(faults.at_call("cuMemFree_v2"), None);
        assert_eq!(faults.at_call("cuMemAlloc_v2"), Some(Blow::Fail(Code::OUT_OF_MEMORY)));
        assert_eq!(faults.at_call("cuMemAlloc_v2"), None);
        assert_eq!(faults.at_copy(), Some(Blow::Hang));
        assert_eq!(faults.at_copy(), None);
    }

    #[test]
    fn faults_are_read_and_refused() {
        for text in ["lose cuInit 1 CUDA_ERROR_UNKNOWN", "lose copy 4 CUDA_ERROR_ECC_UNCORRECTABLE", "hang copy 2"] {
            assert_eq!(parse_faults(text).unwrap()[0].to_string(), text);
        }
        let now = parse_faults("lose now CUDA_ERROR_ILLEGAL_ADDRESS").unwrap();
        assert_eq!(Faults::default().arm(&now), Some(Code::ILLEGAL_ADDRESS));
        assert!(parse_faults("fail cuInit 0 CUDA_ERROR_UNKNOWN").is_err());
        assert!(parse_faults("hang copy").is_err());
        assert!(parse_faults("fail cuInit 1 CUDA_ERROR_DEVICE_UNAVAILABLE").unwrap_err().contains("no result"));
    }
}
