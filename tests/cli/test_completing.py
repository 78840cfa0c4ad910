"""What a shell offers after Tab, through the words that it really sends."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kernelmark.cli import options


@pytest.mark.parametrize(
    ("complete", "incomplete", "offered"),
    [
        (options.complete_backends, "num", ["numpy"]),
        (options.complete_backends, "numpy,to", ["numpy,torch"]),
        (options.complete_backends, "numpy,num", []),
        (options.complete_suites, "dem", ["demo"]),
        (options.complete_dtypes, "bf", ["bf16"]),
        (options.complete_ops, "batched_gemm_", ["batched_gemm_quant"]),
        (options.complete_devices, "cp", ["cpu"]),
        (options.complete_runs, "la", ["latest"]),
    ],
)
def test_names_are_completed_after_the_last_comma(complete, incomplete, offered):
    assert complete(incomplete) == offered


@pytest.mark.parametrize(
    ("complete", "incomplete", "offered"),
    [
        (options.complete_timings, "", ["quick", "default", "full", "mine.toml", "sub/"]),
        (options.complete_timings, "q", ["quick"]),
        (options.complete_timings, "m", ["mine.toml"]),
        (options.complete_timings, "sub/", ["sub/other.toml"]),
        (options.complete_timings, "./m", ["./mine.toml"]),
        (options.complete_timings, "gone/", []),
        (options.complete_timing_files, "", ["mine.toml", "sub/"]),
    ],
)
def test_presets_and_toml_files_are_timings(tmp_path, monkeypatch, complete, incomplete, offered):
    (tmp_path / "sub").mkdir()
    for name in ("mine.toml", "mine.py", ".hidden.toml", "sub/other.toml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert complete(incomplete) == offered


def test_runs_are_offered_by_id_and_label(kmark, fake_words):
    assert kmark(*fake_words, "--limit", "1", "--label", "nightly").code == 0
    assert options.complete_runs("night") == ["nightly"]
    assert len(options.complete_runs("20")) == 1


@pytest.mark.parametrize(
    ("shell", "variables"),
    [
        ("bash", {"COMP_WORDS": "kmark run -b numpy,to", "COMP_CWORD": "3"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "kmark run -b numpy,to"}),
        (
            "fish",
            {
                "_TYPER_COMPLETE_ARGS": "kmark run -b numpy,to",
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            },
        ),
    ],
)
def test_every_shell_is_answered(shell, variables):
    done = subprocess.run(
        [sys.executable, "-m", "kernelmark"],
        env={**os.environ, "_KMARK_COMPLETE": f"complete_{shell}", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "numpy,torch" in done.stdout
    assert done.stderr == ""
