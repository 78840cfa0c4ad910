"""`kmark roofs`: measure and store a device's peaks, and compare them with its data sheet."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kernelmark.cli import completing
from kernelmark.cli import options as o
from kernelmark.cli.followups import extended, kept_by, store_words
from kernelmark.cli.output import check_drawable, check_writable, draw, put_table, say, write
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.units import counted, join_commas

if TYPE_CHECKING:
    from kernelmark.core.environment import DeviceInfo
    from kernelmark.core.metric import Roof
    from kernelmark.stores.store import Store

# Newest runs that are searched for a description of a device.
_RECENT = 50
DeviceRoofs = tuple["DeviceInfo | None", "tuple[Roof, ...]"]
Stored = Annotated[
    bool, o.option("--stored", o.OUTPUT, help="Show the newest stored roofs; measure nothing.")
]
MeasuredDevices = Annotated[
    o.Words,
    o.option(
        "-d --device DEVICE",
        o.SELECTION,
        complete=completing.devices,
        help="Measure these devices: cpu, cuda:0, cuda:0-7, all. Default: cpu.",
    ),
]
Threads = Annotated[
    int, o.option("--threads N", o.MEASUREMENT, min=0, help="Use N CPU cores; 0 is all.")
]


def roofs(
    devices: MeasuredDevices = None,
    threads: Threads = 0,
    stored: Stored = False,
    store: o.StorePlace = None,
    no_store: o.NoStore = False,
    json: o.Json = None,
    figure: o.Figure = None,
    quiet: o.Quiet = False,
) -> int:
    """Measure a device's peaks: FLOP/s, bytes/s, launch cost.

    The column 'of roof' of a run is relative to the roofs that were the newest when
    the run began. The column share compares a roof with the vendor's data sheet, if
    that is known; it is only shown here. A CPU has roofs of its vector units and of
    main memory only.
    """
    from kernelmark.runners import targets
    from kernelmark.stores import open_store

    if json is not None:
        check_writable(json)
    drawn = check_drawable(figure)
    if stored and no_store:
        raise UsageError("--no-store cannot be combined with --stored")
    names = o.comma_list(devices) or ("cpu",)
    absent = stored and all(map(_is_absent_gpu, names))
    infos = [] if absent else targets.expand(names)
    for info in infos:
        targets.check_threads(info, threads)
    results: list[DeviceRoofs]
    if no_store:
        results = [(info, _measured(info, threads, None, quiet=quiet)) for info in infos]
    else:
        with open_store(store, readonly=stored) as opened:
            if absent:
                results = [_stored_absent(name, opened, store) for name in names]
            elif stored:
                results = [(info, _stored(info, threads, opened, store)) for info in infos]
            else:
                results = [(info, _measured(info, threads, opened, quiet=quiet)) for info in infos]
    again = () if no_store else ("roofs", "--stored", "--json", "FILE")
    with kept_by(again, store):
        _put(results, json)
        if drawn is not None:
            _draw(results, drawn)
    return 0


def _draw(results: Sequence[DeviceRoofs], path: Path) -> None:
    """Render one figure per device, to FILE-DEVICE.png and so on if there are several."""
    from kernelmark.report import figures

    for info, ceilings in results:
        device, model = ceilings[0].device, info.model if info else ceilings[0].model
        own = path.with_name(f"{path.stem}-{device.replace(':', '')}{path.suffix}")
        target = own if len(results) > 1 else path
        draw(
            figures.ceilings(ceilings), target, figures.TITLES["roofs"], f"{device} {model}".strip()
        )


def _measured(
    info: DeviceInfo, threads: int, store: Store | None, *, quiet: bool
) -> tuple[Roof, ...]:
    from kernelmark.api.roofs import measure_roofs

    def tell(text: str) -> None:
        if not quiet:
            say(f"note: {text}")

    measured = measure_roofs(info, threads, store, tell)
    if not measured:
        raise NothingToDo(
            f"no roof of {info.name} could be measured", hint="kmark micro says what went wrong"
        )
    return measured


def _stored(info: DeviceInfo, threads: int, store: Store, url: str | None) -> tuple[Roof, ...]:
    host = platform.node()
    ceilings = store.roofs(host=host, device=info.name, arch=info.arch, threads=threads or None)
    if not ceilings:
        words = (*(("--threads", str(threads)) if threads else ()), *store_words(url))
        devices = dict.fromkeys(roof.device for roof in store.roofs(host=host))
        others = tuple(device for device in devices if device != info.name)
        raise NothingToDo(
            f"no roofs of {info.name}"
            + (f" with {counted(threads, 'thread')}" if threads else "")
            + " are stored for this host"
            + (f"; there are some of {join_commas(others)} (-d)" if others else ""),
            hint=f"measure them: {extended(f'kmark roofs -d {info.name}', words)}",
        )
    return ceilings


def _is_absent_gpu(name: str) -> bool:
    """Return whether `name` is a GPU that is not available here; stored roofs do not need it."""
    from kernelmark.devices import registry
    from kernelmark.runners import targets

    kind, _, index = name.partition(":")
    if kind in ("cpu", "fake") or kind not in registry or not (index or "0").isdigit():
        return False
    try:
        targets.find(name)
    except UsageError:
        return True
    return False


def _stored_absent(name: str, store: Store, url: str | None) -> DeviceRoofs:
    """Return the stored roofs of an unavailable device, and its description from a stored run."""
    host = platform.node()
    device = name if ":" in name else f"{name}:0"
    ceilings = store.roofs(host=host, device=device)
    if not ceilings:
        raise NothingToDo(
            f"no roofs of {device} are stored for this host",
            hint="measure them where it is: "
            f"{extended(f'kmark roofs -d {device}', store_words(url))}",
        )
    infos = (info for run in store.runs(_RECENT) for info in run.environment.devices)
    seen = (info for info in infos if (info.name, info.arch) == (device, ceilings[0].arch))
    return next(seen, None), ceilings


def _put(results: Sequence[DeviceRoofs], json: str | None) -> None:
    from kernelmark.core import codec
    from kernelmark.core.files import json_text
    from kernelmark.report.micro import roofs_table

    if json is not None:
        documents: list[Any] = [
            codec.to_document(roof) for _, ceilings in results for roof in ceilings
        ]
        write(json, json_text(documents))
    if json != "-":
        for info, ceilings in results:
            put_table(roofs_table(ceilings, info))
