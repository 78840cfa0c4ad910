"""triton-autotune: *.autotune.json of Triton's cache; triton-log: TRITON_PRINT_AUTOTUNING=1.

Neither has the kernel's code. `--kernel` names a kernel file with the same parameters, or triton
for kernelmark's kernel of the op, and `--key` gives names to the values of the key.

    Triton autotuning for function matmul,
    with key as (512, 1024, 2048, 'torch.bfloat16'),
    finished after 1.25s,
    best config selected: BLOCK_M: 64, num_warps: 4, num_ctas: 1, num_stages: 3, maxnreg: None;

Triton takes the config with the least time of a cache file, and the first of several equal ones.
Files list the configs in the kernel's order: the first is what it runs if it is not tuned.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, config_key
from kernelmark.tune.recorded.base import (
    Applied,
    AuditFacts,
    ChoiceFormat,
    Contender,
    RecordedChoice,
    own_config,
    refusal,
)
from kernelmark.workloads.formats.triton import named_problem, timed_configs
from kernelmark.workloads.importers import ResultFile, setting
from kernelmark.workloads.source import BadLine, Fields

_CONFIGS = "configs_timings"
_NO_KERNEL = "the row has no kernel: name it with --kernel FILE.py, or --kernel triton"
_NO_NAMES = "the values of its key have no names: give them with --key 'OP NAME,…'"
# A key is on a line of its own since Triton 3.4, and not printed before.
_LOGGED = re.compile(
    r"Triton autotuning for function (\S+?),?\s+(?:with key as (\([^\n]*\)),\s+)?"
    r"finished after [0-9.]+s[,;]\s+best config selected: ([^;]*);"
)
_SETTING = re.compile(r"([A-Za-z_]\w*): ([^,]+)")


def _measured_by(key: Sequence[object], facts: AuditFacts) -> dict[str, Any]:
    """Return the problem of a key, or the reason why its row cannot be measured."""
    if not facts.kernel:
        return {"reason": _NO_KERNEL}
    if not facts.key:
        return {"reason": _NO_NAMES}
    more = " ".join(f"{name}={value}" for name, value in facts.values.items())
    try:
        return {"problem": named_problem([*key], f"{facts.key} {more}".strip())}
    except UsageError as error:
        return {"reason": refusal(error)}


class TritonCache(ChoiceFormat):
    name = "triton-autotune"
    summary = "*.autotune.json of Triton's cache (cache_results)"
    facts = FormatFacts(
        versions="Triton 3.9",
        exactness="every config that was timed is an alternative; needs --kernel and --key",
        checked="compared with autotuner.py; in tests its choice is the least time, the first of "
        "equal ones",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        return name.endswith(".json") and f'"{_CONFIGS}"'.encode() in head

    def rows(self, file: ResultFile, facts: AuditFacts) -> Iterator[RecordedChoice]:
        document = Fields.of(file.python_document(), "the file")
        key = document.list("key")
        listed = list(timed_configs(document))
        timed = [(config, times[0]) for config, times in listed if math.isfinite(times[0])]
        timed.sort(key=lambda pair: pair[1])  # stable, as min() is
        label = f"{file.name.removesuffix('.autotune.json')} {_key_text(key)}"
        if not timed:
            reason = "no config of its row has a time"
            yield RecordedChoice(where="", label=label, recorded="", reason=reason)
            return
        contenders = [
            Contender(backend=facts.kernel, config=own_config(config, facts.kernel))
            for config, _ in timed
        ]
        yield RecordedChoice(
            where="",
            label=label,
            recorded=config_key(FrozenDict(timed[0][0])),
            choice=contenders[0],
            default=Contender(backend=facts.kernel, config=own_config(listed[0][0], facts.kernel)),
            others=tuple(contenders[1:]),
            closed=True,
            stand_in=facts.kernel == "triton",
            **_measured_by(key, facts),
        )

    def rewritten(self, file: ResultFile, changes: Mapping[str, Contender]) -> str:
        """Put the choice first. Every other time is at least its own, so that it is chosen."""
        document = file.python_document()
        pairs = document[_CONFIGS]
        for contender in changes.values():
            first = next((i for i, pair in enumerate(pairs) if _is(pair, contender)), None)
            if first is None:
                raise UsageError(f"{file.path} has no config {config_key(contender.config)}")
            chosen = pairs.pop(first)
            least = _median(chosen[1])
            pairs[:] = [chosen, *([config, _at_least(times, least)] for config, times in pairs)]
        return json.dumps(document)

    def applied(self, file: ResultFile, row: RecordedChoice, log: str) -> Applied:
        # Triton prints what it tunes, and nothing where it uses the cache.
        name = file.name.removesuffix(".autotune.json")
        tuned = {_key_text(_parsed_key(match[2])) for match in _logged(log) if match[1] == name}
        return Applied.NO if row.label.removeprefix(f"{name} ") in tuned else Applied.UNKNOWN


def _is(pair: Sequence[Any], contender: Contender) -> bool:
    ((config, _),) = timed_configs(Fields({_CONFIGS: [pair]}))
    return own_config(config, contender.backend) == contender.config


def _median(times: Any) -> float:
    return float(times[0] if isinstance(times, list) else times)


def _at_least(times: Any, least: float) -> Any:
    if isinstance(times, list):
        return [max(ms, least) if i == 0 else ms for i, ms in enumerate(times)]
    return max(times, least)


def _key_text(key: Sequence[object]) -> str:
    return ", ".join(map(str, key))


class TritonLog(ChoiceFormat):
    name = "triton-log"
    summary = "output of TRITON_PRINT_AUTOTUNING=1: the best config of each key"
    facts = FormatFacts(
        versions="Triton 3.1 to 3.9; keys since 3.4",
        exactness="the chosen configs; needs --kernel and --key",
        checked="compared with autotuner.py; samples of our own in tests",
    )
    writes = False

    def recognizes(self, name: str, head: bytes) -> bool:
        return b"Triton autotuning for function " in head

    def rows(self, file: ResultFile, facts: AuditFacts) -> Iterator[RecordedChoice]:
        for match in _logged(file.text):
            file.at = f"line {file.text.count(chr(10), 0, match.start()) + 1}"
            key = _parsed_key(match[2])
            config = _parsed_config(match[3])
            yield RecordedChoice(
                where=file.at,
                label=f"{match[1]} {_key_text(key)}".rstrip(),
                recorded=config_key(config),
                choice=Contender(backend=facts.kernel, config=own_config(config, facts.kernel)),
                stand_in=facts.kernel == "triton",
                **_measured_by(key, facts),
            )
        file.at = ""


def _logged(text: str) -> Iterator[re.Match[str]]:
    return _LOGGED.finditer(text)


def _parsed_key(text: str | None) -> Sequence[object]:
    try:
        key = ast.literal_eval(text or "()")
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise BadLine(f"the key cannot be read: {str(text)[:60]!r}") from None
    return key if isinstance(key, tuple) else (key,)


def _parsed_config(text: str) -> Config:
    return FrozenDict({name: setting(value.strip()) for name, value in _SETTING.findall(text)})
