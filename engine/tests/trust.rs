//! Which credential each server is shown: every kind of URI, with every cloud's credentials at hand, redirected and not.

use crate::common::recorder::{Recorder, Shown};
use crate::common::services::{Answer, Service};
use fuelrail::{Access, Config, Environment, Kind, Listed, LoaderBuilder, get_with};
use std::collections::BTreeSet;

/// Hosts that the recorder is.
const NAMES: [&str; 14] = [
    "plain.test",
    "other.test",
    "store.test",
    "bucket.s3.us-east-1.amazonaws.com",
    "bucket.s3.eu-west-1.amazonaws.com",
    "moved.s3.us-east-1.amazonaws.com",
    "moved.s3.eu-west-1.amazonaws.com",
    "another.s3.us-east-1.amazonaws.com",
    "s3.us-east-1.amazonaws.com",
    "s3.eu-west-1.amazonaws.com",
    "storage.googleapis.com",
    "account.blob.core.windows.net",
    "another.blob.core.windows.net",
    "account.blob.core.chinacloudapi.cn",
];

const KEY: (&str, &str) = ("AZURE_STORAGE_KEY", "bWFya2Vk");
const SAS: (&str, &str) = ("AZURE_STORAGE_SAS_TOKEN", "sv=2021-12-02&sp=r&sig=marked");
const PUBLIC: (&str, &str) = ("anonymous", "true");
const SIGN: (&str, &str) = ("anonymous", "false");
const OWN: (&str, &str) = ("endpoint", "http://store.test");

/// What asks, and what was shown to whom.
struct Row {
    uri: &'static str,
    settings: &'static [(&'static str, &'static str)],
    variables: &'static [(&'static str, &'static str)],
    /// A server, and what it answers instead of the object: `STATUS to SERVER`, or `STATUS region NAME`.
    answer: Option<(&'static str, &'static str)>,
    /// `SERVER CREDENTIAL`, in alphabetical order.
    shown: &'static [&'static str],
}

const fn row(
    uri: &'static str,
    settings: &'static [(&'static str, &'static str)],
    shown: &'static [&'static str],
) -> Row {
    Row { uri, settings, variables: &[], answer: None, shown }
}

impl Row {
    const fn with(self, variables: &'static [(&'static str, &'static str)]) -> Row {
        Row { variables, ..self }
    }

    const fn sent_on(self, from: &'static str, answer: &'static str) -> Row {
        Row { answer: Some((from, answer)), ..self }
    }
}

const US: &str = "https://bucket.s3.us-east-1.amazonaws.com";
const GOOGLE: &str = "https://storage.googleapis.com";
const ACCOUNT: &str = "https://account.blob.core.windows.net";

fn every_uri() -> Vec<Row> {
    let lake = "abfss://set@account.dfs.core.windows.net/k";
    vec![
        // A plain URI names a server, and does not say that it may see a credential.
        row("http://plain.test/b/k", &[], &["http://plain.test none"]),
        row("https://plain.test/b/k", &[], &["https://plain.test none"]),
        row("https://plain.test/b/k", &[("region", "eu-west-1")], &["https://plain.test none"]),
        row("https://plain.test/b/k", &[SIGN], &["https://plain.test aws us-east-1"]),
        row("http://plain.test/b/k", &[], &["http://plain.test aws us-east-1"])
            .with(&[("AWS_ENDPOINT_URL", "http://plain.test")]),
        row("https://account.blob.core.windows.net/set/k", &[], &["https://account.blob.core.windows.net none"])
            .with(&[SAS]),
        row("https://account.blob.core.windows.net/set/k", &[SIGN], &["https://account.blob.core.windows.net sas"])
            .with(&[SAS]),
        // A cloud's own form is signed for with that cloud's credential.
        row("s3://bucket/k", &[], &["https://bucket.s3.us-east-1.amazonaws.com aws us-east-1"]),
        row("s3://bucket/k", &[PUBLIC], &["https://bucket.s3.us-east-1.amazonaws.com none"]),
        row("s3://bucket/k", &[OWN], &["http://store.test aws us-east-1"]),
        row("gs://bucket/k", &[], &["https://storage.googleapis.com bearer"]),
        row("gs://bucket/k", &[PUBLIC], &["https://storage.googleapis.com none"]),
        row("gs://bucket/k", &[OWN], &["http://store.test bearer"]),
        row("az://account/set/k", &[], &["https://account.blob.core.windows.net bearer"]),
        row("az://account/set/k", &[], &["https://account.blob.core.windows.net shared key account"]).with(&[KEY]),
        row("az://account/set/k", &[], &["https://account.blob.core.windows.net sas"]).with(&[SAS]),
        row("az://account/set/k", &[PUBLIC], &["https://account.blob.core.windows.net none"]).with(&[KEY, SAS]),
        row("az://account/set/k", &[OWN], &["http://store.test shared key account"]).with(&[KEY]),
        row(lake, &[], &["https://account.blob.core.windows.net bearer"]),
        row(lake, &[], &["https://account.blob.core.windows.net sas"]).with(&[SAS]),
        row(
            "abfss://set@account.dfs.core.chinacloudapi.cn/k",
            &[],
            &["https://account.blob.core.chinacloudapi.cn sas"],
        )
        .with(&[SAS]),
        row("abfss://set@account.dfs.core.evil.test/k", &[], &[]).with(&[SAS]),
    ]
}

/// Without credentials a redirect is followed, and stays without.
fn unsigned_redirects() -> Vec<Row> {
    vec![
        row("http://plain.test/b/k", &[], &["http://other.test none", "http://plain.test none"])
            .sent_on("http://plain.test", "302 to http://other.test"),
        row("http://plain.test/b/k", &[], &["http://plain.test none", "https://store.test none"])
            .with(&[("AWS_ENDPOINT_URL", "https://store.test")])
            .sent_on("http://plain.test", "302 to https://store.test"),
        row(
            "http://s3.us-east-1.amazonaws.com/bucket/k",
            &[],
            &["http://s3.eu-west-1.amazonaws.com none", "http://s3.us-east-1.amazonaws.com none"],
        )
        .sent_on("http://s3.us-east-1.amazonaws.com", "301 region eu-west-1"),
        row(
            "s3://bucket/k",
            &[PUBLIC],
            &["https://bucket.s3.eu-west-1.amazonaws.com none", "https://bucket.s3.us-east-1.amazonaws.com none"],
        )
        .sent_on(US, "301 region eu-west-1"),
    ]
}

/// With credentials it is followed within one owner's storage only.
fn signed_redirects() -> Vec<Row> {
    vec![
        row(
            "s3://bucket/k",
            &[],
            &[
                "https://bucket.s3.eu-west-1.amazonaws.com aws eu-west-1",
                "https://bucket.s3.us-east-1.amazonaws.com aws us-east-1",
            ],
        )
        .sent_on(US, "301 region eu-west-1"),
        // Other buckets below: where this one is, is remembered.
        row(
            "s3://moved/k",
            &[],
            &[
                "https://moved.s3.eu-west-1.amazonaws.com aws eu-west-1",
                "https://moved.s3.us-east-1.amazonaws.com aws us-east-1",
            ],
        )
        .sent_on("https://moved.s3.us-east-1.amazonaws.com", "307 to https://moved.s3.eu-west-1.amazonaws.com"),
        row("s3://bucket/k", &[OWN], &["http://store.test aws home-1", "http://store.test aws us-east-1"])
            .sent_on("http://store.test", "400 region home-1"),
        row("s3://another/k", &[], &["https://another.s3.us-east-1.amazonaws.com aws us-east-1"])
            .sent_on("https://another.s3.us-east-1.amazonaws.com", "307 to https://other.test"),
        row("s3://moved/k", &[OWN], &["http://store.test aws us-east-1"])
            .sent_on("http://store.test", "307 to http://store.test:81"),
        row("gs://bucket/k", &[], &["https://storage.googleapis.com bearer"])
            .sent_on(GOOGLE, "302 to https://other.test"),
        row("az://account/set/k", &[], &["https://account.blob.core.windows.net sas"])
            .with(&[SAS])
            .sent_on(ACCOUNT, "302 to https://another.blob.core.windows.net"),
    ]
}

/// What a server answers that the row sends on from; the object everywhere else.
fn answer(row: (&str, &str), shown: &Shown) -> Answer {
    let (from, (status, (what, name))) =
        (row.0, row.1.split_once(' ').map(|(s, rest)| (s, rest.split_once(' ').unwrap())).unwrap());
    let is_signed_for = shown.credential == format!("aws {name}");
    if shown.server != from || (what == "region" && is_signed_for) {
        return Answer::ok("bytes");
    }
    let line = match what {
        "to" => format!("Location: {name}{}\r\n", shown.path),
        _ => format!("x-amz-bucket-region: {name}\r\n"),
    };
    Answer(status.parse().unwrap(), line, String::new())
}

/// The environment: every cloud's credentials, and the recorder for a proxy.
fn environment(recorder: &Recorder, tokens: &Service, row: &Row) -> Environment {
    let (tokens, proxy) = (tokens.url(), recorder.url());
    let every = [
        ("AWS_ACCESS_KEY_ID", "marked"),
        ("AWS_SECRET_ACCESS_KEY", "marked"),
        ("GCE_METADATA_HOST", tokens.trim_start_matches("http://")),
        ("AZURE_POD_IDENTITY_AUTHORITY_HOST", &tokens),
        ("CLOUDSDK_CONFIG", "/nowhere"),
        ("AWS_CONFIG_FILE", "/nowhere"),
        ("all_proxy", &proxy),
    ];
    Environment::given(every.iter().chain(row.variables).map(|(name, value)| (name.to_string(), value.to_string())))
}

fn tokens() -> Service {
    Service::start(|_| Answer::ok(r#"{"access_token":"marked","expires_in":3600}"#))
}

/// Gets the object, and reads it with a loader. What the first said.
fn asked(recorder: &Recorder, tokens: &Service, row: &Row) -> fuelrail::Result<u64> {
    let environment = environment(recorder, tokens, row);
    let mut overrides: Vec<(String, String)> =
        row.settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    overrides.push(("ca_file".into(), recorder.ca_file().display().to_string()));
    let mut access = Access::load(row.uri, [], &overrides).unwrap();
    access.credentials.environment = environment.clone();
    let got = get_with(&access, row.uri, &mut Vec::new());
    overrides.extend(
        [("uri", row.uri), ("memory_limit_bytes", "64MB"), ("shards", "1"), ("attempts_max", "1")]
            .map(|(name, value)| (name.into(), value.into())),
    );
    let config = Config::load(None, [], &overrides).unwrap();
    let listing = vec![Listed { key: "k".into(), size: 5, etag: None }];
    let loader = LoaderBuilder::new(config).environment(environment).listing(listing).hedge_percent(0).build();
    let read = loader.and_then(|mut loader| loader.next_batch().expect("one batch").map(drop));
    // A listing that is given costs no request that could be sent on.
    let is_sent_on = row.answer.is_some_and(|(_, answer)| answer.contains(" to "));
    assert!(read.is_ok() == got.is_ok() || is_sent_on, "{}: {got:?} {read:?}", row.uri);
    got
}

#[test]
fn every_server_is_shown_what_the_table_says_and_no_more() {
    let (recorder, tokens) = (Recorder::start(&NAMES), tokens());
    for row in [every_uri(), unsigned_redirects(), signed_redirects()].into_iter().flatten() {
        recorder.answer(move |shown| row.answer.map_or_else(|| Answer::ok("bytes"), |row| answer(row, shown)));
        let got = asked(&recorder, &tokens, &row);
        let (to_proxy, to_servers): (Vec<Shown>, Vec<Shown>) =
            recorder.take().into_iter().partition(|shown| shown.server.starts_with("proxy"));
        assert!(to_proxy.iter().all(|shown| shown.credential == "none"), "{to_proxy:?}");
        let shown: BTreeSet<String> =
            to_servers.iter().map(|shown| format!("{} {}", shown.server, shown.credential)).collect();
        let name = format!("{} {:?} {:?} {:?}: {got:?}", row.uri, row.settings, row.variables, row.answer);
        assert_eq!(shown.iter().map(String::as_str).collect::<Vec<_>>(), row.shown, "{name}");
        let is_refused = row.shown.is_empty() || row.answer.is_some() && row.shown.len() == 1;
        let Err(error) = got else {
            assert!(!is_refused, "{name}");
            continue;
        };
        assert!(is_refused && error.kind() == Kind::Usage, "{name}");
        if let Some((from, to)) = row.answer {
            let (told, to) = (error.to_string(), to.rsplit(' ').next().unwrap());
            assert!(told.contains(&format!("{from} redirects to {to}")) && !told.contains("marked"), "{told}");
        }
    }
}

/// The same server asked straight, where a proxy would not be.
#[test]
fn without_a_proxy_it_is_the_same() {
    let (recorder, tokens) = (Recorder::start(&NAMES), tokens());
    let (url, key) = (recorder.url(), |uri: String| -> &'static str { uri.leak() });
    for (uri, settings, shown) in [
        (format!("{url}/b/k"), &[][..], "none"),
        (format!("{url}/b/k"), &[SIGN][..], "aws us-east-1"),
        ("s3://bucket/k".into(), &[][..], "aws us-east-1"),
        ("gs://bucket/k".into(), &[][..], "bearer"),
        ("az://account/set/k".into(), &[][..], "bearer"),
    ] {
        let endpoint: &'static str = key(url.clone());
        let settings: Vec<_> = settings.iter().copied().chain([("endpoint", endpoint)]).collect();
        asked(&recorder, &tokens, &row(key(uri), settings.leak(), &[])).unwrap();
        let all = recorder.take();
        assert!(!all.is_empty() && all.iter().all(|one| one.credential == shown && one.server == url), "{all:?}");
    }
}

/// A bucket that moved for good is found there again by runs that trust as those did that were told so, and by no others.
#[test]
fn a_redirect_is_remembered_for_runs_of_the_same_trust_only() {
    let (recorder, tokens) = (Recorder::start(&NAMES), tokens());
    let sent_on = ("https://plain.test", "301 to https://other.test");
    recorder.answer(move |shown| answer(sent_on, shown));
    let servers = |settings: &'static [(&str, &str)], ca_file: bool| {
        let row = row("https://plain.test/b/k", settings, &[]);
        let overrides: Vec<(String, String)> = settings.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        let mut access = Access::load(row.uri, [], &overrides).unwrap();
        access.credentials.environment = environment(&recorder, &tokens, &row);
        access.tls.ca_file = ca_file.then(|| recorder.ca_file());
        let got = get_with(&access, row.uri, &mut Vec::new());
        let shown = recorder.take().into_iter().filter(|shown| !shown.server.starts_with("proxy"));
        (got.is_ok(), shown.map(|shown| format!("{} {}", shown.server, shown.credential)).collect::<Vec<_>>())
    };
    const BOTH: [&str; 2] = ["https://plain.test none", "https://other.test none"];
    assert_eq!(servers(&[], true), (true, BOTH.map(String::from).to_vec()));
    assert_eq!(servers(&[], true), (true, vec![BOTH[1].to_owned()]), "it moved for good");
    assert_eq!(servers(&[SIGN], true), (false, vec!["https://plain.test aws us-east-1".to_owned()]));
    let unchecked = &[("tls_insecure", "true")];
    assert_eq!(servers(unchecked, false), (true, BOTH.map(String::from).to_vec()), "who told that was not checked");
    assert_eq!(servers(unchecked, false), (true, vec![BOTH[1].to_owned()]));
}
