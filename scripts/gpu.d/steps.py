"""Steps under a time limit, each recorded as soon as it ends; programs of the pack, started and stopped."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time


class Refused(Exception):
    """This machine does not have, or does not let us use, what the step needs."""


class Failed(Exception):
    """The step found something wrong."""


def require(good, why):
    """Fails the step unless `good`."""
    if not good:
        raise Failed(why)


class Run:
    """One numbered run: its steps, and the file they are recorded in."""

    def __init__(self, number, out, limit_s, facts):
        self.path = out / f"gpu-{number}.json"
        self.ends = time.monotonic() + limit_s
        self.step_ends = self.ends
        self.tail = ""
        self.record = {"schema": 1, "run": number, "limit_s": limit_s, "began": time.strftime("%FT%TZ", time.gmtime()), **facts, "steps": []}
        self.write()

    def write(self):
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.record, indent=1) + "\n")
        part.replace(self.path)

    def left(self):
        """Seconds until the step must end."""
        return max(self.step_ends - time.monotonic(), 0.1)

    def step(self, name, limit_s, act):
        """Runs `act`, which returns the step's numbers; nothing it raises ends the run."""
        begun, self.tail = time.monotonic(), ""
        self.step_ends = min(begun + limit_s, self.ends)
        entry = {"step": name, "outcome": "ok", "numbers": {}}
        if self.ends - begun < 2:
            entry.update(outcome="skipped", why="no time is left in this run")
        else:
            try:
                entry["numbers"] = act() or {}
            except Refused as why:
                entry.update(outcome="refused", why=str(why))
            except subprocess.TimeoutExpired as late:
                entry.update(outcome="failed", why=f"did not end within {late.timeout:.0f} s")
            except Exception as why:  # whatever it is, the next step comes
                entry.update(outcome="failed", why=f"{type(why).__name__}: {why}")
        entry["seconds"] = round(time.monotonic() - begun, 2)
        if entry["outcome"] != "ok" and self.tail:
            entry["tail"] = self.tail.splitlines()[-25:]
        self.record["steps"].append(entry)
        self.write()
        why = f": {entry['why']}" if "why" in entry else ""
        print(f"{self.record['run']} {name:34} {entry['outcome']:8} {entry['seconds']:7.1f} s{why[:200]}", flush=True)

    def sh(self, words, env=None, codes=(0,)):
        """Runs a program until the step's end; returns its exit code and output. Fails on another code than `codes`, unless that is None."""
        with self.started(words, env) as process:
            try:
                output, _ = process.communicate(timeout=self.left())
            except subprocess.TimeoutExpired:
                stop(process)
                self.tail += process.communicate()[0]
                raise
        self.tail += output
        if codes is not None:
            require(process.returncode in codes, f"{pathlib.Path(words[0]).name} ended with {process.returncode}: {output.strip()[-300:]}")
        return process.returncode, output

    @contextlib.contextmanager
    def started(self, words, env=None, out=subprocess.PIPE):
        """A program in a group of its own, which has ended when this ends."""
        process = subprocess.Popen(
            [str(word) for word in words], env=env or os.environ.copy(), stdout=out, stderr=subprocess.STDOUT, text=True,
            stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            yield process
        finally:
            stop(process)

    @contextlib.contextmanager
    def serve(self, fuelrail, *what):
        """The embedded bucket; its URL."""
        words = [fuelrail, "serve", *what, "--json", "--for", "600"]
        process = subprocess.Popen(
            [str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
        try:
            first = process.stdout.readline()
            require(first.startswith("{"), f"serve did not start: {first}")
            yield json.loads(first)["url"]
        finally:
            stop(process)
            process.stdout.close()


def stop(process):
    """Ends a process and all it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port():
    """A port below those that connections get by themselves, so that none takes it before it is listened on."""
    for port in range(20_011 + os.getpid() % 5_000, 32_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise Failed("no port is free")


def lines(path):
    """The whole lines of a log of JSON."""
    found = []
    for line in pathlib.Path(path).read_text().splitlines() if pathlib.Path(path).exists() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def median(values):
    values = sorted(values)
    return values[len(values) // 2] if values else float("nan")
