"""The process that runs microbenchmarks: `python -m kernelmark.micro.worker --device cuda:0`.

A process of its own, since a kernel that faults spoils its process's GPU for good. JSON lines as
in runners.protocol; a request is `{"do": "micro", "name": …, "mode": …, "parameters": …}`.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import BinaryIO

from kernelmark.core import codec
from kernelmark.core.errors import CompileError, KernelmarkError, Unsupported
from kernelmark.core.result import Status
from kernelmark.micro import registry
from kernelmark.micro.execute import execute, open_rig
from kernelmark.micro.rig import Rig
from kernelmark.runners.protocol import PROTOCOL, Message, decode, encode
from kernelmark.runners.worker import _live_with, _own_stdin, _own_stdout, _told

FAULTED = 3  # the exit code of a worker whose GPU may be spoilt


def main(arguments: list[str] | None = None) -> int:
    """Serve until standard input ends, `stop` comes, or a benchmark fails on a GPU."""
    parser = argparse.ArgumentParser(prog="kernelmark.micro.worker", description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--parent", type=int, default=0, help="end when this process ends")
    given = parser.parse_args(arguments)
    requests, out = _own_stdin(), _own_stdout()
    _live_with(given.parent)
    rig: Rig | None = None
    try:
        rig = open_rig(given.device, given.threads)
        rig.warm_up()
    except Exception as error:
        closed = _closed(error) if given.device.startswith("cpu") else None
        if closed is None:
            _say(out, "failed", protocol=PROTOCOL, error=_told(error))
            return 1
    else:
        closed = None
    _say(out, "ready", protocol=PROTOCOL, pid=os.getpid())
    for line in requests:
        try:
            request = decode(line, "do")
            if request["do"] == "stop":
                break
            if rig is None or closed is not None:
                nonce = request.get("nonce")
                _say(out, "closed", id=request.get("id"), nonce=nonce, **closed or {})
            elif _answered(out, rig, request) and rig.info.kind != "cpu":
                return FAULTED
        except KernelmarkError as error:
            _say(out, "failed", protocol=PROTOCOL, error=_told(error))
            return 1
    return 0


def _closed(error: Exception) -> dict[str, str] | None:
    """What every request is answered with on a host that cannot run any, as one without a
    compiler; None where the worker has failed."""
    if isinstance(error, Unsupported):
        return {"status": Status.UNSUPPORTED.value, "error": error.message}
    if isinstance(error, CompileError):
        return {"status": Status.COMPILE_ERROR.value, "error": error.message}
    return None


def _answered(out: BinaryIO, rig: Rig, request: Message) -> bool:
    """Run one benchmark and say its result; whether it failed in a way that may last."""
    benchmark = registry.get(str(request["name"]))
    result = execute(benchmark, rig, request["mode"], request["parameters"])
    nonce = request.get("nonce")
    _say(out, "result", id=request.get("id"), nonce=nonce, result=codec.to_document(result))
    return result.status is Status.RUNTIME_ERROR


def _say(out: BinaryIO, word: str, **fields: object) -> None:
    out.write(encode({"say": word, **fields}))
    out.flush()


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    finally:
        sys.stderr.flush()
        os._exit(code)
