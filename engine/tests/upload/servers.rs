//! Objects in parts against third-party servers, signed: s3s-fs, which checks signatures, and moto, which knows conditions.

use super::content;
use crate::common::moto::Moto;
use crate::common::s3s::{KEY_ID, S3s, SECRET};
use fuelrail::{Access, Credentials, Environment, Kind, PutOptions, PutOver, get_with, list_with, put_as};
use std::io::Cursor;

/// Two parts of the shortest length that S3 takes, and a short one.
const PART: u64 = 5 << 20;

fn access(secret: &str) -> Access {
    let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
    let environment = Environment::given([pair("AWS_ACCESS_KEY_ID", KEY_ID), pair("AWS_SECRET_ACCESS_KEY", secret)]);
    let credentials = Credentials { anonymous: Some(false), environment, ..Credentials::default() };
    Access { credentials, ..Access::default() }
}

fn put_parts(secret: &str, uri: &str, over: PutOver) -> fuelrail::Result<fuelrail::Stored> {
    let options = PutOptions { over, parts_above_bytes: PART, part_bytes: PART };
    put_as(&options, access(secret), uri, &mut Cursor::new(content(11_000_000)), |_| {})
}

fn comes_back(uri: &str, etag: Option<String>) {
    let listed = list_with(access(SECRET), uri, |_| {}).unwrap();
    assert_eq!((listed[0].size, &listed[0].etag), (11_000_000, &etag));
    let mut bytes = Vec::new();
    get_with(access(SECRET), uri, &mut bytes).unwrap();
    assert!(bytes == content(11_000_000));
}

#[test]
fn s3s_fs_takes_signed_parts() {
    let Some(server) = S3s::start() else { return };
    let uri = server.url("deep/a b+é.bin");
    let stored = put_parts(SECRET, &uri, PutOver::Anything).unwrap();
    let listed = list_with(access(SECRET), &uri, |_| {}).unwrap();
    assert_eq!((listed[0].size, stored.bytes), (11_000_000, 11_000_000));
    let mut bytes = Vec::new();
    get_with(access(SECRET), &uri, &mut bytes).unwrap();
    assert!(bytes == content(11_000_000));
    let error = put_parts("another", &uri, PutOver::Anything).unwrap_err();
    assert!(error.kind() == Kind::Denied && error.to_string().contains("secret access key"), "{error}");
}

#[test]
fn moto_takes_parts_and_judges_conditions() {
    let Some(moto) = Moto::start() else { return };
    moto.make_bucket("parts");
    let uri = format!("{}/parts/a b+é.bin", moto.url());
    let stored = put_parts(SECRET, &uri, PutOver::Nothing).unwrap();
    assert!(stored.etag.as_ref().is_some_and(|etag| etag.ends_with("-3\"")), "{stored:?}");
    comes_back(&uri, stored.etag);
    let error = put_parts(SECRET, &uri, PutOver::Nothing).unwrap_err();
    assert!(matches!(error.kind(), Kind::Exists), "{error}");
}
