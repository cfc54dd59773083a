//! Credentials over a read: found, sent with every request, renewed while it goes on, and never shown.

use crate::common::keys::{at_gate, environment, expects, keys, metadata, now, signed};
use crate::common::services::{Answer, Service};
use crate::common::{PATIENCE, bucket, drain, eventually, listing, loader_at};
use fuelrail::{
    Access, Credential, Credentials, Environment, Error, Kind, LoaderBuilder, Result, SharedProvider, WallTime,
    get_with, list_with, put_with,
};
use fuelrail_bucket::{Bucket, DataSet};
use fuelrail_wire::date;
use std::io::Cursor;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// As the token service writes them.
fn session(token: &str, lasts_s: i64) -> Answer {
    let expires = date::iso(now().shifted(lasts_s));
    Answer::ok(format!(
        "<R><Credentials><AccessKeyId>marked-id</AccessKeyId><SecretAccessKey>marked-secret</SecretAccessKey>\
         <SessionToken>{token}</SessionToken><Expiration>{expires}</Expiration></Credentials></R>"
    ))
}

#[test]
fn the_old_credential_serves_while_a_new_one_does_not_come() {
    let set = DataSet::digits(300, 4);
    let bucket = bucket(&set, "");
    let (over, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (until, count) = (Arc::clone(&over), Arc::clone(&asked));
    let service = metadata(move || {
        if count.fetch_add(1, Ordering::AcqRel) > 0 {
            eventually("the read never ended", || until.load(Ordering::Acquire));
        }
        keys("marked-one", 2)
    });
    let gate = Service::before(&bucket, expects(|token| token == "marked-one"));
    let environment = environment(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url())]);
    let builder = loader_at(&at_gate(&gate, &bucket)).listing(listing(&set)).batch_size(1);
    let mut loader = signed(builder, environment).build().unwrap();
    // From here on a new one is being asked for, and not got.
    eventually("nobody asked for a new one", || asked.load(Ordering::Acquire) > 1);
    let before = gate.heard().len();
    drain(&mut loader, &set).unwrap();
    assert!(gate.heard().len() > before, "the bucket was asked meanwhile");
    assert_eq!(loader.stats().retries, 0);
    over.store(true, Ordering::Release);
}

#[test]
fn a_credential_that_is_refused_before_its_time_is_renewed_and_nothing_fails() {
    let set = DataSet::digits(200, 5);
    let bucket = bucket(&set, "");
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let service = metadata(move || keys(&format!("marked-{}", count.fetch_add(1, Ordering::AcqRel)), 3600));
    let seen = AtomicUsize::new(0);
    let gate =
        Service::before(&bucket, expects(move |token| token != "marked-0" || seen.fetch_add(1, Ordering::AcqRel) < 50));
    let environment = environment(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url())]);
    let builder = loader_at(&at_gate(&gate, &bucket)).listing(listing(&set)).batch_size(8);
    let mut loader = signed(builder, environment).build().unwrap();
    assert_eq!(drain(&mut loader, &set).unwrap().order.len() as u64, set.len());
    assert!(loader.stats().retries > 0 && loader.stats().given_up == 0);
    assert!(asked.load(Ordering::Acquire) >= 2);
}

/// A provider's: renewed when it is refused, used for a plain URI because it was handed in; what it fails with is told.
#[test]
fn a_provider_of_ones_own_is_asked_in_the_place_of_the_chain() {
    let set = DataSet::digits(60, 5);
    let bucket = bucket(&set, "");
    let gate = Service::before(&bucket, expects(|token| token == "marked-1"));
    let uri = at_gate(&gate, &bucket);
    let asked = AtomicUsize::new(0);
    let provider = move || {
        let token = format!("marked-{}", asked.fetch_add(1, Ordering::AcqRel).min(1));
        let credential = Credential::aws("marked-id", "marked-secret", Some(&token))?;
        Ok(credential.until(Some(WallTime(now().0 + 3600))))
    };
    let mut loader = loader_at(&uri).credentials(provider).build().unwrap();
    assert_eq!(drain(&mut loader, &set).unwrap().order.len() as u64, set.len());
    let with = |provider| Credentials { provider: Some(provider), ..Credentials::default() };
    let list = |provider| list_with(Access { credentials: with(provider), ..Access::default() }, &uri, |_| {});
    let keys = Credential::aws("marked-id", "marked-secret", Some("marked-1")).unwrap();
    assert_eq!(list(SharedProvider::new(keys)).unwrap().len() as u64, set.len());
    let error = list(SharedProvider::new(|| Err(Error::new(Kind::Denied, "the vault is sealed")))).unwrap_err();
    assert!(error.to_string().contains("the vault is sealed"), "{error}");
}

/// It is called on threads of its own, the first time, too.
#[test]
fn a_provider_that_panics_has_failed_and_is_asked_again() {
    let bucket = bucket(&DataSet::digits(3, 5), "");
    let sealed = SharedProvider::new(|| -> Result<Credential> { panic!("the vault is sealed") });
    let error = loader_at(&bucket.url("")).credentials(sealed).build().unwrap_err();
    assert!(error.kind() == Kind::Program && error.cause().ends_with("panicked: the vault is sealed"), "{error}");
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let provider = move || {
        assert_ne!(counted.fetch_add(1, Ordering::AcqRel), 1, "the renewal slips");
        Ok(Credential::aws("marked-id", "marked-secret", None)?.until(Some(now().shifted(2))))
    };
    let mut loader = loader_at(&bucket.url("")).credentials(provider).build().unwrap();
    eventually("nobody asks it again", || asked.load(Ordering::Acquire) > 2);
    assert!(loader.next_batch().unwrap().is_ok());
}

/// A loader for each device of a process, say.
#[test]
fn loaders_that_are_opened_together_ask_a_provider_once() {
    let bucket = bucket(&DataSet::digits(3, 5), "");
    let gate = Service::before(&bucket, expects(|token| token == "marked-1"));
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let provider = move || {
        counted.fetch_add(1, Ordering::AcqRel);
        // Time enough for the other one to ask, too, if it does.
        let begun = Instant::now();
        while counted.load(Ordering::Acquire) < 2 && begun.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let credential = Credential::aws("marked-id", "marked-secret", Some("marked-1"))?;
        Ok(credential.until(Some(WallTime(now().0 + 3600))))
    };
    let builder = loader_at(&at_gate(&gate, &bucket)).credentials(provider);
    let open = |builder: LoaderBuilder| std::thread::spawn(move || builder.build().unwrap());
    let loaders = [open(builder.clone()), open(builder)].map(|opened| opened.join().unwrap());
    assert_eq!(asked.load(Ordering::Acquire), 1);
    drop(loaders);
}

/// The keys may lie in a bucket that needs a signature itself.
#[test]
fn a_provider_may_read_from_a_signed_bucket_itself() {
    let bucket = bucket(&DataSet::digits(3, 5), "");
    let gate = Service::before(&bucket, expects(|token| token.starts_with("marked-")));
    let uri = at_gate(&gate, &bucket);
    let list = |uri: &str, provider: SharedProvider| {
        let credentials = Credentials { provider: Some(provider), ..Credentials::default() };
        list_with(Access { credentials, ..Access::default() }, uri, |_| {})
    };
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let secrets = uri.clone();
        let own = SharedProvider::new(Credential::aws("marked-id", "marked-secret", Some("marked-own")).unwrap());
        let provider = SharedProvider::new(move || {
            list(&secrets, own.clone())?;
            Credential::aws("marked-id", "marked-secret", Some("marked-found"))
        });
        let _ = tell.send(list(&uri, provider));
    });
    assert_eq!(told.recv_timeout(PATIENCE).expect("it waits for itself").unwrap().len(), 3);
}

#[test]
fn a_clock_that_is_wrong_is_found_out_and_corrected() {
    const AHEAD_S: i64 = 7200;
    let set = DataSet::digits(60, 6);
    let bucket = bucket(&set, "");
    let skewed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&skewed);
    let gate = Service::before(&bucket, move |heard| {
        let there = now().shifted(AHEAD_S);
        let stamp = heard.header("x-amz-date");
        if (-300..=300).any(|off| date::compact(there.shifted(off)) == stamp.as_bytes()) {
            return None;
        }
        count.fetch_add(1, Ordering::AcqRel);
        let mut line = b"Date: ".to_vec();
        date::push_http(&mut line, there);
        line.extend_from_slice(b"\r\n");
        Some(Answer::refusal(403, "RequestTimeTooSkewed", &String::from_utf8(line).unwrap()))
    });
    let environment = environment(&[("AWS_ACCESS_KEY_ID", "marked-id"), ("AWS_SECRET_ACCESS_KEY", "marked-secret")]);
    let uri = at_gate(&gate, &bucket);
    let mut loader = signed(loader_at(&uri), environment).build().unwrap();
    assert_eq!(drain(&mut loader, &set).unwrap().order.len() as u64, set.len());
    // The listing met it; the shards share what it learnt.
    assert_eq!((skewed.load(Ordering::Acquire), loader.stats().retries), (1, 0));
}

/// Asks for a listing with what this environment has; returns how it ended.
fn listed(uri: &str, environment: Environment) -> Result<usize> {
    let credentials = Credentials { anonymous: Some(false), environment, ..Credentials::default() };
    list_with(&Access { credentials, ..Access::default() }, uri, |_| {}).map(|listed| listed.len())
}

/// A bucket behind a gate, and every service that may hand out what opens it.
struct Sources {
    bucket: Bucket,
    gate: Service,
    sts: Service,
    agent: Service,
    instance: Service,
    folder: tempfile::TempDir,
}

impl Sources {
    fn new() -> Sources {
        let bucket = bucket(&DataSet::digits(3, 7), "");
        let gate = Service::before(&bucket, expects(|token| token.starts_with("marked-good")));
        let sts = Service::start(|heard| {
            let signed = heard.header("authorization").starts_with("AWS4-HMAC-SHA256 Credential=marked-own/");
            match (heard.body.contains("Action=AssumeRoleWithWebIdentity"), signed) {
                (true, _) if heard.body.contains("WebIdentityToken=marked%2Djwt") => session("marked-good-web", 3600),
                (false, true) if heard.body.contains("ExternalId=ext") => session("marked-good-role", 3600),
                _ => Answer::refusal(403, "AccessDenied", ""),
            }
        });
        let agent = Service::start(|heard| match heard.header("authorization") {
            "marked-agent" => keys("marked-good-agent", 3600),
            _ => Answer(403, String::new(), String::new()),
        });
        let instance = metadata(|| keys("marked-good-instance", 3600));
        Sources { bucket, gate, sts, agent, instance, folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    }

    /// The AWS files, and the variables that name them.
    fn files(&self) -> [String; 2] {
        let process = r#"{"Version":1,"AccessKeyId":"marked-id","SecretAccessKey":"marked-secret","SessionToken":"marked-good-process"}"#;
        let process = self.file("keys.json", process);
        let config = format!(
            "[profile role]\nrole_arn = arn:r\nexternal_id = ext\nsource_profile = own\n[profile program]\n\
             credential_process = cat {process}\n"
        );
        let shared = "[own]\naws_access_key_id = marked-own\naws_secret_access_key = marked-secret\n[plain]\naws_access_key_id = \
                      marked-id\naws_secret_access_key = marked-secret\naws_session_token = marked-good-file\n";
        [self.file("config", &config), self.file("credentials", shared)]
    }

    fn listed(&self, variables: &[(&str, &str)]) -> Result<usize> {
        listed(&at_gate(&self.gate, &self.bucket), environment(variables))
    }
}

#[test]
fn every_source_of_aws_credentials_is_found() {
    let sources = Sources::new();
    let [config, shared] = sources.files();
    let files = [("AWS_CONFIG_FILE", config.as_str()), ("AWS_SHARED_CREDENTIALS_FILE", shared.as_str())];
    let token = sources.file("token", "marked-jwt\n");
    let (sts_url, agent_url, instance_url) = (sources.sts.url(), sources.agent.url(), sources.instance.url());
    for (name, variables) in [
        (
            "environment",
            vec![
                ("AWS_ACCESS_KEY_ID", "marked-id"),
                ("AWS_SECRET_ACCESS_KEY", "marked-secret"),
                ("AWS_SESSION_TOKEN", "marked-good"),
            ],
        ),
        ("file", vec![files[0], files[1], ("AWS_PROFILE", "plain")]),
        ("program", vec![files[0], files[1], ("AWS_PROFILE", "program")]),
        ("role", vec![files[0], files[1], ("AWS_PROFILE", "role"), ("AWS_ENDPOINT_URL_STS", &sts_url)]),
        (
            "web identity",
            vec![
                ("AWS_WEB_IDENTITY_TOKEN_FILE", &token),
                ("AWS_ROLE_ARN", "arn:w"),
                ("AWS_ENDPOINT_URL_STS", &sts_url),
            ],
        ),
        (
            "container",
            vec![
                ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &agent_url),
                ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "marked-agent"),
            ],
        ),
        ("instance", vec![("AWS_EC2_METADATA_SERVICE_ENDPOINT", &instance_url)]),
    ] {
        let found = sources.listed(&variables);
        assert_eq!(found.unwrap_or_else(|error| panic!("{name}: {error}")), 3, "{name}");
    }
}

#[test]
fn what_every_source_had_to_say_is_in_the_error() {
    let sources = Sources::new();
    let [config, shared] = sources.files();
    let files = [("AWS_CONFIG_FILE", config.as_str()), ("AWS_SHARED_CREDENTIALS_FILE", shared.as_str())];
    let token = sources.file("token", "marked-other\n");
    let (sts_url, agent_url) = (sources.sts.url(), sources.agent.url());
    let off = ("AWS_EC2_METADATA_DISABLED", "true");
    for (variables, said) in [
        (
            vec![off],
            &["environment: AWS_ACCESS_KEY_ID is not set; profile: ", "container: ", "AWS_EC2_METADATA_DISABLED"][..],
        ),
        (vec![off, files[0], files[1], ("AWS_PROFILE", "absent")], &["no profile 'absent'"]),
        (vec![off, ("AWS_ACCESS_KEY_ID", "marked-id")], &["without AWS_SECRET_ACCESS_KEY"]),
        (
            vec![
                ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &agent_url),
                ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "marked-bad"),
            ],
            &["container: ", "answered 403"],
        ),
        (
            vec![
                ("AWS_WEB_IDENTITY_TOKEN_FILE", &token),
                ("AWS_ROLE_ARN", "arn:w"),
                ("AWS_ENDPOINT_URL_STS", &sts_url),
            ],
            &["web identity: ", "answered 403: AccessDenied"],
        ),
    ] {
        let error = sources.listed(&variables).unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == Kind::Denied && said.iter().all(|said| text.contains(said)), "{text}");
        assert!(!text.contains("marked"), "{text}");
    }
}

#[test]
fn a_token_file_is_read_again_at_each_renewal() {
    let set = DataSet::digits(300, 8);
    let bucket = bucket(&set, "");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "one").unwrap();
    let sts = Service::start(|heard| {
        let token = if heard.body.contains("WebIdentityToken=two") { "marked-good-two" } else { "marked-good-one" };
        session(token, 2)
    });
    let gate = Service::before(&bucket, expects(|token| token.starts_with("marked-good")));
    let environment = environment(&[
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap()),
        ("AWS_ROLE_ARN", "arn:w"),
        ("AWS_ENDPOINT_URL_STS", &sts.url()),
    ]);
    let builder = loader_at(&at_gate(&gate, &bucket)).listing(listing(&set)).batch_size(1).epochs(200);
    let mut loader = signed(builder, environment).build().unwrap();
    std::fs::write(&file, "two").unwrap();
    eventually("the new token was never used", || {
        loader.next_batch().unwrap().unwrap();
        gate.heard().last().is_some_and(|heard| heard.header("x-amz-security-token") == "marked-good-two")
    });
}

#[test]
fn a_plain_uri_is_signed_for_only_when_asked() {
    let set = DataSet::digits(3, 9);
    let bucket = bucket(&set, "");
    let gate = Service::before(&bucket, |_| None);
    let uri = at_gate(&gate, &bucket);
    let (id, secret) = (("AWS_ACCESS_KEY_ID", "marked-id"), ("AWS_SECRET_ACCESS_KEY", "marked-secret"));
    let named = gate.url();
    let is_signed = |credentials: Credentials| {
        let before = gate.heard().len();
        list_with(&Access { credentials, ..Access::default() }, &uri, |_| {}).unwrap();
        let asked = gate.heard().split_off(before);
        assert!(!asked.is_empty());
        asked.iter().all(|heard| heard.header("authorization").starts_with("AWS4-HMAC-SHA256 Credential=marked-id/"))
    };
    let with =
        |variables: &[(&str, &str)]| Credentials { environment: environment(variables), ..Credentials::default() };
    assert!(!is_signed(with(&[id, secret])));
    assert!(is_signed(Credentials { anonymous: Some(false), ..with(&[id, secret]) }));
    assert!(!is_signed(Credentials { region: Some("eu-north-1".into()), ..with(&[id, secret]) }));
    assert!(is_signed(with(&[id, secret, ("AWS_ENDPOINT_URL", &named)])));
    assert!(!is_signed(Credentials { anonymous: Some(true), ..with(&[id, secret, ("AWS_ENDPOINT_URL", &named)]) }));
}

#[test]
fn the_other_clouds_uris_are_signed_for_as_they_want_it() {
    let store = Service::start(|heard| {
        let (authorization, version) = (heard.header("authorization"), heard.header("x-ms-version"));
        let good = match heard.line.as_str() {
            "GET /devstore/set/k" => authorization.starts_with("SharedKey devstore:") && !version.is_empty(),
            "GET /shelf/k" => authorization == "Bearer marked-token" && version.is_empty(),
            _ => false,
        };
        if good { Answer::ok("bytes") } else { Answer::refusal(403, "AccessDenied", "") }
    });
    let google = Service::start(|_| Answer::ok(r#"{"access_token":"marked-token","expires_in":3600}"#));
    let host = google.url().replace("http://", "");
    for (uri, variables) in [
        ("az://devstore/set/", vec![("AZURE_STORAGE_KEY", "bWFya2Vk")]),
        ("gs://shelf/", vec![("GCE_METADATA_HOST", host.as_str())]),
    ] {
        let listing = vec![fuelrail::Listed { key: "k".into(), size: 5, etag: None }];
        let builder = loader_at(uri).listing(listing).endpoint(store.url()).environment(environment(&variables));
        let mut loader = builder.build().unwrap();
        let batch = loader.next_batch().unwrap().unwrap();
        assert_eq!(batch.samples().next().unwrap().bytes, b"bytes", "{uri}");
    }
}

#[test]
fn who_asks_pays_where_the_owner_wants_that() {
    let set = DataSet::digits(3, 10);
    let bucket = bucket(&set, "");
    let gate = Service::before(&bucket, |heard| {
        let paid = heard.header("x-amz-request-payer") == "requester"
            && heard.header("authorization").contains("x-amz-request-payer");
        (!paid).then(|| Answer::refusal(403, "AccessDenied", ""))
    });
    let keys = environment(&[("AWS_ACCESS_KEY_ID", "marked-id"), ("AWS_SECRET_ACCESS_KEY", "marked-secret")]);
    let build = |pays| signed(loader_at(&at_gate(&gate, &bucket)), keys.clone()).requester_pays(pays).build();
    assert_eq!(drain(&mut build(true).unwrap(), &set).unwrap().order.len(), 3);
    assert_eq!(build(false).err().unwrap().kind(), Kind::Denied);
    let error = loader_at(&at_gate(&gate, &bucket)).requester_pays(true).build().err().unwrap();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("requests are anonymous"), "{error}");
}

/// Everything that a run says, in whatever way: none of it holds a secret.
#[test]
fn secrets_are_in_no_text() {
    let set = DataSet::digits(20, 11);
    let bucket = bucket(&set, "");
    let folder = tempfile::tempdir().unwrap();
    let (audit, logs) = (folder.path().join("audit"), AtomicUsize::new(0));
    let log = || audit.with_extension(logs.fetch_add(1, Ordering::AcqRel).to_string());
    let mut said = Vec::new();
    let turn = Arc::new(AtomicI64::new(0));
    let phase = Arc::clone(&turn);
    let gate = Service::before(&bucket, move |heard| match phase.load(Ordering::Acquire) {
        0 => None,
        1 => Some(Answer::refusal(403, "SignatureDoesNotMatch", "")),
        2 => Some(Answer::refusal(403, "InvalidAccessKeyId", "")),
        3 => Some(Answer::refusal(400, "ExpiredToken", "")),
        // A server that repeats what it was sent.
        4 => Some(Answer(
            500,
            String::new(),
            format!("<Error><Code>Odd</Code><Message>{}</Message></Error>", heard.line),
        )),
        _ => Some(Answer(200, "Content-Encoding: gzip\r\n".into(), heard.header("authorization").into())),
    });
    let keys = environment(&[
        ("AWS_ACCESS_KEY_ID", "marked-id"),
        ("AWS_SECRET_ACCESS_KEY", "marked-secret"),
        ("AWS_SESSION_TOKEN", "marked-token"),
    ]);
    let uri = at_gate(&gate, &bucket);
    let build = || signed(loader_at(&uri), keys.clone()).listing(listing(&set)).attempts_max(2).audit(log());
    said.push(format!("{:?}", build()));
    let mut loader = build().build().unwrap();
    drain(&mut loader, &set).unwrap();
    said.push(format!("{:?} {:?} {:?}", loader.config(), loader.notices(), loader.stats()));
    said.push(format!("{:?} {}", loader.state(), serde_json::to_string(loader.config()).unwrap()));
    drop(loader);
    said.push(String::from_utf8_lossy(&std::fs::read(audit.with_extension("1")).unwrap()).into_owned());
    for phase in 1..=5 {
        turn.store(phase, Ordering::Release);
        let access = Access {
            credentials: Credentials { anonymous: Some(false), environment: keys.clone(), ..Credentials::default() },
            ..Access::default()
        };
        let key = format!("{uri}k");
        said.push(format!("{:?}", build().build().unwrap().find_map(Result::err)));
        said.push(format!("{}", build().build().unwrap().find_map(Result::err).unwrap()));
        said.push(format!("{:?}", list_with(&access, &uri, |_| {}).map_err(|error| error.to_string())));
        said.push(format!("{:?}", get_with(&access, &key, &mut Vec::new()).map_err(|error| error.to_string())));
        let put = put_with(&access, &key, &mut Cursor::new(b"x"), |_| {});
        said.push(format!("{:?}", put.map_err(|error| error.to_string())));
        said.push(format!("{access:?}"));
    }
    for text in &said {
        assert!(!text.contains("marked"), "{text}");
    }
    let told: String = said.join("\n");
    for cure in ["copy both again", "does not know this access key id", "credentials have expired"] {
        assert!(told.contains(cure), "{cure}: {told}");
    }
}
