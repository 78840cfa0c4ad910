"""Messages between parent and worker: one JSON object a line, with a `kind`.

To the worker: `measure`, `compile`, `environment`, `call` (which names a function of another
package, `module:function`), `stop`. From the worker: `ready` or `failed`, then for each request any
number of `phase` and one `reply`. A request also carries `profile_s`, how long a profiler may take.
A message about a request carries its `id` and its `nonce`: a kernel shares the worker's process,
and what it writes to the pipe must not pass for a result. A phase carries `at`, the system-wide
monotonic clock, so that a parent that was busy elsewhere still books time on the right phase.
"""

from __future__ import annotations

import json
from typing import Any

from kernelmark.core.errors import CodecError
from kernelmark.core.reason import Reason

PROTOCOL = 2
OUT_OF_MEMORY_EXIT = 112  # exit code of a worker without memory for a message
# Prefix of the line in which a profiled process reports how many kernels a launch starts.
MARK = "kernelmark-profiled: "
MARK_KERNEL = "nothing"  # empty kernel of device.cu, around the launches in a trace
Message = dict[str, Any]
# Made once: json.dumps makes an encoder for each message, which takes longer than encoding a phase.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(message: Message) -> bytes:
    """Return a message as one line."""
    return _ENCODER.encode(message).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message on a line."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise CodecError(Reason("message-unreadable", line=_shown(line))) from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise CodecError(Reason("message-without-kind", line=_shown(line)))
    return message


def _shown(line: bytes) -> str:
    return repr(line.decode(errors="replace").strip()[:120])
