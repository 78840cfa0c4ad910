"""Messages between parent and worker: one JSON object per line, with a `kind`.

To the worker: `measure`, `compile`, `environment`, `call` (of a function of another package,
`module:function`), `stop`. From the worker: `ready` or `failed`, then for each request any number
of `phase` and one `reply`. A request also has `profile_s`, the time limit of a profiler. A message
about a request has its `id` and its `nonce`: a kernel runs in the worker's process, and what it
writes to the pipe must not be accepted as a result. A phase has `at`, the system-wide monotonic
clock, so that a parent that was busy still attributes time to the right phase.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from kernelmark.core.errors import CodecError
from kernelmark.core.reason import Reason

PROTOCOL = 2
OUT_OF_MEMORY_EXIT = 112  # exit code of a worker that has no memory left for a message
# Prefix of the line in which a profiled process reports the kernels per launch.
MARK = "kernelmark-profiled: "
MARK_KERNEL = "nothing"  # empty kernel of device.cu, before and after the launches in a trace
Message = dict[str, Any]
# Created once: json.dumps creates an encoder per message, which takes longer than encoding a phase.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(message: Message) -> bytes:
    """Return a message encoded as one line."""
    return _ENCODER.encode(message).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Parse the message on a line."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise CodecError(f"not a message: {_shown(line)}") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise CodecError(f"a message without a kind: {_shown(line)}")
    return message


def _shown(line: bytes) -> str:
    return repr(line.decode(errors="replace").strip()[:120])


_FRAME = re.compile(r'\s+File "(.+)", line (\d+) in (.+)')
# Frames that occur in every worker, independent of the kernel: kernelmark's and Python's own.
_USUAL_FRAME = re.compile(
    r"/kernelmark/(backends|core|devices|gpu|host|kernels|measure|numerics|ops|runners|stats)/"
    r"|<frozen |/python3\.\d+/(?!site-packages/|dist-packages/)"
)
_DUMP = ("Fatal Python error", "Current thread", "Thread 0x", "Extension modules", "Traceback")


def parse_stderr(output: str) -> dict[str, str]:
    """Return the fields that describe a worker's loss: the whole `output`, the last line `said`
    that is not part of a stack dump, and the innermost `frame` of code outside kernelmark and
    Python."""
    lines = output.splitlines()
    unindented = [line.strip() for line in lines if line.strip() and not line[0].isspace()]
    messages = [line for line in unindented if not line.startswith(_DUMP)]
    return {"output": output, "said": messages[-1] if messages else "", "frame": _frame(lines)}


def with_stderr(reason: Reason, output: str) -> Reason:
    """Return a worker's loss with its standard error, whose last line stands in the sentence."""
    fields = parse_stderr(output)
    last = f": {fields['said']}" if fields["said"] else ""
    frame = f", at {fields['frame']}" if fields["frame"] else ""
    return Reason(f"{reason}{last}{frame}\n{output}", reason.code, **{**reason.fields, **fields})


def _frame(lines: Sequence[str]) -> str:
    """Return the frame as `own.py line 10 in launch`."""
    start = next((i for i, line in enumerate(lines) if line.startswith("Current thread")), 0)
    for match in filter(None, map(_FRAME.match, lines[start:])):
        if not _USUAL_FRAME.search(match[1]):
            return f"{PurePath(match[1]).name} line {match[2]} in {match[3]}"
    return ""
