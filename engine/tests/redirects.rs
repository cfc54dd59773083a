//! A bucket that is elsewhere: followed to where its server says, never to where it would be less safe.

use crate::common::services::{Answer, Heard, Service};
use crate::common::{drain, loader_at};
use fuelrail::{Access, Credentials, Environment, Kind, get_with, list_with};
use fuelrail_bucket::DataSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Sends every request on to the same path at `to`.
fn sends_on(status: u16, to: String) -> Service {
    Service::start(move |heard: &Heard| {
        let path = heard.line.split(' ').nth(1).unwrap_or_default();
        Answer(status, format!("Location: {to}{path}\r\n"), String::new())
    })
}

fn keys(region: Option<&str>) -> Credentials {
    let pairs = [("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let environment = Environment::given(pairs.map(|(name, value)| (name.to_string(), value.to_string())));
    let region = region.map(Into::into);
    Credentials { anonymous: Some(false), environment, region, ..Credentials::default() }
}

#[test]
fn a_loader_lists_once_where_it_is_sent_from_and_reads_all_from_where_the_bucket_is() {
    let set = DataSet::digits(200, 3);
    let bucket = crate::common::bucket(&set, "");
    for (status, asked_again) in [(307, 1), (302, 1), (301, 0), (308, 0)] {
        let front = sends_on(status, format!("http://{}", bucket.addr()));
        for (run, asked) in [(0, 1), (1, 1 + asked_again)] {
            let mut loader = loader_at(&format!("{}/bucket/", front.url())).build().unwrap();
            assert_eq!(drain(&mut loader, &set).unwrap().order.len() as u64, set.len());
            assert_eq!(front.heard().len(), asked, "{status}, run {run}: what moved for good is remembered");
        }
        let mut brought = Vec::new();
        let uri = format!("{}/bucket/{}", front.url(), set.key(7));
        get_with(Access::default(), &uri, &mut brought).unwrap();
        assert_eq!(brought.len() as u64, set.size(7));
    }
}

#[test]
fn a_listing_given_needs_no_other_answer_than_a_clear_one() {
    let set = DataSet::digits(20, 3);
    let bucket = crate::common::bucket(&set, "");
    let front = sends_on(307, format!("http://{}", bucket.addr()));
    let uri = format!("{}/bucket/", front.url());
    let mut loader = loader_at(&uri).listing(crate::common::listing(&set)).build().unwrap();
    let error = drain(&mut loader, &set).err().unwrap();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("set region or endpoint"), "{error}");
}

#[test]
fn a_circle_ends() {
    let circle = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&circle);
    // It calls itself by another port's name each time, none of which is its own.
    let front = Service::start(move |heard: &Heard| {
        counted.fetch_add(1, Ordering::Relaxed);
        let host = heard.header("host").to_string();
        let path = heard.line.split(' ').nth(1).unwrap_or_default();
        let other = if host.starts_with("localhost") { "127.0.0.1" } else { "localhost" };
        let port = host.rsplit(':').next().unwrap_or_default();
        Answer(301, format!("Location: http://{other}:{port}{path}\r\n"), String::new())
    });
    let error = list_with(Access::default(), &format!("{}/bucket/", front.url()), |_| {}).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage, "{error}");
    assert!(circle.load(Ordering::Relaxed) <= 8, "{circle:?}");
}

#[test]
fn credentials_go_no_further_than_they_belong() {
    let bucket = crate::common::bucket(&DataSet::digits(20, 3), "");
    let elsewhere = Service::before(&bucket, |_| None);
    let access = Access { credentials: keys(Some("us-east-1")), ..Access::default() };
    // Another name, and another port: on this machine that is another server.
    for to in [elsewhere.url().replace("127.0.0.1", "localhost"), elsewhere.url()] {
        let front = sends_on(307, to.clone());
        let error = list_with(&access, &format!("{}/bucket/", front.url()), |_| {}).unwrap_err();
        let told = error.to_string();
        assert!(error.kind() == Kind::Usage && told.contains(&format!("{} redirects to {to}", front.url())), "{told}");
        assert!(elsewhere.heard().is_empty(), "nothing was sent there");
    }
}

#[test]
fn a_wrong_region_is_put_right_by_what_the_refusal_names() {
    let set = DataSet::digits(50, 3);
    let bucket = crate::common::bucket(&set, "");
    let gate = Service::before(&bucket, |heard| {
        let signed_for = heard.header("authorization").split('/').nth(2).unwrap_or_default().to_string();
        let document = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>home-1</Region></Error>";
        (signed_for != "home-1").then(|| Answer(400, String::new(), document.into()))
    });
    let credentials = keys(Some("us-east-1"));
    let mut loader = loader_at(&format!("{}/bucket/", gate.url()))
        .anonymous(false)
        .region("us-east-1")
        .environment(credentials.environment)
        .build()
        .unwrap();
    assert_eq!(drain(&mut loader, &set).unwrap().order.len() as u64, set.len());
    let refused = gate.heard().iter().filter(|heard| !heard.header("authorization").contains("/home-1/")).count();
    assert_eq!(refused, 1, "one request is signed for the wrong one");
}
