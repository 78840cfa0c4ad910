"""A third party's package adds an op and a backend and tests them with our contracts."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Variables for a process that sees the plugin as if pip had installed it.

    What pip would write is written here from the plugin's own pyproject.toml, since a test must
    not need a network or a build tool.
    """
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("site")
    info = folder / f"kernelmark_axpy-{project['version']}.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head)
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    old = os.environ.get("PYTHONPATH")
    path = [str(folder), str(HERE / "src"), *([old] if old else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def run(variables, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], env=variables, capture_output=True, text=True, timeout=600
    )


def test_the_registries_find_it(installed):
    code = (
        "from kernelmark import backends, ops\n"
        "assert 'axpy' in ops.registry.names(), ops.registry.names()\n"
        "assert 'plain' in backends.registry.names()\n"
        "assert ops.parse('axpy n=8 dtype=f32').key == 'axpy n=8 dtype=f32 alpha=2.0'\n"
        "assert ops.registry.get('axpy').flops(ops.parse('axpy n=8 dtype=f32')) == 16\n"
        "assert backends.registry.get('plain').available() is None\n"
    )
    done = run(installed, "-c", code)
    assert done.returncode == 0, done.stderr


def test_it_passes_the_contracts(installed):
    done = run(
        installed, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / "check_contracts.py")
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_the_contracts_can_fail(installed, tmp_path):
    """A backend that forgets alpha is caught by the same tests."""
    broken = (HERE / "check_contracts.py").read_text() + (
        "\nimport kernelmark_axpy.backend as module\n"
        "original = module.PlainKernel.launch\n"
        "def launch(self, stream, set_index):\n"
        "    self._alpha = 1.0\n"
        "    original(self, stream, set_index)\n"
        "module.PlainKernel.launch = launch\n"
    )
    path = tmp_path / "check_broken.py"
    path.write_text(broken)
    done = run(installed, "-m", "pytest", "-p", "no:cacheprovider", str(path))
    assert done.returncode == 1
    assert "is wrong by" in done.stdout


def test_without_it_nothing_is_left():
    done = run(dict(os.environ), "-c", "from kernelmark import ops; ops.registry.get('axpy')")
    assert done.returncode == 1
    assert "unknown op 'axpy'" in done.stderr
