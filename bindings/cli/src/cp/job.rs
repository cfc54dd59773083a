//! What both directions of a copy of many objects share: which they are, how they are named, what became of them.

use crate::failure::{Failure, Outcome};
use crate::screen::Bar;
use crate::stop::Stop;
use crate::trust::Trust;
use fuelrail::{Access, ByteSize, Error};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use std::sync::Mutex;

/// What does not stand for itself in an http URI; a slash does.
const NOT_LITERAL: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'#');

/// Where objects of a bucket are named from: a URI up to its last slash, and the start that their keys have in common with it.
pub(super) struct Root {
    pub(super) uri: String,
    key: String,
    /// Keys are percent-encoded in the URI.
    encoded: bool,
}

impl Root {
    pub(super) fn of(access: &Access, uri: &str) -> fuelrail::Result<Root> {
        let fixed = uri.split('{').next().unwrap_or(uri);
        let uri = &fixed[..=fixed.rfind('/').unwrap_or(fixed.len() - 1)];
        let key = access.cloud.endpoint(uri)?.prefix;
        Ok(Root { key, encoded: uri.starts_with("http"), uri: uri.to_owned() })
    }

    /// The path below that a key names.
    pub(super) fn below<'k>(&self, key: &'k str) -> &'k str {
        key.strip_prefix(&self.key).unwrap_or(key)
    }

    /// The URI of what lies at a path below.
    pub(super) fn uri_of(&self, below: &str) -> String {
        if !self.encoded {
            return format!("{}{below}", self.uri);
        }
        format!("{}{}", self.uri, utf8_percent_encode(below, NOT_LITERAL))
    }
}

/// A copy of many objects: how far it is, and what failed.
pub(super) struct Job<'a> {
    pub(super) from: &'a str,
    pub(super) to: &'a str,
    /// What is there with the same length is skipped.
    pub(super) resume: bool,
    pub(super) trust: &'a Trust,
    pub(super) stop: Stop,
    pub(super) bar: Bar,
    pub(super) total: Mutex<Totals>,
}

#[derive(Default)]
pub(super) struct Totals {
    pub(super) objects: u64,
    pub(super) bytes: u64,
    pub(super) skipped: u64,
    pub(super) failed: Vec<(String, Error)>,
}

impl Job<'_> {
    pub(super) fn skipped(&self, objects: usize) {
        self.total.lock().expect("no thread panics in between").skipped += objects as u64;
    }

    /// An object has so many bytes and is copied, or it could not be. Others may be, unless many fail: a disk is full then, or a
    /// bucket closed.
    pub(super) fn ended(&self, key: &str, outcome: Outcome<u64>) {
        let mut total = self.total.lock().expect("no thread panics in between");
        match outcome {
            Ok(bytes) => {
                total.objects += 1;
                total.bytes += bytes;
                self.bar.at(total.bytes, || format!("{} objects, {}", total.objects, ByteSize(total.bytes)));
            }
            Err(Failure::Error(error)) => total.failed.push((key.to_owned(), error)),
            Err(Failure::ReaderGone) => unreachable!("files have no reader that could go"),
        }
        if total.failed.len() >= FAILURES_MAX {
            self.stop.ask();
        }
    }

    pub(super) fn goes_on(&self) -> bool {
        self.stop.check().is_ok()
    }
}

/// So many failures end a copy.
const FAILURES_MAX: usize = 100;
