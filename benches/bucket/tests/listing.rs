//! ListObjectsV2 over the wire.

use std::collections::BTreeSet;

use crate::common::{Client, elements, serve};
use fuelrail_bucket::DataSet;
use percent_encoding::percent_decode_str;

struct Listed {
    keys: Vec<String>,
    sizes: Vec<u64>,
    etags: Vec<String>,
    prefixes: Vec<String>,
    pages: usize,
}

/// Every page of a listing; checks what each page says of itself.
fn list(client: &mut Client, query: &str) -> Listed {
    let mut all = Listed { keys: vec![], sizes: vec![], etags: vec![], prefixes: vec![], pages: 0 };
    let mut token = String::new();
    loop {
        let reply = client.request("GET", &format!("/bucket?list-type=2&{query}{token}"), &[]).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
        let xml = reply.text();
        let keys = elements(xml, "Key");
        let prefixes: Vec<String> =
            elements(xml, "CommonPrefixes").iter().flat_map(|common| elements(common, "Prefix")).collect();
        assert_eq!(elements(xml, "KeyCount"), [(keys.len() + prefixes.len()).to_string()]);
        assert!(elements(xml, "LastModified").iter().all(|date| date == "2023-11-14T22:13:20.000Z"), "{xml}");
        all.keys.extend(keys);
        all.prefixes.extend(prefixes);
        all.sizes.extend(elements(xml, "Size").iter().map(|size| size.parse::<u64>().unwrap()));
        all.etags.extend(elements(xml, "ETag"));
        all.pages += 1;
        let next = elements(xml, "NextContinuationToken");
        assert_eq!(elements(xml, "IsTruncated"), [(!next.is_empty()).to_string()]);
        match next.first() {
            Some(next) => token = format!("&continuation-token={next}"),
            None => return all,
        }
    }
}

#[test]
fn pages_of_any_size_are_the_whole_set() {
    for set in [DataSet::digits(2345, 1), DataSet::photos(1500, 1), DataSet::volumes(7, 1, 0.01)] {
        let bucket = serve(&set, "");
        let mut client = Client::connect(&bucket);
        let keys: Vec<String> = (0..set.len()).map(|i| set.key(i)).collect();
        assert!(keys.is_sorted());
        for keys_max in [1usize, 3, 100, 999, 1000, 5000] {
            if set.len() as usize / keys_max > 800 {
                continue;
            }
            let listed = list(&mut client, &format!("max-keys={keys_max}"));
            assert_eq!(listed.keys, keys);
            assert!(listed.sizes.iter().zip(0..).all(|(&size, i)| size == set.size(i)));
            assert!(listed.etags.iter().zip(0..).all(|(etag, i)| *etag == set.etag(i)));
            assert_eq!(listed.pages, keys.len().div_ceil(keys_max.min(1000)));
        }
    }
}

#[test]
fn prefixes_delimiters_and_start_after() {
    let set = DataSet::digits(300, 1);
    let bucket = serve(&set, "");
    let mut client = Client::connect(&bucket);
    for keys_max in [1, 2, 1000] {
        let folders = list(&mut client, &format!("prefix=training/&delimiter=/&max-keys={keys_max}"));
        let want: Vec<String> = (0..10).map(|class| format!("training/{class}/")).collect();
        assert_eq!((folders.prefixes, folders.keys.len()), (want, 0));
    }
    let class = list(&mut client, "prefix=training/3/&max-keys=7");
    let want: Vec<String> = (0..300).filter(|&i| set.class(i) == 3).map(|i| set.key(i)).collect();
    assert_eq!(class.keys, want);
    let after = list(&mut client, &format!("start-after={}", set.key(250)));
    assert_eq!(after.keys.first(), Some(&set.key(251)));
    assert_eq!(after.keys.len(), 49);
    assert_eq!(list(&mut client, "prefix=nothing").keys.len(), 0);
    let none = list(&mut client, "max-keys=0");
    assert_eq!((none.keys.len(), none.pages), (0, 1));
}

#[test]
fn url_encoding_carries_keys_xml_cannot() {
    let bucket = serve(&DataSet::digits(0, 1), "");
    let mut client = Client::connect(&bucket);
    let keys: BTreeSet<&str> = ["a b", "a+b", "a%b", "ä\u{1}\n", "<&>", "x/y"].into();
    for key in &keys {
        let url = bucket.url(key);
        let target = url.strip_prefix(&format!("http://{}", bucket.addr())).unwrap();
        assert_eq!(client.put(target, b"x", &[]).status, 200);
    }
    let listed = list(&mut client, "encoding-type=url&max-keys=2");
    let decoded: Vec<String> =
        listed.keys.iter().map(|key| percent_decode_str(key).decode_utf8().unwrap().into_owned()).collect();
    assert!(decoded.iter().map(String::as_str).eq(keys.iter().copied()), "{decoded:?}");
    assert!(listed.keys.contains(&"x/y".to_owned()), "slashes stay readable");
    let plain = list(&mut client, "prefix=a%20b");
    assert_eq!(plain.keys, ["a b"]);
    assert_eq!(list(&mut client, "prefix=a+b").keys, ["a b"], "in a query, a plus is a space");
    assert_eq!(list(&mut client, "prefix=a%2Bb").keys, ["a+b"]);
}

/// What was put and deleted lies over what is generated: in every page, whatever its size.
#[test]
fn pages_of_a_changed_set_join_to_the_whole() {
    let bucket = serve(&DataSet::digits(12, 1), "");
    let mut client = Client::connect(&bucket);
    let deleted = ["training/0/00001.png", "training/4/00006.png", "none"];
    for key in ["0", "training/0-1", "training/1/00002.png", "training/1/00002.png/x", "zz"] {
        assert_eq!(client.put(&format!("/bucket/{key}"), b"22", &[]).status, 200);
    }
    for key in deleted {
        client.ask("DELETE", &format!("/bucket/{key}"), &[]);
        assert_eq!(client.reply(false).unwrap().status, 204);
    }
    for prefix in ["", "t", "training/", "training/1", "training/1/", "nothing", "z"] {
        for delimiter in ["", "/", "/0"] {
            let query = format!("prefix={prefix}&delimiter={delimiter}");
            let whole = list(&mut client, &query);
            for keys_max in 1..8 {
                let paged = list(&mut client, &format!("{query}&max-keys={keys_max}"));
                assert_eq!((&paged.keys, &paged.prefixes), (&whole.keys, &whole.prefixes), "{query} {keys_max}");
                assert_eq!((paged.sizes, paged.etags), (whole.sizes.clone(), whole.etags.clone()));
            }
        }
    }
    let (whole, top) = (list(&mut client, ""), list(&mut client, "delimiter=/"));
    assert!(
        whole.keys.is_sorted()
            && whole.keys.len() == 14
            && deleted.iter().all(|key| !whole.keys.contains(&(*key).into()))
    );
    assert_eq!(whole.keys.iter().zip(&whole.sizes).find(|(key, _)| *key == "training/1/00002.png").unwrap().1, &2);
    assert_eq!((top.keys, top.prefixes), (vec!["0".to_owned(), "zz".into()], vec!["training/".to_owned()]));
}
