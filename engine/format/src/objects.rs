//! Objects as records: the key's extension is the field, the folder that the object lies in its label.
//!
//! With side-cars, objects that differ in their extension only are one record: `a/1.jpg` and `a/1.json`. The extension is what follows the
//! last dot of the last component, in lower case.

#[cfg(test)]
mod tests;

use crate::index::{Field, IndexBuilder, Place, Span};
use crate::shown;
use fuelrail_base::{Error, Kind, Result};

/// The field that holds labels.
pub const LABEL: &str = "label";

/// Turns a listing into records.
#[derive(Debug)]
pub struct Records {
    side_cars: bool,
    labels: bool,
    /// Records that further objects may belong to. The key of each begins with the one before it and a dot: between `a.jpg` and `a.txt`
    /// a listing has `a.jpg.txt`.
    open: Vec<(String, Vec<(usize, Span)>)>,
}

/// A key without its extension, and the extension, empty where there is none. `None` for a key that ends with a slash, which is no sample.
#[must_use]
pub fn split(key: &str) -> Option<(&str, String)> {
    let name = key.rfind('/').map_or(0, |slash| slash + 1);
    let dot = key[name..].rfind('.').map_or(key.len(), |dot| name + dot);
    (name < key.len()).then(|| (&key[..dot], key.get(dot + 1..).unwrap_or_default().to_lowercase()))
}

impl Records {
    /// No records yet. With `side_cars`, objects with the same key but for the extension are one record; with `labels`, the name of the
    /// object's folder becomes the field [`LABEL`].
    #[must_use]
    pub fn new(side_cars: bool, labels: bool) -> Records {
        Records { side_cars, labels, open: Vec::new() }
    }

    /// Appends an object. Objects come in the order of their keys. Keys that end with a slash are no samples.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the index cannot hold it, or two keys differ in the case of their extension only.
    pub fn add(&mut self, object: u32, key: &str, size: u64, index: &mut IndexBuilder) -> Result<()> {
        let Some((stem, extension)) = split(key) else { return Ok(()) };
        let place =
            if index.field_count() == 0 || index.field_name(0) == extension { Place::Near } else { Place::SideCar };
        let field = index.field(&extension, place).map_err(|error| error.with_object(key))?;
        let continues =
            |open: &str| stem.strip_prefix(open).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        while self.open.last().is_some_and(|(open, _)| !self.side_cars || !continues(open)) {
            self.close(index)?;
        }
        if self.open.last().is_none_or(|(open, _)| open != stem) {
            self.open.push((stem.to_owned(), Vec::new()));
        }
        let Some((_, fields)) = self.open.last_mut() else { return Ok(()) };
        if fields.iter().any(|(known, _)| *known == field) {
            let flaw =
                format!("duplicate field '{}' of record '{}'", shown(extension.as_bytes()), shown(stem.as_bytes()));
            return Err(Error::new(Kind::Usage, flaw)
                .with_object(key)
                .with_hint("rename or remove one of the objects"));
        }
        fields.push((field, Span { object, offset: 0, length: size }));
        Ok(())
    }

    /// Appends the records that wait for further objects.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn finish(&mut self, index: &mut IndexBuilder) -> Result<()> {
        while !self.open.is_empty() {
            self.close(index)?;
        }
        Ok(())
    }

    fn close(&mut self, index: &mut IndexBuilder) -> Result<()> {
        let Some((stem, spans)) = self.open.pop() else { return Ok(()) };
        let mut fields: Vec<(usize, Field<'_>)> = spans.into_iter().map(|(n, span)| (n, Field::Span(span))).collect();
        let folder = stem.rsplit('/').nth(1).filter(|_| self.labels);
        if let Some(label) = folder {
            fields.push((index.field(LABEL, Place::Value)?, Field::Value(label.as_bytes())));
        }
        index.push(stem.as_bytes(), &fields)
    }
}
