//! A walk over small XML documents: calls a visitor at each opening and closing tag, with bounded depth.
//!
//! Resolves the five predefined entities and character references only and refuses document types, so nothing can expand.

#[cfg_attr(not(feature = "clouds"), path = "xml/absent.rs")]
mod walk;

pub(crate) use walk::walk;

use fuelrail_base::Result;

/// What a walk reports to. `path` runs from the root to the element concerned, a slash before each local name.
pub(crate) trait Visit {
    /// An element opens.
    fn open(&mut self, _path: &str) -> Result<()> {
        Ok(())
    }
    /// The element that has just opened says that its text is percent-encoded: `Encoded="true"`.
    fn encoded(&mut self) {}
    /// An element closes; `text` is what stood in it since its last inner element.
    fn close(&mut self, path: &str, text: &str) -> Result<()>;
}

/// At most 256 characters of a text, escaped for printing.
pub(crate) fn printable(text: &str) -> String {
    text.trim().chars().take(256).collect::<String>().escape_debug().to_string()
}
