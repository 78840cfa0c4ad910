"""`kmark doctor`, `watch` and `lock`: what works here, live readings, and a device for oneself."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmark.cli import options as o
from kernelmark.cli.hardware import fleet
from kernelmark.cli.output import check_writable, console, fancy, put, put_tables, say, write
from kernelmark.cli.store import listing
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.metric import Roof
from kernelmark.core.units import bytes_text, counted, duration_text, rate_text
from kernelmark.core.verdict import SOME_FAILED
from kernelmark.host.cache import cache_root, chosen_cache_root
from kernelmark.host.permissions import Unsafe, find_unsafe
from kernelmark.report.tables import Column, Table

if TYPE_CHECKING:
    from rich.table import Table as LiveTable

    from kernelmark.api.watch import History, Reading

_SPARK = "▁▂▃▄▅▆▇█"
_TREND = 32  # columns

Device = Annotated[
    str, o.option("-d --device DEVICE", complete=o.complete_devices, help="Watch this device.")
]
Every = Annotated[float, o.option("--every S", min=0.01, help="Read once in so many seconds.")]
Count = Annotated[int, o.option("--count N", min=0, help="End after N readings; 0: never.")]


def watch(*, device: Device = "cpu", every: Every = 1.0, count: Count = 0) -> int:
    """Watch a device's clocks, power, load and memory live.

    On a terminal a live table with trends; elsewhere CSV, one line per reading. Ctrl-C ends it.
    """
    from kernelmark.api.watch import History, watch

    readings = watch(device, every, count)
    if not fancy(sys.stdout):
        _put_lines(readings)
        return 0
    from rich.live import Live

    history = History()
    with Live(console=console(), auto_refresh=False) as live:
        for reading in readings:
            history.add(reading)
            live.update(_table(device, history), refresh=True)
    return 0


Devices = Annotated[
    list[str] | None,
    o.option(
        "-d --device DEVICE",
        complete=o.complete_devices,
        help="Hold this device. Repeatable. Default: cpu.",
    ),
]
Program = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND…", help="The program after --, with its options.", show_default=False
    ),
]


def lock(*, device: Devices = None, words: Program = None) -> int:
    """Hold a device for any program: kernelmark's runs wait until it ends.

    Waits for runs and programs that hold the device now, then becomes the program. Its exit
    code is that of the program, and 'kmark run' in it does not wait for itself.

    For example: kmark lock -d cuda:0 -- python train.py
    """
    from kernelmark.runners.locks import lock_for_program
    from kernelmark.runners.targets import parse_devices

    if not words:
        raise UsageError("there is no program to run", hint="kmark lock -d cuda:0 -- PROGRAM …")
    infos = parse_devices(device or ["cpu"])
    lock_for_program(infos, lambda holder: say(f"waiting for {holder}"))
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(words[0], words)
    except OSError as error:
        raise UsageError(f"{words[0]} cannot be run: {error.strerror}") from None


def _put_lines(readings: Iterable[Reading]) -> None:
    from kernelmark.api.watch import METRICS

    names: list[str] = []
    for reading in readings:
        if not names:
            names = [name for name in METRICS if name in reading]
            put("time," + ",".join(f"{name} {METRICS[name]}" for name in names) + "\n")
        values = [f"{reading[name]:.4g}" if name in reading else "" for name in names]
        put(",".join([f"{time.time():.2f}", *values]) + "\n")


def _table(device: str, history: History) -> LiveTable:
    from rich.table import Table as LiveTable

    from kernelmark.api.watch import METRICS

    table = LiveTable(
        title=f"{device}, Ctrl-C ends", box=None, title_justify="left", pad_edge=False
    )
    table.add_column("")
    for name in ("now", "min", "max"):
        table.add_column(name, justify="right", min_width=6)
    table.add_column("unit")
    table.add_column("trend", width=_TREND)
    for name, unit in METRICS.items():
        if values := list(history.values.get(name, ())):
            cells = [f"{v:.4g}" for v in (values[-1], min(values), max(values))]
            table.add_row(name, *cells, unit, spark(values[-_TREND:], unit))
    return table


def spark(values: list[float], unit: str) -> str:
    """Return a trend in block characters: percentages from 0 to 100, others over their range."""
    low, high = (0.0, 100.0) if unit == "%" else (min(values), max(values))
    steps = len(_SPARK) - 1
    span = high - low
    return "".join(_SPARK[round(steps * min(1.0, (v - low) / span)) if span else 0] for v in values)


Ray = Annotated[
    str | None,
    o.option(
        "--ray HOST:PORT|auto",
        help="List the nodes of a Ray cluster instead: devices, versions, who holds them, and what "
        "is wrong; exit 3 if a node cannot be used.",
    ),
]


def doctor(store: o.StorePlace = None, json: o.Json = None, ray: Ray = None) -> int:
    """Check this machine: devices, backends, store and roofs.

    Also checks the CPU's settings and precompiled bundles. Lists what is missing
    and how to fix it. Include the output in a bug report.
    """
    from kernelmark.core.files import json_text

    if json is not None:
        check_writable(json)
    if ray is not None:
        nodes = fleet.read_nodes(ray)
        if json is None:
            put_tables([fleet.nodes_table(nodes)])
        else:
            write(json, json_text(fleet.nodes_document(nodes)))
        return SOME_FAILED if any(node.reason for node in nodes) else 0
    if json is None:
        put_tables(examine(store))
    else:
        write(json, json_text(document(store)))
    return 0


SAFE = "safe"  # the state of a folder that no other user can write to
# Commands that load compiled code.
_LOADING = ("run", "ab", "gate", "bisect", "nightly", "tune", "micro", "roofs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder and why it is unsafe; `used` is False if another folder is used instead."""

    what: str
    path: Path
    unsafe: Unsafe | None
    used: bool

    @property
    def state(self) -> str:
        return self.unsafe.code if self.unsafe else SAFE


def examined() -> Iterator[Folder]:
    """Yield the cache, the precompiled bundles and Triton's cache, if set."""
    yield _folder("cache", chosen_cache_root(), checked=True)
    for name, what in (("KERNELMARK_PACK", "pack"), ("TRITON_CACHE_DIR", "Triton's cache")):
        for path in filter(None, os.environ.get(name, "").split(os.pathsep)):
            yield _folder(what, Path(path), checked=what == "pack")


def _folder(what: str, path: Path, *, checked: bool) -> Folder:
    unsafe = find_unsafe(path)
    return Folder(what=what, path=path, unsafe=unsafe, used=unsafe is None or not checked)


def notes(argv: Sequence[str]) -> list[str]:
    """Return warnings about unsafe folders, for commands that load code."""
    if not argv or argv[0] not in _LOADING or {"-h", "--help"} & set(argv):
        return []
    return [
        f"{'' if folder.used else 'the '}{folder.what} {folder.path} is "
        f"{'unsafe' if folder.used else 'not used'}: {folder.unsafe}"
        for folder in examined()
        if folder.unsafe is not None
    ]


_CPU = Path("/sys/devices/system/cpu")
_ONLY_YOURS = "no other user can write to it"


def examine(url: str | None) -> list[Table]:
    """Return the tables of `kmark doctor`, in the order they are printed."""
    from kernelmark.gpu import rocm

    store, roofs = _store(url)
    parts: list[tuple[str, ...]] = [(name, path or "not there") for name, path in rocm.parts()]
    return [
        _titled("this machine", ("what", "value"), _here()),
        _again(listing.table("devices"), "devices"),
        *([_titled("ROCm", ("part", "path"), parts)] if parts else []),
        _titled("settings of the CPU", ("what", "value", "advice"), _cpu()),
        _titled(
            "backends",
            ("backend", "state", "runs on", "version, or what to do"),
            [(*row[:3], "; ".join(filter(None, row[3:]))) for row in _backends()],
        ),
        _titled("store", ("what", "value"), store),
        _titled("cache", ("what", "value"), _cache()),
        _titled("folders", ("folder", "path", "state", "why"), _folders(url)),
        _titled("precompiled bundles", ("bundle", "architecture", "kernels"), _bundle_rows()),
        _titled("roofs", ("roof", "value", "threads", "age", "how"), [_roof(r) for r in roofs]),
    ]


def document(url: str | None) -> dict[str, Any]:
    """Return the same as JSON values: stable keys, base units, null for unknown."""
    from kernelmark.core import codec
    from kernelmark.gpu import rocm
    from kernelmark.runners.capture import container

    store, roofs = _store(url)
    stored = {row[0]: row[1] for row in store}
    info, boost, compiler = _cpu_info(), _boost()[1], _compiler()[1]
    clock_khz = _number(_read(_CPU / "cpu0/cpufreq/scaling_cur_freq"))
    return {
        "kernelmark": "doctor",
        "version": 1,
        "here": {row[0]: row[1] for row in _here()} | {"container": container() or None},
        "devices": listing.document("devices"),
        "rocm": {part: where or None for part, where in rocm.parts()},
        "cpu": {
            "cores_used": info.units,
            "logical_cpus": _number(info.attributes.get("logical_cpus")),
            "governor": _read(_CPU / "cpu0/cpufreq/scaling_governor"),
            "clock_mhz": None if clock_khz is None else clock_khz / 1e3,
            "boost": {"on": True, "off": False}.get(boost),
            "load_1min": os.getloadavg()[0],
            "compiler": None if compiler == "none" else compiler,
        },
        "backends": [
            {
                "backend": name,
                "state": state,
                "devices": kinds.split(", ") if kinds else [],
                "version": text if state in ("ready", "no device") else None,
                "reason": (notes or None) if state in ("ready", "no device") else text,
            }
            for name, state, kinds, text, notes in _backends()
        ],
        "store": {
            "path": stored.get("path"),
            "state": "ready" if stored.get("state") == "ready" else "unusable",
            "reason": None if stored.get("state") == "ready" else stored.get("state"),
            "schema": _number(stored.get("schema", "").partition(",")[0]),
            "newest_run": None if stored.get("newest run") == "none" else stored.get("newest run"),
        },
        "cache": _cache_document(),
        "folders": [
            {"folder": what, "path": path, "state": state, "reason": None if state == SAFE else why}
            for what, path, state, why in _folders(url)
        ],
        "bundles": _bundles(),
        "roofs": [codec.plain(roof) for roof in roofs],
    }


def _cache_document() -> dict[str, Any]:
    root = cache_root()
    return {
        "path": str(root),
        "folders": [
            {"folder": name, "bytes": sum(sizes), "files": len(sizes)}
            for name, sizes in _cache_sizes(root)
        ],
    }


def _cache_sizes(root: Path) -> list[tuple[str, list[int]]]:
    """Return the file sizes by subfolder of the cache."""
    if not root.is_dir():
        return []
    return [
        (folder.name, [path.stat().st_size for path in folder.rglob("*") if path.is_file()])
        for folder in sorted(path for path in root.iterdir() if path.is_dir())
    ]


def _bundles() -> list[dict[str, Any]]:
    from kernelmark.gpu import pack

    bundles: list[dict[str, Any]] = []
    for folder in pack.folders():
        try:
            for arch, (whole, damaged) in pack.inventory(folder).items():
                bundles.append(
                    {"path": str(folder), "arch": arch, "kernels": whole, "damaged": damaged}
                )
        except OSError as error:
            bundles.append({"path": str(folder), "reason": error.strerror or str(error)})
    return bundles


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _titled(title: str, names: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    shown = rows or [("none known; kmark run measures them", *[""] * (len(names) - 1))]
    return Table(title=title, columns=tuple(Column(name=n) for n in names), rows=tuple(shown))


def _again(table: Table, title: str) -> Table:
    return Table(title=title, columns=table.columns, rows=table.rows)


def _here() -> list[tuple[str, ...]]:
    import kernelmark
    from kernelmark.runners.capture import container

    return [
        ("kernelmark", str(kernelmark.__version__)),
        ("python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("system", f"{platform.system()} {platform.release()} on {platform.machine()}"),
        ("container", container() or "none seen"),
    ]


def _cpu_info() -> DeviceInfo:
    from kernelmark.devices import registry

    return registry.get("cpu").infos()[0]


def _cpu() -> list[tuple[str, ...]]:
    info = _cpu_info()
    return [
        ("cores used", _cores_text(info.units, info.attributes.get("logical_cpus", "?")), ""),
        _governor(),
        _frequency(),
        _boost(),
        _load(info.units),
        _compiler(),
    ]


def _cores_text(cores: int, allowed: str) -> str:
    """Return the cores, and the logical CPUs that the affinity mask leaves of all."""
    return f"{cores} (this process may use {allowed} of {os.cpu_count() or '?'} logical CPUs)"


def _governor() -> tuple[str, str, str]:
    value = _read(_CPU / "cpu0/cpufreq/scaling_governor")
    if value is None:
        return "governor", "not readable here", "clock changes cannot be ruled out"
    advice = "" if value == "performance" else "sudo cpupower frequency-set -g performance"
    return "governor", value, advice


def _frequency() -> tuple[str, str, str]:
    value = _read(_CPU / "cpu0/cpufreq/scaling_cur_freq")
    if value is None or not value.isdigit():
        return "clock", "not readable here", "results carry no clock; that is usual in containers"
    return "clock", f"{int(value) / 1e3:.0f} MHz", ""


def _boost() -> tuple[str, str, str]:
    for path, on in ((_CPU / "cpufreq/boost", "1"), (_CPU / "intel_pstate/no_turbo", "0")):
        value = _read(path)
        if value is not None:
            if value == on:
                return "boost", "on", "the clock depends on heat and on how many cores work"
            return "boost", "off", ""
    return "boost", "not known", ""


def _load(cores: int) -> tuple[str, str, str]:
    load = os.getloadavg()[0]
    busy = load > 0.3 * cores
    advice = "other work disturbs timings: stop it, or expect wide intervals" if busy else ""
    # The load average includes waiting tasks: above the number of cores it is not a utilisation.
    waiting = f", and {load - cores:.1f} more waited" if load > cores else ""
    value = f"{min(load, cores):.1f} of {counted(cores, 'core')} over the last minute{waiting}"
    return "load", value, advice


def _compiler() -> tuple[str, str, str]:
    from_variable = os.environ.get("CXX", "").split()[:1]
    compiler = next(
        (name for name in (*from_variable, "c++", "g++", "clang++") if shutil.which(name)), None
    )
    if compiler is None:
        return "C++ compiler", "none", "install g++ or clang++ for exact roofs; numpy stands in"
    return "C++ compiler", compiler, ""


def _backends() -> list[tuple[str, ...]]:
    from kernelmark.backends import registry
    from kernelmark.devices import registry as devices

    here = {name for name in devices.names() if devices.get(name).available() is None}
    rows: list[tuple[str, ...]] = []
    for name in registry.names():
        kinds: tuple[str, ...] = ()
        lacking: dict[str, str] = {}
        text: str
        try:
            backend = registry.get(name)
            kinds = backend.device_kinds
            reason = backend.available()
            version = backend.version() if reason is None else ""
            if reason is None:
                kinds, lacking = listing.split_kinds(backend)
                reason = None if kinds else next(iter(lacking.values()))
        except KernelmarkError as error:
            state, text = "broken", error.message
        except Exception as error:  # a library that fails to load must not end the checks
            state, text = "broken", f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            state, text = ("ready", version) if reason is None else ("missing", reason)
            if reason is None and not here & set(kinds):
                state = "no device"
        notes = "; ".join(why for kind, why in lacking.items() if kind in here and kinds)
        rows.append((name, state, ", ".join(kinds), text, notes))
    return rows


def _store(url: str | None) -> tuple[list[tuple[str, ...]], tuple[Roof, ...]]:
    from kernelmark.stores import open_store, require_sql

    rows: list[tuple[str, ...]] = []
    try:
        require_sql()
        from kernelmark.stores.engine import locate
        from kernelmark.stores.migrations import numbers

        rows.append(("schema", f"{max(numbers())}, the newest known here"))
        rows.insert(0, ("path", locate(url).shown))
        with open_store(url, readonly=True) as store:
            runs = store.runs(limit=1)
            roofs = store.roofs(host=platform.node())
    except KernelmarkError as error:
        hint = [("advice", error.hint)] if error.hint else []
        return [*rows, ("state", error.message), *hint], ()
    rows += [("state", "ready"), ("newest run", runs[0].id if runs else "none")]
    return rows, roofs


def _cache() -> list[tuple[str, ...]]:
    root = cache_root()
    rows: list[tuple[str, ...]] = [("path", str(root))]
    if not root.is_dir():
        return [*rows, ("state", "not made yet")]
    for name, sizes in _cache_sizes(root):
        rows.append((name, f"{bytes_text(sum(sizes))} in {counted(len(sizes), 'file')}"))
    return rows


def _folders(url: str | None) -> list[tuple[str, ...]]:
    """Return rows on whether other users could replace code or results."""
    from kernelmark.host.permissions import find_unsafe

    rows: list[tuple[str, ...]] = [
        (folder.what, str(folder.path), folder.state, str(folder.unsafe or _ONLY_YOURS))
        for folder in examined()
    ]
    try:
        from kernelmark.stores.engine import locate

        path = locate(url).path
    except (KernelmarkError, ImportError):  # the table of the store has the reason
        path = None
    if path is not None:
        unsafe = find_unsafe(path)
        state = unsafe.code if unsafe else SAFE
        rows.append(("store", str(path), state, str(unsafe or _ONLY_YOURS)))
    return rows


def _bundle_rows() -> list[tuple[str, ...]]:
    """Return rows on precompiled bundles, by folder of KERNELMARK_PACK."""
    from kernelmark.gpu import pack

    rows: list[tuple[str, ...]] = []
    for folder in pack.folders():
        try:
            inventory = pack.inventory(folder)
        except (FileNotFoundError, NotADirectoryError):
            rows.append((str(folder), "not there", "look at KERNELMARK_PACK"))
            continue
        except OSError as error:
            rows.append((str(folder), "cannot be read", error.strerror or str(error)))
            continue
        for arch, (whole, damaged) in inventory.items():
            bad = f", and {damaged} damaged: copy the bundle again" if damaged else ""
            rows.append((str(folder), arch, f"{whole}{bad}"))
        if not inventory:
            rows.append((str(folder), "none", "0"))
    return rows or [("none: KERNELMARK_PACK is not set", "", "")]


def _roof(roof: Roof) -> tuple[str, ...]:
    unit = {"flops": "FLOP/s", "bytes": "B/s", "launches": "launches/s"}[roof.kind]
    name = f"{roof.device} {roof.name} {roof.unit}".strip()
    age = duration_text(max(0.0, time.time() - roof.measured))
    return name, rate_text(roof.value, unit), str(roof.threads or ""), age, roof.how_text


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
