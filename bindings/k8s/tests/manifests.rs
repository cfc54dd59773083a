//! The manifests of `deploy/`: each document deserialises as its type, with no unknown field.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fuelrail_k8s::dataset::{DATASET_LABEL, Dataset, GATE};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::{Job, JobTemplateSpec};
use k8s_openapi::api::core::v1::{Namespace, PodTemplateSpec, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Fields of `written` that are missing from `read` or differ there.
fn unknown(written: &Value, read: &Value, at: &str) -> Vec<String> {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => {
            let each = |(name, value): (&String, &Value)| match read.get(name) {
                Some(other) => unknown(value, other, &format!("{at}.{name}")),
                // An empty list or map may be left out.
                None if value == &json!([]) || value == &json!({}) => Vec::new(),
                None => vec![format!("{at}.{name}")],
            };
            written.iter().flat_map(each).collect()
        }
        (Value::Array(written), Value::Array(read)) if written.len() == read.len() => {
            let each = |(n, (written, read)): (usize, (&Value, &Value))| unknown(written, read, &format!("{at}[{n}]"));
            written.iter().zip(read).enumerate().flat_map(each).collect()
        }
        _ if written == read => Vec::new(),
        _ => vec![format!("{at}: {written} became {read}")],
    }
}

fn check<T: DeserializeOwned + Serialize>(document: &Value) -> Vec<String> {
    match serde_json::from_value::<T>(document.clone()) {
        Ok(typed) => unknown(document, &serde_json::to_value(typed).unwrap(), ""),
        Err(error) => vec![error.to_string()],
    }
}

/// Problems of a document. Of a kind that Kubernetes does not define, only its pod template is checked.
fn problems(document: &Value) -> Vec<String> {
    match document["kind"].as_str().unwrap() {
        "Namespace" => check::<Namespace>(document),
        "CustomResourceDefinition" => check::<CustomResourceDefinition>(document),
        "ServiceAccount" => check::<ServiceAccount>(document),
        "ClusterRole" => check::<ClusterRole>(document),
        "ClusterRoleBinding" => check::<ClusterRoleBinding>(document),
        "Role" => check::<Role>(document),
        "RoleBinding" => check::<RoleBinding>(document),
        "Deployment" => check::<Deployment>(document),
        "DaemonSet" => check::<DaemonSet>(document),
        "Job" => check::<Job>(document),
        "Dataset" => check::<Dataset>(document),
        "JobSet" => check::<JobTemplateSpec>(&document["spec"]["replicatedJobs"][0]["template"]),
        "TrainJob" => check::<PodTemplateSpec>(&train_job_template(document)),
        "Kustomization" => Vec::new(),
        kind => vec![format!("{kind}: this test has no type for it")],
    }
}

fn train_job_template(document: &Value) -> Value {
    let runtime = &document["spec"]["runtimePatches"][0]["trainingRuntimeSpec"];
    runtime["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"].clone()
}

fn files() -> Vec<PathBuf> {
    let list = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let all = [list(deploy()), list(deploy().join("examples"))].concat();
    all.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
}

#[test]
fn manifests_have_no_field_that_kubernetes_does_not_know() {
    let files = files();
    assert!(files.len() >= 10, "{files:?}");
    for path in files {
        for document in documents(&path) {
            assert_eq!(problems(&document), Vec::<String>::new(), "{} {}", path.display(), document["kind"]);
        }
    }
}

#[test]
fn a_misspelt_field_is_found() {
    let mut deployment = documents(&deploy().join("operator.yaml")).remove(0);
    deployment["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = json!({});
    deployment["spec"]["template"]["spec"]["securityContext"]["runAsNonRot"] = json!(true);
    let found = problems(&deployment);
    assert_eq!(found, [".spec.template.spec.securityContext.runAsNonRot"]);
    deployment["spec"]["replicas"] = json!("two");
    assert_eq!(problems(&deployment).len(), 1);
}

#[test]
fn the_definition_is_what_the_program_prints() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_fuelrail-operator")).arg("crd").output().unwrap();
    let path = deploy().join("crd.yaml");
    if std::env::var_os("FUELRAIL_BLESS").is_some() {
        fs::write(&path, &output.stdout).unwrap();
    }
    let kept = fs::read(&path).unwrap_or_default();
    assert!(
        output.status.success() && kept == output.stdout,
        "{} differs; FUELRAIL_BLESS=1 rewrites it",
        path.display()
    );
}

/// In the pods of every kind of job, label and gate have the names that the operator reads.
#[test]
fn examples_name_the_gate_and_the_data_set() {
    let of = |name: &str| documents(&deploy().join("examples").join(name)).remove(0);
    let (job, set) = (of("job.yaml"), of("jobset.yaml"));
    let job_set = set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"].clone();
    for pod in [job["spec"]["template"].clone(), job_set, train_job_template(&of("trainjob.yaml"))] {
        assert_eq!(pod["metadata"]["labels"][DATASET_LABEL], "photos");
        assert_eq!(pod["spec"]["schedulingGates"], json!([{ "name": GATE }]));
        assert_eq!(pod["spec"]["volumes"][0]["hostPath"]["path"], "/var/lib/fuelrail/ml.photos");
    }
    // A job of an agent: its user and what decides its batches are as the data set has them.
    let served = documents(&deploy().join("examples/agent.yaml"));
    let (set, pod) = (&served[0]["spec"], &served[1]["spec"]["template"]["spec"]);
    let env = pod["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| &env.iter().find(|variable| variable["name"] == name).unwrap()["value"];
    let settings = &set["agent"]["settings"];
    assert_eq!((&pod["securityContext"]["runAsUser"], value("FUELRAIL_URI")), (&set["user"], &set["uri"]));
    assert_eq!(
        [value("FUELRAIL_BATCH_SIZE"), value("FUELRAIL_EPOCHS")],
        [&settings["batch_size"], &settings["epochs"]]
    );
    let mount = pod["containers"][0]["volumeMounts"][0]["mountPath"].as_str().unwrap();
    assert_eq!(pod["volumes"][0]["hostPath"]["path"], "/var/lib/fuelrail/ml.photos");
    assert_eq!(value("FUELRAIL_SHARE_DIR"), &json!(format!("{mount}/share")));
}

/// The role allows the requests that the operator makes, and no others.
#[test]
fn the_role_allows_what_the_operator_does() {
    let rules =
        documents(&deploy().join("rbac.yaml")).into_iter().find(|document| document["kind"] == "ClusterRole").unwrap();
    let list = |value: &Value| {
        value.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut allowed = BTreeSet::new();
    for rule in rules["rules"].as_array().unwrap() {
        for resource in list(&rule["resources"]) {
            allowed.extend(list(&rule["verbs"]).into_iter().map(|verb| format!("{verb} {resource}")));
        }
    }
    let needed = "list datasets, watch datasets, patch datasets, patch datasets/status, update datasets/finalizers, list jobs, \
                  watch jobs, create jobs, delete jobs, list pods, watch pods, patch pods, list nodes, watch nodes, create events, \
                  patch events";
    assert_eq!(allowed, needed.split(", ").map(str::to_owned).collect());
}
