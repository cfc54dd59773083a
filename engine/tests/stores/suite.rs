//! What every store must do, in steps, and the table of what a server cannot show.

use crate::common::loader_at;
use Step::{Change, Encode, Get, List, Miss, Put, PutEmpty, PutParts, Read, Tag};
use fuelrail::{
    Access, Kind, Listed, Loader, LoaderBuilder, PutOptions, Result, get_with, list_packed, list_with, put_as, put_with,
};
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A bucket of some server, empty.
pub(crate) trait Server {
    /// As the table has it.
    fn name(&self) -> String;

    /// The URI of what begins with `key`, as its users write it.
    fn uri(&self, key: &str) -> String;

    /// What the URI does not say.
    fn access(&self) -> Access;

    /// What an object is called under a URI that names its folder.
    fn called<'k>(&self, key: &'k str) -> &'k str {
        key
    }

    /// Puts an object there as the server's owner does, where other clients cannot. Returns its entity tag.
    fn lay(&self, _key: &str, _bytes: &[u8]) -> Option<String> {
        panic!("{} takes what is put", self.name())
    }

    /// Further settings of its loaders.
    fn tuned(&self, builder: LoaderBuilder) -> LoaderBuilder {
        builder
    }
}

/// One thing every store must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// What is put is taken whole, whatever its key.
    Put,
    /// Also an object without a byte.
    PutEmpty,
    /// Also in parts, or in one request where the server knows none.
    PutParts,
    /// It comes back whole.
    Get,
    /// It is listed with its length; also what begins with one of several prefixes, and nothing where nothing is.
    List,
    /// Also under keys that listings have to escape.
    Encode,
    /// And with the entity tag it got when it was put.
    Tag,
    /// What is not there is missed by its name.
    Miss,
    /// It is read in ranges by a loader.
    Read,
    /// What changed since it was listed is an error that names it, not a mixture.
    Change,
}

/// How a step is taken; it panics where something is wrong.
type Take<'a> = fn(&mut Suite<'a>);

/// In the order they are taken in.
fn steps<'a>() -> [(Step, Take<'a>); 10] {
    [
        (Put, Suite::put),
        (PutEmpty, Suite::put_empty),
        (PutParts, Suite::put_parts),
        (Get, Suite::get),
        (List, Suite::list),
        (Encode, Suite::encode),
        (Tag, Suite::tag),
        (Miss, Suite::miss),
        (Read, Suite::read),
        (Change, Suite::change),
    ]
}

/// What a server cannot show, and why. Each is tried all the same, and has to fail: what a server learns is shown from then on.
const LACKS: [(&str, Step, &str); 14] = [
    ("s3s-fs", Encode, "its listing says that its keys are encoded, and they are not: a plus sign reads as a blank"),
    ("s3s-fs", Tag, "its listing has no entity tags"),
    ("gcp-storage-emulator", PutEmpty, "it breaks off over an empty upload to the XML interface, which Google's takes"),
    ("gcp-storage-emulator", List, "it answers 501 to a listing over the XML interface, which Google's has"),
    ("gcp-storage-emulator", Encode, "it has no listing there"),
    ("gcp-storage-emulator", Tag, "it has no listing there"),
    ("gcp-storage-emulator", Change, "it sends no ETag and heeds no If-Match, both of which Google's does"),
    ("nginx", Put, "files are laid by their owner: not every nginx is built with WebDAV"),
    ("nginx", PutEmpty, "files are laid by their owner"),
    ("nginx", PutParts, "files are laid by their owner"),
    ("nginx", List, "a web server has no listing: its objects are named in a manifest"),
    ("nginx", Encode, "it has no listing"),
    ("nginx", Tag, "it has no listing"),
    ("the embedded bucket with changed", Get, "a whole object of another generation has nothing to be held against"),
];

// Keys that a path, a query, an XML document or a file system might change.
const KEYS: [&str; 6] =
    ["set/a b+c", "set/plus+%25", "set/é/ü.bin", "set/x=1&y=2", "set/(1)!~*'", "set/deep/er/still.jpg"];

/// What is put in parts.
const LONG: &str = "long/in parts.bin";
const PART_BYTES: u64 = 5 << 20;

fn long() -> Vec<u8> {
    (0..PART_BYTES as u32 + 70_001).map(|i| ((i * 31) >> 4) as u8).collect()
}

/// The bytes of the object at this place, up to 350 KB.
fn content(at: usize) -> Vec<u8> {
    (0..at * 70_001).map(|i| ((i * 31) >> 4) as u8).collect()
}

/// Which object a server calls so.
fn known_as(server: &dyn Server, called: &str) -> usize {
    KEYS.iter().position(|key| server.called(key) == called).unwrap()
}

/// Takes every step, and tries those the server lacks.
pub(crate) fn conforms(server: &dyn Server) {
    let name = server.name();
    let lack = |step| LACKS.iter().find(|(of, which, _)| *of == name && *which == step).map(|(_, _, why)| why);
    let lists = lack(List).or(lack(Encode)).is_none();
    let mut suite = Suite { server, access: server.access(), objects: Vec::new(), in_parts: false, lists };
    for (step, take) in steps() {
        let Some(why) = lack(step) else {
            take(&mut suite);
            continue;
        };
        eprintln!("{name} lacks {step:?}: {why}");
        let tried = catch_unwind(AssertUnwindSafe(|| take(&mut suite)));
        assert!(tried.is_err(), "{name} does what its table says it lacks: {step:?}, {why}");
        if step == Put {
            (0..KEYS.len()).for_each(|at| suite.took(at, server.lay(KEYS[at], &content(at))));
        }
    }
}

/// A server under trial.
struct Suite<'a> {
    server: &'a dyn Server,
    access: Access,
    /// What is there.
    objects: Vec<Listed>,
    /// Whether [`LONG`] is there, too.
    in_parts: bool,
    /// Whether a loader can list it.
    lists: bool,
}

impl Suite<'_> {
    /// The URI of an object: in an address that is percent-decoded, a percent sign is escaped.
    fn uri(&self, key: &str) -> String {
        let is_address = self.server.uri("").starts_with("http");
        self.server.uri(&if is_address { key.replace('%', "%25") } else { key.to_owned() })
    }

    fn took(&mut self, at: usize, etag: Option<String>) {
        self.objects.push(Listed { key: self.server.called(KEYS[at]).into(), size: content(at).len() as u64, etag });
        self.objects.sort_by(|a, b| a.key.cmp(&b.key));
    }

    fn put(&mut self) {
        (1..KEYS.len()).for_each(|at| self.put_one(at));
    }

    fn put_empty(&mut self) {
        self.put_one(0);
    }

    /// Apart from the others: one part of the shortest length that clouds take, and some bytes.
    fn put_parts(&mut self) {
        let options = PutOptions { parts_above_bytes: PART_BYTES, part_bytes: PART_BYTES, ..PutOptions::default() };
        let bytes = long();
        let stored = put_as(&options, &self.access, &self.uri(LONG), &mut Cursor::new(&bytes), |_| {}).unwrap();
        assert_eq!(stored.bytes, bytes.len() as u64);
        self.in_parts = true;
    }

    fn put_one(&mut self, at: usize) {
        let bytes = content(at);
        let stored = put_with(&self.access, &self.uri(KEYS[at]), &mut Cursor::new(&bytes), |_| {}).unwrap();
        assert_eq!(stored.bytes, bytes.len() as u64);
        self.took(at, stored.etag);
    }

    fn get(&mut self) {
        let got = |key: &str| {
            let mut got = Vec::new();
            get_with(&self.access, &self.uri(key), &mut got).unwrap();
            got
        };
        let there = self.objects.iter().map(|object| known_as(self.server, &object.key));
        let others: Vec<&str> = there.filter(|at| got(KEYS[*at]) != content(*at)).map(|at| KEYS[at]).collect();
        assert!(others.is_empty(), "came back as something else: {others:?}");
        assert!(!self.in_parts || got(LONG) == long(), "what was put in parts came back as something else");
    }

    fn listed(&self, key: &str) -> Vec<Listed> {
        list_with(&self.access, &self.server.uri(key), |_| {}).unwrap()
    }

    fn list(&mut self) {
        let lengths = |objects: Vec<Listed>| objects.into_iter().map(|o| o.size).collect::<Vec<_>>();
        assert_eq!(lengths(self.listed("set/")), lengths(self.objects.clone()));
        match list_with(&self.access, &self.server.uri("nothing/"), |_| {}) {
            Ok(listed) => assert_eq!(listed, [], "a prefix of nothing"),
            // A folder is there or not.
            Err(error) => {
                assert!(error.kind() == Kind::NotFound && error.cause().contains("no file or folder"), "{error}")
            }
        }
        let packed = list_packed(&self.access, &self.server.uri("set/{x,deep}"), |_| {}).unwrap();
        assert_eq!(
            packed.iter().map(|o| o.key).collect::<Vec<_>>(),
            ["set/deep/er/still.jpg", "set/x=1&y=2"].map(|key| self.server.called(key))
        );
    }

    fn encode(&mut self) {
        let keys = |objects: Vec<Listed>| objects.into_iter().map(|o| o.key).collect::<Vec<_>>();
        assert_eq!(keys(self.listed("set/")), keys(self.objects.clone()));
    }

    fn tag(&mut self) {
        assert!(self.objects.iter().all(|object| object.etag.is_some()));
        assert_eq!(self.listed("set/"), self.objects);
    }

    fn miss(&mut self) {
        let missing = get_with(&self.access, &self.uri("set/nowhere"), &mut Vec::new()).unwrap_err();
        assert_eq!(
            (missing.kind(), missing.object()),
            (Kind::NotFound, Some(self.server.called("set/nowhere"))),
            "{missing}"
        );
    }

    fn read(&mut self) {
        let listing = (!self.lists).then(|| self.objects.clone());
        assert_eq!(self.deliver(listing).unwrap(), self.objects.len());
    }

    fn change(&mut self) {
        let stale = self.objects.clone();
        let other: Vec<u8> = content(5).iter().map(|byte| !byte).collect();
        let put = put_with(&self.access, &self.uri(KEYS[5]), &mut Cursor::new(&other), |_| {});
        if put.is_err() {
            self.server.lay(KEYS[5], &other);
        }
        let changed = self.deliver(Some(stale)).unwrap_err();
        assert_eq!((changed.kind(), changed.object()), (Kind::Changed, Some(self.server.called(KEYS[5]))), "{changed}");
    }

    /// Reads everything in blocks of 64 KiB and counts it.
    fn deliver(&self, listing: Option<Vec<Listed>>) -> Result<usize> {
        let Access { tls, cloud, credentials } = &self.access;
        let mut builder = loader_at(&self.server.uri("set/")).endpoint(&cloud.endpoint).batch_size(2);
        builder = builder.environment(credentials.environment.clone()).block_size("65536".parse().unwrap());
        builder = builder.anonymous(credentials.anonymous.unwrap_or(true));
        builder = tls.ca_file.clone().into_iter().fold(builder, LoaderBuilder::ca_file);
        builder = listing.into_iter().fold(builder, LoaderBuilder::listing);
        samples(self.server, &mut self.server.tuned(builder).build()?)
    }
}

/// Reads a loader to its end, every byte compared.
fn samples(server: &dyn Server, loader: &mut Loader) -> Result<usize> {
    let mut samples = 0;
    while let Some(batch) = loader.next_batch() {
        let batch = batch?;
        for sample in batch.samples() {
            let key = loader.key(sample.id);
            assert!(sample.bytes == content(known_as(server, key)), "{key}");
            samples += 1;
        }
    }
    Ok(samples)
}
