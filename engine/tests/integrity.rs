//! What was listed is what is delivered: every range insists on the listed version.

use crate::common::services::{Answer, Service};
use crate::common::{drain, loader_at};
use fuelrail::Kind;
use fuelrail_bucket::DataSet;

#[test]
fn every_range_of_every_block_insists_on_the_listed_tag() {
    let set = DataSet::digits(40, 3);
    let bucket = crate::common::bucket(&set, "");
    let gate = Service::before(&bucket, |_| None);
    let listing = crate::common::listing(&set);
    let build = |listing| {
        let builder = loader_at(&format!("{}/bucket/", gate.url())).listing(listing);
        builder.block_size("4096".parse().unwrap()).build().unwrap()
    };
    drain(&mut build(listing.clone()), &set).unwrap();
    let heard = gate.heard();
    assert!(heard.len() >= listing.len());
    for request in &heard {
        let path = request.line.split(' ').nth(1).unwrap();
        let object = listing.iter().find(|object| path.ends_with(&object.key)).unwrap();
        assert_eq!(request.header("if-match"), object.etag.as_deref().unwrap(), "{}", request.line);
    }
    // A weak tag never matches, and without one there is nothing to insist on: answers are compared instead.
    let mut weak = listing;
    weak.iter_mut().for_each(|object| object.etag = object.etag.take().map(|tag| format!("W/{tag}")));
    weak[0].etag = None;
    let before = gate.heard().len();
    let error = drain(&mut build(weak), &set).err().unwrap();
    assert_eq!(error.kind(), Kind::Changed, "{error}");
    assert!(gate.heard()[before..].iter().all(|request| request.header("if-match").is_empty()));
}

/// The server tells no tag with its bytes: only its own judgement keeps two versions apart.
#[test]
fn an_object_that_changed_is_an_error_where_only_the_server_knows() {
    let set = DataSet::digits(40, 3);
    let bucket = crate::common::bucket(&set, "");
    let key = set.key(11);
    let changed = key.clone();
    let gate = Service::before(&bucket, move |heard| {
        let insists = heard.line.contains(&changed) && !heard.header("if-match").is_empty();
        insists.then(|| Answer::refusal(412, "PreconditionFailed", ""))
    });
    let mut loader =
        loader_at(&format!("{}/bucket/", gate.url())).listing(crate::common::listing(&set)).build().unwrap();
    let error = drain(&mut loader, &set).err().unwrap();
    assert_eq!((error.kind(), error.object()), (Kind::Changed, Some(key.as_str())), "{error}");
}

/// Every checksum that clouds send with a whole object, right and wrong.
#[test]
fn a_checksum_that_does_not_hold_is_an_error_whichever_it_is() {
    // Those of "123456789", as their catalogues have them; then one of another text.
    for (name, right, wrong) in [
        ("x-amz-checksum-crc64nvme", "rosUhgp5mIg=", "rosUhgp5mIk="),
        ("x-amz-checksum-crc32", "y/Q5Jg==", "y/Q5Jw=="),
        ("x-amz-checksum-crc32c", "4waSgw==", "4waShA=="),
        ("x-goog-hash", "crc32c=4waSgw==", "crc32c=4waShA=="),
        ("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE=", "98O8HYCOBHMq32eZZczDTKeuNEI="),
        (
            "x-amz-checksum-sha256",
            "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=",
            "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiY=",
        ),
        ("Content-MD5", "JfnnlDI7RTiF9RgfG2JNCw==", "JfnnlDI7RTiF9RgfG2JNDA=="),
    ] {
        let read = |value: &str| {
            let line = format!("{name}: {value}\r\n");
            let server = Service::start(move |_| Answer(200, line.clone(), "123456789".into()));
            let listing = vec![fuelrail::Listed { key: "k".into(), size: 9, etag: None }];
            let builder = loader_at(&format!("{}/bucket/", server.url())).listing(listing).attempts_max(2);
            let mut loader = builder.build().unwrap();
            loader.next_batch().unwrap().map(|batch| batch.samples().next().unwrap().bytes.to_vec())
        };
        assert_eq!(read(right).unwrap(), b"123456789", "{name}");
        let error = read(wrong).err().unwrap();
        assert_eq!((error.kind(), error.object()), (Kind::Mismatch, Some("k")), "{name}: {error}");
    }
}
