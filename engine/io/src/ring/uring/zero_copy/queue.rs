//! Which receive queue of which network card. Owns the spelling; asks the kernel nothing.

use core::fmt;
use core::str::FromStr;

use fuelrail_base::{Error, Kind, Result};

/// A receive queue of a network card, written `IFNAME:QUEUE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CardQueue {
    /// The interface.
    pub interface: String,
    /// The queue, counted from 0.
    pub queue: u32,
}

/// Longest name of an interface: the kernel's limit, without its closing zero.
const INTERFACE_BYTES_MAX: usize = 15;

impl FromStr for CardQueue {
    type Err = Error;

    fn from_str(text: &str) -> Result<CardQueue> {
        let wrong = || {
            Error::new(Kind::Usage, format!("'{text}' is not a receive queue of a network card"))
                .cure("write IFNAME:QUEUE, as in eth0:3; queues count from 0")
        };
        // A VLAN's name may hold colons of its own; the queue is behind the last.
        let (interface, queue) = text.rsplit_once(':').ok_or_else(wrong)?;
        let named = (1..=INTERFACE_BYTES_MAX).contains(&interface.len())
            && interface.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        let digits = !queue.is_empty() && queue.bytes().all(|byte| byte.is_ascii_digit());
        match queue.parse() {
            // The kernel keeps the largest number for itself.
            Ok(queue) if named && digits && queue < u32::MAX => Ok(CardQueue { interface: interface.into(), queue }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for CardQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.interface, self.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_read_as_they_are_written() {
        for (text, interface, queue) in [("eth0:3", "eth0", 3), ("ens1f0np0:0", "ens1f0np0", 0), ("a:1:7", "a:1", 7)] {
            let read: CardQueue = text.parse().unwrap();
            assert_eq!((read.interface.as_str(), read.queue, read.to_string()), (interface, queue, text.into()));
        }
        for text in ["", "eth0", "eth0:", ":1", "eth0:x", "eth0:-1", "eth0:+1", "eth0:4294967295", "et h0:1", "a/b:1"] {
            let error = text.parse::<CardQueue>().unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{text}");
            assert!(error.to_string().contains("IFNAME:QUEUE"), "{error}");
        }
        assert!("a-name-of-sixteen:1".parse::<CardQueue>().is_err());
    }
}
