"""`kmark roofs`: measure and store a device's peaks, and compare them with its data sheet."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kernelmark.cli import completing
from kernelmark.cli import options as o
from kernelmark.cli.output import check_drawable, check_writable, draw, put_table, say, write
from kernelmark.cli.places import extended, kept_by, store_words
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.reason import Reason

if TYPE_CHECKING:
    from kernelmark.core.environment import DeviceInfo
    from kernelmark.core.roof import Roof
    from kernelmark.stores.store import Store

# Newest runs that are searched for a description of a device.
_RECENT = 50
Found = list[tuple["DeviceInfo | None", "tuple[Roof, ...]"]]
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
        raise UsageError(Reason("options-exclusive", options=("--no-store",), other="--stored"))
    names = o.comma_list(devices) or ("cpu",)
    absent = stored and all(map(_is_absent_gpu, names))
    infos = [] if absent else targets.expand(names)
    for info in infos:
        targets.check_threads(info, threads)
    found: Found = []
    if no_store:
        found = [(info, _measured(info, threads, None, quiet=quiet)) for info in infos]
    else:
        with open_store(store, readonly=stored) as opened:
            found += [_known_absent(name, opened, store) for name in names if absent]
            for info in infos:
                if stored:
                    found.append((info, _known(info, threads, opened, store)))
                else:
                    found.append((info, _measured(info, threads, opened, quiet=quiet)))
    again = () if no_store else ("roofs", "--stored", "--json", "FILE")
    with kept_by(again, store):
        _put(found, json)
        if drawn is not None:
            _draw(found, drawn)
    return 0


def _draw(found: Found, path: Path) -> None:
    """Render one figure per device, to FILE-DEVICE.png and so on if there are several."""
    from kernelmark.report import figures

    for info, some in found:
        device = some[0].device
        place = path
        if len(found) > 1:
            place = path.with_name(f"{path.stem}-{device.replace(':', '')}{path.suffix}")
        model = info.model if info is not None else some[0].model
        draw(figures.ceilings(some), place, figures.TITLES["roofs"], f"{device} {model}".strip())


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
            Reason("roofs-not-measured", device=info.name), hint="kmark micro says what went wrong"
        )
    return measured


def _known(info: DeviceInfo, threads: int, store: Store, place: str | None) -> tuple[Roof, ...]:
    host = platform.node()
    found = store.roofs(host=host, device=info.name, arch=info.arch, threads=threads or None)
    if not found:
        words = (*(("--threads", str(threads)) if threads else ()), *store_words(place))
        raise NothingToDo(
            Reason(
                "roofs-not-stored",
                device=info.name,
                threads=threads,
                others=_other_devices(store, info.name),
            ),
            hint=f"measure them: {extended(f'kmark roofs -d {info.name}', words)}",
        )
    return found


def _other_devices(store: Store, name: str) -> tuple[str, ...]:
    """Return other devices with stored roofs."""
    roofs = store.roofs(host=platform.node())
    return tuple(device for device in dict.fromkeys(r.device for r in roofs) if device != name)


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


def _known_absent(
    name: str, store: Store, place: str | None
) -> tuple[DeviceInfo | None, tuple[Roof, ...]]:
    """Return the stored roofs of an unavailable device, and its description from a stored run."""
    host = platform.node()
    device = name if ":" in name else f"{name}:0"
    found = store.roofs(host=host, device=device)
    if not found:
        raise NothingToDo(
            Reason("roofs-not-stored", device=device),
            hint="measure them where it is: "
            f"{extended(f'kmark roofs -d {device}', store_words(place))}",
        )
    infos = (info for run in store.runs(_RECENT) for info in run.environment.devices)
    seen = (info for info in infos if (info.name, info.arch) == (device, found[0].arch))
    return next(seen, None), found


def _put(found: Found, json: str | None) -> None:
    from kernelmark.core import codec
    from kernelmark.core.files import json_text
    from kernelmark.report.micro import roofs_table

    if json is not None:
        documents: list[Any] = [codec.to_document(roof) for _, some in found for roof in some]
        write(json, json_text(documents))
    if json != "-":
        for info, some in found:
            put_table(roofs_table(some, info))
