//! The page of metrics.

use crate::common::{bucket, folder, loader};
use crate::peers::{ask, free_ports};
use crate::records::golden;
use fuelrail::{Format, Kind};
use fuelrail_bucket::DataSet;
use std::io::{Read, Write};
use std::net::TcpStream;

#[test]
fn what_is_read_to_be_unpacked_is_counted() {
    let bucket = folder(&golden("mds-zstd"), "");
    let address = free_ports(1)[0];
    let builder = loader(&bucket).format(Format::Mds).batch_size(2).metrics_listen(address.to_string());
    let mut shown = builder.build().unwrap();
    shown.by_ref().for_each(|batch| drop(batch.unwrap()));
    let page = String::from_utf8(ask(address, "/metrics", "").1).unwrap();
    let requests = page.lines().find_map(|line| line.strip_prefix("fuelrail_requests_total{rank=\"0\"} ")).unwrap();
    assert_eq!(requests.parse::<u64>().unwrap(), shown.stats().requests);
    assert!(shown.stats().requests > 0, "{page}");
}

#[test]
fn counters_are_shown_for_prometheus_and_name_no_object() {
    let set = DataSet::tokens(40, 3, 1_000);
    let bucket = bucket(&set, "");
    let address = free_ports(1)[0];
    let builder = loader(&bucket).metrics_listen(address.to_string());
    let mut shown = builder.clone().batch_size(4).build().unwrap();
    let taken = shown.by_ref().take(5).map(|batch| batch.unwrap().len()).sum::<usize>();
    assert_eq!(taken, 20);
    let (head, page) = ask(address, "/metrics", "");
    let page = String::from_utf8(page).unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
    let value = |name: &str| {
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")))
            .unwrap_or_else(|| panic!("{name}: {page}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(value("fuelrail_batches_total"), 5.0, "what was taken just now, too: {page}");
    assert!(value("fuelrail_source_bytes_total") >= 20_000.0 && value("fuelrail_build_info") == 1.0, "{page}");
    assert_eq!(value("fuelrail_memory_limit_bytes"), shown.config().memory.limit.unwrap().0 as f64);
    assert_eq!(value("fuelrail_memory_total_bytes"), shown.stats().memory.total_bytes() as f64);
    let (sum, count) = (value("fuelrail_get_latency_seconds_sum"), value("fuelrail_get_latency_seconds_count"));
    assert!(count >= 20.0 && sum > 0.0 && page.contains("# TYPE fuelrail_get_latency_seconds summary\n"), "{page}");
    assert!(!page.contains(&set.key(0)) && !page.contains("training"), "{page}");
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut head = String::new();
    socket.read_to_string(&mut head).unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "as GET, without a body: {head}");
    assert!(ask(address, "/", "").0.starts_with("HTTP/1.1 404"));
    let error = builder.clone().build().unwrap_err();
    assert!(error.kind() == Kind::Environment && error.to_string().contains("listening at"), "{error}");
    drop(shown);
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    assert_eq!(builder.metrics_listen("nonsense").build().unwrap_err().kind(), Kind::Usage);
}
