//! Our signatures against the vendor's own implementation, for any keys and requests; and what they cost.

use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SessionTokenMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;
use fuelrail_base::WallTime;
use fuelrail_wire::sign::{Credential, Payload, Realm, Scope, Signer, Unsigned};
use fuelrail_wire::{Endpoint, PageStart, list_path, write_get};
use proptest::prelude::*;

fn realm(region: &str) -> Realm {
    Realm { scope: Scope { region: region.into(), service: "s3" }, requester_pays: false }
}

/// The lines of a signed request, by name.
fn lines(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines.map(|(name, value)| (name.to_ascii_lowercase(), value.into())).collect()
}

/// What the vendor's signer adds to the same request.
#[expect(
    clippy::disallowed_types,
    reason = "the vendor's signer takes its time in this type; it is an argument here too"
)]
fn theirs(
    (id, secret, token, region): (&str, &str, Option<&str>, &str),
    (method, uri): (&str, &str),
    headers: &[(&str, &str)],
    at: u64,
) -> Vec<(String, String)> {
    let credentials = aws_sigv4_identity(id, secret, token);
    let mut settings = SigningSettings::default();
    settings.percent_encoding_mode = PercentEncodingMode::Single;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    settings.session_token_mode = SessionTokenMode::Include;
    let params = v4::SigningParams::builder()
        .identity(&credentials)
        .region(region)
        .name("s3")
        .time(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(at))
        .settings(settings)
        .build()
        .unwrap()
        .into();
    let request = SignableRequest::new(method, uri, headers.iter().copied(), SignableBody::UnsignedPayload).unwrap();
    let (instructions, _) = sign(request, &params).unwrap().into_parts();
    instructions.headers().map(|(name, value)| (name.to_ascii_lowercase(), value.into())).collect()
}

fn aws_sigv4_identity(
    id: &str,
    secret: &str,
    token: Option<&str>,
) -> aws_smithy_runtime_api::client::identity::Identity {
    aws_credential_types::Credentials::new(id, secret, token.map(Into::into), None, "test").into()
}

proptest! {
    #[test]
    fn signatures_are_the_vendors(
        id in "[A-Z0-9]{4,24}",
        secret in "[!-~]{1,64}",
        token in prop::option::of("[A-Za-z0-9+/=]{1,200}"),
        region in "[a-z]{2}-[a-z]{4,8}-[1-9]",
        host in "[a-z0-9-]{1,20}(\\.[a-z]{2,5}){0,2}(:[1-9][0-9]{0,3})?",
        key in "[ -~é日]{1,40}",
        prefix in "[ -~é日]{0,20}",
        range in prop::option::of((0u64..1000, 0u64..1000)),
        tag in prop::option::of("[!#-~]{1,20}"),
        listing: bool,
        at in 0u64..4_000_000_000,
    ) {
        let endpoint = Endpoint { prefix, ..format!("http://{host}/bu%20cket/").parse::<Endpoint>().unwrap() };
        let path = if listing { list_path(&endpoint, &endpoint.prefix, PageStart { after: Some(&key), token: Some(&key) }, 7) } else { endpoint.object_path(&key) };
        let host = endpoint.authority();
        let range = range.map(|(first, more)| (first, first + more));
        let mut text = Vec::new();
        prop_assume!(write_get(&mut text, &host, &path, range, tag.as_deref()).is_ok());
        let plain = String::from_utf8(text.clone()).unwrap();
        let credential = Credential::aws(&id, &secret, token.as_deref()).unwrap();
        Signer::new(realm(&region)).sign_head(&credential, WallTime(at), &mut text, 0).unwrap();
        let ours = String::from_utf8(text).unwrap();

        let covered = lines(&plain);
        let covered: Vec<(&str, &str)> = covered
            .iter()
            .filter(|(name, _)| ["host", "range", "if-match"].contains(&name.as_str()) || name.starts_with("x-amz-"))
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let wanted = theirs((&id, &secret, token.as_deref(), &region), ("GET", &format!("http://{host}{path}")), &covered, at);
        let ours = lines(&ours);
        for line in wanted {
            prop_assert!(ours.contains(&line), "{line:?} is not among {ours:?}");
        }
    }
}

#[test]
fn signing_allocates_nothing_once_warm() {
    let mut signer = Signer::new(realm("us-east-1"));
    let credential = Credential::aws("id", "secret", Some("token")).unwrap();
    let mut text = Vec::with_capacity(4096);
    let mut sign = |at| {
        text.clear();
        write_get(&mut text, "h:9000", "/bucket/some/key.bin", Some((1, 2)), None).unwrap();
        signer.sign_head(&credential, WallTime(at), &mut text, 0).unwrap();
    };
    sign(1_000);
    let counted = allocation_counter::measure(|| (1_001..1_100).for_each(&mut sign));
    assert_eq!(counted.count_total, 0);
}

/// The control plane signs what it is about to send to other services.
#[test]
fn a_body_may_be_signed_too() {
    let scope = Scope { region: "us-east-1".into(), service: "sts" };
    let mut signer = Signer::new(Realm { scope, requester_pays: false });
    let request = Unsigned {
        method: "POST",
        host: "sts.amazonaws.com",
        path_and_query: "/",
        headers: &[("content-type", b"application/x-www-form-urlencoded")],
    };
    let (mut query, mut lines) = (String::new(), Vec::new());
    let hash = fuelrail_wire::sign::sha256_hex(b"Action=GetCallerIdentity");
    let credential = Credential::aws("id", "secret", None).unwrap();
    signer.sign(&credential, (&request, Payload::Sha256(&hash)), WallTime(0), &mut query, &mut lines).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    assert!(query.is_empty() && !lines.contains("x-amz-content-sha256"), "{lines}");
    assert!(
        lines.contains("/19700101/us-east-1/sts/aws4_request, SignedHeaders=content-type;host;x-amz-date, "),
        "{lines}"
    );
}

#[test]
#[ignore = "a measurement: run it in a release build, with --run-ignored all --no-capture"]
#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a measurement reads the clock")]
fn what_a_signature_costs() {
    const REQUESTS: u64 = 200_000;
    let nanoseconds = |credential: Option<&Credential>| {
        let (mut signer, mut text) = (Signer::new(realm("eu-central-1")), Vec::with_capacity(4096));
        let begun = std::time::Instant::now();
        for n in 0..REQUESTS {
            text.clear();
            let host = "bucket.s3.eu-central-1.amazonaws.com";
            write_get(&mut text, host, "/train/shard-000123.tar", Some((n, n + 9)), None).unwrap();
            if let Some(credential) = credential {
                signer.sign_head(credential, WallTime(1_700_000_000), &mut text, 0).unwrap();
            }
        }
        begun.elapsed().as_nanos() as u64 / REQUESTS
    };
    let keys = |token: Option<&str>| Credential::aws("AKIAIOSFODNN7EXAMPLE", "secret", token).unwrap();
    for _ in 0..5 {
        let written = nanoseconds(None);
        let (plain, session) = (nanoseconds(Some(&keys(None))), nanoseconds(Some(&keys(Some(&"t".repeat(800))))));
        eprintln!(
            "a request: {written} ns written, {plain} ns signed too, {session} ns with a session token of 800 bytes"
        );
    }
}
