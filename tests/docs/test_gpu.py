"""docs/gpu.md says what the code does; its script and its snippet are run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmark.backends import registry
from kernelmark.gpu import rtc
from kernelmark.gpu.library import CUDA, HIP

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
BUNDLE = ROOT / "scripts" / "offline-bundle"


def run(*words, cwd, **variables):
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_requirements_are_those_of_the_code():
    assert f"`{CUDA.libraries[0]}`" in TEXT
    assert f"`{HIP.libraries[-1]}`" in TEXT
    assert f"clang and lld {rtc.OLDEST_CLANG} or newer" in TEXT
    source = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))
    for name in re.findall(r"`([A-Z]+_[A-Z_]+)`", TEXT):
        assert f'"{name}"' in source, f"nothing reads {name}"


def test_the_table_of_backends_is_that_of_the_registry():
    section = TEXT.split("## Backends")[1].split("##")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, flags=re.MULTILINE))
    there = {}
    for name in registry.names():
        kinds = [kind for kind in registry.get(name).device_kinds if kind in ("cuda", "hip")]
        if kinds:
            there[name] = ", ".join(kinds)
    assert told == there


@pytest.mark.slow
def test_the_command_makes_a_pack_that_is_used(tmp_path):
    if rtc.unavailable("cuda"):
        pytest.skip(rtc.unavailable("cuda"))
    command = re.search(r"^kmark (micro .*)$", TEXT, flags=re.MULTILINE)
    assert command
    assert run("-m", "kernelmark", *command[1].split(), cwd=tmp_path).returncode in (0, 3)
    assert (tmp_path / "pack" / "sm_90").is_dir()
    ask = (
        "from kernelmark.gpu import rtc as compiler\n"
        "from kernelmark.kernels import rtc\n"
        "compiler._compiler = None  # a pack must do without\n"
        "print(compiler.compile_source(rtc.source('device.cu'), arch='sm_90').cached)\n"
    )
    assert run("-c", ask, cwd=tmp_path, KERNELMARK_PACK="pack").stdout == "True\n"
    assert run("-c", ask, cwd=tmp_path).returncode == 1


def test_the_bundle_has_the_options_that_the_page_names(tmp_path):
    options = run(str(BUNDLE), "--help", cwd=tmp_path).stdout
    section = TEXT.split("## A host without network")[1].split("##")[0]
    for name in set(re.findall(r"(?<![\w-])(--(?:platform|python|has|with|numeric))\b", section)):
        assert name in options
    assert "iree-runtime" in options


def test_a_bundle_is_kernelmark(tmp_path):
    """Without the part that needs a registry: everything else is said to be there."""
    there = [word for name in ("typer", "rich", "SQLAlchemy", "PyYAML") for word in ("--has", name)]
    done = run(str(BUNDLE), *there, "-o", "bundle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ask = "import kernelmark, pathlib; print(pathlib.Path(kernelmark.__file__).parents[1].name)"
    assert run("-c", ask, cwd=tmp_path, PYTHONPATH="bundle").stdout == "bundle\n"
    words = ("-m", "kernelmark", "--version")
    assert run(*words, cwd=tmp_path, PYTHONPATH="bundle").stdout.startswith("kernelmark 0.")


def test_a_bundle_refuses_what_it_would_not_hold(tmp_path):
    done = run(str(BUNDLE), "--has", "nonsense", "-o", "bundle", cwd=tmp_path)
    assert done.returncode == 1
    assert "nonsense would not be in the bundle" in done.stderr
    assert not (tmp_path / "bundle").exists()
