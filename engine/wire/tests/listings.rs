//! Listings: what S3 and its likes answer, hostile documents, and round trips through a writer of our own.

use fuelrail_base::Kind;
use fuelrail_base::limits::{DOCUMENT_BYTES_MAX, KEY_BYTES_MAX};
use fuelrail_wire::{
    Endpoint, Entry, ListPage, PageStart, list_path, multipart, parse_error, parse_error_region, parse_list,
};
use proptest::prelude::*;

fn page(inner: &str) -> Result<ListPage, fuelrail_base::Error> {
    parse_list(format!("<ListBucketResult>{inner}</ListBucketResult>").as_bytes())
}

fn refused(inner: &str, says: &str) {
    let error = page(inner).expect_err(inner);
    assert_eq!(error.kind(), Kind::Protocol, "{inner}");
    assert!(error.to_string().contains(says), "{inner}: {error}");
}

const LAST: &str = "<IsTruncated>false</IsTruncated>";

#[test]
fn paths_are_escaped_as_queries() {
    let endpoint: Endpoint = "http://h/my bucket/tr+ain/a&b=é".parse().unwrap();
    assert_eq!(
        list_path(&endpoint, &endpoint.prefix, PageStart { after: None, token: Some("1/a+b==") }, 1000),
        "/my%20bucket?list-type=2&encoding-type=url&max-keys=1000&prefix=tr%2Bain%2Fa%26b%3D%C3%A9\
         &continuation-token=1%2Fa%2Bb%3D%3D"
    );
    let bare: Endpoint = "http://h/".parse().unwrap();
    assert_eq!(list_path(&bare, "", PageStart::default(), 7), "/?list-type=2&encoding-type=url&max-keys=7");
    let after = PageStart { after: Some("a b/é"), token: None };
    assert!(list_path(&bare, "", after, 7).ends_with("max-keys=7&start-after=a%20b%2F%C3%A9"));
}

#[test]
fn an_s3_page() {
    let xml = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>train%2F</Prefix>
  <NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=</NextContinuationToken>
  <KeyCount>2</KeyCount><MaxKeys>2</MaxKeys><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
  <Contents><Key>train/a+b%2B%C3%A9%01.png</Key><LastModified>2024-01-02T03:04:05.000Z</LastModified>
    <ETag>&quot;9b2cf535f27731c974343645a3985328&quot;</ETag><ChecksumAlgorithm>CRC32C</ChecksumAlgorithm>
    <Size>110592</Size><StorageClass>STANDARD</StorageClass>
    <Owner><ID>75aa57</ID><Key>not this one</Key><DisplayName>x &amp; y</DisplayName></Owner></Contents>
  <Contents><Size>0</Size><Key>train/empty</Key><ETag/></Contents>
</ListBucketResult>"#;
    let expected = ListPage {
        entries: vec![
            Entry {
                key: "train/a b+é\u{1}.png".into(),
                size: 110_592,
                etag: Some("\"9b2cf535f27731c974343645a3985328\"".into()),
            },
            Entry { key: "train/empty".into(), size: 0, etag: None },
        ],
        next: Some("1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=".into()),
    };
    assert_eq!(parse_list(xml.as_bytes()).unwrap(), expected);
}

#[test]
fn keys_are_taken_literally_unless_an_encoding_is_named() {
    let got = page(&format!("{LAST}<Contents><Key> a+b%20&#38;&#x3c;<![CDATA[<x>]]></Key><Size>1</Size></Contents>"));
    assert_eq!(got.unwrap().entries[0].key, " a+b%20&<<x>");
    let lines = format!("{LAST}<Contents><Key>a\r\nb&#13;c</Key><Size>1</Size></Contents>");
    assert_eq!(page(&lines).unwrap().entries[0].key, "a\nb\rc", "XML turns line ends into LF, references stay");
    let late = "<Contents><Key>a+b%20c</Key><Size>1</Size></Contents><EncodingType>url</EncodingType>";
    assert_eq!(page(&format!("{LAST}{late}")).unwrap().entries[0].key, "a b c", "named after the keys");
}

#[test]
fn an_empty_listing_and_a_stale_token() {
    assert_eq!(page(LAST).unwrap(), ListPage::default());
    let got = page(&format!("{LAST}<NextContinuationToken>x</NextContinuationToken>")).unwrap();
    assert_eq!(got.next, None, "a token on the last page leads nowhere");
}

#[test]
fn missing_repeated_and_unreadable_fields() {
    let entry = |fields: &str| format!("{LAST}<Contents>{fields}</Contents>");
    refused("", "has no <IsTruncated>");
    refused("<IsTruncated>maybe</IsTruncated>", "unreadable <IsTruncated> 'maybe'");
    refused("<IsTruncated>true</IsTruncated>", "truncated but has no <NextContinuationToken>");
    refused("<IsTruncated>true</IsTruncated><NextContinuationToken/>", "truncated but has no <NextContinuationToken>");
    refused(&format!("{LAST}{LAST}"), "repeats <IsTruncated>");
    refused(&entry("<Size>1</Size>"), "<Contents> without <Key>");
    refused(&entry("<Key>k</Key>"), "object 'k': <Contents> without <Size>");
    refused(&entry("<Key>k</Key><Key>l</Key><Size>1</Size>"), "repeats <Key>");
    refused(&entry("<Key>k</Key><Size>-1</Size>"), "unreadable <Size> '-1'");
    refused(&entry("<Key>k</Key><Size>99999999999999999999</Size>"), "unreadable <Size>");
    refused(&entry("<Key>k</Key><Size>9999999999999999</Size>"), "above 5497558138880");
    refused(&entry("<Key/><Size>1</Size>"), "the key is empty");
    refused(&entry(&format!("<Key>{}</Key><Size>1</Size>", "k".repeat(KEY_BYTES_MAX + 1))), "1025 bytes long");
    refused(&entry("<Key>k</Key><Size>1</Size><ETag>a&#13;&#10;X: y</ETag>"), "does not fit a header line");
    refused(&format!("{LAST}<EncodingType>rot13</EncodingType>"), "unknown <EncodingType> 'rot13'");
    let encoded =
        |key: &str| format!("{}<EncodingType>url</EncodingType>", entry(&format!("<Key>{key}</Key><Size>1</Size>")));
    refused(&encoded("a%2"), "'%' without two hexadecimal digits");
    refused(&encoded("a%FF"), "not UTF-8");
}

#[test]
fn hostile_documents() {
    let refused = |xml: &[u8], says: &str| {
        let error = parse_list(xml).unwrap_err();
        assert_eq!(error.kind(), Kind::Protocol, "{says}");
        assert!(error.to_string().contains(says), "{says}: {error}");
        assert_eq!(parse_error(xml), None);
    };
    refused(b"", "no element");
    refused(b"just text", "no element");
    refused(b"<ListBucketResult><Contents>", "ends with 2 elements open");
    refused(b"<ListBucketResult></Contents>", "broken");
    refused(b"<ListBucketResult/><ListBucketResult/>", "second document");
    refused(b"<ListBucketResult>\xFF</ListBucketResult>", "not UTF-8 at byte 18");
    refused("<a>".repeat(100_000).as_bytes(), "not a listing");
    refused(format!("<ListBucketResult>{}", "<a>".repeat(100_000)).as_bytes(), "nest deeper than 16");
    refused(b"<!DOCTYPE x [<!ENTITY a \"aaaa\">]><ListBucketResult>&a;</ListBucketResult>", "DOCTYPE");
    refused(b"<ListBucketResult>&a;</ListBucketResult>", "'&a;' is not defined");
    refused(b"<ListBucketResult>&#xD800;</ListBucketResult>", "is not defined");
    refused(b"<ListBucketResult>&#0;</ListBucketResult>", "is not defined");
    refused(
        b"<html><body>Index of /</body></html>",
        "<html> document, not a listing; the server may not support ListObjectsV2",
    );
    refused(&vec![b' '; DOCUMENT_BYTES_MAX + 1], "longer than");
}

#[test]
fn error_documents_repeat_their_code() {
    let xml = b"<?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code><Message>The \"b\" &lt;is&gt;\n gone</Message>\
                <Resource>/b</Resource></Error>";
    let expected = ("NoSuchBucket".to_string(), "The \\\"b\\\" <is>\\n gone".to_string());
    assert_eq!(parse_error(xml), Some(expected));
    let error = parse_list(xml).unwrap_err();
    assert!(error.to_string().contains("answered the listing with error NoSuchBucket: The"), "{error}");
    let named = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>";
    assert_eq!((parse_error_region(named).as_deref(), parse_error_region(xml)), (Some("eu-west-1"), None));
    assert_eq!(parse_error(b"<Error><Message>no code</Message></Error>"), None);
    assert_eq!(parse_error(b"<html><Code>x</Code></html>"), None);
    let long = format!("<Error><Code>C</Code><Message>{}</Message></Error>", "m".repeat(10_000));
    assert_eq!(parse_error(long.as_bytes()).unwrap().1.len(), 256);
    // One of which the begin alone was kept, cut off within a character.
    let cut = format!("<Error><Code>SlowDown</Code><Region>eu</Region><Message>{}", "é".repeat(5000));
    let cut = &cut.as_bytes()[..8191];
    assert!(std::str::from_utf8(cut).is_err());
    assert_eq!(parse_error(cut), Some(("SlowDown".to_string(), String::new())));
    assert_eq!(parse_error_region(cut).as_deref(), Some("eu"));
    assert!(parse_list(cut).is_err());
    assert!(multipart::parse_begun(cut).is_err() && multipart::parse_completed(cut).is_err());
    assert_eq!(parse_error(b"<Error><Code>Slow"), None);
}

/// An independent writer of listings: escapes by its own rules, in one of the two encodings.
fn written(page: &ListPage, url: bool) -> String {
    let text = |raw: &str| -> String {
        if url {
            let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./*".contains(&byte);
            let escape = |byte: u8| match byte {
                b' ' => "+".to_string(),
                byte if keep(byte) => (byte as char).to_string(),
                byte => format!("%{byte:02X}"),
            };
            raw.bytes().map(escape).collect()
        } else {
            raw.chars().map(|c| if c.is_alphanumeric() { c.to_string() } else { format!("&#{};", c as u32) }).collect()
        }
    };
    let mut xml = String::from("<ListBucketResult>");
    for Entry { key, size, etag } in &page.entries {
        xml += &format!("\n<Contents><Key>{}</Key><Size>{size}</Size>", text(key));
        if let Some(etag) = etag {
            xml += &format!("<ETag>{}</ETag>", etag.replace('"', "&quot;"));
        }
        xml += "</Contents>";
    }
    if let Some(token) = &page.next {
        xml += &format!("<NextContinuationToken>{token}</NextContinuationToken>");
    }
    if url {
        xml += "<EncodingType>url</EncodingType>";
    }
    xml + &format!("<IsTruncated>{}</IsTruncated></ListBucketResult>", page.next.is_some())
}

fn any_key() -> impl Strategy<Value = String> {
    // XML has no way to write NUL, not even as a reference.
    proptest::collection::vec(any::<char>().prop_filter("not NUL", |c| *c != '\0'), 1..60)
        .prop_map(|chars| chars.into_iter().collect())
}

fn any_page() -> impl Strategy<Value = ListPage> {
    let entry = (any_key(), 0..1u64 << 40, proptest::option::of("\"[0-9a-f]{32}(-[0-9]{1,4})?\""))
        .prop_map(|(key, size, etag)| Entry { key, size, etag });
    let entries = proptest::collection::vec(entry, 0..6);
    let next = proptest::option::of("[A-Za-z0-9+/=]{1,40}");
    (entries, next).prop_map(|(entries, next)| ListPage { entries, next })
}

proptest! {
    #[test]
    fn pages_survive_an_independent_writer(page in any_page(), url in any::<bool>()) {
        prop_assert_eq!(parse_list(written(&page, url).as_bytes()).unwrap(), page);
    }

    #[test]
    fn a_page_cut_anywhere_is_refused(page in any_page(), cut in any::<prop::sample::Index>()) {
        let xml = written(&page, true);
        let cut = cut.index(xml.len());
        prop_assert_eq!(parse_list(&xml.as_bytes()[..cut]).unwrap_err().kind(), Kind::Protocol);
    }
}
