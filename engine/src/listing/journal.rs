//! The journal of a listing under way: every page that came, so that one which is interrupted can go on.
//!
//! Owns the file and its lock: one process writes it, and an end of that process, whatever its kind, gives the lock up. Nothing is
//! synced: what a power cut takes is asked for again.

use crate::system::refused;
use fuelrail_base::{Error, Result};
use fuelrail_io::{OwnDirectory, try_lock};
use fuelrail_wire::ListPage;
use fuelrail_wire::kept::{Answer, FRAME_HEAD_BYTES, Frames, HEADER_BYTES, Header, Holds, SourceId};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// A listing goes on from a journal that was begun so long ago at most. Its pages shall be of about the same time, as those of a
/// listing that is not interrupted are, and servers' tokens do not live for ever.
const GO_ON_WITHIN_S: u64 = 3600;

/// The journal of one data set's listing.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    source: SourceId,
    frames: Frames,
    /// Where the next frame belongs.
    end: u64,
    /// When the first of its pages was asked for, s since 1970.
    pub(super) begun_s: u64,
    /// Pages taken from it.
    pub(super) taken: u64,
    /// Pages written to it since.
    written: u64,
    /// Why nothing can be written to it any more.
    pub(super) broken: Option<Error>,
    text: Vec<u8>,
}

impl Journal {
    /// Takes the journal over, from an earlier process where it is young enough to go on from. `None` while another process
    /// has it.
    pub(super) fn open(own: &OwnDirectory, name: &str, source: SourceId, now_s: u64) -> Result<Option<Journal>> {
        let (file, path) = (own.open_or_make_file(name)?, own.path().join(name));
        if !try_lock(&file, &path)? {
            return Ok(None);
        }
        let mut head = [0; HEADER_BYTES];
        let read = file.read_exact_at(&mut head, 0).ok().and_then(|()| Header::decode(&head).ok());
        let fits = |header: &Header| {
            let age = now_s.checked_sub(header.begun_s);
            header.holds == Holds::Journal && header.source == source && age.is_some_and(|age| age < GO_ON_WITHIN_S)
        };
        let mut journal = Journal {
            file,
            path,
            source,
            frames: Frames::behind(&head),
            end: HEADER_BYTES as u64,
            begun_s: read.map_or(now_s, |header| header.begun_s),
            taken: 0,
            written: 0,
            broken: None,
            text: Vec::new(),
        };
        if !read.is_some_and(|header| fits(&header)) {
            journal.restart(now_s)?;
        }
        Ok(Some(journal))
    }

    /// Begins anew.
    pub(super) fn restart(&mut self, now_s: u64) -> Result<()> {
        let head = Header { holds: Holds::Journal, source: self.source, begun_s: now_s }.encode();
        let begun = self.file.set_len(0).and_then(|()| self.file.write_all_at(&head, 0));
        begun.map_err(|error| refused(&self.path, "beginning", &error))?;
        (self.frames, self.end) = (Frames::behind(&head), HEADER_BYTES as u64);
        (self.begun_s, self.taken, self.written, self.broken) = (now_s, 0, 0, None);
        Ok(())
    }

    /// The next page, if `whose` recognises its request. `None` at the end: the first frame that is torn or not recognised.
    pub(super) fn next<T>(&mut self, whose: impl FnOnce(&Answer) -> Option<T>) -> Option<(T, ListPage)> {
        let (mut frames, mut from) = (self.frames, &self.file);
        from.seek(SeekFrom::Start(self.end)).ok()?;
        frames.read(&mut from, &mut self.text).ok()?;
        let answer = Answer::decode(&self.text).ok()?;
        let found = whose(&answer)?;
        (self.frames, self.end) = (frames, self.end + (FRAME_HEAD_BYTES + self.text.len()) as u64);
        self.taken += 1;
        Some((found, answer.page))
    }

    /// Cuts off what follows the last page taken, so that others can be written there.
    pub(super) fn go_on(&mut self) {
        let cut = self.file.set_len(self.end);
        self.broken = cut.err().map(|error| refused(&self.path, "cutting", &error));
    }

    /// Writes a page that came. Where that fails, nothing more is written: what is there stays good.
    pub(super) fn push(&mut self, stretch: u32, asked: u32, page: &ListPage) {
        if self.broken.is_some() {
            return;
        }
        self.text.clear();
        self.frames.push(&mut self.text, |out| Answer::write(out, (stretch, asked), page));
        match self.file.write_all_at(&self.text, self.end) {
            Ok(()) => (self.end, self.written) = (self.end + self.text.len() as u64, self.written + 1),
            Err(error) => self.broken = Some(refused(&self.path, "writing", &error)),
        }
    }

    /// Pages it has.
    pub(super) fn pages(&self) -> u64 {
        self.taken + self.written
    }

    /// Empties it: the listing is whole. The file stays, for its lock.
    pub(super) fn finish(self) -> Result<()> {
        self.file.set_len(0).map_err(|error| refused(&self.path, "emptying", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_wire::Entry;

    const NOW_S: u64 = 1_700_000_000;
    const SOURCE: SourceId = SourceId([7; 16]);

    fn page(n: u32) -> ListPage {
        let entries = (0..n).map(|i| Entry { key: format!("k{n}/{i}"), size: u64::from(i), etag: None }).collect();
        ListPage { entries, next: Some(format!("t{n}")) }
    }

    const NAME: &str = "journal";

    /// A directory of our own, and the journal's path in it.
    fn place() -> (tempfile::TempDir, OwnDirectory, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let own = OwnDirectory::open(dir.path()).unwrap();
        let path = own.path().join(NAME);
        (dir, own, path)
    }

    fn open(own: &OwnDirectory, now_s: u64) -> Journal {
        Journal::open(own, NAME, SOURCE, now_s).unwrap().expect("nobody else has it")
    }

    /// The pages up to the first that was not requested.
    fn pages(journal: &mut Journal) -> u32 {
        let mut n = 0;
        while let Some(((), found)) =
            journal.next(|answer| (answer.asked == n + 100 && answer.stretch == n).then_some(()))
        {
            assert_eq!(found, page(n));
            n += 1;
        }
        n
    }

    fn push(journal: &mut Journal, pages: core::ops::Range<u32>) {
        pages.for_each(|n| journal.push(n, n + 100, &page(n)));
        assert!(journal.broken.is_none());
    }

    /// A journal of five pages, and where each ends.
    fn written(own: &OwnDirectory) -> (Vec<u8>, Vec<u64>) {
        let mut journal = open(own, NOW_S);
        let ends = (0..5).map(|n| {
            push(&mut journal, n..n + 1);
            journal.end
        });
        let ends = ends.collect();
        (std::fs::read(own.path().join(NAME)).unwrap(), ends)
    }

    #[test]
    fn torn_or_rotten_at_any_byte_it_goes_on_behind_the_last_whole_page() {
        let (_dir, own, path) = place();
        let (good, ends) = written(&own);
        for at in 0..good.len() {
            let whole = ends.iter().filter(|end| **end <= at as u64).count() as u32;
            let mut rotten = good.clone();
            rotten[at] ^= 1 << (at % 8);
            for bytes in [&good[..at], &rotten[..]] {
                std::fs::write(&path, bytes).unwrap();
                let mut journal = open(&own, NOW_S + 1);
                let begun = journal.begun_s;
                assert_eq!(pages(&mut journal), whole, "at {at}");
                assert!(begun == NOW_S || at < HEADER_BYTES, "at {at}");
                journal.go_on();
                push(&mut journal, whole..6);
                drop(journal);
                assert_eq!(pages(&mut open(&own, NOW_S + 1)), 6, "at {at}");
            }
        }
    }

    #[test]
    fn a_page_that_was_not_requested_is_the_end() {
        let (_dir, own, _) = place();
        let mut journal = open(&own, NOW_S);
        push(&mut journal, 0..2);
        journal.push(2, 7, &page(2));
        push(&mut journal, 3..4);
        drop(journal);
        let mut journal = open(&own, NOW_S);
        assert_eq!(pages(&mut journal), 2);
        journal.go_on();
        push(&mut journal, 2..3);
        drop(journal);
        assert_eq!(pages(&mut open(&own, NOW_S)), 3);
    }

    #[test]
    fn what_is_old_or_another_data_sets_is_begun_anew() {
        let (_dir, own, path) = place();
        let (good, _) = written(&own);
        for (now_s, left) in [(NOW_S + GO_ON_WITHIN_S - 1, 5), (NOW_S + GO_ON_WITHIN_S, 0), (NOW_S - 1, 0)] {
            std::fs::write(&path, &good).unwrap();
            let mut journal = open(&own, now_s);
            assert_eq!(pages(&mut journal), left, "{now_s}");
            assert_eq!(journal.begun_s, if left == 5 { NOW_S } else { now_s });
        }
        std::fs::write(&path, &good).unwrap();
        let mut other = Journal::open(&own, NAME, SourceId([8; 16]), NOW_S).unwrap().unwrap();
        assert_eq!(pages(&mut other), 0);
        other.finish().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}
