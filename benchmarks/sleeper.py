#!/usr/bin/env python3
"""A worker that sleeps instead of measuring, and replies with a given result: what a fleet of
devices asks of the scheduler, without its devices. Started in place of Python by `python=` of a
runner, with the arguments of a worker; $SLEEPER_RESULT is the result's document, and the config of
a case has `sleep_s`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    words = dict(zip(sys.argv, sys.argv[1:], strict=False))
    name = words.get("--name") or words["--device"]
    result = json.loads(os.environ["SLEEPER_RESULT"])
    send({"kind": "ready", "protocol": int(os.environ["SLEEPER_PROTOCOL"]), "pid": os.getpid()})
    for line in sys.stdin:
        request = json.loads(line)
        about = {key: request[key] for key in ("id", "nonce") if key in request}
        if request["kind"] == "stop":
            return
        reply = {"kind": "reply", **about}
        if request["kind"] == "measure":
            now = time.monotonic()
            send({"kind": "phase", "phase": "timing", "at": now, **about})
            time.sleep(request["case"]["config"]["sleep_s"])
            case = {k: v for k, v in request["case"].items() if k not in ("kernelmark", "version")}
            reply["result"] = {**result, "case": case, "device": name}
        elif request["kind"] == "environment":
            reply["environment"] = json.loads(os.environ["SLEEPER_ENVIRONMENT"])
        send(reply)


def send(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
