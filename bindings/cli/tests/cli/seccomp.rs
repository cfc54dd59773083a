//! The program in a container's confinement: real seccomp filters, as the kernel applies them.
//!
//! A filter is put on a thread of this test and inherited by the programs it starts; the rest of the test runs free.

use std::path::Path;

use fuelrail_bucket::DataSet;
use seccompiler::{BpfMap, TargetArch, apply_filter, compile_from_json};
use serde_json::{Value, json};

use super::{Ended, SMALL, bucket_of, fuelrail};

pub(super) const IO_URING: [&str; 3] = ["io_uring_setup", "io_uring_enter", "io_uring_register"];

/// The profile that the documentation hands out.
fn profile() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/docs/seccomp/fuelrail.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn compiled(filter: &Value) -> Result<BpfMap, String> {
    let arch: TargetArch = std::env::consts::ARCH.try_into().expect("seccompiler knows this processor");
    compile_from_json(json!({ "filter": filter }).to_string().as_bytes(), arch).map_err(|error| error.to_string())
}

/// Answers these calls with this error; everything else is allowed.
pub(super) fn refusing(calls: &[&str], errno: i32) -> Value {
    let rules: Vec<Value> = calls.iter().map(|call| json!({ "syscall": call })).collect();
    json!({ "mismatch_action": "allow", "match_action": { "errno": errno }, "filter": rules })
}

/// What a container runtime makes of a profile: a list of what is allowed, then what is refused in its own way. The later
/// filter is asked first.
fn filters(profile: &Value) -> [Value; 2] {
    let (mut allowed, mut refused) = (Vec::new(), Vec::new());
    for rule in profile["syscalls"].as_array().unwrap() {
        let args: Vec<Value> = rule["args"].as_array().into_iter().flatten().map(argument).collect();
        for name in rule["names"].as_array().unwrap() {
            let call =
                if args.is_empty() { json!({ "syscall": name }) } else { json!({ "syscall": name, "args": args }) };
            match rule["action"].as_str().unwrap() {
                "SCMP_ACT_ALLOW" if exists(name) => allowed.push(call),
                "SCMP_ACT_ERRNO" => refused.push((rule["errnoRet"].as_i64().unwrap(), call)),
                _ => {}
            }
        }
    }
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let [(errno, call)] = &refused[..] else { panic!("one call is refused in its own way: {refused:?}") };
    [
        json!({ "mismatch_action": { "errno": profile["defaultErrnoRet"] }, "match_action": "allow", "filter": allowed }),
        json!({ "mismatch_action": "allow", "match_action": { "errno": errno }, "filter": [call] }),
    ]
}

/// An argument's condition in the words of the filter's compiler.
fn argument(rule: &Value) -> Value {
    let (op, val) = match rule["op"].as_str().unwrap() {
        "SCMP_CMP_EQ" => (json!("eq"), &rule["value"]),
        "SCMP_CMP_MASKED_EQ" => (json!({ "masked_eq": rule["value"] }), &rule["valueTwo"]),
        op => panic!("{op} is not used in our profile"),
    };
    json!({ "index": rule["index"], "type": "qword", "op": op, "val": val })
}

/// Whether this processor has the call. All that the profile names exist on x86-64; some of them only there.
fn exists(name: &Value) -> bool {
    let known = compiled(&refusing(&[name.as_str().unwrap()], 1)).is_ok();
    assert!(known || !cfg!(target_arch = "x86_64"), "there is no system call {name}");
    known
}

/// Runs the program under these filters, put on in this order.
fn confined(filters: &[Value], args: &[&str]) -> Ended {
    under(filters, || fuelrail(args))
}

/// Does what starts programs under these filters, put on in this order.
pub(super) fn under(filters: &[Value], start: impl FnOnce() -> Ended + Send) -> Ended {
    std::thread::scope(|scope| {
        let confined = scope.spawn(|| {
            for filter in filters {
                let programs = compiled(filter).unwrap();
                apply_filter(&programs["filter"]).expect("a thread may confine itself");
            }
            start()
        });
        confined.join().expect("the program ends")
    })
}

fn read_args<'a>(uri: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["bench", "read", uri, "--batch-size", "16", "--json"], &SMALL[..], more].concat()
}

/// Lines of what was said about the ring.
fn about_the_ring(ended: &Ended) -> Vec<&str> {
    ended.err.lines().filter(|line| line.contains("poll instead of uring")).collect()
}

#[test]
fn refused_io_uring_falls_back_to_poll_with_a_notice_and_delivers_every_byte() {
    let set = DataSet::digits(200, 7);
    let bucket = bucket_of(&set, "");
    let uri = bucket.url("");
    let free = fuelrail(&read_args(&uri, &[])).json();
    assert_eq!((&free["samples"], &free["config"]["ring"]), (&json!(200), &json!("uring")));
    for (calls, errno) in [(&IO_URING[..], libc::EPERM), (&IO_URING[..], libc::ENOSYS), (&IO_URING[1..2], libc::EPERM)]
    {
        let filter = [refusing(calls, errno)];
        let ended = confined(&filter, &read_args(&uri, &[]));
        let [line] = about_the_ring(&ended)[..] else { panic!("one line says it: {}", ended.err) };
        for needed in ["a seccomp filter refuses io_uring", "io_uring_setup", "engine/docs/CONTAINERS.md"] {
            assert!(line.contains(needed), "{needed} is not in: {line}");
        }
        let read = ended.json();
        assert_eq!((&read["samples"], &read["config"]["ring"]), (&json!(200), &json!("poll")));
        assert_eq!(read["content_hash"], free["content_hash"]);

        let named = confined(&filter, &read_args(&uri, &["--ring", "uring"]));
        assert_eq!(named.code, 3, "{}", named.err);
        assert!(named.err.contains("a seccomp filter refuses io_uring") && named.err.contains("CONTAINERS.md"));
        assert_eq!(named.out, "", "nothing was delivered");

        let poll = confined(&filter, &read_args(&uri, &["--ring", "poll"]));
        assert_eq!(about_the_ring(&poll), [""; 0], "poll was asked for");
        assert_eq!(poll.json()["content_hash"], free["content_hash"]);
    }
}

#[test]
fn doctor_names_the_seccomp_filter_and_its_cure() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let ended = confined(&[refusing(&IO_URING, errno)], &["doctor"]);
        assert_eq!(ended.code, 3, "{}", ended.err);
        for needed in ["a seccomp filter refuses io_uring", "cure: ", "engine/docs/CONTAINERS.md", "epoll"] {
            assert!(ended.out.contains(needed), "{needed} is not in: {}", ended.out);
        }
    }
}

#[test]
fn the_documented_profile_lets_io_uring_run() {
    let set = DataSet::digits(200, 7);
    let bucket = bucket_of(&set, "");
    let uri = bucket.url("");
    let profile = profile();
    for ring in ["uring", "poll"] {
        let ended = confined(&filters(&profile), &read_args(&uri, &["--ring", ring]));
        assert_eq!(about_the_ring(&ended), [""; 0]);
        let read = ended.json();
        assert_eq!((&read["samples"], &read["config"]["ring"]), (&json!(200), &json!(ring)));
    }
    let doctor = confined(&filters(&profile), &["doctor"]);
    assert_eq!(doctor.code, 0, "{}{}", doctor.out, doctor.err);
    // It does confine: without the three calls it exists for, the same profile refuses io_uring.
    let mut without = profile.clone();
    let rules = without["syscalls"].as_array_mut().unwrap();
    rules.retain(|rule| !IO_URING.iter().all(|call| rule["names"].as_array().unwrap().contains(&json!(call))));
    assert_eq!(rules.len() + 1, profile["syscalls"].as_array().unwrap().len());
    assert_eq!(confined(&filters(&without), &read_args(&uri, &["--ring", "uring"])).code, 3);
}
