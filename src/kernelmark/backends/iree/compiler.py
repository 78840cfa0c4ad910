"""Compile MLIR to a binary (from a bundle, a disk cache, or with iree-compile), and run IREE's
programs. Every run is a new process: it allocates anew, and a kernel that crashes does not end
kernelmark.

The compiler runs in a separate process, so that a compiler that aborts does not end the worker; any
number of workers may compile at once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import re
import signal
import subprocess
import tempfile
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmark.backends.iree.spec import MAIN, PREPROCESSING_FLAG, SPEC_FLAG
from kernelmark.backends.iree.targets import Target
from kernelmark.core.errors import CaseError, CompileError, Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.units import duration_text
from kernelmark.gpu import pack
from kernelmark.host.cache import DiskCache, cache_root, digest
from kernelmark.host.processes import run_child

# Prefix of a bundle's folders with modules, and the file that records the compiler.
PACK_PREFIX = "iree-"
PACK_NOTE = "compiler.txt"
CONFIGS = ".configs"  # suffix of the cache entry with the configs of a module's kernels

# Seconds for one run of the compiler. iree-compile has hung idle for 16 minutes on a module that it
# compiles in seconds, and the cause is not known. A kernel takes about 4 s on one core (GEMM and
# attention of seq=4096, on a CPU and for gfx942); two runs fit into the 600 s that a worker has. A
# user's module may be a whole model.
KERNEL_LIMIT_S = 240.0
MODULE_LIMIT_S = 3600.0
_TRIES = 2

_CACHE_BYTES = 512 * 2**20
_LOG_CHARACTERS = 2000
_REMEMBERED = 32
_DIAGNOSTIC = re.compile(r"^(?:<stdin>|-):(\d+):\d+: error: ", re.MULTILINE)
_IN_FILE = re.compile(r"^(.+?):([1-9]\d*):\d+: error: ", re.MULTILINE)  # line 0 means no position
_ANY_ERROR = re.compile(r"^.*\berror: (.*)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A compiled module, the seconds to get it, and whether it came from a cache. `configs` are
    those that the compiler chose for its kernels, one line each."""

    binary: bytes
    seconds: float
    cached: bool
    configs: Mapping[str, str] = field(default_factory=FrozenDict)

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.binary).hexdigest()


# The latest modules, so that a read-only cache folder costs one compilation per case and not one
# per block.
_recent: OrderedDict[str, tuple[bytes, Mapping[str, str]]] = OrderedDict()


def build(
    source: str, flags: tuple[str, ...], identity: str, pack_name: str = "", spec: str = ""
) -> Build:
    """Return the module for `source`, compiled with the tuning spec `spec` if given; `identity`
    describes the target machine beyond the flags.

    Bundles are searched first, in their folder `pack_name`: a machine with a GPU and no compiler
    needs nothing else."""
    start = time.perf_counter()
    key = pack_key(source, (*flags, spec) if spec else flags)
    packed = pack.find(key, pack_name) if pack_name else None
    if packed is not None:
        configs = _read_configs(pack.find(key, pack_name, CONFIGS))
        seconds = time.perf_counter() - start
        return Build(binary=packed, seconds=seconds, cached=True, configs=configs)
    with pack.blamed(key, pack_name):
        if compiler_present():
            return compile_now(source, flags, identity, spec)
        raise Unsupported(
            "iree-base-compiler is not installed"
            + (
                f" and no bundle in KERNELMARK_PACK has this problem in {pack_name}"
                if pack_name
                else ""
            ),
            hint="where it is installed: python -m kernelmark.backends.iree.pack",
        )


def compile_now(source: str, flags: tuple[str, ...], identity: str, spec: str = "") -> Build:
    """Return `source` compiled by the installed compiler, from the cache if possible."""
    start = time.perf_counter()
    key = digest(source, "\n".join(flags), compiler_identity(), identity, *([spec] if spec else []))
    cached = _recent.get(key) or _from_cache(key)
    compiled = cached or _compile(key, source, flags, spec)
    _recent[key] = compiled
    _recent.move_to_end(key)
    while len(_recent) > _REMEMBERED:
        _recent.popitem(last=False)
    binary, configs = compiled
    seconds = time.perf_counter() - start
    return Build(binary=binary, seconds=seconds, cached=cached is not None, configs=configs)


def _from_cache(key: str) -> tuple[bytes, Mapping[str, str]] | None:
    """Return a module with its configs; without configs if an older kernelmark compiled it."""
    cache = _cache(cache_root())
    binary = cache.get(key)
    return None if binary is None else (binary, _read_configs(cache.get(key + CONFIGS)))


def _compile(
    key: str, source: str, flags: tuple[str, ...], spec: str
) -> tuple[bytes, Mapping[str, str]]:
    with tempfile.TemporaryDirectory(prefix="kmark-iree-") as folder:
        binary = run_compiler(source, flags, spec, dumps=Path(folder))
        configs = {name: config_text(config) for name, config in load_configs(Path(folder)).items()}
    cache = _cache(cache_root())
    cache.put(key + CONFIGS, configs_json(configs))  # first: a cached module has its configs
    cache.put(key, binary)
    return binary, configs


def configs_json(configs: Mapping[str, str]) -> bytes:
    """Format the configs of a module as JSON."""
    return json.dumps(dict(configs)).encode()


def _read_configs(data: bytes | None) -> Mapping[str, str]:
    return FrozenDict(json.loads(data)) if data else FrozenDict()


def pack_key(source: str, flags: tuple[str, ...]) -> str:
    """Return the name of a module in a bundle, which does not depend on a compiler."""
    return digest(source, "\n".join(flags))


def compiler_present() -> bool:
    """Return whether the compiler is installed."""
    return present("iree.compiler")


def present(module: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package `iree` itself is absent
        return False


def packed_by() -> str | None:
    """Return the version of the compiler that filled the first bundle with modules, or None."""
    for folder in pack.safe_folders():
        for note in sorted(folder.glob(f"{PACK_PREFIX}*/{PACK_NOTE}")):
            with contextlib.suppress(OSError):
                return note.read_text(encoding="utf-8").strip()
    return None


def compiler_version() -> str:
    """Return the compiler's version and commit."""
    from iree.compiler.version import REVISIONS, VERSION

    commit = REVISIONS.get("IREE", "")[:12]
    return f"{VERSION} ({commit})" if commit else str(VERSION)


@functools.cache
def _cache(root: Path) -> DiskCache:
    return DiskCache(root / "iree", _CACHE_BYTES)


@functools.cache
def compiler_identity() -> str:
    """Return version, commit and file of the compiler: a rebuilt compiler must not reuse cached
    code."""
    from iree.compiler import version

    program = Path(tool("iree-compile"))
    status = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in _files(program)]
    return f"{version.VERSION} {version.REVISIONS} {status}"


def _files(program: Path) -> list[Path]:
    return sorted({program, *program.parent.glob("libIREECompiler.*")})


def tool(name: str) -> str:
    """Return the path of one of the compiler's programs."""
    from iree.compiler.tools.binaries import find_tool

    return str(find_tool(name))


def run_limited(
    command: Sequence[str],
    *,
    input: bytes | None = None,
    cwd: Path | None = None,
    limit_s: float | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run iree-compile for at most `limit_s`, else for KERNEL_LIMIT_S, and once more if it has not
    ended by then: an idle hang is a bug of the compiler, not of its input."""
    limit_s = KERNEL_LIMIT_S if limit_s is None else limit_s
    for _ in range(_TRIES):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return run_child(command, input=input, cwd=cwd, timeout_s=limit_s)
    raise CompileError(
        f"iree-compile did not end within {duration_text(limit_s)} in {_TRIES} attempts",
        hint=f"flags: {' '.join(command[2:])}",
    )


def spec_flags(spec: str, path: str | Path) -> tuple[str, ...]:
    """Return the flags that pass a spec in a file: two if it has a part for preprocessing."""
    flags = (f"{SPEC_FLAG}={path}",)
    return (*flags, f"{PREPROCESSING_FLAG}={path}") if f"@{MAIN}(" in spec else flags


def run_compiler(
    source: str, flags: tuple[str, ...], spec: str = "", dumps: Path | None = None
) -> bytes:
    """Return the output of iree-compile; the configs of kernels are written into the folder
    `dumps`."""
    if spec:
        with tempfile.NamedTemporaryFile("w", suffix=".mlir", encoding="utf-8") as file:
            file.write(spec)
            file.flush()
            return run_compiler(source, (*flags, *spec_flags(spec, file.name)), dumps=dumps)
    command = [tool("iree-compile"), "-", *flags]
    try:
        if dumps is None:
            done = run_limited(command, input=source.encode())
        else:
            # The module contains the names of dumped files as debug information: relative names
            # give the same hash in any folder.
            done = run_dumping(command, ".", (dump_flag("."),), input=source.encode(), cwd=dumps)
    except OSError as error:
        raise CompileError(
            f"iree-compile cannot be started: {error}",
            hint='install it again: pip install --force-reinstall "kernelmark[iree]"',
        ) from None
    if done.returncode == 0 and done.stdout:
        return done.stdout
    raise CompileError(
        explain(done.returncode, done.stderr.decode(errors="replace"), source),
        hint=f"flags: {' '.join(flags)}",
    )


def run_dumping(
    command: Sequence[str],
    folder: str,
    flags: Sequence[str],
    *,
    input: bytes | None = None,
    cwd: Path | None = None,
    limit_s: float | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run iree-compile with `flags` that dump kernels into `folder`.

    Errors then refer to lines of the dumped files, which are not kept: after such an error the
    command is repeated without the flags, to get the line in the module."""
    done = run_limited([*command, *flags], input=input, cwd=cwd, limit_s=limit_s)
    dumped = re.compile(rf"^{re.escape(folder)}/[^:\n]+:\d+:\d+: error: ", re.MULTILINE)
    if done.returncode > 0 and dumped.search(done.stderr.decode(errors="replace")):
        plain = run_limited(command, input=input, cwd=cwd, limit_s=limit_s)
        return plain if plain.returncode else done
    return done


def explain(code: int, log: str, source: str) -> Reason:
    """Return a reason with the first error, its line and the beginning of the log.

    The first error causes the others, but often has no line; then the first line of any error is
    used: a line of `source`, which the compiler reads from its input, before a line of a file. An
    empty `source` means a module of kernelmark, whose lines mean nothing to the user."""
    located, first = _DIAGNOSTIC.search(log), _ANY_ERROR.search(log)
    in_file = None if located else _IN_FILE.search(log)
    error = first[1].rstrip(": ") if first else ""
    output = log.strip()[:_LOG_CHARACTERS]
    if source and located and first:
        number = int(located[1])
        lines = source.splitlines()
        line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        quoted = f": {line[:160]}" if line else ""
        return Reason(f"iree-compile: {error} (line {number} of the MLIR{quoted})\n{output}")
    if in_file and first:
        return Reason(f"iree-compile: {error} (line {int(in_file[2])} of {in_file[1]})\n{output}")
    if code < 0:
        return Reason(
            f"iree-compile was ended by {signal_name(-code)}"
            + (f", after: {error}" if error else "")
            + (f"\n{output}" if output else "")
        )
    if first:
        return Reason(f"iree-compile: {error}" + (f"\n{output}" if output else ""))
    line = next((x.strip() for x in log.splitlines() if x.strip()), "no message")
    return Reason(
        f"iree-compile failed with exit code {code}: {line}" + (f"\n{output}" if output else "")
    )


def signal_name(number: int) -> str:
    """Return the name of a signal, SIGSEGV for example."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


DUMP_PREFIX = "configured_"
_FUNCTION = re.compile(r"func\.func @([\w.$-]+)\(\)(.*)")
_PIPELINE = re.compile(r"pipeline = #[\w.]+<(\w+)>")
_WORKGROUP = re.compile(r"workgroup_size = (\[[\d, ]+\])")
_MMA = re.compile(r"#iree_gpu\.(?:virtual_)?mma_layout<([^>]+)>")
_COMMA = re.compile(r", (?=\w+ = )")
_PROMOTION = re.compile(r"\b(?:promote_operands|promotion_types) = \[")


def dump_flag(folder: str | Path) -> str:
    """Return the flag that makes iree-compile write configured kernels into `folder`."""
    return f"--iree-hal-dump-executable-configurations-to={folder}"


def load_configs(folder: Path) -> dict[str, tuple[str, ...]]:
    """Parse the configs of all kernels that the compiler dumped into `folder`."""
    return {
        name: config
        for path in sorted(folder.glob(f"{DUMP_PREFIX}*.mlir"))
        for name, config in parse_configs(path.read_text(encoding="utf-8")).items()
    }


def parse_configs(text: str) -> dict[str, tuple[str, ...]]:
    """Parse the translation info and the lowering configs of each kernel in a dump."""
    functions = list(_FUNCTION.finditer(text))
    configs = {}
    for at, match in enumerate(functions):
        end = functions[at + 1].start() if at + 1 < len(functions) else len(text)
        body = text[match.start(2) : end]
        info = attributes_in(body, "#iree_codegen.translation_info")
        tiles = [
            item
            for dialect in ("iree_cpu", "iree_gpu", "iree_codegen")
            for item in attributes_in(body, f"#{dialect}.lowering_config")
        ]
        configs[match[1]] = tuple(dict.fromkeys([*info, *tiles]))
    return configs


def attributes_in(text: str, name: str) -> list[str]:
    """Return the text between the angle brackets of each attribute `name<…>`."""
    attributes = []
    for match in re.finditer(re.escape(name) + "<", text):
        depth, at = 1, match.end()
        while depth and at < len(text):
            # The > of -> is not a closing bracket.
            depth += {"<": 1, ">": -(text[at - 1] != "-")}.get(text[at], 0)
            at += 1
        attributes.append(text[match.end() : at - 1])
    return attributes


def config_text(config: Sequence[str]) -> str:
    """Return pipeline, workgroup and tile sizes on one line; empty if the compiler chose none."""
    return ", ".join(config_parts(config))


def config_parts(config: Sequence[str]) -> tuple[str, ...]:
    """Return the pipeline with its workgroup, then each list of tile sizes."""
    pipeline = _PIPELINE.search(config[0]) if config else None
    size = _WORKGROUP.search(config[0]) if config else None
    head = " ".join(match[1] for match in (pipeline, size) if match)
    # A kernel may have several lowering configs. Only that of the op with a reduction is shown:
    # elementwise ops fused with it follow its tiles.
    tiles = [
        part
        for config_line in sorted(config[1:], key=lambda item: "reduction" in item)[-1:]
        for part in _COMMA.split(_MMA.sub(r"\1", _without_promotion(config_line)).strip("{}"))
    ]
    return tuple(filter(None, [head, *tiles]))


def _without_promotion(config: str) -> str:
    """Remove the attributes for promoting operands, which are longer than the tile sizes."""
    while match := _PROMOTION.search(config):
        depth, at = 1, match.end()
        while depth and at < len(config):
            depth += {"[": 1, "]": -1}.get(config[at], 0)
            at += 1
        config = config[: match.start()] + config[at:].removeprefix(", ")
    return config


_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_MODULE = "iree-benchmark-module"
_TOOL_LOG_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchTime:
    """The time of a kernel per call of the function, summed over its dispatches, and their
    number."""

    seconds: float
    calls: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRound:
    """The times of one process of iree-benchmark-module: a sample per repetition, and the time of
    each kernel. `cpu_s` has the CPU time of all threads for each sample. `dispatches` is empty if
    the driver does not attribute time to kernels. `timed_s` is the total over all iterations of all
    repetitions."""

    samples_s: tuple[float, ...]
    dispatches: Mapping[str, DispatchTime]
    timed_s: float = 0.0
    cpu_s: tuple[float, ...] = ()

    @property
    def kernel_s(self) -> float:
        return sum(dispatch.seconds for dispatch in self.dispatches.values())


def tool_command(name: str, binary: Path, function: str, target: Target, threads: int) -> list[str]:
    """Return the command that calls a function of a module with one of IREE's programs."""
    import iree._runtime_libs

    program = Path(next(iter(iree._runtime_libs.__path__))) / name
    device = [f"--device={target.driver}"]
    if threads and not target.gpu:
        device.append(f"--task_topology_group_count={threads}")
    return [str(program), f"--module={binary}", f"--function={function}", *device]


def run_tool(argv: Sequence[str], timeout_s: float) -> str:
    """Return a program's standard output; raise CaseError if it fails or exceeds the timeout."""
    name = Path(argv[0]).name
    try:
        done = run_child(argv, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        raise CaseError(
            f"{name} did not end within {duration_text(timeout_s)}",
            hint="allow more with --timeout",
        ) from None
    if done.returncode:
        log = done.stderr.decode(errors="replace").strip()[-_TOOL_LOG_CHARACTERS:]
        code = done.returncode
        if code < 0:
            signal = signal_name(-code)
            raise CaseError(f"{name} was ended by {signal}" + (f": {log}" if log else ""))
        raise CaseError(f"{name} failed with exit code {code}" + (f": {log}" if log else ""))
    return done.stdout.decode(errors="replace")


def parse_round(text: str) -> ToolRound:
    """Parse the JSON of iree-benchmark-module: repetitions, and a row for each kernel."""
    try:
        rows: list[dict[str, Any]] = json.loads(text[text.index("{") :])["benchmarks"]
    except (ValueError, KeyError) as error:
        raise CaseError(f"{_MODULE}: not JSON: {error}") from None
    failed = next((row for row in rows if row.get("error_occurred")), None)
    if failed is not None or not rows:
        message = failed.get("error_message", "") if failed else "no benchmark ran"
        raise CaseError(f"{_MODULE} failed" + (f": {message}" if message else ""))
    single = [row for row in rows if row["run_type"] == "iteration"]
    calls = [row for row in single if "calls" not in row]
    kernels = {
        row["run_name"].partition("/")[2]: DispatchTime(
            seconds=_row_seconds(row), calls=float(row["calls"])
        )
        for row in single
        if "calls" in row
    }
    return ToolRound(
        samples_s=tuple(map(_row_seconds, calls)),
        dispatches=kernels,
        timed_s=sum(_row_seconds(row) * row.get("iterations", 1) for row in calls),
        cpu_s=tuple(_row_seconds(row, "cpu_time") for row in calls if "cpu_time" in row),
    )


def _row_seconds(row: Mapping[str, Any], name: str = "real_time") -> float:
    return float(row[name]) * _SECONDS[row["time_unit"]]
