//! One answer of a server, as a journal has it: whose page it was, what it held, and what comes behind it.

use super::{Flaw, Object, Packer, Unpacker, push_number, push_text, take, take_number, take_text};
use crate::list::{Entry, ListPage, PageStart};

/// A page that came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The stretch of keys it was asked for.
    pub stretch: u32,
    /// What was asked: see [`asked`].
    pub asked: u32,
    /// What came.
    pub page: ListPage,
}

/// A checksum over what a page was asked for with, so that no page stands for another.
#[must_use]
pub fn asked(prefix: &str, start: PageStart<'_>) -> u32 {
    let mut text = Vec::new();
    for part in [Some(prefix), start.after, start.token] {
        text.push(u8::from(part.is_some()));
        push_text(&mut text, part.unwrap_or_default());
    }
    crc32c::crc32c(&text)
}

impl Answer {
    /// Appends the payload of a frame. Only what an answer to a listing without a delimiter has is in it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Answer::write(out, (self.stretch, self.asked), &self.page);
    }

    /// As [`Answer::encode`], of a page that somebody else has.
    pub fn write(out: &mut Vec<u8>, (stretch, asked): (u32, u32), page: &ListPage) {
        push_number(out, stretch.into());
        out.extend_from_slice(&asked.to_le_bytes());
        out.push(u8::from(page.next.is_some()));
        push_text(out, page.next.as_deref().unwrap_or_default());
        let mut packer = Packer::default();
        for Entry { key, size, etag } in &page.entries {
            packer.push(out, Object { key, size: *size, etag: etag.as_deref() });
        }
    }

    /// Reads the payload of a frame.
    ///
    /// # Errors
    /// Why it is none.
    pub fn decode(mut bytes: &[u8]) -> Result<Answer, Flaw> {
        let bytes = &mut bytes;
        let stretch = u32::try_from(take_number(bytes)?).map_err(|_| Flaw::Absurd)?;
        let asked = super::u32_at(take(bytes, 4)?, 0);
        let is_truncated = match take(bytes, 1)?[0] {
            0 => false,
            1 => true,
            _ => return Err(Flaw::Absurd),
        };
        let token = take_text(bytes)?;
        if token.is_empty() == is_truncated {
            return Err(Flaw::Absurd);
        }
        let mut page = ListPage { next: is_truncated.then(|| token.to_owned()), is_truncated, ..ListPage::default() };
        let mut objects = Unpacker::new(bytes);
        while let Some(Object { key, size, etag }) = objects.next()? {
            page.entries.push(Entry { key: key.to_owned(), size, etag: etag.map(str::to_owned) });
        }
        Ok(Answer { stretch, asked, page })
    }
}
