//! The program `fuelrail-operator`: the operator, and the commands that its Jobs and its DaemonSet run on the nodes.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use fuelrail_k8s::dataset::Dataset;
use fuelrail_k8s::load::{Clean, Load, ready};
use fuelrail_k8s::metrics::{Metrics, serve};
use fuelrail_k8s::objects::NAME;
use fuelrail_k8s::operator::{Operator, Options, stopped};
use kube::{Client, CustomResourceExt as _};
use kube_lease_manager::LeaseManagerBuilder;
use tokio::net::TcpListener;

const EXAMPLES: &str = "Examples:
  fuelrail-operator crd | kubectl apply -f -
  fuelrail-operator run --image IMAGE
  kubectl apply -k bindings/k8s/deploy";

const RUN: &str = "Examples:
  fuelrail-operator run --image IMAGE
  fuelrail-operator run --image IMAGE --disk-root /mnt/nvme0 --disk-root /mnt/nvme1 --gpu-resource amd.com/gpu";

const CRD: &str = "Examples:
  fuelrail-operator crd | kubectl apply -f -";

const READY: &str = "Examples:
  fuelrail-operator ready";

const SECCOMP: &str = "Examples:
  fuelrail-operator seccomp
  fuelrail-operator seccomp --install /var/lib/kubelet/seccomp";

/// The profile under which trainers may use io_uring.
const PROFILE: &str = include_str!("../../../engine/docs/seccomp/fuelrail.json");
const PROFILE_NAME: &str = "fuelrail.json";

/// Data sets on the disks of a cluster's nodes, and jobs where their data is
#[derive(Parser, Debug)]
#[command(name = "fuelrail-operator", version, after_help = EXAMPLES)]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Run the operator, in a cluster or against the one of the kubeconfig
    #[command(after_help = RUN)]
    Run(Run),
    /// Print the custom resource definition
    #[command(after_help = CRD)]
    Crd,
    Load(Load),
    Clean(Clean),
    /// Say whether jobs can connect to `fuelrail share` in this pod
    #[command(after_help = READY)]
    Ready,
    /// Print the seccomp profile of trainers, or install it on this node and wait
    #[command(after_help = SECCOMP)]
    Seccomp {
        /// The kubelet's directory of profiles
        #[arg(long, value_name = "DIR")]
        install: Option<PathBuf>,
    },
}

#[derive(Args, Debug)]
struct Run {
    /// Image of the Jobs: it has `fuelrail-operator` and `fuelrail`
    #[arg(long, env = "OPERATOR_IMAGE")]
    image: String,
    /// Namespace of the lease by which replicas elect their leader
    #[arg(long, env = "POD_NAMESPACE", default_value = "fuelrail-system")]
    namespace: String,
    /// Name of this replica in the lease, unique among replicas [default: random]
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Address of /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// A directory of the nodes that data sets may name as their disk; repeat it for more
    #[arg(long = "disk-root", value_name = "DIR", default_values = ["/var/lib/fuelrail"])]
    disk_roots: Vec<String>,
    /// The resource that counts GPUs
    #[arg(long, value_name = "NAME", default_value = "nvidia.com/gpu")]
    gpu_resource: String,
}

fn main() -> ExitCode {
    let done = match Command::parse().what {
        What::Run(args) => in_runtime(run(args)),
        What::Crd => crd(),
        What::Load(load) => load.run().and_then(|report| {
            let text = serde_json::to_string(&report).map_err(|error| error.to_string())?;
            load.report.iter().try_for_each(|path| write(path, &text))?;
            print(&text)
        }),
        What::Clean(clean) => clean.run(),
        What::Ready => ready(),
        What::Seccomp { install: None } => print(PROFILE),
        What::Seccomp { install: Some(directory) } => install(&directory),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn in_runtime(what: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| format!("cannot start: {error}"))?.block_on(what)
}

async fn run(args: Run) -> Result<(), String> {
    // Where another provider is compiled in as well, rustls needs a default.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let to_api = |error: &dyn std::fmt::Display| {
        format!("cannot reach the API server: {error}\nhint: run it in a pod with a service account, or set KUBECONFIG")
    };
    let stop = stopped().map_err(|error| format!("signals: {error}"))?;
    let client = Client::try_default().await.map_err(|error| to_api(&error))?;
    let listener = TcpListener::bind(args.listen).await.map_err(|error| format!("{}: {error}", args.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    eprintln!("metrics on http://{address}/metrics");
    let metrics = Arc::new(Metrics::default());
    tokio::spawn(serve(listener, Arc::clone(&metrics)));
    let lease = LeaseManagerBuilder::new(client.clone(), NAME).with_namespace(args.namespace);
    let lease = lease.with_duration(15).with_grace(5);
    let lease = if let Some(name) = args.identity { lease.with_identity(name) } else { lease };
    let (leads, lease) = lease.build().await.map_err(|error| to_api(&error))?.watch().await;
    let options = Options { image: args.image, gpu: args.gpu_resource, roots: args.disk_roots };
    let operator = Operator::new(client, options, metrics);
    let ended = tokio::select! {
        () = stop => Ok(()),
        // Not on a task of its own: a panic must end the program, or this replica would keep the lease and do nothing.
        () = operator.run(leads.clone()) => Err("the lease manager has ended".to_owned()),
    };
    // When no receiver is left, the lease is released, and the next replica need not wait until it expires.
    drop(leads);
    let _ = tokio::time::timeout(Duration::from_secs(5), lease).await;
    ended
}

fn crd() -> Result<(), String> {
    let text = serde_saphyr::to_string(&Dataset::crd()).map_err(|error| error.to_string())?;
    // The API server warns of integer formats other than int32 and int64; `minimum` has the lower bound.
    let text = text.replace("format: uint", "format: int");
    print(&format!("# Made by `fuelrail-operator crd`; a test compares.\n{text}"))
}

/// Installs the profile in the kubelet's directory atomically, then waits for a signal: a DaemonSet's pods do not end.
fn install(directory: &Path) -> Result<(), String> {
    let (new, path) = (directory.join(".fuelrail.json.new"), directory.join(PROFILE_NAME));
    in_runtime(async {
        let stop = stopped().map_err(|error| format!("signals: {error}"))?;
        std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        write(&new, PROFILE)?;
        std::fs::rename(&new, &path).map_err(|error| format!("{}: {error}", path.display()))?;
        eprintln!("installed {}", path.display());
        stop.await;
        Ok(())
    })
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn print(text: &str) -> Result<(), String> {
    use std::io::Write as _;
    let text = text.trim_end();
    writeln!(std::io::stdout(), "{text}").map_err(|error| format!("standard output: {error}"))
}
