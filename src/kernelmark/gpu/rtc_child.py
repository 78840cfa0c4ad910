"""The child process in which hipRTC compiles. Reads a request from stdin; writes a header line and
the code to stdout."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from kernelmark.core.errors import CompileError
from kernelmark.core.reason import reason_document
from kernelmark.gpu.rtc import compile_here


def main() -> None:
    """Compile the request on stdin; redirect what libraries print away from stdout."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    code, log = b"", ""
    error: Any = None
    try:
        code, log = compile_here(
            request["source"], request["arch"], request["name"], tuple(request["options"])
        )
    except CompileError as failed:
        error = reason_document(failed.message)
    with os.fdopen(answer_fd, "wb") as answer:
        answer.write(json.dumps({"error": error, "log": log}).encode() + b"\n" + code)


if __name__ == "__main__":
    main()
