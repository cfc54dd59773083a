//! What is written can be read back: escaped paths, endpoints and manifests, for any key there is.

use fuelrail_wire::{Endpoint, Entry, manifest, write_get};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Decodes `%XX` by its own rules; everything else stands for itself.
fn unescaped(path: &str) -> Vec<u8> {
    let mut bytes = path.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
            out.push(u8::from_str_radix(core::str::from_utf8(&digits).unwrap(), 16).unwrap());
        } else {
            out.push(byte);
        }
    }
    out
}

fn any_text(chars: core::ops::Range<usize>) -> impl Strategy<Value = String> {
    proptest::collection::vec(any::<char>(), chars).prop_map(|chars| chars.into_iter().collect())
}

fn plain() -> Endpoint {
    "http://h/".parse().unwrap()
}

proptest! {
    #[test]
    fn paths_escape_any_key(bucket in "[a-z0-9. é%-]{0,20}", key in any_text(1..256)) {
        let endpoint = Endpoint { bucket: bucket.clone(), ..plain() };
        let path = endpoint.object_path(&key);
        let kept = |c: char| c.is_ascii_alphanumeric() || "-._~/%".contains(c);
        prop_assert!(path.chars().all(kept), "{}", path);
        let slash = if bucket.is_empty() { "" } else { "/" };
        prop_assert_eq!(unescaped(&path), format!("/{bucket}{slash}{key}").into_bytes());
        let mut request = Vec::new();
        write_get(&mut request, "h", &path, Some((0, 9)), None).unwrap();
        let lines = request.split(|byte| *byte == b'\n').count();
        prop_assert_eq!(lines, 7, "a key cannot add a line to a request");
    }

    #[test]
    fn endpoints_print_as_their_uri(bucket in "[^/]{0,40}", prefix in any_text(0..200), port in 1..=u16::MAX) {
        let endpoint = Endpoint { port, bucket, prefix, ..plain() };
        prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
    }

    #[test]
    fn manifests_give_their_entries_back(
        entries in proptest::collection::btree_map(
            any_text(1..40),
            (0..1u64 << 40, proptest::option::weighted(0.2, "(W/)?\"[!#-~é]{1,40}\"")),
            0..20,
        ),
        crlf in any::<bool>(),
    ) {
        let entries: BTreeMap<String, (u64, Option<String>)> = entries;
        let entries: Vec<Entry> =
            entries.into_iter().map(|(key, (size, etag))| Entry { key, size, etag }).collect();
        let mut text = Vec::new();
        manifest::write(&mut text, &entries);
        if crlf {
            text = String::from_utf8(text).unwrap().replace('\n', "\r\n").into_bytes();
        }
        prop_assert_eq!(manifest::parse(&text).unwrap(), entries);
    }
}

#[test]
fn the_longest_and_oddest_keys_pass() {
    let keys =
        ["a b", "+", "%", "%25", "é/ü", "..", "/", " ", "\t", "\r", "\n", "{", "\u{FEFF}", "a\u{0}b", "\"", "\\"];
    let mut entries: Vec<Entry> = keys.iter().map(|key| Entry { key: (*key).into(), size: 1, etag: None }).collect();
    entries.push(Entry { key: "ü".repeat(512), size: 5 << 40, etag: None });
    let mut text = Vec::new();
    manifest::write(&mut text, &entries);
    assert_eq!(manifest::parse(&text).unwrap(), entries);
}

#[test]
fn odd_keys_survive_one_by_one_in_their_own_form() {
    for key in [" ", "a\r", "{", "\u{FEFF}x", "\u{85}", "\u{2028}", "#", "a  "] {
        let entries = [Entry { key: key.into(), size: 3, etag: None }];
        let mut text = Vec::new();
        manifest::write(&mut text, &entries);
        assert_eq!(manifest::parse(&text).unwrap(), entries, "{key:?}");
        assert!(!text.contains(&b'\r'), "a carriage return is never bare: other readers take it for a line end");
    }
}
