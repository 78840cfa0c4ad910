"""Evidence: the figures of a benchmark in one JSON file, with what made them."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kernelmark
from kernelmark import backends
from kernelmark.core.environment import DeviceInfo

# What is made from sources lies beside them.
_MADE = (".pyc", ".so")


def sources(folder: Path) -> str:
    """Short digest of the names and bytes of a package's source files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).as_posix()):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
        if not hidden and path.suffix not in _MADE and path.is_file():
            data = path.read_bytes()
            # Lengths, so that no byte can pass from a name or a file to the next.
            digest.update(f"{name.as_posix()}\0{len(data)}\0".encode())
            digest.update(data)
    return digest.hexdigest()[:12]


# Of the code that begins to run, not of what it was edited to by the time it ends.
SOURCES = sources(Path(kernelmark.__file__).parent)


def libraries(*names: str) -> dict[str, str]:
    """Versions of what these backends call, as far as they can run here."""
    found: dict[str, str] = {}
    for backend in map(backends.registry.get, names):
        if backend.available() is None:
            found |= backend.libraries()
    return found


def write(
    path: Path,
    *,
    title: str,
    bars: Sequence[tuple[str, str, bool]],
    figures: Mapping[str, Any],
    device: DeviceInfo | None = None,
    libraries: Mapping[str, str] | None = None,
) -> None:
    """Write `path`. A bar is (what is asked, what was measured, whether it holds)."""
    machine: dict[str, Any] = {"python": platform.python_version(), "cpu": platform.machine()}
    if device is not None:
        machine |= {"device": device.model, "arch": device.arch, "driver": device.driver}
    now = time.gmtime()
    document = {
        "title": title,
        "command": command(),
        "date": time.strftime("%Y-%m-%d", now),
        "time": time.strftime("%H:%M:%SZ", now),
        "sources": SOURCES,
        "machine": machine,
        "libraries": dict(libraries or {}),
        "bars": [{"asked": a, "measured": m, "holds": h} for a, m, h in bars],
        "figures": figures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def conclude(
    path: Path,
    *,
    title: str,
    bars: Sequence[tuple[str, str, bool]],
    figures: Mapping[str, Any],
    libraries: Mapping[str, str] | None = None,
) -> int:
    """Print the bars, write `path`, and return the exit status: 1 if a bar does not hold."""
    sys.stdout.write(f"{bars_text(bars)}\n")
    write(path, title=title, bars=bars, figures=figures, libraries=libraries)
    return 0 if all(holds for _, _, holds in bars) else 1


def load_state(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the outcomes in a state file by key. A last line that is half written is ended, so
    that the next has its own."""
    known = {}
    if path is not None and path.exists():
        text = path.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):
            path.write_text(text + "\n", encoding="utf-8")
        for line in text.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            known[row["key"]] = row
    return known


def append_state(path: Path | None, outcome: Mapping[str, Any]) -> None:
    """Append an outcome with a key to a state file, if there is one."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")


def bars_text(bars: Sequence[tuple[str, str, bool]]) -> str:
    """The bars as lines for a terminal."""
    return "\n".join(f"{'holds' if h else 'FAILS'}  {a}: {m}" for a, m, h in bars)


def command() -> str:
    """How this process was started, as one would type it in the repository."""
    return shlex.join(["python", *_relative(sys.argv)])


def _relative(argv: Sequence[str]) -> list[str]:
    """The command as it would be typed in the repository, without this machine's folders."""
    shown = []
    words = iter(argv)
    for word in words:
        if word in ("-o", "--output"):  # where the figures went says nothing about them
            next(words, None)
            continue
        parts = Path(word).parts
        if "benchmarks" in parts:
            word = str(Path(*parts[parts.index("benchmarks") :]))
        shown.append(word)
    return shown
