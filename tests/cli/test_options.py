"""Options that commands share are declared once, as fields of a class."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import pytest
import typer
from typer.main import get_command

from kernelmark.backends import BackendRef
from kernelmark.cli import options as o
from kernelmark.cli.app import command
from kernelmark.cli.compare.ab import ComparedOptions
from kernelmark.cli.measure.run import RunChoice
from kernelmark.core.immutable import flags
from kernelmark.core.timing import PRESETS, Cache, Timing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shared(o.Options):
    timing: Annotated[o.TimingChoice, o.timing_options()]
    again: Annotated[int, o.option("--again N", help="Repeat.")] = 3


def test_a_command_has_the_fields_of_its_options_as_options():
    seen = []

    def call(context: typer.Context, word: Annotated[str, typer.Argument()], *, shared: Shared):
        seen.append((context.params["again"], word, shared.again, shared.timing.changes))

    # Typer evaluates annotations where a function is defined: here they are local.
    call.__annotations__ = {
        "context": typer.Context,
        "word": Annotated[str, typer.Argument()],
        "shared": Shared,
    }
    app = typer.Typer()
    app.command()(o.expand_options(call))
    parser = get_command(app)
    parser(["here", "--again", "5", "--cache", "hot"], standalone_mode=False)
    parser(["there"], standalone_mode=False)
    assert seen == [(5, "here", 5, {"cache": "hot"}), (3, "there", 3, {})]


def test_two_groups_cannot_declare_the_same_option():
    def call(*, one, other): ...

    call.__annotations__ = {"one": Shared, "other": Annotated[o.TimingChoice, o.timing_options()]}
    with pytest.raises(TypeError):
        o.expand_options(call)


def test_a_command_without_groups_stays_as_it_is():
    def call(word: str = ""): ...

    assert o.expand_options(call) is call


@pytest.mark.parametrize("name", ["run", "ab", "gate", "bisect"])
def test_commands_that_measure_have_all_timing_options(name):
    params = {parameter.name for parameter in command().commands[name].params}
    assert o.timing_options().parameters().keys() <= params


@pytest.mark.parametrize("group", [RunChoice, ComparedOptions])
def test_every_timing_option_sets_its_field(group):
    defaults = {name: p.default for name, p in group.parameters().items()}
    declared = {flag.parameter: name for name, flag in flags(Timing).items()}
    options = {option: 0.5 for option in defaults if option in declared}
    changes = group.of(defaults | options | {"cache": "hot"}).timing.changes
    assert changes == {declared[option]: 0.5 for option in options} | {"cache": "hot"}
    assert len(changes) > 7
    assert not group.of(defaults).timing.changes


def test_options_make_the_selection_and_the_timing():
    defaults = {name: p.default for name, p in RunChoice.parameters().items()}
    words = {"op": ["gemm,conv", "gemm"], "backend": ["numpy"], "config": ["tile=64"], "limit": 3}
    choice = RunChoice.of(defaults | words | {"timing": "full", "cache": "hot", "max_blocks": 50})
    assert choice.selection.ops == ("gemm", "conv")
    assert choice.selection.backends == (BackendRef("numpy"),)
    assert choice.selection.devices == ("cpu",)
    assert (choice.selection.config, choice.selection.limit) == ({"tile": 64}, 3)
    timing = dataclasses.replace(PRESETS["full"], cache=Cache.HOT, max_allocations=50)
    assert choice.timing.load() == timing
