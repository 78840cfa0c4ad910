"""Parse and store pushed runs, large ones in a subprocess.

Python's JSON parser holds the GIL: 30 MB of empty lists would stop every page for 20 s and take
1 GB. The subprocess may take 1 GiB, and ends with the server.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import BinaryIO

from kernelmark.core import codec
from kernelmark.core.errors import KernelmarkError, StoreError, UsageError
from kernelmark.core.result import ResultSet, check_results
from kernelmark.stores import check_name, open_store
from kernelmark.stores.store import Store

_SMALL = 1 << 18  # bytes: parsed in 0.1 s, whatever is in them
_VALUES = 2_000_000  # in a body; 32 MiB of samples are 1.5 million
_MEMORY = 1 << 30
_MOST_S = 120.0
_LENGTH = struct.Struct("<Q")


class Refusal(Exception):
    """A refused request: HTTP status, machine-readable code and message."""

    def __init__(
        self, *, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


class Receiver:
    """Stores the bodies of pushes, one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def receive(self, body: bytes) -> dict[str, object]:
        """Store a results document, and return what was new; raise Refusal."""
        if sum(map(body.count, (b",", b"[", b"{", b":"))) > _VALUES:
            raise Refusal(
                status=413,
                code="too-large",
                message=f"a body has at most {_VALUES} values; send fewer results",
            )
        with self._lock:
            answer = receive(self._store, body) if len(body) <= _SMALL else self._ask(body)
        if "code" in answer:
            raise Refusal(
                status=int(str(answer["status"])),
                code=str(answer["code"]),
                message=str(answer["message"]),
            )
        return answer

    def _ask(self, body: bytes) -> dict[str, object]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        ends = threading.Timer(_MOST_S, process.kill)
        ends.start()
        try:
            process.stdin.write(_LENGTH.pack(len(body)))
            process.stdin.write(body)
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = b""
        finally:
            ends.cancel()
        if not line:
            self.close()
            raise Refusal(status=503, code="store", message="the run could not be stored")
        answer: dict[str, object] = json.loads(line)
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C ends the server, which closes this process's stdin
            )
            assert self._process.stdin is not None
            # Not an argument: the URL of a store may have a password.
            self._process.stdin.write(json.dumps(self._store.location.address).encode() + b"\n")
        return self._process

    def close(self) -> None:
        """End the subprocess."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def receive(store: Store, body: bytes) -> dict[str, object]:
    """Store a results document; return what was new, or status, code and message of a refusal."""
    try:
        done = store.add_result_set(_document(body))
    except Refusal as error:
        return {"status": error.status, "code": error.code, "message": error.message}
    except StoreError as error:
        if error.message.code == "run-differs":
            return {"status": 409, "code": "run-differs", "message": str(error.message)}
        return {"status": 503, "code": "store", "message": str(error.message)}
    except UsageError as error:
        return {"status": 400, "code": "document", "message": str(error.message)}
    return {"run": done.run_id, "added": done.added, "known": done.known}


def _document(body: bytes) -> ResultSet:
    """Return the results of a body, validated as strictly as a file."""
    try:
        result_set = check_results(codec.loads(body, ResultSet))
        check_name("run", result_set.run.id)
    except KernelmarkError as error:
        raise Refusal(status=400, code="document", message=str(error.message)) from None
    except MemoryError:
        text = "it takes too much memory; send fewer results"
        raise Refusal(status=413, code="too-large", message=text) from None
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
        text = f"not a results document: {type(error).__name__}"
        raise Refusal(status=400, code="document", message=text) from None
    return result_set


def _serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer each body with a line of JSON, until the server closes the input."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    gc.disable()  # documents have no cycles, and collecting takes longer than parsing
    with open_store(json.loads(source.readline())) as store:
        while head := source.read(_LENGTH.size):
            body = source.read(_LENGTH.unpack(head)[0])
            answer = receive(store, body)
            del body
            sink.write(json.dumps(answer).encode() + b"\n")
            sink.flush()


if __name__ == "__main__":
    try:
        _serve(sys.stdin.buffer, sys.stdout.buffer)
    except (BrokenPipeError, struct.error):  # the server was killed
        os._exit(1)
