"""`--help`: commands by job; of a command with many options, those that people use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kernelmark.cli.app import command

FEW = 16  # options that fit on a screen with their explanations


def leaves(name, found):
    if hasattr(found, "commands"):
        return [
            leaf for word, one in found.commands.items() for leaf in leaves(f"{name} {word}", one)
        ]
    return [(name.strip(), found)]


COMMANDS = dict(leaves("", command()))


def options(text):
    return {word for word in text.replace("│", " ").split() if word.startswith("--")}


def offered(words):
    done = subprocess.run(
        [sys.executable, "-m", "kernelmark"],
        env={
            **os.environ,
            "_KMARK_COMPLETE": "complete_bash",
            "COMP_WORDS": f"kmark {words}",
            "COMP_CWORD": str(len(words.split())),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_every_command_is_listed_once_under_a_job(kmark):
    lines = kmark("--help").out.splitlines()
    listed = [line.split()[0] for line in lines[lines.index("Start here:") :] if line[2:3].strip()]
    names = [name for name in listed if name in command().commands]
    assert sorted(names) == sorted(command().commands)
    assert names[:5] == ["doctor", "run", "show", "compare", "tune"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_few_options(name):
    shown = [p for p in COMMANDS[name].params if p.param_type_name == "option" and not p.hidden]
    assert len(shown) <= FEW


@pytest.mark.parametrize("name", ["run", "gate", "iree ab", "history", "micro", "tune plan"])
def test_help_all_has_the_rest_and_the_next_help_has_not(kmark, name):
    short, full = (options(kmark(*name.split(), flag).out) for flag in ("--help", "--help-all"))
    assert short < full
    assert options(kmark(*name.split(), "--help").out) == short
    declared = {word for p in COMMANDS[name].params for word in p.opts if word.startswith("--")}
    assert declared - {"--no-sentinels", "--sentinels"} <= full


def test_a_command_with_few_options_has_no_second_help(kmark):
    assert "--help-all" not in kmark("show", "--help").out
    assert kmark("show", "--help-all").code == 2


def test_completion_offers_the_common_options_and_the_rest_by_their_beginning():
    assert (
        {"--suite", "--timing"}
        <= offered("run --")
        <= options("--help-all --help")
        | {name for p in COMMANDS["run"].params if not p.hidden for name in p.opts}
    )
    assert offered("run --warm") == {"--warmup-s"}


@pytest.mark.parametrize("name", COMMANDS)
def test_arguments_are_those_that_are_declared(name):
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "argument":
            assert parameter.metavar
            assert parameter.help
