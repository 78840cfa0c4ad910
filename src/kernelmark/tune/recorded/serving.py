"""Choices of vLLM, SGLang, aiter's Triton kernels, FlashInfer and Helion.

JSON configs of vLLM and SGLang have an entry for each M, and of aiter a bucket. An entry is
measured at its own M, with kernelmark's Triton kernel of the op. The default of vLLM and SGLang is
what they launch without the file. The names of fused MoE files have neither the hidden size nor
top_k: `--with k=4096,top_k=8` gives them.

FlashInfer's tactics are numbers of its own runners, and configs of Helion belong to a kernel that
the log does not have: `--kernel FILE.py` measures both, and `--key` names the problem of Helion's.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, ConfigValue, config_key
from kernelmark.tune.install import aiter_config
from kernelmark.tune.install.emitters import aiter, nearest
from kernelmark.tune.install.emitters.base import with_object
from kernelmark.tune.recorded.base import (
    Applied,
    AuditFacts,
    ChoiceFormat,
    Contender,
    RecordedChoice,
    logged_by_name,
    own_config,
    parse_problem,
    refusal,
)
from kernelmark.workloads.importers import ResultFile
from kernelmark.workloads.source import BadLine, unexpected

_TRITON = "triton"


def _triton(settings: Mapping[str, Any]) -> Contender:
    return Contender(backend=_TRITON, config=own_config(settings, _TRITON))


class NearestChoices(ChoiceFormat):
    """JSON files of vLLM or SGLang, by `style`."""

    def __init__(self, style: nearest.Style, label: str) -> None:
        self.name, self._style = style, style
        self.summary = f"{label}'s JSON configs of fused MoE and block-fp8 GEMMs: a file"
        self.facts = FormatFacts(
            versions=f"{label}, 2026-08",
            exactness="every entry at its own M; fused MoE of f16 and bf16, needs --with k and "
            "top_k; block-scaled fp8 is not measured",
            checked=f"read as {label}'s own lookup does; of `applied`, compared with its messages",
        )

    def recognizes(self, name: str, head: bytes) -> bool:
        return nearest.parse_name(name) is not None and self._style == _style_of(name)

    def rows(self, file: ResultFile, facts: AuditFacts) -> Iterator[RecordedChoice]:
        shape = nearest.parse_name(file.name)
        if shape is None:
            raise BadLine("the name of the file has no shape")
        for m, settings in nearest.parse(file.text, file.name, self._style).items():
            default = nearest.default_settings(shape, self._style, m)
            measured: dict[str, Any] = {}
            try:
                measured["problem"] = _problem(shape, m, facts)
            except UsageError as error:
                measured["reason"] = refusal(error)
            yield RecordedChoice(
                where=str(m),
                label=f"M={m}",
                recorded=config_key(FrozenDict(settings)),
                choice=_triton(settings),
                default=_triton(default),
                stand_in=True,
                **measured,
            )

    def rewritten(self, file: ResultFile, changes: Mapping[str, Contender]) -> str:
        text, shape = file.text, nearest.parse_name(file.name)
        assert shape is not None
        emitter = nearest.emitters[f"{self._style}_moe"]
        for m, contender in changes.items():
            text = with_object(text, m, emitter.settings_of(contender.config, shape), after=None)
        return text

    def applied(self, file: ResultFile, row: RecordedChoice, log: str) -> Applied:
        return logged_by_name(log, file.name, _USED, _UNUSED)


# vLLM: Using configuration from PATH for MoE layer. SGLang: Using MoE kernel config from PATH.
_USED = re.compile(r"Using (?:configuration|\S+ kernel config) from (.+?\.json)")
_UNUSED = re.compile(r"Config file not found at (?:\[?['\"]?)(.+?\.json)")


def _style_of(name: str) -> nearest.Style:
    return "sglang" if ", " in name or "_down.json" in name or "per_channel" in name else "vllm"


def _problem(shape: nearest.ConfigShape, m: int, facts: AuditFacts) -> Problem:
    if shape.dtype or shape.block:
        kind = f"{shape.dtype} with blocks of {shape.block}" if shape.block else shape.dtype
        raise UsageError(f"kernelmark has no kernel for {kind}")
    missing = [name for name in ("k", "top_k") if name not in facts.values]
    if missing:
        raise UsageError(
            f"the file does not have {' and '.join(missing)}", hint="--with k=4096,top_k=8 does"
        )
    values = {"dtype": "bf16", **facts.values}
    return parse_problem(f"moe m={m} n={shape.n} e={shape.experts}", values)


class AiterConfigs(ChoiceFormat):
    name = "aiter"
    summary = "aiter's JSON configs of Triton GEMMs: a file of one (N, K)"
    facts = FormatFacts(
        versions="aiter e4048607 (2026-08)",
        exactness="buckets M_LEQ_x and M_GEQ_x at m = x, of A16W16 and the batched families; "
        "`any` is not measured",
        checked="read as by lint-configs",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        parsed = aiter_config.name_of(Path(), Path("gemm", name))
        return name.endswith(".json") and parsed is not None

    def rows(self, file: ResultFile, facts: AuditFacts) -> Iterator[RecordedChoice]:
        name = aiter_config.name_of(Path(), Path("gemm", file.name))
        if name is None:
            raise BadLine("the name of the file has no family")
        for bucket, settings in aiter_config.parse(file.text, file.path).items():
            config = aiter.to_config(settings)
            measured: dict[str, Any] = {}
            try:
                measured["problem"] = _gemm(name, bucket, facts)
            except UsageError as error:
                measured["reason"] = refusal(error)
            yield RecordedChoice(
                where=bucket,
                label=bucket,
                recorded=config_key(config),
                choice=_triton(config),
                stand_in=True,
                **measured,
            )

    def rewritten(self, file: ResultFile, changes: Mapping[str, Contender]) -> str:
        text = file.text
        buckets = aiter_config.parse(text, file.path)
        for bucket, contender in changes.items():
            family = aiter_config.name_of(Path(), Path("gemm", file.name))
            assert family is not None
            settings = aiter.to_bucket(contender.config, buckets[bucket], family.family)
            text = with_object(text, bucket, settings, after=None)
        return text


_BUCKET = re.compile(r"M_(?:LEQ|GEQ)_(\d+)\Z")
_SIZE = re.compile(r"([BNK])=(\d+)")


def _gemm(name: aiter_config.Name, bucket: str, facts: AuditFacts) -> Problem:
    """Return the problem of a bucket; raise UsageError if it has none."""
    sizes = {letter.lower(): int(size) for letter, size in _SIZE.findall(name.suffix)}
    match = _BUCKET.match(bucket)
    if match is None or not {"n", "k"} <= sizes.keys():
        raise UsageError("the entry is for many shapes")
    m, n, k = int(match[1]), sizes["n"], sizes["k"]
    if name.family == "GEMM-A16W16":
        return parse_problem(f"gemm m={m} n={n} k={k} tb=t", {"dtype": "bf16", **facts.values})
    schemes = {family: scheme for scheme, family in aiter_config.FAMILIES.items()}
    scheme = schemes.get(name.family)
    if scheme is None:
        raise UsageError(f"kernelmark has no kernel of the family {name.family}")
    values = {"batch": str(sizes.get("b", 16)), **facts.values}
    if scheme == "bf16":
        return parse_problem(f"batched_gemm m={m} n={n} k={k} tb=t dtype=bf16", values)
    return parse_problem(f"batched_gemm_quant m={m} n={n} k={k} scheme={scheme}", values)


_META = "_metadata"
_FLASHINFER_KEY = re.compile(r"\('[^']*', '[^']*', \(")
_HIT = re.compile(r"Config cache hit for (\S+) \(runner=(\w+), source=[^)]*\)")


class FlashInferChoices(ChoiceFormat):
    """v1: one file of all keys. v2: a file for each key, `entries/<hash of the key>.json`."""

    name = "flashinfer"
    summary = "FlashInfer's autotune_configs.json (v1), and an entry of its managed cache (v2)"
    facts = FormatFacts(
        versions="FlashInfer 0.6 (v1) and 0.7 (v2)",
        exactness="runners and tactics as written; measured only with --kernel FILE.py, whose "
        "config is runner and tactic",
        checked="compared with autotuner.py and autotune_cache.py; samples of our own in tests",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        text = head.decode("utf-8", "replace")
        is_json = text.lstrip()[:1] == "{"
        return is_json and (f'"{_META}"' in text or _FLASHINFER_KEY.search(text) is not None)

    def rows(self, file: ResultFile, facts: AuditFacts) -> Iterator[RecordedChoice]:
        for key, (runner, tactic) in _flashinfer(file).items():
            op, profile = _flashinfer_key(key)
            config = FrozenDict({"runner": runner, "tactic": _tactic_text(tactic)})
            measured: dict[str, Any] = {"reason": "its tactics run in FlashInfer only: --kernel"}
            if facts.kernel and facts.key:
                measured = _of_profile(facts, profile)
            yield RecordedChoice(
                where=key,
                label=f"{op} {profile}",
                recorded=config_key(config),
                choice=Contender(backend=facts.kernel, config=config),
                # -1 is the fallback, which every runner has.
                default=Contender(
                    backend=facts.kernel, config=FrozenDict({"runner": runner, "tactic": "-1"})
                ),
                **measured,
            )

    def rewritten(self, file: ResultFile, changes: Mapping[str, Contender]) -> str:
        document = json.loads(file.text)
        for key, contender in changes.items():
            runner = contender.config["runner"]
            tactic = json.loads(str(contender.config["tactic"]))
            if "key" in document:
                document |= {"runner": runner, "tactic": tactic}
            else:
                document[key] = [runner, tactic]
        return json.dumps(document, indent=2, sort_keys="key" in document)

    def applied(self, file: ResultFile, row: RecordedChoice, log: str) -> Applied:
        """FlashInfer logs the first hit of each op and runner: proof for an op with one entry."""
        op, _ = _flashinfer_key(row.where)
        alike = [key for key in _flashinfer(file) if _flashinfer_key(key)[0] == op]
        runner = _flashinfer(file)[row.where][0]
        hit = (op, runner) in _HIT.findall(log)
        if hit and len(alike) == 1:
            return Applied.YES
        ignored = f"Cache file {file.path} was created in a different environment"
        return Applied.NO if ignored in log else Applied.UNKNOWN


def _flashinfer(file: ResultFile) -> dict[str, tuple[str, Any]]:
    """Return runner and tactic by key."""
    document = file.python_document()
    if not isinstance(document, dict):
        raise unexpected("the file", "an object", document)
    if "key" in document:
        missing = [name for name in ("runner", "tactic") if name not in document]
        if missing or not isinstance(document["key"], str):
            raise BadLine(f"the entry has no {(missing or ['key'])[0]}")
        stem = hashlib.sha256(document["key"].encode()).hexdigest()[:24]
        if file.path.stem != stem:
            raise BadLine(
                "the name of the file is not that of its key: FlashInfer never reads it",
                hint=f"it looks for {stem}.json",
            )
        return {document["key"]: (str(document["runner"]), document["tactic"])}
    entries = {}
    for key, value in document.items():
        if key == _META:
            continue
        if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)):
            raise unexpected(key[:60], "[runner, tactic]", value)
        entries[key] = (value[0], value[1])
    return entries


def _flashinfer_key(key: str) -> tuple[str, tuple[Any, ...]]:
    """Return the op and the shapes of a key."""
    try:
        op, _, profile, *_ = ast.literal_eval(key)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise unexpected("a key", "('op', 'runner', shapes)", key) from None
    return str(op), tuple(profile) if isinstance(profile, tuple) else (profile,)


def _of_profile(facts: AuditFacts, profile: tuple[Any, ...]) -> dict[str, Any]:
    """Return the problem of shapes, whose sizes --key names in order, or the reason for none."""
    from kernelmark.workloads.formats.triton import named_problem

    sizes = [size for shape in profile if isinstance(shape, tuple) for size in shape]
    more = " ".join(f"{name}={value}" for name, value in facts.values.items())
    named = facts.key.split()[1].count(",") + 1 if len(facts.key.split()) > 1 else 0
    try:
        return {"problem": named_problem(sizes[:named], f"{facts.key} {more}".strip())}
    except UsageError as error:
        return {"reason": refusal(error)}


def _tactic_text(tactic: Any) -> str:
    return json.dumps(tactic)


_HELION = ("config_index", "generation", "status", "perf_ms", "config")


class HelionLog(ChoiceFormat):
    name = "helion"
    summary = "the CSV of HELION_AUTOTUNE_LOG: the fastest config of each run"
    facts = FormatFacts(
        versions="Helion 1.0 to 1.5",
        exactness="every timed config is an alternative; the log has no shapes: measured with "
        "--kernel FILE.py and --key 'OP DIMS'",
        checked="compared with logger.py; samples of our own in tests",
    )
    writes = False

    def recognizes(self, name: str, head: bytes) -> bool:
        columns = head.partition(b"\n")[0].decode("utf-8", "replace").strip().split(",")
        return {*_HELION} <= {*columns}

    def rows(self, file: ResultFile, facts: AuditFacts) -> Iterator[RecordedChoice]:
        _, table = file.table()
        runs: dict[str, list[tuple[float, Config]]] = {}
        for cells in table:
            run = cells.text("run_id") if "run_id" in cells else ""
            timed = runs.setdefault(run, [])
            # A config that begins is a row without a time.
            if cells.text("status") == "ok" and cells.text("perf_ms"):
                ms = cells.number("perf_ms")
                if math.isfinite(ms):
                    timed.append((ms, _helion_config(cells.text("config"))))
        for run, timed in runs.items():
            if not timed:
                reason = "no config of the run has a time"
                yield RecordedChoice(where=run, label=run, recorded="", reason=reason)
                continue
            timed.sort(key=lambda pair: pair[0])
            configs = dict.fromkeys(config for _, config in timed)
            contenders = [Contender(backend=facts.kernel, config=config) for config in configs]
            yield RecordedChoice(
                where=run,
                label=run or "run",
                recorded=config_key(timed[0][1]),
                choice=contenders[0],
                others=tuple(contenders[1:]),
                **_helion_problem(facts),
            )


def _helion_problem(facts: AuditFacts) -> dict[str, Any]:
    if not facts.kernel or not facts.key:
        return {"reason": "the log has neither kernel nor shapes: --kernel FILE.py and --key"}
    try:
        return {"problem": parse_problem(facts.key, facts.values)}
    except UsageError as error:
        return {"reason": refusal(error)}


def _helion_config(text: str) -> Config:
    """Parse `helion.Config(block_sizes=[64, 64], num_warps=4)`; lists become texts."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError(text)
        values = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise unexpected("a config", "Config(name=value, …)", text) from None
    return FrozenDict({name: _plain(value) for name, value in values.items()})


def _plain(value: Any) -> ConfigValue:
    if isinstance(value, bool | int | float | str):
        return value
    return json.dumps(value) if not isinstance(value, tuple) else json.dumps(list(value))
