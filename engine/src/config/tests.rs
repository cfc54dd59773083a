//! Where settings come from, which of them win, and which are refused.

use super::*;
use fuelrail_base::ByteSize;
use fuelrail_io::{Backend, RingChoice};
use fuelrail_plan::order::OrderName;
use fuelrail_wire::Addressing;
use std::path::PathBuf;

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
    let disk = Config::load(Some(&file), env, &[]).unwrap();
    assert_eq!((disk.disk.dirs, disk.disk.limit), (vec!["/a".into(), "/b".into()], Some(ByteSize(3 << 30))));
    let commas = Config::load(Some(&file), [], &[pair("classes", r#"["a,b", "c"]"#)]).unwrap();
    assert_eq!(commas.classes, ["a,b", "c"]);
    let env = [pair("FUELRAIL_SEED", "20"), pair("FUELRAIL_EPOCHS", "30"), pair("HOME", "/")];
    let config = Config::load(Some(&file), env, &[pair("epochs", "300")]).unwrap();
    assert_eq!((config.batch_size, config.order.seed, config.epochs), (1, 20, 300));
    assert_eq!((config.memory.block_size, config.world), (ByteSize(1 << 20), 1));
    let (named, missing) = (file.to_str().unwrap(), "/missing.toml");
    let [by_variable, by_argument] = [
        Config::load(None, [pair("FUELRAIL_CONFIG", named)], &[]),
        Config::load(None, [pair("FUELRAIL_CONFIG", missing)], &[pair("config", named)]),
    ];
    assert_eq!((by_variable.unwrap().epochs, by_argument.unwrap().epochs), (3, 3));
    assert_eq!(Config::load(Some(&file), [pair("FUELRAIL_CONFIG", missing)], &[]).unwrap().epochs, 3);
    let error = Config::load(None, [pair("FUELRAIL_CONFIG", missing)], &[]).unwrap_err();
    assert!(error.kind() == Kind::File && error.to_string().contains(missing), "{error}");
}

#[test]
fn unknown_and_wrong_settings_are_refused_by_name() {
    let refused = |env: (String, String)| {
        Config::load(None, [pair("FUELRAIL_URI", "http://h/b"), env], &[]).unwrap_err().to_string()
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
fn only_a_setting_that_is_much_like_a_wrong_name_is_guessed() {
    let hint = |name: &str| {
        let error = Config::load(None, [], &[pair(name, "1")]).unwrap_err();
        error.hint().unwrap().to_owned()
    };
    for (name, meant) in [
        ("batchsize", "batch_size"),
        ("url", "uri"),
        ("epoch", "epochs"),
        ("memory_limt", "memory_limit"),
        ("memory_limit_byte", "memory_limit_bytes"),
        ("cache_limits", "cache_limit"),
        ("memory.limt", "memory.limit"),
        ("netwrok.stall_after", "network.stall_after"),
        ("network.shards", "shards"),
        ("memory.spill_dirs", "disk.dirs"),
    ] {
        assert_eq!(hint(name), format!("did you mean {meant}?"), "{name}");
    }
    let variable = Config::load(None, [pair("FUELRAIL_MEMORY_LIMT", "1")], &[]).unwrap_err();
    assert_eq!(variable.hint(), Some("did you mean FUELRAIL_MEMORY_LIMIT?"));
    let of_a_service = ["SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_9000_TCP_ADDR"];
    let of_a_service = of_a_service.map(|name| pair(&format!("FUELRAIL_{name}"), "10.0.0.1"));
    let uri = [pair("uri", "/data/")];
    assert_eq!(Config::load(None, of_a_service, &uri).unwrap(), Config::load(None, [], &uri).unwrap());
    for name in ["num_workers", "learning_rate", "lr", "retries", "device", "x"] {
        assert_eq!(hint(name), "engine/docs/SETTINGS.md lists the settings", "{name}");
    }
}

#[test]
fn a_builder_shows_no_secret_of_a_uri_that_it_will_refuse() {
    for uri in ["http://user:secret@h/b/", "http://h/b/?sig=secret"] {
        let text = format!("{:?}", crate::Loader::builder(uri).endpoint("http://user:secret@h").batch_size(3));
        assert!(!text.contains("secret") && text.contains("h/b/") && text.contains("batch_size"), "{text}");
    }
}

#[test]
fn zero_is_a_number_where_that_has_a_meaning() {
    let load = |name: &str| Config::load(None, [pair("FUELRAIL_URI", "http://h/b")], &[pair(name, "0")]);
    assert_eq!(load("spill_floor_bytes").unwrap().disk.floor, Some(ByteSize(0)));
    assert_eq!(load("disk.floor").unwrap().disk.floor, Some(ByteSize(0)));
    let tokens = [pair("format", "tokens"), pair("token_document_end", "0")];
    let tokens = Config::load(None, [pair("FUELRAIL_URI", "http://h/b")], &tokens);
    assert_eq!(tokens.unwrap().token_document_end, Some(0));
    assert_eq!(load("near").unwrap().near, Some(0));
    assert_eq!(load("memory_limit_bytes").unwrap().memory.limit, None);
    let error = load("spill_limit_bytes").unwrap_err();
    assert!(error.to_string().contains("spill_limit is 0") && error.hint().is_some(), "{error}");
}

#[test]
fn what_says_what_a_sample_is_and_has_no_say_is_refused() {
    let load = |given: &[(&str, &str)]| {
        let given: Vec<_> = given.iter().map(|(name, value)| pair(name, value)).collect();
        Config::load(None, [pair("FUELRAIL_URI", "http://h/b")], &given)
    };
    for (given, says) in [
        (&[("label_field", "cls")][..], "label_field is set, and format is none"),
        (&[("label_field", "cls"), ("format", "tokens")], "label_field is set, and format is tokens"),
        (&[("classes", "a,b"), ("format", "mds")], "classes is set, and format is mds"),
        (&[("record_file", "/a.csv")], "record_file is set, and format is none"),
        (&[("side_cars", "json")], "side_cars is set, and format is none"),
        (&[("token_window", "9")], "token_window is set, and format is none"),
        (&[("token_bytes", "4"), ("format", "mds")], "token_bytes is set, and format is mds"),
        (&[("token_stride", "9"), ("format", "tokens")], "token_stride without a token_window"),
    ] {
        let error = load(given).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(says) && error.hint().is_some(), "{error}");
    }
    for good in [
        &[("label_field", "cls"), ("format", "mds")][..],
        &[("token_bytes", "2")],
        &[("classes", "a,b")],
        // What is switched off leaves its settings.
        &[("decode", "none"), ("decode_fit", "center-crop"), ("spill_policy", "lru"), ("mixture_window", "64")],
    ] {
        let loaded = load(good);
        assert!(loaded.is_ok(), "{loaded:?}");
        assert!(loaded.unwrap().without_format().validate().is_ok());
    }
    let all =
        load(&[("format", "tokens"), ("token_window", "9"), ("token_stride", "8"), ("token_bytes", "4")]).unwrap();
    assert!(all.without_format().validate().is_ok());
}

#[test]
fn a_setting_that_one_file_gives_under_two_names_is_refused() {
    for text in ["memory_limit = '1GiB'\nmemory_limit_bytes = 1\n", "memory_limit = '1GiB'\n[memory]\nlimit = '2GiB'\n"]
    {
        let error = toml::from_str::<Config>(text).unwrap_err().to_string();
        assert!(error.contains("memory_limit is set twice"), "{error}");
    }
    let list = [pair("memory.limit", "1GiB"), pair("seed", "1"), pair("memory_limit", "2GiB")];
    let error = Config::check_once(&list).unwrap_err().to_string();
    assert!(error.contains("memory_limit_bytes is set twice"), "{error}");
    Config::check_once(&list[..2]).unwrap();
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
    let config = Config::load(None, own.clone(), &[]).unwrap();
    assert_eq!(
        (config.network.region.as_deref(), config.trust.ca_file.as_deref()),
        (Some("eu-west-1"), Some(Path::new("/a.pem")))
    );
    let source = config.source().unwrap().1;
    assert_eq!(source.endpoint.authority(), "bucket.s3.eu-west-1.amazonaws.com");
    assert_eq!(source.prefixes, ["x1/", "x2/"]);
    let config = Config::load(None, own, &[pair("region", "us-west-2"), pair("addressing", "path")]).unwrap();
    assert_eq!(config.source().unwrap().1.endpoint.object_path("k"), "/bucket/k");
    assert_eq!(config.network.region.as_deref(), Some("us-west-2"));
    let error =
        Config::load(None, [pair("FUELRAIL_URI", "s3://b"), pair("FUELRAIL_ADDRESSING", "up")], &[]).unwrap_err();
    assert!(error.to_string().contains("'up' is not a way of addressing"), "{error}");
}

#[test]
fn files_have_groups_units_and_the_names_of_old() {
    let read =
        |text: &str| Config::from_values(toml::from_str(text).unwrap(), [pair("FUELRAIL_URI", "http://h/b")], &[]);
    let grouped = read(
        "shards = 3\n[network]\nstall_after = \"500ms\"\nrequest_limit = \"2m\"\noutage_limit = \"never\"\naddressing = \"virtual\"\n\
         [memory]\nlimit = \"1 GiB\"\nblock_size = 65536\n[order]\nname = \"sticky\"\n[disk]\ndirs = [\"/a,b\"]\n",
    );
    let flat = read(
        "shards = 3\nstall_after_ms = 500\nrequest_limit_s = 120\noutage_limit_s = 0\naddressing = \"virtual\"\n\
         memory_limit_bytes = 1073741824\nblock_bytes = \"64KiB\"\norder = \"sticky\"\nspill_dirs = [\"/a,b\"]\n",
    );
    let config = grouped.unwrap();
    assert_eq!(flat.unwrap(), config);
    let Network { stall_after, outage_limit, addressing, .. } = config.network;
    assert_eq!((stall_after, outage_limit), (Duration::from_millis(500), None));
    assert_eq!((addressing, config.order.name), (Some(Addressing::VirtualHost), OrderName::Sticky));
    assert_eq!((config.shards, config.disk.dirs), (Some(3), vec![PathBuf::from("/a,b")]));
    for (text, says) in [
        ("[netwrok]\nstall_after = 1\n", "netwrok.stall_after"),
        ("[network]\nshards = 1\n", "network.shards"),
        ("shards = [1]\n", "one value"),
        ("shards = -1\n", "'-1' is not a whole number"),
        ("stall_after_ms = \"soon\"\n", "'soon' is not a span of time"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(says) && error.hint().is_some(), "{error}");
    }
}

#[test]
fn every_setting_can_be_set_as_it_is_shown_by_each_of_its_names() {
    let mut config = Config { near: Some(0), shards: Some(2), ring: Backend::Poll.into(), ..Config::default() };
    config.network.stall_after = Duration::from_micros(1_500_007);
    config.order.seed = u64::MAX;
    for setting in Config::SETTINGS {
        let shown = match (setting.get)(&config) {
            serde_json::Value::Null => String::new(),
            serde_json::Value::String(text) => text,
            serde_json::Value::Array(_) => continue,
            other => other.to_string(),
        };
        let grouped = (setting.group, setting.field);
        for (group, name) in [("", setting.key), ("", setting.name), (setting.group, setting.key), grouped] {
            let mut set = Config::default();
            set.set(group, name, &Given::Text(shown.clone())).unwrap();
            assert_eq!((setting.get)(&set), (setting.get)(&config), "{group}.{name} = {shown}");
        }
    }
    assert_eq!(serde_json::from_str::<Config>(&serde_json::to_string(&config).unwrap()).unwrap(), config);
    assert_eq!(Config::default().ring, RingChoice::Auto);
}

/// `engine/docs/SETTINGS.md` is what this says. `FUELRAIL_BLESS=1` writes it.
#[test]
fn the_reference_lists_every_setting() {
    let mut text = String::from(
        "# Settings\n\nMade from `engine/src/config/settings.rs`; a test compares them.\n\n\
         By its name a setting is an argument in Python and C, a setter of the builder in Rust, and in capitals after `FUELRAIL_` a variable:\n\
         `FUELRAIL_MEMORY_LIMIT`. A TOML file has it in the table of its group, under the name in the second column, if there is one:\n\
         `limit = \"4GiB\"` below `[memory]`. Or it stands at the top, before all tables, by its first name; but `order`, `peers` and `decode`\n\
         cannot stand there beside a table of the same name. `fuelrail … --config FILE`, the argument `config` and the variable\n\
         `FUELRAIL_CONFIG` name the file.\n\n\
         Sizes take units (`64MiB`, `1gb`), times too (`500ms`, `10s`, `2m`). Plain numbers are bytes, or in the unit that the key ends in; results\n\
         say the key, and it may be used as the name. `none` stands for what is not set; it and `off` switch a limit off.\n",
    );
    let (default, mut group) = (Config::default(), None);
    for setting in Config::SETTINGS {
        if group != Some(setting.group) {
            group = Some(setting.group);
            let title = if setting.group.is_empty() { "The run".to_owned() } else { format!("`[{}]`", setting.group) };
            text.push_str(&format!(
                "\n## {title}\n\n| name | in its table | key | default | meaning |\n|---|---|---|---|---|\n"
            ));
        }
        let shown = match (setting.get)(&default) {
            serde_json::Value::Null => "none".to_owned(),
            serde_json::Value::String(text) if text.is_empty() => "none".to_owned(),
            serde_json::Value::Array(_) => "none".to_owned(),
            serde_json::Value::String(text) => format!("`{text}`"),
            other => format!("`{other}`"),
        };
        let about = setting.about.trim().replace("\n ", " ").replace('|', "\\|");
        let unless = |other: &str| if other == setting.name { String::new() } else { format!("`{other}`") };
        let (field, key) = (unless(setting.field), unless(setting.key));
        text.push_str(&format!("| `{}` | {field} | {key} | {shown} | {about} |\n", setting.name));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/SETTINGS.md");
    if std::env::var_os("FUELRAIL_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), text, "set FUELRAIL_BLESS=1 to write it anew");
}

/// What the guides say to set is there, and a file takes it as they write it.
#[test]
fn guides_name_settings_that_are_there() {
    let pages = [
        include_str!("../../docs/TROUBLESHOOTING.md"),
        include_str!("../../docs/TUNING.md"),
        include_str!("../../docs/CLOUDS.md"),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    for page in pages {
        let said: Vec<(&str, &str)> =
            page.split('`').skip(1).step_by(2).filter_map(|code| code.split_once(" = ")).collect();
        assert!(said.len() > 8, "{said:?}");
        // A profile's own setting, in the files of AWS.
        for (name, value) in said.into_iter().filter(|(name, _)| *name != "credential_process") {
            std::fs::write(file.path(), format!("uri = \"http://h/b\"\n{name} = {value}\n")).unwrap();
            let set = Config::load(Some(file.path()), [], &[]);
            assert!(set.is_ok(), "{name} = {value}: {set:?}");
        }
    }
}
