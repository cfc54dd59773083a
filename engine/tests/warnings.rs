//! A library writes to no stream of the program's: what it warns of goes to `tracing`, and to standard error where that was asked for.

use crate::common::keys::now;
use crate::common::secure::Secured;
use crate::common::{bucket, eventually, loader_at};
use fuelrail::{Credential, Decode, DecodeFunction, Tls, list_with};
use fuelrail_bucket::DataSet;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const URI: &str = "WARNINGS_TEST_URI";
const PRINT: &str = "WARNINGS_TEST_PRINT";

/// Runs a test of this file that passes, in a process of its own.
fn alone(test: &str, variables: &[(&str, &str)]) -> Output {
    let test = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let mut child = Command::new(std::env::current_exe().unwrap());
    let ended = child.args(["--exact", &test, "--nocapture"]).envs(variables.iter().copied()).output().unwrap();
    assert!(ended.status.success() && String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
    ended
}

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
    let uri = secured.bucket.url("");
    let said = |variables: &[(&str, &str)]| {
        let ended = alone("lists_without_checking_certificates", variables);
        String::from_utf8(ended.stderr).unwrap()
    };
    assert_eq!(said(&[(URI, uri.as_str())]), "");
    let told = said(&[(URI, uri.as_str()), (PRINT, "1")]);
    assert!(told.starts_with("fuelrail: warning: tls_insecure is set: ") && told.lines().count() == 1, "{told}");
}

/// Runs in a process of its own; see below. Each call of the provider lasts until it is warned of.
#[test]
fn reads_with_a_slow_provider() {
    let Ok(uri) = std::env::var(URI) else { return };
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let (heard, asked) = (Arc::clone(&warnings), Arc::new(AtomicUsize::new(0)));
    fuelrail::on_warning(move |text| heard.lock().unwrap().push(text.to_owned()));
    let counted = Arc::clone(&asked);
    let provider = move || {
        let said = ["what is to be read with it waits", "the old credential has expired"];
        if let Some(said) = said.get(counted.fetch_add(1, Ordering::AcqRel)) {
            let is_said = || warnings.lock().unwrap().iter().any(|text: &String| text.contains(said));
            eventually("nothing is said of it", is_said);
        }
        Ok(Credential::aws("marked-id", "marked-secret", None)?.until(Some(now().shifted(2))))
    };
    let mut loader = loader_at(&uri).credentials(provider).build().unwrap();
    eventually("it is not asked again", || asked.load(Ordering::Acquire) > 2);
    assert!(loader.next_batch().unwrap().is_ok());
}

#[test]
fn a_credential_provider_that_does_not_answer_is_warned_of() {
    let bucket = bucket(&DataSet::digits(3, 1), "");
    alone("reads_with_a_slow_provider", &[(URI, &bucket.url(""))]);
}

/// Runs in a process of its own; see below.
#[test]
fn decodes_with_a_function_that_takes_no_batches() {
    let Ok(uri) = std::env::var(URI) else { return };
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&warnings);
    fuelrail::on_warning(move |text| heard.lock().unwrap().push(text.to_owned()));
    let function = DecodeFunction::of_batches(|samples, out| {
        assert_eq!(samples.len(), 1, "one is enough");
        out.fill(0);
        Ok(())
    });
    let builder = loader_at(&uri).batch_size(16).decode_with(Decode::exact(1, 4, 1), function);
    let samples: usize = builder.build().unwrap().map(|batch| batch.unwrap().len()).sum();
    let warnings: Vec<String> = std::mem::take(&mut warnings.lock().unwrap());
    assert_eq!((samples, warnings.len()), (64, 1), "{warnings:?}");
    assert!(warnings[0].contains("one is enough") && warnings[0].contains("sample by sample"), "{warnings:?}");
}

#[test]
fn a_function_that_fails_with_every_batch_is_warned_of_once() {
    let bucket = bucket(&DataSet::digits(64, 1), "");
    alone("decodes_with_a_function_that_takes_no_batches", &[(URI, &bucket.url(""))]);
}
