//! The source: which objects there are, and a loader over them.

use fuelrail::{Access, Format, Kind, Listed, LoaderBuilder, Result};

use super::arguments::Pack;
use crate::failure::{Outcome, usage};
use crate::screen::Bar;
use crate::settings::{given, load, located, once};

/// The listed objects.
pub(super) struct Source {
    pub(super) access: Access,
    pub(super) uri: String,
    pub(super) format: Format,
    /// Bytes of each key before its path in the source.
    root: usize,
    pub(super) listed: Vec<Listed>,
}

impl Source {
    pub(super) fn list(args: &Pack) -> Outcome<Source> {
        let uri = located(&args.source)?;
        let access = args.trust.access(&uri)?;
        let prefix = access.cloud.source(&uri)?.endpoint.prefix;
        let root = prefix.rfind('/').map_or(0, |slash| slash + 1);
        let bar = Bar::new(None, "objects listed");
        let listed = fuelrail::list_with(&access, &uri, |count| bar.at(count, String::new))?;
        if listed.is_empty() {
            return Err(usage(
                format!("there is no object in {uri}"),
                "check the path or prefix; `fuelrail ls` shows what is there",
            ));
        }
        Ok(Source { access, uri, format: args.source_format, root, listed })
    }

    /// A hash over the names, lengths and entity tags of all objects.
    pub(super) fn identity(&self) -> String {
        fuelrail::internal::listing_hash(self.listed.iter().map(|object| (self.path(object), object)))
    }

    /// An object's path in the source.
    pub(super) fn path<'l>(&self, object: &'l Listed) -> &'l str {
        object.key.get(self.root..).unwrap_or(&object.key)
    }

    /// A loader's settings that brings everything once.
    pub(super) fn loader(&self, args: &Pack) -> Outcome<LoaderBuilder> {
        let mut settings = given(args);
        settings.push(("uri".into(), self.uri.clone()));
        Ok(once(load(None, &settings)?, None).listing(self.listed.clone()))
    }
}

/// What is built of the first of these sizes; where memory does not suffice for that, of the second.
pub(super) fn as_memory_allows<S: Copy, T>([first, second]: [S; 2], build: impl Fn(S) -> Result<T>) -> Result<T> {
    match build(first) {
        Err(error) if error.kind() == Kind::Budget => build(second),
        built => built,
    }
}
