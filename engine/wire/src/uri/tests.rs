//! URIs taken apart, printed, refused, and turned into servers and paths.

use super::*;
use fuelrail_base::limits;

fn parsed(uri: &str) -> Endpoint {
    uri.parse().unwrap_or_else(|error| panic!("{uri}: {error}"))
}

#[test]
fn takes_uris_apart() {
    for (uri, host, port, bucket, prefix) in [
        ("http://h:9000/b/train/", "h", 9000, "b", "train/"),
        ("HTTP://H.Example.org/b", "h.example.org", 80, "b", ""),
        ("http://10.0.0.1", "10.0.0.1", 80, "", ""),
        ("http://h/", "h", 80, "", ""),
        ("http://h//sub/x", "h", 80, "", "sub/x"),
        ("http://[::1]:8080/b/p", "::1", 8080, "b", "p"),
        ("http://[FE80::2]/b", "fe80::2", 80, "b", ""),
        ("http://h/b/a b/é+%25%2f", "h", 80, "b", "a b/é+%/"),
        ("http://h/b//lead", "h", 80, "b", "/lead"),
        ("https://h/b", "h", 443, "b", ""),
        ("HTTPS://h:80/b", "h", 80, "b", ""),
    ] {
        let e = parsed(uri);
        assert_eq!((&*e.host, e.port, &*e.bucket, &*e.prefix), (host, port, bucket, prefix), "{uri}");
        assert_eq!(parsed(&e.to_string()), e, "{uri} prints as {e}");
    }
}

#[test]
fn refusals_say_what_to_write() {
    for (uri, says) in [
        ("", "is empty"),
        ("file:///srv/100%/", "%25"),
        ("ftp://h/b", "none of http, https, s3"),
        ("file://host/srv/set", "another machine"),
        ("~/set", "which only shells expand"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://key:secret@bucket/p", "user information"),
        ("s3://bucket?X-Amz-Signature=secret", "no bucket"),
        ("s3://arn:aws:s3:eu-west-1:1:accesspoint/x/k", "ARN"),
        ("s3://set--use1-az4--x-s3/k", "directory buckets"),
        ("az://account", "names no bucket"),
        ("az://Account/container/x", "small letters"),
        ("az://account/c/x", "3 to 63"),
        ("abfss://account/x", "abfss://CONTAINER@"),
        ("abfss://user:secret@account.dfs.core.windows.net/x", "abfss://CONTAINER@"),
        ("abfss://container@elsewhere.example/x", "abfss://CONTAINER@"),
        ("abfss://container@account.dfs.core.evil.example/x", "set endpoint"),
        ("abfss://container@account.dfs.core.windows.net.evil.example/x", "set endpoint"),
        ("abfss://container@account.blob.evil.example/x", "set endpoint"),
        ("http://", "no host"),
        ("http:///b", "no host"),
        ("http://:80/b", "no host"),
        ("http://u:secret@h/b", "user information"),
        ("http://h/b?X-Amz-Signature=secret", "query"),
        ("http://h/b#x", "fragment"),
        ("http://h:/b", "port"),
        ("http://h:0/b", "port"),
        ("http://h:65536/b", "port"),
        ("http://h:+80/b", "port"),
        ("http://::1/b", "brackets"),
        ("http://[::1/b", "']'"),
        ("http://[::1%25eth0]/b", "IPv6"),
        ("http://[::1]x/b", "port"),
        ("http://a b/b", "host name"),
        ("http://h/b/%", "%25"),
        ("http://h/b/%ff", "UTF-8"),
        ("http://h/b%2Fc/p", "slash"),
        ("http://h/b/a\r\nX: y", "control"),
    ] {
        let error = uri.parse::<Endpoint>().unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{uri}");
        let text = error.to_string();
        assert!(text.contains(says), "{uri}: {text}");
        assert!(!text.contains("secret"), "{text}");
    }
    let long = format!("http://h/b/{}", "p".repeat(limits::KEY_BYTES_MAX + 1));
    assert!(long.parse::<Endpoint>().unwrap_err().to_string().contains("1024"));
}

#[test]
fn what_may_be_secret_is_not_shown() {
    for (uri, shown) in [
        ("http://h:9000/b/a@b/", "http://h:9000/b/a@b/"),
        ("http://[::1]:80/b", "http://[::1]:80/b"),
        ("abfss://c@account.dfs.core.windows.net/x", "abfss://c@account.dfs.core.windows.net/x"),
        ("/data/what?/a@b/", "/data/what?/a@b/"),
        ("http://user:secret@h/b", "http://…@h/b"),
        ("http://secret@h/b", "http://…@h/b"),
        ("http://user:se/cr?et@h/b", "http://…@h/b"),
        ("s3://id:secret", "s3://…@"),
        ("abfss://user:secret@account/x", "abfss://…@account/x"),
        ("https://h/b/?sig=secret", "https://h/b/?…"),
        ("https://h?sig=secret@x", "https://h?…"),
        ("https://h/b#secret", "https://h/b?…"),
    ] {
        assert_eq!(without_secrets(uri), shown, "{uri}");
    }
}

#[test]
fn object_paths_are_escaped() {
    let e = parsed("http://h/my bucket/p");
    assert_eq!(e.object_path("a b/c+d%é?#&~"), "/my%20bucket/a%20b/c%2Bd%25%C3%A9%3F%23%26~");
    assert_eq!(e.object_path("/lead/../x"), "/my%20bucket//lead/../x");
    assert_eq!(parsed("http://h/").object_path("k/1"), "/k/1");
    let mut text = String::from("GET ");
    e.push_object_path(&mut text, "k");
    assert_eq!(text, "GET /my%20bucket/k");
    assert_eq!(e.object_path(&"ü".repeat(512)).len(), "/my%20bucket/".len() + 512 * 6);
}

#[test]
fn authority_names_the_port_when_unusual() {
    assert_eq!(parsed("http://h/b").authority(), "h");
    assert_eq!(parsed("http://[::1]:81/b").authority(), "[::1]:81");
    assert_eq!(parsed("https://h:443/b").authority(), "h");
    assert_eq!(parsed("https://h:80/b").authority(), "h:80");
    assert_eq!(parsed("https://h/b/p").to_string(), "https://h/b/p");
}

fn on(endpoint: &str, uri: &str) -> Endpoint {
    let cloud = Cloud { endpoint: endpoint.into(), ..Cloud::default() };
    cloud.endpoint(uri).unwrap_or_else(|error| panic!("{uri} on {endpoint}: {error}"))
}

#[test]
fn the_clouds_own_forms_name_their_servers() {
    for (uri, says, key, path) in [
        ("s3://bucket/train/", "bucket.s3.us-east-1.amazonaws.com", "k", "/k"),
        ("S3A://bucket", "bucket.s3.us-east-1.amazonaws.com", "a b", "/a%20b"),
        ("s3://my.bucket/x", "s3.us-east-1.amazonaws.com", "x/1", "/my.bucket/x/1"),
        ("s3://My_Bucket/x", "s3.us-east-1.amazonaws.com", "x", "/My_Bucket/x"),
        ("gs://my.bucket_1/x", "storage.googleapis.com", "x", "/my.bucket_1/x"),
        ("az://account/container/x", "account.blob.core.windows.net", "x", "/container/x"),
        ("az://account/$root", "account.blob.core.windows.net", "x", "/%24root/x"),
        ("abfss://container@account.dfs.core.windows.net/x", "account.blob.core.windows.net", "x", "/container/x"),
        ("abfs://set@account.dfs.core.chinacloudapi.cn/", "account.blob.core.chinacloudapi.cn", "x", "/set/x"),
    ] {
        let e = parsed(uri);
        assert_eq!((e.authority().as_str(), e.object_path(key).as_str()), (says, path), "{uri}");
        assert_eq!((e.scheme, e.port), (Scheme::Https, 443));
        assert_eq!(parsed(&e.to_string()), e, "{uri} prints as {e}");
    }
    assert_eq!(parsed("s3://bucket/x").bucket_path(), "/");
    assert_eq!(parsed("gs://bucket/x").dialect, Dialect::Gcs);
    assert_eq!(parsed("az://account/container/x").dialect, Dialect::Azure);
    assert_eq!(parsed("https://account.blob.core.windows.net/container/x"), parsed("az://account/container/x"));
    assert_eq!(parsed("http://10.0.0.1/b").dialect, Dialect::S3);
    assert_eq!(parsed("https://a.blob.core.evil.example/b").dialect, Dialect::S3);
}

#[test]
fn keys_of_the_clouds_own_forms_stand_for_themselves() {
    for uri in ["s3://bucket/a%20b?c#d+é//x", "gs://bucket/a%20b?c#d+é//x", "az://account/container/a%20b?c#d+é//x"]
    {
        let e = parsed(uri);
        assert_eq!(e.prefix, "a%20b?c#d+é//x");
        assert!(e.object_path(&e.prefix).ends_with("/a%2520b%3Fc%23d%2B%C3%A9//x"), "{}", e.object_path(&e.prefix));
        assert_eq!(parsed(&e.to_string()), e);
    }
}

#[test]
fn a_server_of_ones_own_is_addressed_by_path() {
    assert_eq!(on("http://127.0.0.1:9000", "s3://bucket/x"), parsed("http://127.0.0.1:9000/bucket/x"));
    assert_eq!(on("https://[::1]/", "s3://bucket/x").object_path("x"), "/bucket/x");
    let gateway = on("https://gate.example/some/where/", "s3://bucket/x");
    assert_eq!(
        (gateway.authority().as_str(), gateway.object_path("k").as_str()),
        ("gate.example", "/some/where/bucket/k")
    );
    assert_eq!(gateway.bucket_path(), "/some/where/bucket");
    let azurite = on("http://127.0.0.1:10000", "az://devstoreaccount1/set/x");
    assert_eq!(azurite.object_path("k"), "/devstoreaccount1/set/k");
    assert_eq!(on("https://account.privatelink.example", "az://account/set/x").object_path("k"), "/set/k");
    assert_eq!(on("http://127.0.0.1:4443", "gs://bucket/x").object_path("k"), "/bucket/k");
    let own = on("https://lake.example", "abfss://set@account.dfs.core.lake.example/x");
    assert_eq!((own.authority().as_str(), own.object_path("k").as_str()), ("lake.example", "/account/set/k"));
    let untouched = on("http://127.0.0.1:9000", "http://h/b/x");
    assert_eq!(untouched, parsed("http://h/b/x"), "what names a server keeps it");
    let front = Cloud {
        endpoint: "http://s3.example:9000".into(),
        addressing: Some(Addressing::VirtualHost),
        ..Cloud::default()
    };
    let e = front.endpoint("s3://bucket/x").unwrap();
    assert_eq!((e.authority().as_str(), e.object_path("k").as_str()), ("bucket.s3.example:9000", "/k"));
    assert!(front.endpoint("s3://my.bucket/x").unwrap_err().to_string().contains("addressing = path"));
    for (endpoint, says) in [
        ("127.0.0.1:9000", "no scheme"),
        ("ftp://h", "neither"),
        ("http://u:secret@h", "user"),
        ("http://h?x=secret", "query"),
    ] {
        for uri in ["s3://bucket/x", "http://h/b/x", "/data/"] {
            let refused = Cloud { endpoint: endpoint.into(), ..Cloud::default() }.endpoint(uri).unwrap_err();
            let text = refused.to_string();
            assert!(text.contains("endpoint: ") && text.contains(says) && !text.contains("secret"), "{uri}: {text}");
        }
    }
}

#[test]
fn regions_are_part_of_amazons_hosts() {
    let cloud = |region: &str| Cloud { region: region.into(), ..Cloud::default() };
    let e = cloud("eu-central-1").endpoint("s3://bucket/x").unwrap();
    assert_eq!((e.authority().as_str(), e.region()), ("bucket.s3.eu-central-1.amazonaws.com", Some("eu-central-1")));
    let moved = e.in_region("us-west-2").unwrap();
    assert_eq!((moved.authority().as_str(), moved.region()), ("bucket.s3.us-west-2.amazonaws.com", Some("us-west-2")));
    let china = cloud("cn-north-1").endpoint("s3://my.bucket/x").unwrap();
    assert_eq!((china.authority().as_str(), china.region()), ("s3.cn-north-1.amazonaws.com.cn", Some("cn-north-1")));
    assert_eq!(china.in_region("cn-northwest-1").unwrap().authority(), "s3.cn-northwest-1.amazonaws.com.cn");
    for (host, region) in [
        ("a.b.s3.dualstack.us-east-2.amazonaws.com", Some("us-east-2")),
        ("s3-fips.us-gov-west-1.amazonaws.com", Some("us-gov-west-1")),
        ("bucket.s3.amazonaws.com", None),
        ("s3.eu-west-1.example.org", None),
    ] {
        assert_eq!(parsed(&format!("https://{host}/b")).region(), region, "{host}");
    }
    for hostile in ["", "evil.example/", "x.evil", "a b"] {
        assert_eq!(e.in_region(hostile), None, "{hostile:?}");
        assert!(hostile.is_empty() || cloud(hostile).endpoint("s3://bucket/x").is_err());
    }
    for elsewhere in
        ["http://127.0.0.1:9000/bucket/", "gs://bucket/", "az://account/container/", "https://amazonaws.com/b"]
    {
        assert_eq!((parsed(elsewhere).region(), parsed(elsewhere).in_region("eu-west-1")), (None, None), "{elsewhere}");
    }
}

#[test]
fn braces_are_those_of_shells() {
    for (text, all) in [
        ("a", &["a"][..]),
        ("{a,b}", &["a", "b"]),
        ("x{a,}y", &["xay", "xy"]),
        ("{0..3}", &["0", "1", "2", "3"]),
        ("{3..1}", &["3", "2", "1"]),
        ("{008..011}", &["008", "009", "010", "011"]),
        ("{8..011}", &["008", "009", "010", "011"]),
        ("{9..11}", &["9", "10", "11"]),
        ("{a,b}-{1..2}", &["a-1", "a-2", "b-1", "b-2"]),
        ("{a,b{1,2}}", &["a", "b1", "b2"]),
        ("{x}", &["{x}"]),
        ("{x{1,2}}", &["{x1}", "{x2}"]),
        ("{a,b", &["{a,b"]),
        ("a}b{,}", &["a}b", "a}b"]),
        ("{1..x}", &["{1..x}"]),
        ("{é,ü}", &["é", "ü"]),
    ] {
        assert_eq!(expand(text).unwrap(), all, "{text}");
    }
    let all = expand("s3://b/{train,val}/part-{000..127}.tar").unwrap();
    assert_eq!(
        (all.len(), all[0].as_str(), all[255].as_str()),
        (256, "s3://b/train/part-000.tar", "s3://b/val/part-127.tar")
    );
    let endless = format!("{}{}", "{a,".repeat(100), "}".repeat(100));
    for (text, says) in [
        ("{0..99999999999}", "more than 100000"),
        ("{1..400}{1..400}", "more than 100000"),
        ("{0..18446744073709551615}", "more than 100000"),
        (endless.as_str(), "nest deeper"),
    ] {
        let error = expand(text).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(says), "{text}: {error}");
    }
    assert!(expand(&"a".repeat(limits::URI_BYTES_MAX + 1)).unwrap_err().to_string().contains("longer than"));
}

#[test]
fn a_source_is_one_bucket_and_prefixes_that_do_not_overlap() {
    let source = |uri: &str| Cloud::default().source(uri);
    let one = source("http://h/b/train/").unwrap();
    assert_eq!((one.endpoint, one.prefixes), (parsed("http://h/b/train/"), vec!["train/".to_owned()]));
    let many = source("s3://bucket/set/{train,val,train/a,tr}").unwrap();
    assert_eq!(many.prefixes, ["set/tr", "set/val"], "what another one covers adds nothing");
    assert_eq!(many.endpoint.prefix, "set/");
    let split = source("http://h/b/{ü,ö}").unwrap();
    assert_eq!((split.endpoint.prefix.as_str(), split.prefixes), ("", vec!["ö".to_owned(), "ü".to_owned()]));
    for several in ["s3://{a,b}bucket/x", "http://h/{a,b}/x", "http://h{1..2}/b/x", "{s3,gs}://bucket/x"] {
        let error = source(several).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains("several buckets"), "{several}: {error}");
    }
}

#[test]
fn a_folder_is_a_bucket_and_keys_are_paths_within_it() {
    for (uri, folder, prefix) in [
        ("/srv/set/", "/srv/set", ""),
        ("/srv/set", "/srv", "set"),
        ("/set", "/", "set"),
        ("/", "/", ""),
        ("file:///srv/a b%20c/100%25/x%2Fy", "/srv/a b c/100%/x", "y"),
        ("/srv/a%20b/x", "/srv/a%20b", "x"),
        ("file:///srv/a%0Ab/", "/srv/a\nb", ""),
        ("file://localhost/srv/", "/srv", ""),
        (".", ".", ""),
        ("..", "..", ""),
        ("./set/", "./set", ""),
        ("../set", "..", "set"),
        (".hidden", ".", ".hidden"),
        ("set", ".", "set"),
        ("set/", "./set", ""),
        ("a b/c%20/x", "./a b/c%20", "x"),
        ("h:80/b", "./h:80", "b"),
    ] {
        let e = parsed(uri);
        assert_eq!((e.scheme, &*e.bucket, &*e.prefix), (Scheme::File, folder, prefix), "{uri}");
        assert_eq!(parsed(&e.to_string()), e, "{uri} prints as {e}");
    }
    let source = |uri: &str| Cloud::default().source(uri).map(|s| (s.endpoint.bucket, s.endpoint.prefix, s.prefixes));
    let all = |prefixes: &[&str]| prefixes.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(source("/srv/{train,val}/").unwrap(), ("/srv".into(), String::new(), all(&["train/", "val/"])));
    assert_eq!(source("./x/{a,ab,b}").unwrap(), ("./x".into(), String::new(), all(&["a", "b"])));
    assert_eq!(source("/{srv,set}").unwrap(), ("/".into(), "s".into(), all(&["set", "srv"])));
    assert_eq!(source("{train,val}/").unwrap(), (".".into(), String::new(), all(&["train/", "val/"])));
    for mixed in ["{/srv,./set}", "{/srv/,s3://bucket/}", "{./a,../a}"] {
        assert_eq!(source(mixed).unwrap_err().kind(), Kind::Usage, "{mixed}");
    }
}
