"""Launchers of Ray nodes, with programs of the tests in place of ssh, sbatch and ray."""

from __future__ import annotations

import json
import stat

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.runners import launch


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Makes a program on the PATH that writes its arguments to NAME.log, then runs a script."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def make(name, script=""):
        path = tmp_path / name
        log = tmp_path / f"{name}.log"
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {log}\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return log

    return make


def test_ssh_runs_kmark_ray_join_on_each_host(program):
    log = program("ssh")
    launched = launch.by_ssh(["gpu1"], "10.0.0.1:6379", "/opt/km/bin/kmark")
    assert launched == [launch.Launched(host="gpu1")]
    words = log.read_text().splitlines()
    assert words[-2:] == ["gpu1", "/opt/km/bin/kmark ray join 10.0.0.1:6379"]
    assert "BatchMode=yes" in words


def test_a_host_that_fails_is_reported_and_the_others_start(program):
    program("ssh", 'case "$*" in *bad*) echo first >&2; echo no route >&2; exit 255;; esac')
    launched = launch.by_ssh(["good", "bad"], "a:1", "kmark")
    assert [(node.host, node.error) for node in launched] == [("good", ""), ("bad", "no route")]


def test_slurm_gets_a_job_that_joins_on_each_node(program):
    log = program("sbatch", "echo 4711")
    launched = launch.by_slurm(4, "a:1", "kmark", "--gpus-per-node=8 --time=60")
    assert (launched.host, launched.error) == ("Slurm job 4711", "")
    words = log.read_text().splitlines()
    assert {"--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--time=60"} <= {*words}
    assert words[-2:] == ["--wrap", "srun kmark ray join a:1 --block"]


def test_a_missing_launcher_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "sbatch" in launch.by_slurm(1, "a:1", "kmark", "").error


def test_a_node_gets_a_resource_for_each_model_of_devices(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "3")
    words = launch.join_command("a:1", block=True)
    (resources,) = (w.partition("=")[2] for w in words if w.startswith("--resources="))
    assert json.loads(resources)["gpu_model:a-script"] == 3
    assert {"--address=a:1", "--block"} <= {*words}


def test_ray_that_does_not_start_is_a_usage_error():
    with pytest.raises(UsageError) as error:
        launch.start(["/bin/sh", "-c", "echo port in use >&2; exit 1"])
    assert "port in use" in error.value.message


def test_ray_is_started_without_lowering_its_priority(tmp_path):
    launch.start(["/bin/sh", "-c", f"echo $RAY_worker_niceness > {tmp_path}/nice"])
    assert (tmp_path / "nice").read_text() == "0\n"
