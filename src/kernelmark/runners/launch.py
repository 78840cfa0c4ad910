"""Launchers of Ray nodes: on this machine, by ssh, and by Slurm.

Every node runs `kmark ray join HEAD:PORT`, which starts Ray there with a custom resource for each
model of devices and without lowering the priority of its processes. Ray connects the nodes; no
process of a launcher stays behind.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kernelmark import devices as device_kinds
from kernelmark.core.errors import UsageError
from kernelmark.host.processes import last_line
from kernelmark.runners.ray import INSTALL, NICENESS, gpu_resource

# Starting Ray takes seconds; a first contact by ssh, or a cold file system, may take a minute.
_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What came of starting a node: `error` is "" for success."""

    host: str
    error: str = ""


def join_command(address: str, *, block: bool = False) -> list[str]:
    """Return the command that starts Ray on this machine as a node of a cluster, with the resources
    of its devices."""
    return [
        *_ray(),
        "start",
        f"--address={address}",
        *_resources(),
        *(["--block"] if block else []),
    ]


def head_command(port: int) -> list[str]:
    """Return the command that starts the head of a cluster on this machine."""
    options = [f"--port={port}", "--include-dashboard=false", *_resources()]
    return [*_ray(), "start", "--head", *options]


def _ray() -> list[str]:
    if importlib.util.find_spec("ray") is None:
        raise UsageError("Ray is not installed", hint=INSTALL)
    return [sys.executable, "-m", "ray.scripts.scripts"]


def _resources() -> list[str]:
    """Return the option for the number of devices of each model; the CPU is a resource already."""
    counts: Counter[str] = Counter()
    for name in device_kinds.registry.names():
        kind = device_kinds.registry.get(name)
        if name != "cpu" and kind.available() is None:
            counts.update(gpu_resource(info) for info in kind.infos() if not info.unusable)
    return [f"--resources={json.dumps(counts)}"]


def start(command: Sequence[str]) -> None:
    """Run a command that starts Ray here; raise UsageError if it fails."""
    environment = {**os.environ, NICENESS[0]: NICENESS[1]}
    # Ray's processes outlive this command, so they are in no group of it.
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode:
        reason = last_line(done.stderr) or last_line(done.stdout)
        raise UsageError(f"ray start failed: {reason}", hint="look at it: ray status")


def replace_by(command: Sequence[str]) -> None:
    """Become a command that keeps Ray running on this machine until it is ended."""
    os.environ[NICENESS[0]] = NICENESS[1]
    os.execv(command[0], [*command])


def own_address(port: int) -> str:
    """Return the address of this machine that other machines reach, without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address that belongs to nobody
            return f"{probe.getsockname()[0]}:{port}"
        except OSError:
            return f"127.0.0.1:{port}"


def by_ssh(hosts: Sequence[str], address: str, program: str) -> list[Launched]:
    """Start a node on each host, all at the same time."""
    remote = shlex.join([*shlex.split(program), "ray", "join", address])

    def launch(host: str) -> Launched:
        return Launched(host=host, error=_run(["ssh", "-o", "BatchMode=yes", host, remote]))

    with ThreadPoolExecutor(max_workers=min(32, len(hosts))) as threads:
        return list(threads.map(launch, hosts))


def by_slurm(nodes: int, address: str, program: str, options: str) -> Launched:
    """Submit a job of Slurm that runs a node on each of its hosts, until it is cancelled or its
    time is up."""
    join = shlex.join([*shlex.split(program), "ray", "join", address, "--block"])
    words = ["sbatch", "--parsable", "--job-name=kernelmark", f"--nodes={nodes}"]
    words += ["--ntasks-per-node=1", *shlex.split(options), "--wrap", f"srun {join}"]
    output: list[str] = []
    error = _run(words, output)
    return Launched(host=f"Slurm job {output[0] if output else '?'}", error=error)


def _run(command: Sequence[str], output: list[str] | None = None) -> str:
    """Run a command; return why it failed, or "". Append the last line of its output."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S
        )
    except FileNotFoundError:
        return f"there is no program {command[0]}"
    except subprocess.TimeoutExpired:
        return f"no answer within {_TIMEOUT_S:.0f} s"
    if done.returncode:
        return last_line(done.stderr) or last_line(done.stdout) or f"exit code {done.returncode}"
    if output is not None:
        output.append(last_line(done.stdout))
    return ""
