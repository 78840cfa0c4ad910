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
        raise CodecError(Reason("message-unreadable", line=_shown(line))) from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise CodecError(Reason("message-without-kind", line=_shown(line)))
    return message


def _shown(line: bytes) -> str:
    return repr(line.decode(errors="replace").strip()[:120])
