//! The chains of Azure and Google against small services, and what an asker does with one that fails.

use super::source::Fetched;
use super::tokens::{azure, google};
use super::{Credentials, Provider};
use crate::environment::Environment;
use fuelrail_base::{Error, Kind, Result, WallTime};
use fuelrail_wire::sign::Credential;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

/// A service that gives these answers, one a connection, and then tells what it was asked.
struct Service {
    addr: SocketAddr,
    thread: JoinHandle<Vec<String>>,
}

impl Service {
    fn start(answers: Vec<(u16, String)>) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let answer = |(status, body): (u16, String)| {
                let (mut stream, _) = listener.accept().unwrap();
                let asked = heard(&stream);
                let len = body.len();
                let date = "Date: Fri, 24 May 2013 00:00:00 GMT";
                let head =
                    format!("HTTP/1.1 {status} x\r\n{date}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
                stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
                asked
            };
            answers.into_iter().map(answer).collect()
        });
        Service { addr, thread }
    }

    fn asked(self) -> Vec<String> {
        self.thread.join().unwrap()
    }
}

/// Head and body of a request.
fn heard(stream: &TcpStream) -> String {
    let mut from = BufReader::new(stream);
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        assert!(from.read_line(&mut text).unwrap() > 0);
    }
    let lower = text.to_ascii_lowercase();
    let len = lower.split("content-length: ").nth(1).map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
    let mut body = vec![0; len];
    from.read_exact(&mut body).unwrap();
    text + &String::from_utf8(body).unwrap()
}

fn run(work: impl Future<Output = Result<Fetched>>) -> Result<Fetched> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn given(variables: &[(&str, &str)]) -> Environment {
    Environment::given(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())))
}

/// When the service's date is this, a token of an hour ends then.
const AN_HOUR_LATER: WallTime = WallTime(1_369_353_600 + 3_600);

fn token() -> (u16, String) {
    (200, r#"{"access_token":"tok","expires_in":3600}"#.into())
}

#[test]
fn azure_asks_for_a_token_as_the_platform_wants() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "jwt\n").unwrap();
    let wanted = Credential::azure_bearer("tok").unwrap().until(Some(AN_HOUR_LATER));
    let ids = [("AZURE_TENANT_ID", "ten"), ("AZURE_CLIENT_ID", "cli")];
    let login = "POST /ten/oauth2/v2.0/token HTTP/1.1";
    let file = file.to_str().unwrap();
    for (variables, authority, line, parts) in [
        (
            vec![ids[0], ids[1], ("AZURE_CLIENT_SECRET", "sec")],
            "AZURE_AUTHORITY_HOST",
            login,
            &["client_secret=sec"][..],
        ),
        (
            vec![ids[0], ids[1], ("AZURE_FEDERATED_TOKEN_FILE", file)],
            "AZURE_AUTHORITY_HOST",
            login,
            &["client_assertion=jwt", "scope=https%3A%2F%2Fstorage%2Eazure%2Ecom%2F%2Edefault"],
        ),
        (
            vec![],
            "AZURE_POD_IDENTITY_AUTHORITY_HOST",
            "GET /metadata/identity/oauth2/token?api-version=2018-02-01&resource=https://storage.azure.com/ HTTP/1.1",
            &["metadata: true"],
        ),
        (
            vec![("IDENTITY_HEADER", "head")],
            "IDENTITY_ENDPOINT",
            "GET /?api-version=2019-08-01&resource=https://storage.azure.com/ HTTP/1.1",
            &["x-identity-header: head"],
        ),
    ] {
        let service = Service::start(vec![token()]);
        let url = format!("http://{}{}", service.addr, if authority == "IDENTITY_ENDPOINT" { "/" } else { "" });
        let environment = given(&[&variables[..], &[(authority, &url)]].concat());
        let fetched = run(azure(&environment, Some("acc"))).unwrap();
        assert_eq!(fetched.credential, wanted);
        let asked = service.asked().remove(0);
        assert!(asked.starts_with(line) && parts.iter().all(|part| asked.contains(part)), "{asked}");
    }
}

/// Files of keys, the well-known one and a named one; a metadata server.
#[test]
fn google_asks_for_a_token_with_what_it_finds() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let wanted = Credential::bearer("tok").unwrap().until(Some(AN_HOUR_LATER));
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap().serialize_pem().replace('\n', "\\n");

    let service = Service::start(vec![token()]);
    let uri = format!("http://{}/token", service.addr);
    let account = format!(
        r#"{{"type":"service_account","client_email":"a@b","private_key":"{key}","private_key_id":"k","token_uri":"{uri}"}}"#
    );
    let account = file("account.json", &account);
    let fetched = run(google(&given(&[("GOOGLE_APPLICATION_CREDENTIALS", &account)]))).unwrap();
    let asked = service.asked().remove(0);
    assert_eq!(fetched.credential, wanted);
    let grant = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant%2Dtype%3Ajwt%2Dbearer&assertion=ey";
    assert!(asked.starts_with("POST /token HTTP/1.1") && asked.contains(grant), "{asked}");

    let service = Service::start(vec![token()]);
    let uri = format!("http://{}/token", service.addr);
    let user = format!(
        r#"{{"type":"authorized_user","client_id":"i","client_secret":"marked","refresh_token":"r/t","token_uri":"{uri}"}}"#
    );
    file("application_default_credentials.json", &user);
    let home = folder.path().to_str().unwrap().to_string();
    assert_eq!(run(google(&given(&[("CLOUDSDK_CONFIG", &home)]))).unwrap().credential, wanted);
    assert!(
        service.asked()[0].ends_with("grant_type=refresh%5Ftoken&client_id=i&client_secret=marked&refresh_token=r%2Ft")
    );

    let service = Service::start(vec![(503, String::new()), token()]);
    let host = service.addr.to_string();
    let environment = given(&[("CLOUDSDK_CONFIG", "/nowhere"), ("GCE_METADATA_HOST", &host)]);
    assert_eq!(run(google(&environment)).unwrap().credential, wanted);
    let asked = service.asked();
    assert!(asked.len() == 2 && asked.iter().all(|asked| asked.contains("metadata-flavor: Google")), "{asked:?}");

    for (text, said) in [
        (r#"{"type":"external_account"}"#, "'external_account' is not supported"),
        (r#"{"type":"service_account","client_email":"marked"}"#, "a field of the 'service_account' is missing"),
        ("marked", "not a JSON credentials document"),
    ] {
        let broken = file("broken.json", text);
        let error = run(google(&given(&[("GOOGLE_APPLICATION_CREDENTIALS", &broken)]))).unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == Kind::Denied && text.contains(said) && !text.contains("marked"), "{text}");
    }
}

/// The services stand in for the proxy: it is handed requests that name another server, which no name server knows.
#[test]
fn tokens_are_asked_for_through_a_proxy_and_the_machines_own_services_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("user.json");
    let user = r#"{"type":"authorized_user","client_id":"i","client_secret":"s","refresh_token":"r","token_uri":"http://tokens.test/token"}"#;
    std::fs::write(&keys, user).unwrap();
    let proxy = Service::start(vec![token()]);
    let named = format!("http://user:marked@{}", proxy.addr);
    let given_file = ("GOOGLE_APPLICATION_CREDENTIALS", keys.to_str().unwrap());
    run(google(&given(&[given_file, ("http_proxy", &named)]))).unwrap();
    let asked = proxy.asked().remove(0);
    assert!(asked.starts_with("POST http://tokens.test/token HTTP/1.1"), "{asked}");
    assert!(asked.contains("proxy-authorization: Basic dXNlcjptYXJrZWQ="), "{asked}");

    let principal = [
        ("AZURE_TENANT_ID", "t"),
        ("AZURE_CLIENT_ID", "c"),
        ("AZURE_CLIENT_SECRET", "s"),
        ("AZURE_AUTHORITY_HOST", "http://login.test"),
    ];
    let proxy = Service::start(vec![token()]);
    let named = proxy.addr.to_string();
    run(azure(&given(&[&principal[..], &[("HTTP_PROXY", &named)]].concat()), Some("acc"))).unwrap();
    assert!(proxy.asked()[0].starts_with("POST http://login.test/t/oauth2/v2.0/token HTTP/1.1"));

    let service = Service::start(vec![token()]);
    // An address of this machine which does not say so.
    let (host, nobody) = (service.addr.to_string().replace("127.0.0.1", "0.0.0.0"), "http://nobody.test:9");
    let beside = [("CLOUDSDK_CONFIG", "/nowhere"), ("GCE_METADATA_HOST", &host), ("http_proxy", nobody)];
    run(google(&given(&beside))).unwrap();
    assert!(service.asked()[0].starts_with("GET /computeMetadata/"));
    let error = run(google(&given(&[given_file, ("http_proxy", "http://user:marked@127.0.0.1:9")]))).unwrap_err();
    let told = error.to_string();
    assert!(told.contains("the proxy 127.0.0.1:9 (http_proxy)") && !told.contains("marked"), "{told}");
}

#[test]
fn a_service_that_refuses_or_is_not_there_is_named() {
    let refused = |answers: Vec<(u16, String)>| -> Error {
        let service = Service::start(answers);
        let url = format!("http://{}", service.addr);
        let variables = [
            ("AZURE_TENANT_ID", "t"),
            ("AZURE_CLIENT_ID", "c"),
            ("AZURE_CLIENT_SECRET", "marked"),
            ("AZURE_AUTHORITY_HOST", url.as_str()),
        ];
        let error = run(azure(&given(&variables), None)).unwrap_err();
        service.asked();
        error
    };
    let error = refused(vec![(401, r#"{"error":"invalid_client","error_description":"marked"}"#.into())]);
    let text = error.to_string();
    assert!(text.contains("Entra ID: ") && text.contains("401") && text.contains("invalid_client"), "{text}");
    assert!(error.kind() == Kind::Denied && !text.contains("marked"), "{text}");
    // Nobody listens on the lowest port.
    let error = run(google(&given(&[("GCE_METADATA_HOST", "127.0.0.1:1")]))).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("GOOGLE_APPLICATION_CREDENTIALS is not set") && text.contains("127.0.0.1:1"), "{text}");
    assert_eq!(error.kind(), Kind::Network);
}

fn provider(uri: &str, settings: &Credentials) -> Option<Provider> {
    let plain = uri.split_once("://").map_or(String::new(), |(scheme, rest)| {
        format!("{}://{rest}", if scheme.starts_with("http") { scheme } else { "https" })
    });
    settings.signing(uri, &plain.parse().unwrap()).map(|signing| signing.provider)
}

#[test]
fn the_clouds_own_uris_are_signed_for_and_plain_ones_when_asked() {
    let none = Credentials { environment: Environment::given([]), ..Credentials::default() };
    for (uri, by_default, asked) in [
        ("s3://b/p", Some(Provider::Aws), Provider::Aws),
        ("gs://b/p", Some(Provider::Google), Provider::Google),
        ("az://a/c/p", Some(Provider::Azure), Provider::Azure),
        ("abfss://c@a/p", Some(Provider::Azure), Provider::Azure),
        ("http://127.0.0.1:9000/b", None, Provider::Aws),
        ("https://storage.googleapis.com/b", None, Provider::Google),
        ("https://a.blob.core.windows.net/c", None, Provider::Azure),
        ("https://a.blob.core.usgovcloudapi.net/c", None, Provider::Azure),
    ] {
        let uri = uri.replace("c@", "");
        assert_eq!(provider(&uri, &none), by_default, "{uri}");
        let told = |anonymous| Credentials { anonymous: Some(anonymous), ..none.clone() };
        assert_eq!((provider(&uri, &told(true)), provider(&uri, &told(false))), (None, Some(asked)), "{uri}");
    }
    let profile = Credentials { profile: Some("x".into()), ..none.clone() };
    assert_eq!(provider("https://h/b", &profile), Some(Provider::Aws));
    let keys = Environment::given([("AWS_ACCESS_KEY_ID".into(), "a".into())]);
    let keys = Credentials { environment: keys, region: Some("eu-west-1".into()), ..none.clone() };
    assert_eq!(provider("https://h/b", &keys), None, "keys do not go to whatever server a URI names");
    let named = Environment::given([("AWS_ENDPOINT_URL".into(), "http://h:9000".into())]);
    let named = Credentials { environment: named, ..none };
    assert_eq!((provider("http://h:9000/b", &named), provider("http://g:9000/b", &named)), (Some(Provider::Aws), None));
}
