"""A subprocess that renders the figures of the server's pages.

vl-convert holds the GIL for the 100 ms that a figure takes; in the server's process it would block
all requests. An abort of the library ends only this process.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from typing import Any

from kernelmark.core.errors import KernelmarkError
from kernelmark.host.processes import own_command
from kernelmark.report import vega

_NICENESS = 5  # pages have priority
_MOST_S = 60.0


class Drawer:
    """Renders one figure at a time, in a subprocess that is started on first use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def svg(self, spec: vega.Spec) -> str:
        """Return the figure as SVG, as `vega.svg` does."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            ends = threading.Timer(_MOST_S, process.kill)
            ends.start()
            try:
                process.stdin.write(f"{json.dumps(spec)}\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except OSError:
                answer = ""
            finally:
                ends.cancel()
            if not answer:
                process.kill()
                process.wait()
                raise KernelmarkError("the figure could not be drawn")
        return str(json.loads(answer))

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                own_command(__name__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C ends the server, which closes this process's stdin
            )
        return self._process


@functools.cache
def drawer() -> Drawer:
    """Return the process-wide Drawer."""
    return Drawer()


def _serve() -> None:
    """Answer each line of stdin, a spec, with a line of its SVG, until the server closes stdin."""
    os.nice(_NICENESS)
    for line in sys.stdin:
        spec: dict[str, Any] = json.loads(line)
        sys.stdout.write(f"{json.dumps(vega.svg(spec))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
