"""Options that commands share are declared once, as fields of a class."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import pytest
import typer
from typer.main import get_command

from kernelmark.cli import options as o
from kernelmark.cli.ab import ComparedOptions
from kernelmark.cli.app import command
from kernelmark.cli.measuring import RunChoice
from kernelmark.core.timing import PRESETS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shared(o.TimingOptions):
    again: Annotated[int, o.option("--again N", help="Repeat.")] = 3


def test_a_command_has_the_fields_of_its_options_as_options():
    seen = []

    def call(context: typer.Context, word: Annotated[str, typer.Argument()], *, shared: Shared):
        seen.append((context.params["again"], word, shared))

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
    assert seen == [(5, "here", Shared(again=5, cache="hot")), (3, "there", Shared())]


def test_two_groups_cannot_declare_the_same_option():
    def call(*, one, other): ...

    call.__annotations__ = {"one": Shared, "other": o.TimingOptions}
    with pytest.raises(TypeError):
        o.expand_options(call)


def test_a_command_without_groups_stays_as_it_is():
    def call(word: str = ""): ...

    assert o.expand_options(call) is call


@pytest.mark.parametrize("name", ["run", "ab", "gate", "bisect"])
def test_commands_that_measure_have_all_timing_options(name):
    params = {parameter.name for parameter in command().commands[name].params}
    assert {field.name for field in dataclasses.fields(o.TimingOptions)} <= params


@pytest.mark.parametrize("group", [RunChoice, ComparedOptions])
def test_every_measurement_option_sets_a_field_of_the_timing(group):
    preset = PRESETS["full"]
    names = {f.name for f in dataclasses.fields(group)} - {"timing"}
    of_problems = {f.name for f in dataclasses.fields(o.ProblemOptions)}
    panels = {p.name: p.rich_help_panel for p in command().commands["run"].params}
    panels |= {p.name: p.rich_help_panel for p in command().commands["ab"].params}
    given = {name: 7 for name in names - of_problems if panels[name] == o.MEASUREMENT}
    changes = group(**given).timing_changes()
    assert len(changes) == len(given) > 6
    assert set(changes) <= set(dataclasses.asdict(preset))
    assert group().timing_changes() == {}
