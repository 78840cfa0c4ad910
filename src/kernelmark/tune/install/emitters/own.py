"""python and cublaslt: kernelmark's own formats, for programs that look winners up themselves.

A Python file has a dict of configs and functions that look one up. It imports only torch, and that
only to ask for the GPU:

    from tuned import HITS, choose
    config = choose("gemm", ("bf16", "bf16", "bf16", "f32"), "nt", 16, 4096, 4096, default=mine)
    kernel[grid](…, **config["kwargs"], num_warps=config["num_warps"])

A JSON file has algorithms of cuBLASLt. `algo` has the attributes for
cublasLtMatmulAlgoConfigSetAttribute, with the names of kernelmark's cublaslt backend. They are
valid for one version of the library, so a file is for one version.

    {"format": "kernelmark-cublaslt", "version": 1, "cublaslt": "13.1.0", "entries": [
      {"problem": "gemm m=…", "arch": "sm_90", "algo": {"id": 66, "tile": 20, …}}]}
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark import backends
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config
from kernelmark.tune.install.emitters.base import (
    CannotWrite,
    Entry,
    FileEmitter,
    Key,
    NewEntries,
    NewEntry,
    Options,
)
from kernelmark.tune.results import Choice, Outcome

# Arguments of triton.Config other than the kernel's constants.
_LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_COMPILER = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
_PLAIN = {"alpha": 1.0, "beta": 0.0, "bias": False}
_TYPES = (str, int, float, bool)

PythonKey = tuple[str, str, tuple[str, ...], str, tuple[int, ...]]
Value = dict[str, Any]  # the arguments of triton.Config

_HEAD = '''"""Tuned configs, written by kernelmark. Add to CONFIGS what you like: `kmark tune apply
--as python` keeps every entry that it finds there, but no comment among them.

A key is (arch, op, dtypes, layout, dims): dtypes and dims in the op's order, for gemm a, b, c, acc
and m, n, k; layout is the letters of A and B (n: stored as written, t: transposed) and every
option that is not the usual one. A value is what triton.Config takes; kwargs are in capitals for
kernelmark's Triton kernels, and as the kernel has them for any other. A value with a backend is for
that library instead: kwargs are what kernelmark's backend takes, none for its own choice. None is
the default: no config was faster for this problem.
"""

'''
_TAIL = '''
# How often `choose` returned the config of the problem itself, of the nearest m, and the default.
HITS = {"exact": 0, "nearest": 0, "default": 0}
_M = {"batched_gemm": 1, "batched_gemm_quant": 1, "gemm": 0, "gemm_epilogue": 0}
_M |= {"grouped_gemm": 0, "moe": 0}
_CHOSEN = {}


def lookup(op, dtypes, layout, *dims, arch):
    """The tuned config of exactly this problem, or None."""
    found = CONFIGS.get((arch, op, tuple(dtypes), layout, dims))
    return found and {**found, "kwargs": dict(found["kwargs"])}


def choose(op, dtypes, layout, *dims, default=None, arch=None, reach=2):
    """The tuned config of this problem; else that of the nearest m, up to `reach` times more or
    less, if all else is equal; else `default`, also if that m was tuned without a gain. HITS counts
    which."""
    key = (arch or this_gpu()).partition(":")[0], op, tuple(dtypes), layout, dims, reach
    if key not in _CHOSEN:
        _CHOSEN[key] = _nearest(*key)
    how, found = _CHOSEN[key]
    HITS[how] += 1
    return default if found is None else {**found, "kwargs": dict(found["kwargs"])}


def _nearest(arch, op, dtypes, layout, dims, reach):
    at, best = _M.get(op), (reach, float("inf"), None)
    for (gpu, *rest, sizes), config in CONFIGS.items():
        if [gpu.partition(":")[0], *rest] != [arch, op, dtypes, layout]:
            continue
        if sizes == dims:
            return "exact" if config else "default", config
        if at is None or len(sizes) != len(dims):
            continue
        if sizes[:at] + sizes[at + 1 :] == dims[:at] + dims[at + 1 :]:
            small, large = sorted((sizes[at], dims[at]))
            best = min(best, (large / small, sizes[at], config), key=lambda entry: entry[:2])
    return ("default", None) if best[2] is None else ("nearest", best[2])


def this_gpu():
    """The architecture of torch's current GPU, as kernelmark names it."""
    import torch

    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return gpu.gcnArchName if torch.version.hip else f"sm_{gpu.major}{gpu.minor}"
'''


@dataclass(frozen=True, slots=True)
class PythonFile:
    """A file's text, None for a new one, and its CONFIGS."""

    path: Path
    text: str | None
    configs: Mapping[PythonKey, Value | None]
    pinned: tuple[PythonKey, ...] = ()  # keys that have the default


class PythonDict(FileEmitter[PythonFile]):
    name = "python"
    summary = "a Python file with a dict of configs, and a dispatcher with nearest m and default"
    facts = FormatFacts(versions="kernelmark's own", exactness="exact", checked="executed in tests")

    backends = ("triton", "fake", "torch", "cublaslt", "hipblaslt", "rocblas", "aiter")

    def takes(self, backend: str) -> bool:
        """Return whether `backend` is supported; kernels of user files are."""
        return backend in self.backends or backends.is_file(backend)

    def why_not(self, outcome: Outcome) -> str:
        tuned = outcome.tuned
        several = outcome.reached_s and tuned.backend != outcome.reference.backend
        if tuned.verified and not tuned.config and several and self.takes(tuned.backend):
            return ""  # another library's default: the dispatcher names the library
        return super().why_not(outcome)

    def parse(self, text: str | None, path: Path) -> PythonFile:
        return PythonFile(path, text, {} if text is None else _parse_configs(text, path))

    def entries(self, document: PythonFile) -> list[Entry]:
        return [
            Entry(key=_fields(key), config=_config(value))
            for key, value in document.configs.items()
            if value is not None
        ]

    def lookup_key(self, outcome: Outcome, options: Options) -> Key:
        return _fields(_python_key(outcome))

    def entry(self, outcome: Outcome, key: Key) -> NewEntry:
        value = _value(outcome.tuned)
        content = (_python_key(outcome), value)
        return NewEntry(winner=outcome, config=_config(value), content=content)

    def pin(self, document: PythonFile, keys: Sequence[Key]) -> PythonFile:
        return dataclasses.replace(document, pinned=tuple(map(_key_of, keys)))

    def merge(self, document: PythonFile, new: NewEntries, options: Options) -> str:
        content = dict(entry.content for entry in new.values())
        configs = {**dict.fromkeys(document.pinned), **document.configs, **content}
        if document.text is None:
            return f"{_HEAD}{_block(configs)}{_TAIL}"
        replaced = _replace_configs(document.text, configs, document.path)
        return document.text if configs == document.configs else replaced


def _python_key(outcome: Outcome) -> PythonKey:
    problem = outcome.problem
    dtypes, dims = tuple(problem.dtypes.values()), tuple(problem.dims.values())
    return outcome.arch, problem.op, dtypes, _layout(problem), dims


def _layout(problem: Problem) -> str:
    options = dict(problem.options)
    letters = "".join(str(options.pop(name)) for name in ("ta", "tb") if name in options)
    parts = [f"{name}={value}" for name, value in options.items() if _PLAIN.get(name) != value]
    return " ".join([letters, *parts] if letters else parts)


def _fields(key: PythonKey) -> Key:
    arch, op, dtypes, layout, dims = key
    shown = {"arch": arch, "op": op, "dtypes": " ".join(dtypes), "layout": layout}
    return FrozenDict({**shown, "dims": " ".join(map(str, dims))})


def _key_of(fields: Key) -> PythonKey:
    dtypes, dims = fields["dtypes"].split(), tuple(map(int, fields["dims"].split()))
    return fields["arch"], fields["op"], tuple(dtypes), fields["layout"], dims


def _value(tuned: Choice) -> Value:
    """Return the arguments of triton.Config. Constants of kernelmark's Triton kernels are in upper
    case; options of the AMD compiler are not, though Triton expects them among the constants."""
    config, named = tuned.config, _constant if tuned.backend == "triton" else str
    rest = {named(name): value for name, value in config.items() if name not in _LAUNCH}
    library = tuned.backend in backends.registry and tuned.backend not in ("triton", "fake")
    return {
        **({"backend": tuned.backend} if library else {}),
        "kwargs": rest,
        **{name: config[name] for name in _LAUNCH if name in config},
    }


def _constant(name: str) -> str:
    return name if name in _COMPILER else name.upper()


def _config(value: Mapping[str, Any]) -> Config:
    launch = {n: setting for n, setting in value.items() if n not in ("kwargs", "backend")}
    return FrozenDict({**value["kwargs"], **launch})


def _parse_configs(text: str, path: Path) -> dict[PythonKey, Value | None]:
    """Parse CONFIGS of a file without executing it."""
    hint = "compare a fresh export"
    try:
        configs = ast.literal_eval(_assignment(text, path).value)
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path}: CONFIGS cannot be read: {error}", hint=hint) from None
    if not isinstance(configs, dict) or not all(map(_is_entry, configs.items())):
        raise UsageError(f"{path}: CONFIGS is not a dict of configs", hint=hint)
    return configs


def _assignment(text: str, path: Path) -> ast.Assign:
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path}: is not Python: {error}", hint="is it truncated?") from None
    for node in body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == [
            "CONFIGS"
        ]:
            return node
    raise UsageError(f"{path}: has no CONFIGS", hint="name a file that kmark wrote")


def _replace_configs(text: str, configs: Mapping[PythonKey, Value | None], path: Path) -> str:
    """Return the text with CONFIGS replaced; the rest of the file belongs to the user."""
    node = _assignment(text, path)
    lines = text.splitlines(keepends=True)
    assert node.end_lineno is not None
    rest = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode().strip()
    if node.col_offset or (rest and not rest.startswith("#")):
        raise UsageError(
            f"{path}: CONFIGS shares line {node.end_lineno} with other code",
            hint="put it on lines of its own",
        )
    return "".join([*lines[: node.lineno - 1], _block(configs), *lines[node.end_lineno :]])


def _is_entry(item: tuple[Any, Any]) -> bool:
    key, value = item
    value = {"kwargs": {}} if value is None else value
    if not (isinstance(key, tuple) and len(key) == 5 and isinstance(value, dict)):
        return False
    texts = [*key[:2], key[3], *key[2]] if isinstance(key[2], tuple) else [None]
    dims = key[4] if isinstance(key[4], tuple) else [None]
    kwargs = value.get("kwargs")
    if not all(isinstance(text, str) for text in texts) or not isinstance(kwargs, dict):
        return False
    settings = {**kwargs, **{name: x for name, x in value.items() if name != "kwargs"}}
    return (
        all(isinstance(size, int) for size in dims)
        and all(isinstance(name, str) for name in settings)
        and all(isinstance(setting, _TYPES) for setting in settings.values())
    )


def _block(configs: Mapping[PythonKey, Value | None]) -> str:
    plain = {key: value and dict(value) for key, value in configs.items()}
    lines = "".join(f"    {key!r}: {value!r},\n" for key, value in plain.items())
    return f"CONFIGS = {{\n{lines}}}\n"


FORMAT = "kernelmark-cublaslt"
VERSION = 1
_KEY = ("problem", "arch")

Json = dict[str, Any]


class CublasltEmitter(FileEmitter[Json]):
    name = "cublaslt"
    summary = "cuBLASLt algorithms in a versioned JSON file, by problem and architecture"
    facts = FormatFacts(
        versions="kernelmark's own", exactness="exact", checked="read back in tests"
    )
    backends = ("cublaslt",)

    def parse(self, text: str | None, path: Path) -> Json:
        if text is None:
            return {"entries": []}
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: is not JSON: {error}", hint="is it truncated?") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise UsageError(f"{path}: is not a {FORMAT} file")
        if document.get("version") != VERSION:
            raise UsageError(
                f"{path}: version {document.get('version')!r} is not known",
                hint="upgrade kernelmark, or write the file again",
            )
        rows = document.get("entries")
        if not isinstance(rows, list) or not isinstance(document.get("cublaslt"), str):
            raise UsageError(f"{path}: has no entries or no cublaslt version")
        for number, row in enumerate(rows, 1):
            if wrong := _row_error(row):
                raise UsageError(f"{path}: entry {number} {wrong}")
        return document

    def entries(self, document: Json) -> list[Entry]:
        return [
            Entry(
                key=FrozenDict({name: row[name] for name in _KEY}),
                config=FrozenDict({"algo": _algo_text(row["algo"])}),
                kernel=row["kernel"],
            )
            for row in document["entries"]
        ]

    def lookup_key(self, outcome: Outcome, options: Options) -> Key:
        return FrozenDict({"problem": outcome.problem.key, "arch": outcome.arch})

    def entry(self, outcome: Outcome, key: Key) -> NewEntry:
        text = outcome.tuned.config.get("algo")
        if not isinstance(text, str):
            raise CannotWrite("its config names no algorithm")
        try:
            algo = {name: int(value) for name, value in (word.split("=") for word in text.split())}
        except ValueError:
            raise CannotWrite(f"its algorithm {text!r} is not name=number …") from None
        row = {
            **key,
            "algo": algo,
            "kernel": outcome.tuned.kernel.name,
            "us": round(outcome.tuned.median_s * 1e6, 4),
            "reference_us": round(outcome.reference.median_s * 1e6, 4),
        }
        config = FrozenDict({"algo": _algo_text(algo)})
        return NewEntry(winner=outcome, config=config, content=row)

    def merge(self, document: Json, new: NewEntries, options: Options) -> str:
        versions = {entry.winner.tuned.version for entry in new.values()}
        versions |= {document["cublaslt"]} if "cublaslt" in document else set()
        if len(versions) > 1:
            raise UsageError(
                f"algorithms of cuBLASLt {' and '.join(sorted(versions))} do not go into one file",
                hint="write another file, or tune again",
            )
        if versions == {""}:
            raise UsageError("cublaslt: the library's version is not known", hint="tune again")
        rows: dict[Key, Json] = {}
        for row in document["entries"]:
            rows.setdefault(FrozenDict({name: row[name] for name in _KEY}), row)
        rows |= {key: entry.content for key, entry in new.items()}
        head = {"format": FORMAT, "version": VERSION, "cublaslt": versions.pop()}
        # One entry per line, for readable diffs.
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows.values())
        return f'{json.dumps(head)[:-1]}, "entries": [\n{lines}\n]}}\n'


def _algo_text(algo: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in algo.items())


def _row_error(row: object) -> str:
    if not isinstance(row, dict):
        return "is not an object"
    missing = next((n for n in (*_KEY, "kernel") if not isinstance(row.get(n), str)), "")
    if missing:
        return f"has no {missing}"
    algo = row.get("algo")
    whole = isinstance(algo, dict) and all(type(value) is int for value in algo.values())
    return "" if whole else "has no algo of whole numbers"


emitters = {each.name: each for each in (PythonDict(), CublasltEmitter())}
