"""The five runs of `scripts/gpu run`, and what `scripts/gpu pack` leaves to Python: the expected losses and the list of what is packed."""

import argparse
import collections
import contextlib
import ctypes
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

from steps import Failed, Refused, Run, free_port, lines, median, require

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Convolutions round to TF32 otherwise.
EXACT = {"NVIDIA_TF32_OVERRIDE": "0"}
# Most seconds of each run: at most five minutes each, twenty together.
LIMITS = {1: 200, 2: 200, 3: 200, 4: 280, 5: 200}
# name: data set, and the trainer's arguments, batch size apart
RECIPES = {
    "lenet": (["digits", "--count", "2048", "--seed", "7"], "--model lenet --decode 28x28x1 --rate 0.05 --batch-size 64"),
    "resnet18": (["photos", "--count", "160", "--seed", "7"], "--model resnet18 --decode 32x32x3 --set decode_fit=center-crop --rate 0.01 --batch-size 16"),
}


class Machine:
    """Where it runs: the pack's programs, the device, the environment of what links torch."""

    def __init__(self, pack, rehearse):
        self.pack, self.rehearse, self.work = pack, rehearse, pathlib.Path(tempfile.mkdtemp(prefix="fuelrail-gpu-"))
        if pack.is_file():
            self.pack = self.work / "pack"
            with tarfile.open(pack) as bundled:
                bundled.extractall(self.pack, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        self.device = "cpu" if rehearse else "cuda"
        asked = subprocess.run(
            [sys.executable, "-c", "import torch; print(torch.__file__, torch.__version__, torch.cuda.device_count())"], capture_output=True, text=True)
        file, self.torch, self.devices = asked.stdout.split() if asked.returncode == 0 else ("", "", "0")
        folders = [str(pathlib.Path(file).parent / "lib")] if file and not rehearse else []
        self.driver = dict(os.environ)
        if rehearse:
            folder = self.work / "driver"
            folder.mkdir()
            for name in ("libcuda.so", "libcuda.so.1"):
                (folder / name).symlink_to(self.pack / "libfuelrail_cuda_driver.so")
            self.driver["LD_LIBRARY_PATH"] = str(folder)
        before = os.environ.get("LD_LIBRARY_PATH", "")
        self.env = {**os.environ, "LD_LIBRARY_PATH": ":".join([*folders, str(self.pack), *before.split(":")]).rstrip(":"), "RUST_BACKTRACE": "0"}

    def program(self, name):
        return self.pack / name

    def needs_torch(self):
        if not self.torch:
            raise Refused("Python has no torch")
        if self.device == "cuda" and self.devices == "0":
            raise Refused("no device for Python's torch")

    def trainer(self, uri, text, log=None):
        """The trainer's command line."""
        own = f"--device {self.device} --set memory_limit=256MB --set shards=1" if "memory_limit" not in text else f"--device {self.device}"
        words = [self.program("fuelrail-train"), uri, *f"{text} {own}".split()]
        if self.rehearse:
            words += ["--threads", "1"]
        return words + (["--step-log", log] if log else [])


def losses(log):
    return [line["loss"] for line in lines(log)]


def compare(found, expected, first, rest, firsts=10):
    """Differences to the CPU's losses: `first` of the first ones, `rest` of all, as shares of the loss, or of 1 where the loss is below 1."""
    require(len(found) == len(expected), f"{len(found)} steps instead of {len(expected)}")
    off = [abs(a - b) / max(abs(b), 1.0) for a, b in zip(found, expected)]
    numbers = {"steps": len(found), f"off_first_{firsts}": max(off[:firsts]), "off_max": max(off), "last_loss": found[-1], "last_expected": expected[-1],
               "off": [float(f"{share:.2g}") for share in off[:10]]}
    require(max(off[:firsts]) <= first and max(off) <= rest, f"losses differ from the CPU's: {numbers}")
    return numbers


# Run 1: the driver and the feed.


def run_1(run, at):
    unit = 1 << (20 if at.rehearse else 30)
    run.step("machine", 30, lambda: machine(run, at))
    run.step("libraries", 10, lambda: libraries(run, at))
    run.step("doctor", 20, lambda: doctor(run, at))
    run.step("symbols", 10, lambda: symbols(at))
    run.step("conformance", 90, lambda: conformance(run, at))
    run.step("registration of 1, 4 and 16 GiB", 60, lambda: registration(run, at, unit))
    run.step("rate of bare pinned copies", 30, lambda: json.loads(driver(run, at, "rate", unit)[-1]))
    run.step("rate of the feed's copies", 40, lambda: feed_rate(run, at))
    run.step("compute-sanitizer", 60, lambda: sanitizer(run, at))


def machine(run, at):
    said = {"kernel": platform.release(), "cores": os.cpu_count(), "glibc": os.confstr("CS_GNU_LIBC_VERSION"), "python": platform.python_version(), "torch": at.torch}
    said["memory_gib"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    import resource

    said["memlock"] = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if shutil.which("nvidia-smi"):
        said["card"] = run.sh(["nvidia-smi", "--query-gpu=name,memory.total,driver_version,pcie.link.gen.current,pcie.link.width.current", "--format=csv,noheader"], codes=None)[1].strip()
    run.record["machine"] = said
    return said


def libraries(run, at):
    """Everything the programs need is found, and the C library is new enough."""
    own = tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))
    missing, needs = [], json.loads(at.program("manifest.json").read_text())
    for name in ("fuelrail", "fuelrail-train", "feed_rate", "cuda-tests"):
        _, said = run.sh(["ldd", at.program(name)], env=at.env, codes=None)
        missing += [f"{name}: {line.strip()}" for line in said.splitlines() if "not found" in line]
    newest = max(tuple(int(part) for part in one["glibc"].split(".")) for one in needs["files"].values() if one.get("glibc"))
    require(newest <= own, f"the pack needs glibc {newest}, here is {own}")
    require(not missing, "; ".join(missing))
    return {"glibc_needed": ".".join(map(str, newest))}


def doctor(run, at):
    code, said = run.sh([at.program("fuelrail"), "doctor", "--json"], codes=(0, 3))
    findings = {one["name"]: f"{one['grade']}: {one['value']}" for one in json.loads(said)["findings"]}
    run.record["doctor"] = findings
    if code == 3:
        raise Refused(f"io_uring: {findings.get('io_uring')}")
    return {"findings": len(findings)}


def symbols(at):
    """Every function of the driver's table (cuda/src/driver.rs) is in this machine's libcuda."""
    table = (ROOT / "cuda/src/driver.rs").read_text()
    names = re.findall(r"^    (cu[A-Z]\w+)\(", table, re.MULTILINE)
    require(len(names) > 20, "the table of functions was not found in cuda/src/driver.rs")
    path = at.driver.get("LD_LIBRARY_PATH", "").split(":")[0] + "/libcuda.so.1" if at.rehearse else "libcuda.so.1"
    try:
        library = ctypes.CDLL(path)
    except OSError as why:
        raise Refused(str(why)) from why
    lacking = [name for name in names if not hasattr(library, name)]
    require(not lacking, f"libcuda lacks {lacking}")
    return {"functions": len(names)}


def conformance(run, at):
    """The tests of bytes and order, against this machine's driver."""
    env = {**os.environ, "FUELRAIL_SEEDS": "20" if at.rehearse else "100"}
    if not at.rehearse:
        env["FUELRAIL_DRIVER"] = "real"
    names = ["tests::conformance", "several::a_capture", "several::the_stream", "canaries::a_buffer_written",
             "sharing::two_feeds", "sharing::feeds_go_on"]
    _, said = run.sh([at.program("cuda-tests"), *names, "--test-threads=1", "--nocapture"], env=env)
    passed = re.search(r"(\d+) passed", said)
    require(passed and int(passed[1]) == len(names), f"{passed and passed[0]} of {len(names)} tests")
    return {"tests": int(passed[1]), "said": re.findall(r"\d+ seeds, .*", said)}


def driver(run, at, what, unit):
    env = at.driver
    code, said = run.sh([sys.executable, HERE / "driver.py", what, unit], env=env, codes=None)
    if "cannot open shared object" in said or "returned 100" in said:
        raise Refused(said.strip().splitlines()[-1])
    require(code == 0, f"driver.py {what} ended with {code}")
    return said.splitlines()


def registration(run, at, unit):
    said = [json.loads(line) for line in driver(run, at, "register", unit)]
    refused = [f"{one['bytes'] >> 20} MiB: CUDA error {one['refused']}" for one in said if "refused" in one]
    run.record["registration"] = said
    if refused:
        raise Refused(f"memory could not be registered (memlock?): {refused}")
    require(not any("failed" in one for one in said), str(said))
    return {f"register_{one['bytes'] // unit}_s": one["register_s"] for one in said}


def feed_rate(run, at, rounds=1, seconds=8, batch=8, more=()):
    """The feed alone: its rounds, one line each."""
    what = ["digits", "--count", "512"] if at.rehearse else ["volumes", "--count", "48", "--scale", "0.05", "--threads", "6"]
    with run.serve(at.program("fuelrail"), *what) as url:
        words = [at.program("feed_rate"), url, batch, 1 if at.rehearse else seconds, rounds]
        _, said = run.sh([*words, *more], env=at.driver)
    rounds = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    require(rounds and all(one["batches"] > 0 for one in rounds), "no batch was copied")
    return rounds[0] if len(rounds) == 1 else {"rounds": rounds}


def sanitizer(run, at):
    tool = shutil.which("compute-sanitizer")
    if not tool:
        raise Refused("there is no compute-sanitizer")
    with run.serve(at.program("fuelrail"), "digits", "--count", "256") as url:
        checked = [tool, "--tool", "memcheck", "--leak-check", "full", "--error-exitcode", "9"]
        code, said = run.sh([*checked, at.program("feed_rate"), url, 16, 1, 2], env=at.driver, codes=None)
    if "not supported" in said or "999" in said:
        raise Refused(said.strip().splitlines()[-1])
    require(code == 0, f"compute-sanitizer ended with {code}")
    return {"said": re.findall(r"ERROR SUMMARY.*|LEAK SUMMARY.*", said)}


# Run 2: torch on the device.


def run_2(run, at):
    # A GPU that has bfloat16 computes in it unless told otherwise.
    run.step("LeNet against the CPU", 60, lambda: against_cpu(run, at, "lenet", "--precision full", EXACT, 2e-3, 0.05))
    # Rounding sends ResNet-18 another way soon: two kernels of one CPU are up to 2e-4 apart in the third step and 0.07 in the tenth.
    run.step("ResNet-18 against the CPU", 60, lambda: against_cpu(run, at, "resnet18", "--precision full", EXACT, 1e-3, 0.3, 3))
    # In bfloat16 the CPU itself is 4e-3 from its single precision in the third step, 0.03 in the fifth and 0.2 in the tenth.
    run.step("LeNet in bfloat16", 60, lambda: against_cpu(run, at, "lenet", "--precision bf16", {}, 0.02, 1.0, 3))
    run.step("LeNet over NCCL, one rank", 60, lambda: over_nccl(run, at))
    run.step("LeNet evaluated", 60, lambda: evaluated(run, at))
    run.step("tensors in Python", 40, lambda: python_loop(run, at, "check", "lenet", 64, 50, 0))


def against_cpu(run, at, name, more, env, *bars):
    what, recipe = RECIPES[name]
    log = at.work / f"{name}-{time.monotonic_ns()}.jsonl"
    with run.serve(at.program("fuelrail"), *what) as url:
        run.sh(at.trainer(prefix(url, what), f"{recipe} {more}", log), env={**at.env, **env})
    waits = [line["data_wait_ms"] / line["wall_ms"] for line in lines(log)]
    expected = json.loads(at.program(f"expected-{name}.json").read_text())
    return {**compare(losses(log), expected, *bars), "data_wait": median(waits)}


def prefix(url, what):
    return url + {"digits": "training/", "photos": "train/"}[what[0]]


def over_nccl(run, at):
    if at.device == "cpu":
        raise Refused("no device")
    ranks = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return against_cpu(run, at, "lenet", "--backend nccl --precision full", {**EXACT, **ranks}, 2e-3, 0.05)


def evaluated(run, at):
    what, recipe = RECIPES["lenet"]
    out = at.work / "outcome.json"
    with run.serve(at.program("fuelrail"), *what) as url:
        uri = prefix(url, what)
        run.sh(at.trainer(uri, f"{recipe} --epochs 4 --decay cosine --eval-uri {uri} --json {out}"), env=at.env)
    score = json.loads(out.read_text())
    require(score["score"]["accuracy"] > 0.9, f"accuracy {score['score']['accuracy']}")
    return {"accuracy": score["score"]["accuracy"], "device": score["device"]}


# Run 3: two ranks on one device.


def run_3(run, at):
    run.step("two ranks over gloo", 60, lambda: two_ranks(run, at))
    run.step("a rank is killed, both go on", 80, lambda: killed(run, at))
    run.step("a stop in time", 60, lambda: stopped(run, at))
    run.step("two jobs of one read", 60, lambda: two_jobs(run, at))
    run.step("out of memory", 60, lambda: refusal(run, at, "--model transformer --vocabulary 1000000000000", 1, "lower the batch size"))
    run.step("an object without a label", 60, lambda: refusal(run, at, "--decode 28x28x1 --eval-uri {}3/", 2, "has no label"))


def ranks(run, at, uri, text, act=lambda processes, logs: None):
    """Two ranks on the first device; their exit codes, outputs and the first one's log. `act` may disturb them."""
    port, folder = free_port(), pathlib.Path(tempfile.mkdtemp(dir=at.work))
    logs, outs, processes = [folder / f"{rank}.jsonl" for rank in (0, 1)], [folder / f"{rank}.out" for rank in (0, 1)], []
    try:
        for rank in (0, 1):
            env = {**at.env, **EXACT, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            words = [str(word) for word in at.trainer(uri, f"{text} --precision full --backend gloo --timeout-s 20", logs[rank])]
            with outs[rank].open("w") as out:
                processes.append(subprocess.Popen(words, env=env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))
        act(processes, logs)
        codes = [process.wait(timeout=run.left()) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        run.tail = "\n".join(out.read_text() for out in outs)
    return codes, [out.read_text() for out in outs], losses(logs[0])


def until_step(log, step, run):
    while len(lines(log)) < step:
        require(run.left() > 0.2, f"step {step} did not come")
        time.sleep(0.01)


def two_ranks(run, at):
    what, recipe = RECIPES["lenet"]
    recipe = recipe.replace("--batch-size", "--global-batch-size")
    with run.serve(at.program("fuelrail"), *what) as url:
        codes, _, found = ranks(run, at, prefix(url, what), recipe)
    require(codes == [0, 0], f"they ended with {codes}")
    return compare(found, json.loads(at.program("expected-lenet.json").read_text()), 5e-3, 0.1)


def killed(run, at):
    what, recipe = RECIPES["lenet"]
    saved = tempfile.mkdtemp(dir=at.work)
    recipe = recipe.replace("--batch-size", "--global-batch-size") + f" --checkpoint {saved}"

    def kill(processes, logs):
        until_step(logs[1], 7, run)
        processes[1].kill()

    with run.serve(at.program("fuelrail"), *what) as url:
        codes, outputs, _ = ranks(run, at, prefix(url, what), recipe + " --checkpoint-every 3 --slow 0=5", kill)
        require(codes == [3, -signal.SIGKILL] and "another rank" in outputs[0], f"they ended with {codes}")
        codes, outputs, found = ranks(run, at, prefix(url, what), recipe)
    require(codes == [0, 0] and "goes on from step" in outputs[0], f"the second time they ended with {codes}")
    expected = json.loads(at.program("expected-lenet.json").read_text())
    return compare(found, expected[-len(found) :], 5e-3, 0.1)


def stopped(run, at):
    what, recipe = RECIPES["lenet"]
    saved, took = pathlib.Path(tempfile.mkdtemp(dir=at.work)), []

    def stop(processes, logs):
        until_step(logs[0], 5, run)
        processes[0].send_signal(signal.SIGTERM)
        begun = time.monotonic()
        processes[0].wait(timeout=run.left())
        took.append(time.monotonic() - begun)

    with run.serve(at.program("fuelrail"), *what) as url:
        codes, _, found = ranks(run, at, prefix(url, what), f"{recipe} --epochs 50 --checkpoint {saved}", stop)
    require(codes == [4, 4] and list(saved.glob("*.safetensors")), f"they ended with {codes}")
    return {"steps": len(found), "from_signal_to_end_s": took[0]}


def two_jobs(run, at):
    """Two trainings beside each other, fed by one process that reads and decodes for both."""
    what, recipe = RECIPES["lenet"]
    folder = pathlib.Path(tempfile.mkdtemp(dir=at.work))
    logs = [folder / "0.jsonl", folder / "1.jsonl"]
    with run.serve(at.program("fuelrail"), *what) as url, contextlib.ExitStack() as started:
        uri = prefix(url, what)
        words = [at.program("fuelrail"), "share", uri, "--share-dir", folder, "--jobs", 2, *"--decode 28x28x1 --batch-size 64 --shards 1 --memory-limit 256MB --json".split()]
        reading = started.enter_context(run.started(words))
        text = f"{recipe} --precision full --set shared_read=true --set share_dir={folder}"
        jobs = [started.enter_context(run.started(at.trainer(uri, text, log), {**at.env, **EXACT})) for log in logs]
        *said, told = [process.communicate(timeout=run.left())[0] for process in (*jobs, reading)]
    run.tail = "\n".join([*said, told])
    require([job.returncode for job in jobs] == [0, 0] and "reads alone" not in run.tail and "driver's own" not in run.tail, "a job failed or read alone")
    expected = json.loads(at.program("expected-lenet.json").read_text())
    compared = [compare(losses(log), expected, 2e-3, 0.05) for log in logs]
    requests = json.loads(told[told.index("{") :])["stats"]["requests"]
    require(requests <= 2048, f"{requests} requests for 2048 samples")
    return {"requests": requests, "off_max": max(one["off_max"] for one in compared)}


def refusal(run, at, text, code, sentence):
    what, _ = RECIPES["lenet"]
    with run.serve(at.program("fuelrail"), *what) as url:
        uri = prefix(url, what)
        _, said = run.sh(at.trainer(uri, text.format(uri)), env=at.env, codes=(code,))
    require(sentence in said and "panicked" not in said, f"'{sentence}' is not in what it said")
    return {"said": [line for line in said.splitlines() if line.startswith("error")][:1]}


# Run 4: speed.


def run_4(run, at):
    # A core without bfloat16 takes seconds for a step in it.
    size, model, batch, precision = (32, "resnet18", 8, "full") if at.rehearse else (224, "resnet50", 192, "bf16")
    count, seconds = (64, 3) if at.rehearse else (3000, 26)
    photos = at.work / "photos"
    run.step("photos", 60, lambda: run.sh([at.program("fuelrail"), "serve", "photos", "--count", count, "--write-to", photos]) and {"count": count})
    text = (f"--model {model} --decode {size}x{size}x3 --set decode_fit=random-crop --set decode_flip=true --set drop_last=true --precision {precision} --batch-size {batch} "
            f"--rate 0.01 --epochs 100000 --finish-by {seconds}s --set memory_limit={'256MB' if at.rehearse else '8GB'}")
    speeds = collections.defaultdict(list)
    with run.serve(at.program("fuelrail"), photos, "--threads", "3") as url:

        def trained(kind, more):
            log = at.work / f"speed-{time.monotonic_ns()}.jsonl"
            run.sh(at.trainer(url + "train/", f"{text} {more}", log), env=at.env, codes=(4,))
            said = lines(log)
            said = said[len(said) // 4 :]  # the first quarter warms up
            require(len(said) > 3, f"only {len(said)} steps were done")
            walls = [line["wall_ms"] for line in said]
            numbers = {"steps": len(said), "step_ms": sum(walls) / len(walls), "step_ms_median": median(walls), "images_per_s": batch * 1e3 * len(walls) / sum(walls),
                       "data_wait": sum(line["data_wait_ms"] for line in said) / sum(walls)}
            speeds[kind].append(numbers)
            return numbers

        for turn in (1, 2):
            run.step(f"from the bucket, {turn}", seconds + 40, lambda: trained("feed", ""))
            run.step(f"on resident data, {turn}", seconds + 40, lambda: trained("resident", "--resident 8"))
        loop = lambda kind, *more: python_loop(run, at, kind, model, size, batch, seconds, *more)
        run.step("Python on resident data", seconds + 40, lambda: loop("resident"))
        run.step("Python with 16 DataLoader workers", seconds + 50, lambda: loop("loader", url, photos, 16))
        run.step("Python through the feed", seconds + 40, lambda: loop("feed", url, photos, 0))
    run.step("the feed against resident data", 5, lambda: shares(speeds, at))


def python_loop(run, at, *words):
    at.needs_torch()
    kind, model, size, batch, seconds, *more = words
    env = {**os.environ, "PYTHONPATH": str(at.program("python"))}
    with run.serve(at.program("fuelrail"), *RECIPES["lenet"][0]) as digits:
        more = more or [prefix(digits, RECIPES["lenet"][0])]
        code, said = run.sh([sys.executable, HERE / "loops.py", kind, model, size, batch, seconds, at.device, *more], env=env, codes=(0, 3))
    if code == 3:
        raise Refused(said.strip().splitlines()[-1])
    return json.loads(said.strip().splitlines()[-1])


def shares(speeds, at):
    require(speeds["feed"] and speeds["resident"], "a side was not measured")
    ms = {kind: sum(one["step_ms"] for one in all) / len(all) for kind, all in speeds.items()}
    numbers = {"step_time_share": ms["feed"] / ms["resident"], "data_wait": max(one["data_wait"] for one in speeds["feed"])}
    require(at.rehearse or numbers["step_time_share"] <= 1.01, f"a step with the feed takes {numbers['step_time_share']:.4f} x of one on resident data, more than 1.01")
    return numbers


# Run 5: a soak.


def run_5(run, at):
    run.step("open and close", 90, lambda: opened_and_closed(run, at))
    run.step("the feed for a minute", 90, lambda: feed_rate(run, at, seconds=50))
    run.step("the trainer for a minute", 90, lambda: soaked(run, at))


def used(run):
    """MiB in use on the device, where that can be asked."""
    if not shutil.which("nvidia-smi"):
        return None
    return int(run.sh(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"])[1].split()[0])


def opened_and_closed(run, at):
    before = used(run)
    rounds = feed_rate(run, at, rounds=12 if at.rehearse else 60, seconds=0.3)["rounds"]
    grown, left = rounds[-1]["rss_bytes"] - rounds[len(rounds) // 3]["rss_bytes"], used(run)
    require(grown < 64 << 20, f"the process grew by {grown >> 20} MiB over {len(rounds)} rounds")
    require(before is None or left <= before + 64, f"{left} MiB are in use on the device, {before} before")
    return {"rounds": len(rounds), "grown_bytes": grown, "device_mib": [before, left]}


def soaked(run, at):
    what, recipe = RECIPES["lenet"]
    seconds, log, sizes = 6 if at.rehearse else 55, at.work / "soak.jsonl", []
    with run.serve(at.program("fuelrail"), *what) as url:
        words = at.trainer(prefix(url, what), f"{recipe} --epochs 1000000 --finish-by {seconds}s", log)
        with (at.work / "soak.out").open("w") as out, run.started(words, at.env, out) as process:
            while process.poll() is None:
                require(run.left() > 0.5, "it does not end in time")
                found = re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{process.pid}/status").read_text())
                sizes += [int(found[1]) << 10] if found else []
                time.sleep(0.25)
            run.tail = (at.work / "soak.out").read_text()
            require(process.returncode == 4, f"it ended with {process.returncode}")
    said, grown = lines(log), sizes[-1] - sizes[len(sizes) // 2]
    require(grown < 64 << 20, f"the trainer grew by {grown >> 20} MiB in the second half")
    return {"steps": len(said), "grown_bytes": grown, "loss": said[-1]["loss"]}


def expect(at):
    """Trains on the CPU, for the losses that the device must come to."""
    run = Run(0, at.work, 600, {})
    for name, (what, recipe) in RECIPES.items():
        log = at.work / f"{name}.jsonl"
        with run.serve(at.program("fuelrail"), *what) as url:
            run.sh(at.trainer(prefix(url, what), recipe, log), env=at.env)
        at.program(f"expected-{name}.json").write_text(json.dumps(losses(log)) + "\n")


def manifest(at):
    """What is in the pack, and what it needs of the machine."""
    said = lambda *words: subprocess.run(words, capture_output=True, text=True, check=True).stdout
    files = {}
    for path in sorted(path for path in at.pack.rglob("*") if path.is_file()):
        files[path.name] = {"bytes": path.stat().st_size}
        if path.read_bytes()[:4] == b"\x7fELF":
            versions = {kind: re.findall(kind + r"_(\d+(?:\.\d+)+)", said("objdump", "-T", str(path))) for kind in ("GLIBC", "GLIBCXX")}
            newest = {kind.lower(): max(found, key=lambda text: [int(part) for part in text.split(".")]) for kind, found in versions.items() if found}
            files[path.name].update(newest, needs=re.findall(r"NEEDED\s+(\S+)", said("objdump", "-p", str(path))))
    commit = said("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12").strip()
    record = {"commit": commit, "glibc": os.confstr("CS_GNU_LIBC_VERSION"), "files": files}
    at.program("manifest.json").write_text(json.dumps(record, indent=1) + "\n")


def bundle(at, path):
    """The pack as one small file, which is there as a whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    with tarfile.open(part, "w:xz") as bundled:
        bundled.add(at.pack, ".")
    part.replace(path)


def main():
    parser = argparse.ArgumentParser(prog="scripts/gpu")
    parser.add_argument("what", choices=["run", "rehearse", "expect", "manifest", "bundle"])
    parser.add_argument("--bundle", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("numbers", nargs="*", type=int, help="1 to 5")
    parser.add_argument("--pack", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=pathlib.Path, default=os.environ.get("OUT") or ROOT / "target/gpu", help="where results go")
    parser.add_argument("--limit", type=float, help="most seconds of one run")
    asked = parser.parse_args()
    if not set(asked.numbers) <= set(LIMITS) or asked.what == "run" and not asked.numbers:
        parser.error("name the runs: 1 to 5")
    at = Machine(asked.pack.resolve(), asked.what != "run")
    failed = 0
    try:
        if asked.what == "bundle":
            bundle(at, asked.bundle)
            return 0
        if asked.what in ("expect", "manifest"):
            (expect if asked.what == "expect" else manifest)(at)
            return 0
        out = pathlib.Path(asked.out)
        out.mkdir(parents=True, exist_ok=True)
        facts = {"pack": json.loads(at.program("manifest.json").read_text()), "rehearsal": at.rehearse}
        for number in asked.numbers or list(LIMITS):
            run = Run(number, out, asked.limit or LIMITS[number], facts)
            globals()[f"run_{number}"](run, at)
            outcomes = collections.Counter(step["outcome"] for step in run.record["steps"])
            failed += outcomes["failed"]
            print(f"{number}: {dict(outcomes)}, {run.path}", flush=True)
    finally:
        shutil.rmtree(at.work, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
