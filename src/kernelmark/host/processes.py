"""Child processes: groups that end with their parent, commands of this kernelmark, and git without
the programs that a repository's own configuration names.

A checkout may come from elsewhere, with its `.git/config`: git would run the file-system monitor,
filters, hooks and transports named there. The user's and the system's configuration applies.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_GUARD = ("/bin/sh", "-c", "read _ || kill -9 0")
_START = str(Path(__file__).with_name("start.py"))


def own_command(module: str, *arguments: str, python: str = "") -> list[str]:
    """Return the command that runs a module of this kernelmark, by default under this interpreter.
    Neither it nor what it imports is taken from the working directory."""
    return [python or sys.executable, "-P", _START, module, *arguments]


@contextlib.contextmanager
def child_group() -> Iterator[int]:
    """Yield a process group for children, for `process_group` of Popen; processes that are still
    in it at the end are killed."""
    guard = _start_guard(process_group=0)
    try:
        yield guard.pid
    finally:
        kill_group(guard.pid)
        guard.communicate()


def last_line(output: bytes) -> str:
    """Return the last line that a command wrote, which usually says why it failed."""
    return "".join(output.decode(errors="replace").strip().splitlines()[-1:])


def run_child(
    command: Sequence[str],
    *,
    input: bytes | None = None,
    timeout_s: float | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end and return its output. Raise OSError if it cannot be started, and
    subprocess.TimeoutExpired. All processes that it started are killed afterwards."""
    pipe = subprocess.PIPE
    with (
        child_group() as group,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if input is None else pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=cwd,
            env=env,
            process_group=group,
        ) as process,
    ):
        try:
            out, err = process.communicate(input, timeout_s)
        except BaseException:
            kill_group(group)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def guard_own_group() -> None:
    """If this process leads its process group, kill the group when this process ends."""
    if os.getpgrp() != os.getpid():
        return  # the group has other members, which must not be killed
    guard = _start_guard(process_group=None)
    assert guard.stdin is not None
    # A fork that starts no program would keep the pipe open.
    os.register_at_fork(after_in_child=guard.stdin.close)
    _guards.append(guard)


_guards: list[subprocess.Popen[bytes]] = []  # garbage collection would close the pipe


def kill_group(number: int) -> None:
    """Kill every process of a group; a group that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)


def _start_guard(*, process_group: int | None) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    return subprocess.Popen(
        _GUARD,
        stdin=subprocess.PIPE,
        stdout=null,
        stderr=null,
        bufsize=0,
        process_group=process_group,
    )


@contextlib.contextmanager
def existing_objects_frozen() -> Iterator[None]:
    """Exclude objects that exist now from garbage collections within the `with` block.

    A full collection visits every object of the process: 170,000 with torch imported, which takes
    about 0.1 s in the middle of an import or a measurement. Objects that are created within the
    block are collected as usual."""
    if gc.get_freeze_count():  # the caller froze objects, which `unfreeze` would release too
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# Keys whose value is run as a program, or allows a transport that runs one.
_PROGRAMS = re.compile(
    r"core\.(fsmonitor|sshcommand|gitproxy|askpass|editor|pager|alternaterefscommand)"
    r"|filter\..*\.(clean|smudge|process)|diff\.external|diff\..*\.(command|textconv)"
    r"|merge\..*\.driver|credential\.(.*\.)?helper|gpg\.(.*\.)?program|log\.showsignature"
    r"|remote\..*\.(vcs|uploadpack|receivepack)|gc\.recentobjectshook|submodule\..*\.update"
    r"|protocol\.(.*\.)?allow|pager\..*"
)
_DEFAULTS = {"log.showsignature": "false", "gpg.program": "gpg"}
_OWN_SCOPES = ("local", "worktree")


def run_git(
    folder: str | os.PathLike[str], *arguments: str, timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder. Raise OSError if it cannot be started, and
    subprocess.TimeoutExpired."""
    git = ["git", "-C", str(folder)]
    listed = run_child([*git, "config", "--list", "--show-scope", "-z"], timeout_s=timeout_s)
    env = {**os.environ, **_overrides(listed.stdout.decode(errors="surrogateescape"))}
    return run_child([*git, *arguments], timeout_s=timeout_s, env=env)


def _overrides(listed: str) -> dict[str, str]:
    """Return the variables that set every program of a repository's own configuration to the value
    of the user's, or to none."""
    scopes, entries = listed.split("\0")[:-1:2], listed.split("\0")[1::2]
    values: dict[str, str] = {"core.hookspath": os.devnull}
    own: dict[str, None] = {}
    for scope, entry in zip(scopes, entries, strict=True):
        key, _, value = entry.partition("\n")
        if not _PROGRAMS.fullmatch(key):
            continue
        if scope in _OWN_SCOPES:
            own[key] = None
        else:
            values[key] = value
    for key in own:
        values.setdefault(key, _default(key))
    chosen = {key: values[key] for key in ("core.hookspath", *own)}
    count = int(os.environ.get("GIT_CONFIG_COUNT", "0"))  # the user's own, which come first
    variables = {"GIT_CONFIG_COUNT": str(count + len(chosen))}
    for number, (key, value) in enumerate(chosen.items(), count):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = value
    return variables


def _default(key: str) -> str:
    if key.startswith("protocol."):
        return "never" if key == "protocol.ext.allow" else "user"
    if key.startswith("submodule."):
        return "checkout"
    return _DEFAULTS.get(key, "")
