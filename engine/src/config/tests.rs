//! Where settings come from, which of them win, and which are refused.

use super::*;

fn pair(a: &str, b: &str) -> (String, String) {
    (a.into(), b.into())
}

#[test]
fn argument_beats_environment_beats_file_beats_default() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.toml");
    std::fs::write(&file, "uri = \"http://h/b\"\nbatch_size = 1\nseed = 2\nepochs = 3\nblock_bytes = \"1 MiB\"\n")
        .unwrap();
    let env = [pair("FUELRAIL_SPILL_DIRS", "/a,/b"), pair("FUELRAIL_SPILL_LIMIT_BYTES", "3 GiB")];
    let disk = Config::load(Some(&file), env, &vec![]).unwrap();
    assert_eq!((disk.spill_dirs, disk.spill_limit_bytes), (vec!["/a".into(), "/b".into()], 3 << 30));
    let env = [pair("FUELRAIL_SEED", "20"), pair("FUELRAIL_EPOCHS", "30"), pair("HOME", "/")];
    let config = Config::load(Some(&file), env, &vec![pair("epochs", "300")]).unwrap();
    assert_eq!((config.batch_size, config.seed, config.epochs), (1, 20, 300));
    assert_eq!((config.block_bytes, config.world), (1 << 20, 1));
}

#[test]
fn unknown_and_wrong_settings_are_refused_by_name() {
    let refused = |env: (String, String)| {
        Config::load(None, [pair("FUELRAIL_URI", "http://h/b"), env], &vec![]).unwrap_err().to_string()
    };
    assert!(refused(pair("FUELRAIL_BATCHSIZE", "3")).contains("batchsize"));
    assert!(refused(pair("FUELRAIL_BATCH_SIZE", "many")).contains("many"));
    assert!(refused(pair("FUELRAIL_CACHE_LIMIT_BYTES", "1 parsec")).contains("parsec"));
    assert!(refused(pair("FUELRAIL_CACHE_POLICY", "best")).contains("best"));
    assert!(refused(pair("FUELRAIL_ORDER", "2")).contains("'2' is not an order"));
    assert!(refused(pair("FUELRAIL_BAD_SAMPLES", "eat")).contains("eat"));
    assert!(refused(pair("FUELRAIL_SPILL_POLICY", "best")).contains("best"));
    assert!(refused(pair("FUELRAIL_SPILL_DIRS", "/a,b")).contains("'b', which is not an absolute path"));
    assert!(refused(pair("FUELRAIL_RING", "42")).contains("no ring '42'"));
    assert!(refused(pair("FUELRAIL_NEAR", "here")).contains("here"));
    let unpinned = Config { uri: "http://h/b".into(), near: Some(1), pin: false, ..Config::default() };
    assert!(unpinned.validate().unwrap_err().to_string().contains("near = 1 with pin = false"));
    assert!(refused(pair("FUELRAIL_DECODE", "28")).contains("decode is '28'"));
    assert!(refused(pair("FUELRAIL_DECODE_FIT", "squeeze")).contains("squeeze"));
    assert!(refused(pair("FUELRAIL_DECODE_DEPTH", "0")).contains("decode_depth is 0"));
    assert!(refused(pair("FUELRAIL_DECODE_THREADS", "9999")).contains("decode_threads is 9999"));
}

#[test]
fn the_default_round_trips_through_toml() {
    let config = Config { uri: "http://h/b".into(), ..Config::default() };
    let text = toml::to_string(&config).unwrap();
    assert_eq!(toml::from_str::<Config>(&text).unwrap(), config);
}

#[test]
fn the_clouds_variables_fill_what_is_not_set() {
    let own = [
        pair("FUELRAIL_URI", "s3://bucket/x{1..2}/"),
        pair("AWS_REGION", "eu-west-1"),
        pair("AWS_CA_BUNDLE", "/a.pem"),
    ];
    let config = Config::load(None, own.clone(), &vec![]).unwrap();
    assert_eq!((config.region.as_deref(), config.ca_file.as_deref()), (Some("eu-west-1"), Some(Path::new("/a.pem"))));
    let source = config.source().unwrap().1;
    assert_eq!(source.endpoint.authority(), "bucket.s3.eu-west-1.amazonaws.com");
    assert_eq!(source.prefixes, ["x1/", "x2/"]);
    let config = Config::load(None, own, &vec![pair("region", "us-west-2"), pair("addressing", "path")]).unwrap();
    assert_eq!(config.source().unwrap().1.endpoint.object_path("k"), "/bucket/k");
    assert_eq!(config.region.as_deref(), Some("us-west-2"));
    let error =
        Config::load(None, [pair("FUELRAIL_URI", "s3://b"), pair("FUELRAIL_ADDRESSING", "up")], &vec![]).unwrap_err();
    assert!(error.to_string().contains("addressing is 'up'"), "{error}");
}
