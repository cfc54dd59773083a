"""Two ranks that keep blocks for each other: what they read of the bucket together is the data set, once."""

import json
import signal
import subprocess
import sys
import time

import pytest

import fuelrail

RANK = """
import json, sys
import fuelrail.torch, torch
import torch.distributed as distributed
url, store, secret, rank = sys.argv[1:]
distributed.init_process_group("gloo", init_method="file://" + store, rank=int(rank), world_size=2)
settings = {"memory_limit": "64MiB", "shards": 1, "pin": False, "cache_limit": "1MiB", "hedge_percent": 0, "peer_node": "node-" + rank}
data = fuelrail.torch.IterableDataset(url, batch_size=25, seed=3, peers=True, peer_secret_file=secret, **settings)
taken = []
for epoch in range(3):
    for batch in torch.utils.data.DataLoader(data, batch_size=None, num_workers=0):
        taken.append([epoch, list(batch.ids)])
distributed.barrier()
stats = data.stats()
distributed.barrier()
handed = data.hand_over(20) if rank == "1" else None
distributed.barrier()
print(json.dumps([taken, stats["peers"], stats["requests"], handed]))
data.close()
distributed.destroy_process_group()
"""


def test_two_ranks_read_the_bucket_once(serve, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    # So far away that a rank has time to answer: it may take three times as long as the bucket.
    bucket = serve("digits", "--count", 1000, "--script", "latency=fixed:20ms")
    (tmp_path / "secret").write_text("a secret of this test\n".replace(" ", "-"))
    shared = [bucket.url + "training/", str(tmp_path / "store"), str(tmp_path / "secret")]
    started = [[sys.executable, "-c", RANK, *shared, rank] for rank in "01"]
    ranks = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for arguments in started]
    told = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    for epoch in range(3):
        assert sorted(id for taken, *_ in told for of, ids in taken if of == epoch for id in ids) == list(range(1000))
    hits, misses = (sum(peers[name] for _, peers, *_ in told) for name in ("hits", "misses"))
    requests = sum(rank[2] for rank in told)
    # Half of what each needs is the other's. One that does not answer in time costs the bucket a request.
    assert hits > 500 and hits + misses > 1000, (hits, misses)
    assert 1000 <= requests <= 1000 + misses, "the data set once, for both of them and all epochs, and what a rank did not give"
    handed = told[1][3]
    assert handed["complete"] and handed["blocks"] > 100 and handed["failed"] == 0, handed


# One of two ranks, each of which takes itself to be on a host of its own.
HOST = """
import json, socket, sys
url, store, rank = sys.argv[1:]
socket.gethostname = lambda: "host-" + rank
import fuelrail.torch, torch.distributed as distributed
distributed.init_process_group("gloo", init_method="file://" + store, rank=int(rank), world_size=2)
try:
    len(fuelrail.torch.IterableDataset(url, batch_size=25, peers=True, memory_limit="64MiB", shards=1, pin=False))
except fuelrail.UsageError as error:
    print(json.dumps([str(error), error.hint]))
distributed.barrier()
distributed.destroy_process_group()
"""


def test_a_loopback_address_is_not_for_other_hosts(digits, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setenv("MASTER_ADDR", "127.0.1.1")
    started = [[sys.executable, "-c", HOST, digits.url + "training/", str(tmp_path / "store"), rank] for rank in "01"]
    ranks = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for arguments in started]
    told = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    assert told[0] == told[1], "none waits for the other"
    said, hint = told[0]
    assert "rank 0 on host-0 is 127." in said and hint in said and "MASTER_ADDR" in hint


def test_peers_need_an_address_for_each_rank(digits):
    with pytest.raises(fuelrail.UsageError, match="1 addresses"):
        fuelrail.Loader(digits.url + "training/", batch_size=5, world=2, peers=["127.0.0.1:7000"])


def test_handing_over_needs_somebody_to_take_it(digits):
    with fuelrail.Loader(digits.url + "training/", batch_size=5) as loader:
        with pytest.raises(fuelrail.UsageError, match="no other rank") as refused:
            loader.hand_over(1)
        assert "set peers" in refused.value.hint
        with pytest.raises(fuelrail.UsageError, match="how many seconds"):
            loader.hand_over(-1)


# The other rank takes connections and never answers.
HANDING = """
import signal, socket, sys
import fuelrail
signal.signal(signal.SIGINT, signal.default_int_handler)
silent = socket.create_server(("127.0.0.1", 0))
peers = ["127.0.0.1:0", "127.0.0.1:%d" % silent.getsockname()[1]]
settings = {"world": 2, "peers": peers, "peer_secret_file": sys.argv[2], "cache_limit": "1MiB", "memory_limit": "64MiB", "shards": 1}
loader = fuelrail.Loader(sys.argv[1], batch_size=5, pin=False, **settings)
try:
    print("handing over", flush=True)
    print(loader.hand_over(60), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
loader.close()
"""


def test_an_interrupt_ends_the_wait_for_a_rank_that_takes_nothing(digits, tmp_path):
    (tmp_path / "secret").write_text("a-secret-of-this-test")

    def seconds():
        program = [sys.executable, "-c", HANDING, digits.url + "training/", str(tmp_path / "secret")]
        child = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline().strip() == "handing over"
        time.sleep(0.5)
        begun = time.monotonic()
        child.send_signal(signal.SIGINT)
        said = child.stdout.readline().strip()
        took = time.monotonic() - begun
        assert child.wait(timeout=30) == 0
        # On a busy machine it may have given that rank up before.
        return took if said == "interrupted" else 60

    # A busy machine may hear one late; not every one.
    assert any(seconds() < 0.2 for _ in range(5))
