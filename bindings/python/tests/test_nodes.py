"""Two nodes, each a network namespace of its own, under torchrun and under Ray: ranks find each other by themselves, trust each other by
certificates of the job's authority, and read the bucket once. Needs root, `ip` and `openssl`."""

import json
import os
import secrets
import shutil
import subprocess
import sys

import pytest

EPOCHS = 3
# Its sockets want a short path.
RAY_FOLDER = f"/tmp/fr{os.getpid()}"

# What each rank does, once torch.distributed is initialised.
TRAIN = """
import json, os, socket
import fuelrail.torch, torch.distributed

def train(url, folder):
    distributed = torch.distributed
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((os.environ["MASTER_ADDR"], 9))
        own = f"{folder}/{way.getsockname()[0]}"
    trust = {"peer_ca_file": f"{folder}/ca.pem", "peer_cert_file": f"{own}.pem", "peer_key_file": f"{own}.key"}
    settings = {"memory_limit": "64MiB", "shards": 1, "pin": False, "cache_limit": "1MiB", "hedge_percent": 0}
    data = fuelrail.torch.IterableDataset(url, batch_size=25, seed=3, peers=True, **trust, **settings)
    taken = [[epoch, list(batch.ids)] for epoch in range(EPOCHS) for batch in data]
    distributed.barrier()
    stats = data.stats()
    distributed.barrier()
    with open(f"{own}.json", "w") as told:
        json.dump([taken, stats["peers"], stats["requests"]], told)
    data.close()
""".replace("EPOCHS", str(EPOCHS))

TORCHRUN = """
import sys
import torch.distributed
from train import train
torch.distributed.init_process_group("gloo")
train(*sys.argv[1:])
torch.distributed.destroy_process_group()
"""

RAY = """
import os, sys
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
url, folder = sys.argv[1:]

def each(config):
    from train import train
    train(url, folder)

ray.init(address="auto", runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([folder, *sys.path])}})
how = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}, placement_strategy="STRICT_SPREAD")
TorchTrainer(each, scaling_config=how, run_config=RunConfig(storage_path=folder + "/ray"), torch_config=TorchConfig(backend="gloo")).fit()
"""


def run(*words):
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


@pytest.fixture
def nodes():
    """The names and addresses of two network namespaces, on a bridge with an address of this one's, which comes first."""
    lacking = [tool for tool in ("ip", "openssl") if shutil.which(tool) is None]
    if lacking or os.geteuid() != 0:
        pytest.skip(f"network namespaces need root, and {lacking or 'nothing else'}")
    net, names = f"10.{os.getpid() % 200 + 20}.7", [f"fuelrail-{os.getpid()}-{number}" for number in (2, 3)]
    bridge = f"fr{os.getpid()}"
    try:
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "address", "add", f"{net}.1/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        for number, name in enumerate(names, 2):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"{bridge}-{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"{bridge}-{number}", "master", bridge, "up")
            for words in (["address", "add", f"{net}.{number}/24", "dev", "eth0"], ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"]):
                run("ip", "-netns", name, *words)
        yield f"{net}.1", [(name, f"{net}.{number}") for number, name in enumerate(names, 2)]
    finally:
        for name in names:
            left = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
            subprocess.run(["kill", "-9", *left], capture_output=True)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        subprocess.run(["ip", "link", "delete", bridge], capture_output=True)


def certificates(folder, addresses):
    """An authority of the job's own, and a certificate of it for each node."""
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    run(*new, "-subj", "/CN=job", "-keyout", folder / "ca.key", "-out", folder / "ca.pem")
    for own in addresses:
        whose = ["-subj", f"/CN={own}", "-addext", f"subjectAltName=IP:{own}", "-addext", "basicConstraints=critical,CA:FALSE"]
        run(*new, *whose, "-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-keyout", folder / f"{own}.key", "-out", folder / f"{own}.pem")


@pytest.fixture
def job(serve, nodes, tmp_path):
    """A bucket's URL, the nodes, a folder with what they need, and a function that starts a Python program on a node."""
    pytest.importorskip("torch", reason="torch is not installed")
    own, nodes = nodes
    certificates(tmp_path, [address for _, address in nodes])
    (tmp_path / "train.py").write_text(TRAIN)
    started, token = [], secrets.token_hex(32)

    def start(name, *words):
        ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_TRAIN_V2_ENABLED": "1"}
        env = {**os.environ, **ray, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        words = [str(word) for word in ("ip", "netns", "exec", name, sys.executable, *words)]
        started.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    # So far away that a rank has time to answer: it may take three times as long as the bucket.
    yield serve("digits", "--count", 1000, "--host", own, "--script", "latency=fixed:20ms").url + "training/", nodes, tmp_path, start
    for process in started:
        process.kill()
        process.communicate()
    shutil.rmtree(RAY_FOLDER, ignore_errors=True)


def ended_well(*processes):
    said = []
    for process in processes:
        try:
            said.append(process.communicate(timeout=180)[0])
        except subprocess.TimeoutExpired as late:
            pytest.fail(f"it did not end: {late.output.decode()}")
    assert not any(process.returncode for process in processes), "\n".join(said)


def assert_read_once(folder, nodes):
    told = [json.loads((folder / f"{address}.json").read_text()) for _, address in nodes]
    for epoch in range(EPOCHS):
        assert sorted(id for taken, *_ in told for of, ids in taken if of == epoch for id in ids) == list(range(1000))
    hits, misses = (sum(peers[name] for _, peers, _ in told) for name in ("hits", "misses"))
    requests = sum(requests for *_, requests in told)
    # Half of what each needs is the other's. One that does not answer in time costs the bucket a request.
    assert hits > 500 and 1000 <= requests <= 1000 + misses, (hits, misses, requests)


def test_two_nodes_under_torchrun_read_the_bucket_once(job):
    url, nodes, folder, start = job
    (folder / "main.py").write_text(TORCHRUN)
    to = ["--master-addr", nodes[0][1], "--master-port", 29507]
    each = lambda rank: ["-m", "torch.distributed.run", "--nnodes", 2, "--node-rank", rank, "--nproc-per-node", 1, *to, folder / "main.py", url, folder]
    ended_well(*(start(name, *each(rank)) for rank, (name, _) in enumerate(nodes)))
    assert_read_once(folder, nodes)


@pytest.mark.slow
def test_two_nodes_under_ray_read_the_bucket_once(job):
    pytest.importorskip("ray.train.torch", reason="ray[train] is not installed")
    url, nodes, folder, start = job
    (folder / "main.py").write_text(RAY)
    (head, first), (other, second) = nodes
    node = lambda address: ["-m", "ray.scripts.scripts", "start", "--block", "--node-ip-address", address, "--num-cpus", 1, "--object-store-memory", 100 << 20]
    start(head, *node(first), "--head", "--port", 6379, "--include-dashboard", "false", "--temp-dir", RAY_FOLDER)
    start(other, *node(second), "--address", f"{first}:6379")
    ended_well(start(head, folder / "main.py", url, folder))
    assert_read_once(folder, nodes)
