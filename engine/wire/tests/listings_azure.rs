//! Listings of Azure: what List Blobs answers, and what is no answer.

use fuelrail_base::Kind;
use fuelrail_wire::{Endpoint, Entry, ListPage, PageStart, list_path, parse_list};

#[test]
fn paths_ask_for_blobs_of_a_container() {
    let endpoint: Endpoint = "az://account/set/x".parse().unwrap();
    assert_eq!(
        list_path(&endpoint, "", PageStart::default(), 5000),
        "/set?restype=container&comp=list&maxresults=5000"
    );
    assert_eq!(
        list_path(&endpoint, "a b/é&", PageStart { after: None, token: Some("2!92!MDAw==") }, 7),
        "/set?restype=container&comp=list&maxresults=7&prefix=a%20b%2F%C3%A9%26&marker=2%2192%21MDAw%3D%3D"
    );
}

#[test]
fn a_page() {
    let xml = r#"<?xml version="1.0" encoding="utf-8"?>
<EnumerationResults ServiceEndpoint="https://account.blob.core.windows.net/" ContainerName="set"><Prefix>train/</Prefix>
  <MaxResults>3</MaxResults><Blobs>
  <Blob><Name>train/a b+é&amp;.png</Name><Properties><Creation-Time>Mon, 01 Jan 2024 00:00:00 GMT</Creation-Time>
    <Last-Modified>Mon, 01 Jan 2024 00:00:00 GMT</Last-Modified><Etag>0x8DC0A1B2C3D4E5F</Etag><Content-Length>110592</Content-Length>
    <Content-Type>image/png</Content-Type><Content-MD5>sQqNsWTgdUEFt6mb5y4/5Q==</Content-MD5><BlobType>BlockBlob</BlobType>
    <LeaseStatus>unlocked</LeaseStatus></Properties><Metadata><Name>x</Name></Metadata><OrMetadata /></Blob>
  <Blob><Name>train/folder</Name><Properties><ResourceType>directory</ResourceType><Content-Length>0</Content-Length></Properties></Blob>
  <Blob><Name>train/empty</Name><Properties><Content-Length>0</Content-Length><Etag/></Properties></Blob>
  </Blobs><NextMarker>2!92!MDAwMDE0</NextMarker></EnumerationResults>"#;
    let expected = ListPage {
        entries: vec![
            Entry { key: "train/a b+é&.png".into(), size: 110_592, etag: Some("\"0x8DC0A1B2C3D4E5F\"".into()) },
            Entry { key: "train/empty".into(), size: 0, etag: None },
        ],
        next: Some("2!92!MDAwMDE0".into()),
    };
    assert_eq!(parse_list(xml.as_bytes()).unwrap(), expected);
    let with_mark = format!("\u{FEFF}{xml}");
    assert_eq!(parse_list(with_mark.as_bytes()).unwrap(), expected, "Azure begins with a byte-order mark");
    let last = "<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>";
    assert_eq!(parse_list(last.as_bytes()).unwrap(), ListPage::default());
}

/// Names with U+FFFE, which XML cannot carry; since version 2021-02-12 of the interface.
#[test]
fn names_that_xml_cannot_carry_are_encoded() {
    let blob = |name: &str| format!("<Blob>{name}<Properties><Content-Length>1</Content-Length></Properties></Blob>");
    let names = [
        r#"<Name Encoded="true">a%20b+c%EF%BF%BE</Name>"#,
        "<Name>a%20b+c</Name>",
        r#"<Name Encoded="false">%25</Name>"#,
    ];
    let blobs = names.map(&blob).concat();
    let page = |blobs: &str| {
        let head = r#"<Prefix Encoded="true">a%20</Prefix>"#;
        let xml = format!("<EnumerationResults>{head}<Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>");
        parse_list(xml.as_bytes())
    };
    let ListPage { entries, .. } = page(&blobs).unwrap();
    let keys: Vec<String> = entries.into_iter().map(|entry| entry.key).collect();
    assert_eq!(keys, ["a b+c\u{FFFE}", "a%20b+c", "%25"]);
    let error = page(&blob(r#"<Name Encoded="true">100%</Name>"#)).unwrap_err();
    assert!(error.to_string().contains("not valid percent-encoding"), "{error}");
}

#[test]
fn what_is_no_sound_listing_is_refused() {
    let blob = |fields: &str| format!("<Blobs><Blob>{fields}</Blob></Blobs><NextMarker/>");
    for (inner, says) in [
        ("<Blobs/>".to_owned(), "no <NextMarker>"),
        ("<NextMarker/><NextMarker/>".to_owned(), "repeats <NextMarker>"),
        (blob("<Properties><Content-Length>1</Content-Length></Properties>"), "without <Name>"),
        (blob("<Name>k</Name>"), "object 'k': <Blob> without <Content-Length>"),
        (blob("<Name>k</Name><Name>l</Name>"), "repeats <Name>"),
        (blob("<Name/><Properties><Content-Length>1</Content-Length></Properties>"), "the key is empty"),
        (
            blob("<Name>k</Name><Properties><Content-Length>-1</Content-Length></Properties>"),
            "unreadable <Content-Length>",
        ),
        (
            blob("<Name>k</Name><Properties><Content-Length>1</Content-Length><Etag>a&#13;&#10;b</Etag></Properties>"),
            "does not fit a header line",
        ),
    ] {
        let error = parse_list(format!("<EnumerationResults>{inner}</EnumerationResults>").as_bytes()).unwrap_err();
        assert!(error.kind() == Kind::Protocol && error.to_string().contains(says), "{inner}: {error}");
    }
    let refused = b"<?xml version=\"1.0\"?><Error><Code>ContainerNotFound</Code><Message>Gone.</Message></Error>";
    assert!(parse_list(refused).unwrap_err().to_string().contains("ContainerNotFound: Gone."));
    for other in ["<ListBucketResult/>", "<html/>", "", "<EnumerationResults>"] {
        assert_eq!(parse_list(other.as_bytes()).unwrap_err().kind(), Kind::Protocol, "{other}");
    }
}
