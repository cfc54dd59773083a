//! What was listed is what is delivered: every range insists on the listed version.

mod common;

use common::services::{Answer, Service};
use common::{drain, loader_at};
use fuelrail::Kind;
use fuelrail_bucket::DataSet;

#[test]
fn every_range_of_every_block_insists_on_the_listed_tag() {
    let set = DataSet::digits(40, 3);
    let bucket = common::bucket(&set, "");
    let gate = Service::before(&bucket, |_| None);
    let listing = common::listing(&set);
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
    let bucket = common::bucket(&set, "");
    let key = set.key(11);
    let changed = key.clone();
    let gate = Service::before(&bucket, move |heard| {
        let insists = heard.line.contains(&changed) && !heard.header("if-match").is_empty();
        insists.then(|| Answer::refusal(412, "PreconditionFailed", ""))
    });
    let mut loader = loader_at(&format!("{}/bucket/", gate.url())).listing(common::listing(&set)).build().unwrap();
    let error = drain(&mut loader, &set).err().unwrap();
    assert_eq!((error.kind(), error.object_key()), (Kind::Changed, Some(key.as_str())), "{error}");
}
