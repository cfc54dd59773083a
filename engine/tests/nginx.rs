//! Against a third-party server: nginx, from files, through a manifest.
//!
//! `scripts/test` installs nginx.

use crate::common::nginx::Nginx;
use fuelrail::Loader;
use fuelrail_bucket::DataSet;

#[test]
fn photos_and_volumes_land_in_place() {
    let Some(nginx) = Nginx::start() else { return };
    let photos = DataSet::photos(300, 3);
    let volumes = DataSet::volumes(4, 3, 0.1);
    for (name, set, batch) in [("photos", &photos, 32), ("volumes", &volumes, 1)] {
        let manifest = nginx.serve(name, set);
        let uri = format!("http://127.0.0.1:{}/{name}/", nginx.port());
        let mut loader = Loader::builder(&uri)
            .manifest(manifest)
            .batch_size(batch)
            .memory_limit("192MiB".parse().unwrap())
            .block_size("1MiB".parse().unwrap())
            .shards(1)
            // What comes a second time is copied.
            .hedge_percent(0)
            .build()
            .unwrap();
        let delivered = crate::common::drain(&mut loader, set).unwrap();
        assert_eq!(delivered.order.len() as u64, set.len());
        let stats = loader.stats();
        assert_eq!(stats.bytes, set.total_bytes());
        // nginx closes every connection after 50 answers and says so: nothing of that counts as a failure.
        assert_eq!((stats.retries, stats.given_up), (0, 0), "{stats:?}");
        assert!(stats.copied_bytes_per_byte <= 0.01, "{name}: {stats:?}");
    }
}
