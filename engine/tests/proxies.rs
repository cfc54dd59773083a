//! Buckets that only a proxy reaches: the same bytes through it, with TLS and without, and what is said where it does not let through.

use crate::common::proxy::{NAME, Proxy, Tinyproxy, Turn, environment};
use crate::common::secure::{Authority, signed_for};
use crate::common::{drain, listing, loader_at, plain_run, planned, side_by_side};
use fuelrail::{Access, Credentials, Environment, Error, Kind, LoaderBuilder, Tls, get_with, list_with, put_with};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use std::io::Cursor;
use std::time::Duration;

/// A bucket that is called `name` where it is asked for.
struct Far {
    bucket: Bucket,
    name: &'static str,
    authority: Option<Authority>,
}

impl Far {
    fn start(set: &DataSet, script: &str, name: &'static str, over_tls: bool) -> Far {
        let (authority, tls) = over_tls.then(|| signed_for(name)).unzip();
        let (source, script) = (Source::Generated(set.clone()), script.parse().unwrap());
        let bucket = Bucket::start(BucketConfig { source, script, tls, ..BucketConfig::default() }).unwrap();
        Far { bucket, name, authority }
    }

    fn uri(&self, key: &str) -> String {
        self.bucket.url(key).replace("127.0.0.1", self.name)
    }

    fn access(&self, environment: Environment) -> Access {
        let ca_file = self.authority.as_ref().map(Authority::file);
        let credentials = Credentials { environment, ..Credentials::default() };
        Access { tls: Tls { ca_file, insecure: false }, credentials, ..Access::default() }
    }

    fn loader(&self, environment: Environment) -> LoaderBuilder {
        let builder = loader_at(&self.uri("")).environment(environment).batch_size(10);
        match &self.authority {
            Some(authority) => builder.ca_file(authority.file()),
            None => builder,
        }
    }
}

const KNOWN: &str = "Basic dXNlcjptYXJrZWQ="; // user:marked

/// Lists, gets, puts and reads everything twice. Returns how often something was asked for again.
fn everything(far: &Far, set: &DataSet, environment: &Environment) -> u64 {
    let access = far.access(environment.clone());
    assert_eq!(list_with(&access, &far.uri(""), |_| {}).unwrap(), listing(set));
    put_with(&access, &far.uri("own/k"), &mut Cursor::new(b"what was put"), |_| {}).unwrap();
    let mut got = Vec::new();
    get_with(&access, &far.uri("own/k"), &mut got).unwrap();
    assert_eq!(got, b"what was put");
    let mut loader = far.loader(environment.clone()).listing(listing(set)).epochs(2).build().unwrap();
    let delivered = drain(&mut loader, set).unwrap();
    assert_eq!(delivered.order, planned(plain_run(set.len(), 0, 10, 2)));
    let stats = loader.stats();
    assert_eq!((stats.given_up, stats.tls_handshakes > 0), (0, far.authority.is_some()), "{stats:?}");
    stats.retries
}

#[test]
fn a_bucket_is_listed_read_and_written_through_a_proxy_that_wants_to_know_who_asks() {
    let set = DataSet::digits(60, 3);
    for over_tls in [true, false] {
        let (far, proxy) = (Far::start(&set, "", NAME, over_tls), Proxy::known(KNOWN));
        assert_eq!(everything(&far, &set, &proxy.environment("user:marked@")), 0);
        let (lines, port) = (proxy.lines(), far.bucket.addr().port());
        if over_tls {
            let way = format!("CONNECT {NAME}:{port} HTTP/1.1");
            assert!(lines.len() >= 4 && lines.iter().all(|line| *line == way), "{lines:?}");
        } else {
            let handed = format!(" http://{NAME}:{port}/bucket");
            assert!(lines.len() >= 63 && lines.iter().all(|line| line.contains(&handed)), "{lines:?}");
        }
    }
}

/// It closes a connection after every answer that it hands on, and does not say so.
#[test]
fn tinyproxy_lets_the_same_through() {
    let set = DataSet::photos(40, 3);
    for over_tls in [true, false] {
        let Some(proxy) = Tinyproxy::start() else { return };
        let far = Far::start(&set, "", "0.0.0.0", over_tls);
        let again = everything(&far, &set, &proxy.environment("user:marked@"));
        assert!(!over_tls || again == 0, "{again}");
        let error = list_with(far.access(proxy.environment("user:wrong@")), &far.uri(""), |_| {}).unwrap_err();
        let told = error.to_string();
        // It answers 401, which may be the server's where requests are handed on.
        let who = if over_tls { "proxy authentication" } else { "answered 401" };
        assert!(error.kind() == Kind::Denied && told.contains(who) && !told.contains("wrong"), "{told}");
    }
}

#[test]
fn an_answer_in_pieces_opens_the_way_all_the_same() {
    let set = DataSet::digits(60, 3);
    let (far, proxy) = (Far::start(&set, "", NAME, true), Proxy::misbehaving(|_| Turn::Slowly));
    assert_eq!(everything(&far, &set, &proxy.environment("")), 0);
}

#[test]
fn what_no_proxy_names_is_asked_straight() {
    let set = DataSet::digits(20, 3);
    let far = Far::start(&set, "", NAME, false);
    let proxy = Proxy::start();
    let given = |no: &str| {
        let proxy = format!("http://{}", proxy.authority());
        Environment::given([("ALL_PROXY".into(), proxy), ("NO_PROXY".into(), no.into())])
    };
    // Only the proxy can resolve the name.
    let error = list_with(far.access(given("example.com, .test")), &far.uri(""), |_| {}).unwrap_err();
    assert!(error.kind() == Kind::Network && proxy.connections() == 0, "{error}");
    let straight = far.loader(given(".test")).listing(listing(&set)).outage_limit(None).build().err().unwrap();
    assert!(straight.to_string().contains("cannot resolve 'bucket.test'"), "{straight}");
    assert_eq!(list_with(far.access(given("other.test")), &far.uri(""), |_| {}).unwrap(), listing(&set));
    assert_eq!(proxy.connections(), 1);
    // And this machine is not far.
    assert_eq!(list_with(far.access(given("")), &far.bucket.url(""), |_| {}).unwrap(), listing(&set));
    assert_eq!(proxy.connections(), 1);
}

/// What listing says, and what reading says.
fn errors(far: &Far, set: &DataSet, environment: &Environment) -> [Error; 2] {
    let listed = list_with(far.access(environment.clone()), &far.uri(""), |_| {}).unwrap_err();
    let builder =
        far.loader(environment.clone()).listing(listing(set)).attempts_max(2).stall_after(Duration::from_secs(10));
    let mut loader = builder.outage_limit(None).build().unwrap();
    [listed, drain(&mut loader, set).unwrap_err()]
}

#[test]
fn refused_connections_say_why_and_what_to_do() {
    const FORBIDDEN: &str = "HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\nno way";
    const BAD_GATEWAY: &str = "HTTP/1.1 502 Bad Gateway\r\n\r\n";
    let set = DataSet::digits(20, 3);
    let far = Far::start(&set, "", NAME, true);
    type Case = (Turn, Kind, &'static [&'static str]);
    let cases: [Case; 6] = [
        (Turn::Say(FORBIDDEN), Kind::Denied, &["refuses connections to bucket.test:", "(403)", "NO_PROXY"]),
        (Turn::Say(BAD_GATEWAY), Kind::Network, &["cannot reach bucket.test:", "(502)", "https_proxy"]),
        (Turn::Say("SSH-2.0-OpenSSH_9.2\r\n"), Kind::Protocol, &["response is not HTTP", "https_proxy"]),
        (Turn::Say("HTTP/1.1 200 OK\r\n\r\nearly"), Kind::Protocol, &["data after the CONNECT response"]),
        (Turn::Say("HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n"), Kind::Protocol, &["302"]),
        (Turn::HangUp, Kind::Network, &["CONNECT tunnel to bucket.test:", "closed the connection"]),
    ];
    side_by_side(cases.to_vec(), |&(turn, kind, parts)| {
        let proxy = Proxy::misbehaving(move |_| turn);
        let place = format!("the proxy {} (https_proxy)", proxy.authority());
        for error in errors(&far, &set, &proxy.environment("user:marked@")) {
            let told = format!("{error} {error:?}");
            assert_eq!(error.kind(), kind, "{turn:?}: {told}");
            assert!(parts.iter().all(|part| told.contains(part)), "{turn:?}: {told}");
            assert!(told.contains(&place) && !told.contains("marked"), "{turn:?}: {told}");
        }
    });
}

#[test]
fn a_proxy_that_does_not_know_who_asks_is_named_with_the_variable() {
    let set = DataSet::digits(20, 3);
    for over_tls in [true, false] {
        let (far, proxy) = (Far::start(&set, "", NAME, over_tls), Proxy::known(KNOWN));
        for user in ["", "user:false@"] {
            for error in errors(&far, &set, &proxy.environment(user)) {
                let told = format!("{error} {error:?}");
                let variable = if over_tls { "https_proxy" } else { "http_proxy" };
                assert!(error.kind() == Kind::Denied && told.contains("(407)"), "{told}");
                assert!(told.contains(variable) && !told.contains("false"), "{told}");
            }
        }
    }
}

#[test]
fn a_proxy_that_is_not_there_or_never_answers_is_said_to_be_so() {
    let set = DataSet::digits(20, 3);
    let gone = {
        let proxy = Proxy::start();
        proxy.environment("user:marked@")
    };
    for over_tls in [true, false] {
        let far = Far::start(&set, "", NAME, over_tls);
        for error in errors(&far, &set, &gone) {
            let told = format!("{error} {error:?}");
            assert!(error.kind() == Kind::Network && told.contains("the proxy 127.0.0.1:"), "{told}");
            assert!(told.contains("refused") && told.contains("NO_PROXY") && !told.contains("marked"), "{told}");
        }
    }
    let far = Far::start(&set, "", NAME, true);
    let unknown = environment("http://no-such-proxy.test:3128");
    let error = far.loader(unknown).listing(listing(&set)).outage_limit(None).build().err().unwrap().to_string();
    assert!(error.contains("cannot resolve 'no-such-proxy.test'") && error.contains("check https_proxy"), "{error}");
    let silent = Proxy::misbehaving(|_| Turn::Silence);
    let builder = far
        .loader(silent.environment(""))
        .listing(listing(&set))
        .attempts_max(1)
        .stall_after(Duration::from_millis(200));
    let error = drain(&mut builder.outage_limit(None).build().unwrap(), &set).unwrap_err();
    let told = error.to_string();
    assert!(
        error.kind() == Kind::Stalled && told.contains("the proxy") && told.contains("no byte was received"),
        "{told}"
    );
}

#[test]
fn a_variable_that_names_no_proxy_of_ours_stops_before_anything_is_asked() {
    let far = Far::start(&DataSet::digits(20, 3), "", NAME, true);
    for text in ["socks5://user:marked@h:1080", "https://user:marked@h:443", "user:marked@h:port"] {
        let error = far.loader(environment(text)).build().err().unwrap();
        let told = format!("{error} {error:?}");
        assert!(error.kind() == Kind::Usage && told.contains("https_proxy") && !told.contains("marked"), "{told}");
    }
}

/// Every other connection is refused, hung up on, left without an answer, or cut in mid-body.
#[test]
fn a_proxy_that_fails_again_and_again_costs_time_alone() {
    const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\r\n";
    let set = DataSet::photos(80, 5);
    side_by_side(vec![true, false], |&over_tls| {
        let far = Far::start(&set, "latency=uniform:0ms..3ms", NAME, over_tls);
        let proxy = Proxy::misbehaving(|n| match n % 8 {
            1 => Turn::Say(BUSY),
            3 => Turn::HangUp,
            5 => Turn::Silence,
            7 => Turn::Cut(200_000),
            _ => Turn::Cut(700_000),
        });
        let builder =
            far.loader(proxy.environment("")).listing(listing(&set)).epochs(3).stall_after(Duration::from_millis(300));
        let mut loader = builder.connections_max(6).build().unwrap();
        let delivered = drain(&mut loader, &set).unwrap();
        assert_eq!(delivered.order, planned(plain_run(set.len(), 0, 10, 3)));
        let stats = loader.stats();
        assert!(stats.retries > 0 && stats.given_up == 0 && proxy.connections() > 16, "{stats:?}");
    });
}
