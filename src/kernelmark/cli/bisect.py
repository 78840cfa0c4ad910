"""`kmark bisect`: find the commit, wheel or config that made a kernel slower."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import ab as a
from kernelmark.cli import ci as g
from kernelmark.cli import options as o
from kernelmark.cli.output import put_table, say
from kernelmark.core.errors import UsageError
from kernelmark.core.flags import below_one
from kernelmark.core.units import join_and, join_commas
from kernelmark.core.verdict import NOTHING

if TYPE_CHECKING:
    from kernelmark.api.ab import AbPlan
    from kernelmark.api.bisect import Source
    from kernelmark.api.checkouts import Where
    from kernelmark.runners.sides import Side

CANDIDATES = "Candidates"

Good = Annotated[
    str | None, o.option("--good REF", CANDIDATES, help="Start from this fast commit.")
]
Bad = Annotated[str, o.option("--bad REF", CANDIDATES, help="End at this slow, later commit.")]
WheelList = Annotated[
    str | None,
    o.option(
        "--wheels FILE",
        CANDIDATES,
        help="Search wheels instead of commits: a text file with one path per line, relative to "
        "it, from good to bad.",
    ),
]
ConfigList = Annotated[
    str | None,
    o.option(
        "--configs FILE",
        CANDIDATES,
        help="Search configs instead of commits: a JSON list, or one 'name=value …' per line.",
    ),
]
Confidence = Annotated[
    float,
    o.option(
        "--confidence P",
        a.COMPARISON,
        check=below_one,
        help="Stop when a candidate is the culprit with this probability.",
    ),
]
Fresh = Annotated[
    bool, o.option("--fresh", o.RUNNING, help="Discard an unfinished search and start over.")
]


def bisect(
    context: typer.Context,
    *,
    candidates: CandidateOptions,
    compared: a.ComparedOptions,
    confidence: Confidence = 0.95,
    json: o.Json = None,
    md: o.Md = None,
    quiet: o.Quiet = False,
    timeout: o.Timeout = 300.0,
    fresh: Fresh = False,
) -> int:
    """Find the commit, wheel or config that slowed a kernel down.

    Also finds the one that broke it.

    For example: kmark bisect --good v1.2 --bad HEAD -b kernels/softmax.py

    Repeat the command to continue an interrupted search. The exit code is 4 if good
    and bad do not differ, or if the culprit was not found.
    """
    from kernelmark.api.bisect import Question, bisect, comment, document, forget
    from kernelmark.core.files import json_text
    from kernelmark.report.changes import command_text, movers_table, of_pairs

    outputs = o.Outputs(json=json, md=md)
    if confidence <= 0.5:
        raise UsageError(
            f"--confidence must be above 0.5, not {confidence:g}", hint="0.95 is usual"
        )
    tell: Callable[[str], None] = (lambda text: None) if quiet else say
    stored = o.StoredOptions(timeout=timeout)
    with _candidates(candidates, compared, stored, tell) as (source, plan):
        question = Question(
            cases=tuple(pair.base for pair in plan.pairs),
            rule=plan.rule,
            confidence=confidence,
            budget_s=math.inf if compared.budget is None else compared.budget,
            key=f"{candidates.build}\n{candidates.python}\n{candidates.settings}\n{plan.device}\n{plan.rule}",
        )
        if fresh:
            forget(question, source.names)
        try:
            finding = bisect(source, question, tell)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "interrupted; the same command goes on with the search"
            ) from None
    if not outputs.stdout_taken and finding.rows:
        put_table(movers_table(of_pairs(finding.rows)))
    outputs.put(
        json=lambda: json_text(document(finding)),
        md=lambda: comment(finding, command_text(context.obj or ())),
    )
    say(finding.answer)
    return 0 if finding.state in ("located", "range") else NOTHING


@dataclass(frozen=True, kw_only=True)
class Candidates(o.Options):
    """Options that name the candidates: one of good, wheels and configs."""

    good: Good = None
    bad: Bad = "HEAD"
    wheels: WheelList = None
    configs: ConfigList = None


@dataclass(frozen=True, kw_only=True)
class CandidateOptions(g.CheckoutOptions, Candidates):
    """Options for the candidates, and for checking out and building commits among them."""


@contextlib.contextmanager
def _candidates(
    options: CandidateOptions,
    compared: a.ComparedOptions,
    stored: o.StoredOptions,
    tell: Callable[[str], None],
) -> Iterator[tuple[Source, AbPlan]]:
    """Yield the candidates that the options name, and the plan of what is measured on each."""
    from kernelmark.api import checkouts as known

    kinds = {"--good": options.good, "--wheels": options.wheels, "--configs": options.configs}
    chosen = tuple(option for option, value in kinds.items() if value is not None)
    if len(chosen) != 1:
        raise UsageError(
            f"exactly one of {join_commas(kinds)} is needed"
            + (f", not {join_and(chosen)}" if chosen else ""),
            hint="give one of --good REF, --wheels FILE and --configs FILE",
        )
    if options.good is None:
        side = _side(options)
        plan = a.plan_of(compared, (side, dataclasses.replace(side, name="head")), stored)
        if options.wheels is not None:
            yield known.Wheels(known.read_wheels(options.wheels), side, _where(plan)), plan
        elif options.configs is not None:
            yield known.Configs(known.read_configs(options.configs), side, _where(plan)), plan
        return
    variables = g.variables_of(options.settings or (), "", ())
    with g.checkouts_of(options, tell, variables) as checkouts:
        bad = checkouts.side("head", options.bad)
        with contextlib.chdir(bad.folder):
            plan = a.plan_of(compared, (dataclasses.replace(bad, name="base"), bad), stored)
        yield known.Commits(checkouts, options.good, options.bad, _where(plan)), plan


def _side(options: CandidateOptions) -> Side:
    """Return the environment shared by all candidates."""
    from kernelmark.core.immutable import FrozenDict
    from kernelmark.runners.sides import parse_side

    side = parse_side(f"base={options.python}" if options.python else "base")
    variables = g.variables_of(options.settings or (), "", ())
    return dataclasses.replace(side, variables=FrozenDict(variables))


def _where(plan: AbPlan) -> Where:
    from kernelmark.api.checkouts import Where
    from kernelmark.runners.jobs import threads_of
    from kernelmark.runners.targets import find

    threads = threads_of(plan.pairs[0].base, find(plan.device)[1])
    return Where(device=plan.device, timeout_s=plan.timeout_s, threads=threads)
