"""inputs.json: records which logs the workload file next to it was made from."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.workloads import workload as files
from kernelmark.workloads.logs.reading import Reading

_FILE = "inputs.json"


def save(reading: Reading, path: Path, *, arch: str = "", force: bool = False) -> None:
    """Write a workload file at `path`, and inputs.json next to it.

    Raise UsageError if the file was made from other logs or was edited, unless `force`.
    """
    if path.exists() and not force:
        _check(reading, path)
    files.write(path, reading.workload)
    document = {
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "arch": arch,
        "workload_sha256": _digest(path),
        "inputs": [
            {
                "path": one.place,
                "sha256": one.sha256,
                "bytes": one.size,
                "lines": one.lines,
                "calls": one.calls,
                "formats": list(one.formats),
            }
            for one in reading.inputs
        ],
        "skipped_lines": len(reading.skipped),
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    path.with_name(_FILE).write_text(text, encoding="utf-8", errors="surrogateescape")


def formats(path: Path) -> set[str]:
    """Return the formats of the logs that the workload file at `path` was made from, if known."""
    known = _read(path.with_name(_FILE)).get("inputs", [])
    return {str(name) for one in known for name in one.get("formats", ())}


def _check(reading: Reading, path: Path) -> None:
    known = _read(path.with_name(_FILE))
    before = known.get("inputs", [])
    if sorted(one["sha256"] for one in before) != sorted(one.sha256 for one in reading.inputs):
        sources, more = [str(one["path"]) for one in before[:3]], len(before[3:])
        raise UsageError(
            Reason("workload-exists", file=str(path), sources=sources, more=more),
            hint="name another folder, or replace it: --force",
        )
    if known.get("workload_sha256") != _digest(path):
        raise UsageError(
            Reason("workload-changed", file=str(path)),
            hint="name another folder, or lose the changes: --force",
        )


def _read(path: Path) -> dict[str, Any]:
    """Return the contents of inputs.json; {} if it does not exist or is not valid."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if all({"path", "sha256"} <= one.keys() for one in found["inputs"]):
            return dict(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return {}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
