//! The latency benchmark, run small against the embedded bucket: what is counted, through both doors, and how it fails.
use fuelrail::{ByteSize, Kind, Listed, Loader, list};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use fuelrail_cli::bench::latency::{Load, Run, Timed, measure};
use fuelrail_cli::failure::Stop;

fn bucket(script: &str) -> Bucket {
    let source = Source::Generated(DataSet::digits(200, 3));
    Bucket::start(BucketConfig { source, script: script.parse().unwrap(), ..BucketConfig::default() }).unwrap()
}

fn gets(bucket: &Bucket, bytes: Option<u64>, load: Load) -> (Run, Vec<Listed>) {
    let uri = bucket.url("");
    let listing = list(&uri, |_| {}).unwrap();
    let timed = Timed::Gets { access: Box::default(), uri, bytes, connections: 3 };
    (Run { timed, load, requests: 300, warm_up: 20, seed: 1, stop: Stop::default() }, listing)
}

#[test]
fn gets_of_a_size_are_counted_once_each() {
    let bucket = bucket("latency=fixed:2ms");
    let (plan, listing) = gets(&bucket, Some(512), Load::Closed);
    bucket.reset_counters();
    let (result, [response, service]) = measure(&plan, &listing).unwrap();
    assert_eq!((response.count(), service.count()), (300, 300), "the warm-up is not in it");
    assert_eq!(bucket.counters().get_requests, 321, "one finds where the bucket is");
    assert_eq!(bucket.counters().body_bytes, 320 * 512 + 1);
    assert_eq!(bucket.counters().connections_opened, 4, "connections are kept");
    assert!(result.service.p50_us >= 2_000.0, "the bucket waits that long: {:?}", result.service);
    assert_eq!(result.response, result.service, "a closed loop means nothing else");
    assert!(result.name.contains("512 B") && result.load.contains("3 connections"), "{result:?}");
}

#[test]
fn an_open_loop_that_is_too_fast_counts_the_waiting() {
    let bucket = bucket("latency=fixed:5ms");
    // Three connections answer 600 a second at most; 3 000 are meant.
    let (plan, listing) = gets(&bucket, None, Load::Poisson(3_000.0));
    let (result, _) = measure(&plan, &listing).unwrap();
    assert_eq!(result.intended_per_s, Some(3_000.0));
    assert!(result.achieved_per_s < 700.0, "{result:?}");
    assert!(result.response.p50_us > 4.0 * result.service.p50_us, "{result:?}");
}

#[test]
fn samples_are_timed_through_the_loader() {
    let bucket = bucket("");
    let (plan, listing) = gets(&bucket, None, Load::Constant(5_000.0));
    let builder = Loader::builder(bucket.url("")).memory_limit(ByteSize(32 << 20)).shards(1).pin(false);
    let config = builder.config().clone();
    let plan = Run { timed: Timed::Samples(Box::new(config)), requests: 500, ..plan };
    let (result, _) = measure(&plan, &listing).unwrap();
    assert_eq!((result.response.count, result.warm_up), (500, 20), "more than one epoch");
    assert!(result.name.contains("loader"), "{result:?}");
}

#[test]
fn failures_are_said_and_end_everybody() {
    let bucket = bucket("error=1.0");
    let (plan, listing) = gets(&bucket, None, Load::Closed);
    let error = measure(&plan, &listing).unwrap_err();
    assert!(error.kind() == Kind::Server && error.to_string().contains("the server answered 500"), "{error}");
    let none = Timed::Gets { access: Box::default(), uri: bucket.url(""), bytes: None, connections: 0 };
    assert_eq!(measure(&Run { timed: none, ..plan.clone() }, &listing).unwrap_err().kind(), Kind::Usage);
    let small = gets(&bucket, Some(1 << 20), Load::Closed).0;
    assert_eq!(measure(&small, &listing).unwrap_err().kind(), Kind::Usage, "no object is that large");
    let sound = self::bucket("");
    let (plan, listing) = gets(&sound, None, Load::Closed);
    let stop = Stop::default();
    stop.ask();
    assert_eq!(measure(&Run { stop, ..plan.clone() }, &listing).unwrap_err().kind(), Kind::Cancelled);
    let longer: Vec<Listed> = listing.into_iter().map(|o| Listed { size: o.size + 1, ..o }).collect();
    let error = measure(&plan, &longer).unwrap_err();
    assert!(error.kind() == Kind::Protocol && error.to_string().contains("requested were"), "{error}");
}
