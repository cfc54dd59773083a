//! A library writes to no stream of the program's: what it warns of goes to `tracing`, and to standard error where that was asked for.

use crate::common::secure::Secured;
use fuelrail::{Tls, list_with};
use fuelrail_bucket::DataSet;
use std::process::Command;

const URI: &str = "WARNINGS_TEST_URI";
const PRINT: &str = "WARNINGS_TEST_PRINT";

/// Runs in a process of its own; see below.
#[test]
fn lists_without_checking_certificates() {
    let Ok(uri) = std::env::var(URI) else { return };
    if std::env::var_os(PRINT).is_some() {
        fuelrail::print_warnings();
    }
    list_with(&Tls { insecure: true, ..Tls::default() }, &uri, |_| {}).unwrap();
}

#[test]
fn standard_error_is_the_programs() {
    let secured = Secured::start(&DataSet::digits(3, 1), "");
    let test = format!("{}::lists_without_checking_certificates", module_path!().split_once("::").unwrap().1);
    let said = |variables: &[(&str, &str)]| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &test, "--nocapture"]).env(URI, secured.bucket.url("")).envs(variables.iter().copied());
        let ended = child.output().unwrap();
        assert!(ended.status.success() && String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
        String::from_utf8(ended.stderr).unwrap()
    };
    assert_eq!(said(&[]), "");
    let told = said(&[(PRINT, "1")]);
    assert!(told.starts_with("fuelrail: warning: tls_insecure is set: ") && told.lines().count() == 1, "{told}");
}
