//! Against a third-party server that checks signatures: s3s-fs.
//!
//! `scripts/test` installs it and sets `TEST_S3S_FS`.

use crate::common::s3s::{KEY_ID, S3s, SECRET, keys};
use crate::common::{drain, loader_at};
use fuelrail::{Access, Credential, Credentials, Environment, Kind, SharedProvider, get_with, list_with, put_with};
use fuelrail_bucket::DataSet;
use std::io::Cursor;

fn access(environment: Environment) -> Access {
    let credentials = Credentials { anonymous: Some(false), environment, ..Credentials::default() };
    Access { credentials, ..Access::default() }
}

#[test]
fn a_private_bucket_is_read_and_written() {
    let Some(server) = S3s::start() else { return };
    let set = DataSet::digits(60, 3);
    set.write_to(&server.root(), |_| {}).unwrap();
    let provider = Some(SharedProvider::new(Credential::aws(KEY_ID, SECRET, None).unwrap()));
    let ours = Access { credentials: Credentials { provider, ..Credentials::default() }, ..Access::default() };
    assert_eq!(list_with(&ours, &server.url(""), |_| {}).unwrap().len() as u64, set.len());
    let mut loader = loader_at(&server.url(""))
        .anonymous(false)
        .environment(keys(KEY_ID, SECRET))
        .block_size("4096".parse().unwrap())
        .build()
        .unwrap();
    assert_eq!(drain(&mut loader, &set).unwrap().order.len() as u64, set.len());
    assert_eq!((loader.stats().retries, loader.stats().given_up), (0, 0));
    for key in ["plain", "a b+c%d/é=&~(x)'!*", "dots/./../x", "q?r#s"] {
        // A folder cannot have every key: what it refuses is another error than a wrong signature.
        let mut source = Cursor::new(key.as_bytes());
        let uri = server.url(&key.replace('%', "%25").replace('?', "%3F").replace('#', "%23"));
        match put_with(&ours, &uri, &mut source, |_| {}) {
            Ok(stored) => {
                let mut brought = Vec::new();
                get_with(&ours, &uri, &mut brought).unwrap();
                assert_eq!((stored.bytes, brought.as_slice()), (key.len() as u64, key.as_bytes()), "{key}");
            }
            Err(error) => assert!(!error.to_string().contains("Signature") && key.contains(".."), "{key}: {error}"),
        }
    }
}

#[test]
fn wrong_keys_are_named_and_none_are_missed() {
    let Some(server) = S3s::start() else { return };
    std::fs::write(server.root().join("k"), "x").unwrap();
    for (environment, said) in [
        (Some(keys(KEY_ID, "another")), "does not match the access key id"),
        (Some(keys("AKIAOTHER", SECRET)), "does not know this access key id"),
        (None, "anonymous = false"),
    ] {
        let access = environment.map_or(Access::default(), access);
        let error = list_with(&access, &server.url(""), |_| {}).unwrap_err();
        assert!(error.kind() == Kind::Denied && error.to_string().contains(said), "{error}");
        assert!(!error.to_string().contains(SECRET), "{error}");
    }
}
