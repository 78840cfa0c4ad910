"""Modules compiled ahead of time, for a machine with a GPU and no IREE compiler.

    python -m kernelmark.backends.iree.pack -o PACK --arch sm_90 'gemm m=4096 n=4096 k=4096 a=bf16'
    (copy PACK there) KERNELMARK_PACK=PACK kmark run -d cuda:0 -b iree …

@FILE stands for the problems in FILE, one per line; blank lines and text after a # are ignored. The
same folder may also contain kernelmark's own precompiled kernels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark import ops
from kernelmark.backends.iree import backend, choices
from kernelmark.backends.iree.compiler import (
    CONFIGS,
    PACK_NOTE,
    compile_now,
    compiler_present,
    compiler_version,
    configs_json,
    pack_key,
)
from kernelmark.backends.iree.targets import target
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CompileError, KernelmarkError, Unsupported, UsageError
from kernelmark.core.files import read_text, user_path
from kernelmark.core.problem import Problem
from kernelmark.core.reason import prefixed
from kernelmark.core.result import Config
from kernelmark.gpu import pack
from kernelmark.gpu.architectures import absent
from kernelmark.gpu.rtc import vendor_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedModule:
    """One problem for one architecture: its bytes in the bundle, or why it was not compiled."""

    problem: Problem
    arch: str
    nbytes: int = 0
    seconds: float = 0.0
    reason: str = ""


def fill(
    folder: Path, problems: Sequence[Problem], archs: Sequence[str], config: Config | None = None
) -> Iterator[PackedModule]:
    """Compile each problem for each architecture into the bundle in `folder`, and yield the
    outcome.

    An unknown architecture is a usage error before anything is compiled."""
    if not compiler_present():
        raise UsageError(
            "iree-base-compiler is not installed", hint='pip install "kernelmark[iree]"'
        )
    kinds = {arch: vendor_of(arch) for arch in archs}
    for arch, kind in kinds.items():
        if kind == "cuda":
            absent(arch)  # IREE accepts any number, and builds for the newest it supports
    return (
        _pack_problem(
            folder, problem, DeviceInfo(name=f"{kind}:0", kind=kind, model=arch, arch=arch), config
        )
        for arch, kind in kinds.items()
        for problem in problems
    )


def _pack_problem(
    folder: Path, problem: Problem, info: DeviceInfo, config: Config | None
) -> PackedModule:
    goal = target(info)
    try:
        if reason := backend.refuses(problem, info):
            raise Unsupported(reason)
        assert goal is not None  # otherwise there was a reason
        choice = choices.choose(problem, config or {}, goal)
        source = choices.source(problem, choice)
        built = compile_now(source, choice.flags, goal.identity)
    except (CompileError, Unsupported) as error:
        return PackedModule(problem=problem, arch=info.arch, reason=error.message)
    key = pack_key(source, choice.flags)
    pack.add(folder, key, goal.pack, configs_json(built.configs), CONFIGS)
    path = pack.add(folder, key, goal.pack, built.binary)
    path.with_name(PACK_NOTE).write_text(f"{compiler_version()}\n", encoding="utf-8")
    nbytes, seconds = len(built.binary), built.seconds
    return PackedModule(problem=problem, arch=info.arch, nbytes=nbytes, seconds=seconds)


def _problems(word: str) -> list[Problem]:
    """Parse a problem, or those of the file after an @."""
    if not word.startswith("@"):
        return [ops.parse(word)]
    file = user_path(word[1:])
    problems = []
    lines = read_text(file, missing="@FILE names a file with one problem a line").splitlines()
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        try:
            problems += [ops.parse(text)] if text else []
        except KernelmarkError as error:
            reason = prefixed(error.message, f"{file}: line {number}: ")
            raise UsageError(reason, hint=error.hint) from None
    if not problems:
        raise UsageError(f"{file} has no problems", hint="write one a line: gemm m=512 n=512 k=512")
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Fill a bundle and print the outcome of each problem."""
    parser = argparse.ArgumentParser(
        prog="python -m kernelmark.backends.iree.pack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PACK")
    parser.add_argument("--arch", action="append", required=True, help="sm_90, gfx942; repeatable")
    parser.add_argument("problems", nargs="+", metavar="PROBLEM")
    options = parser.parse_args(arguments)
    failed = 0
    try:
        problems = list(
            dict.fromkeys(problem for word in options.problems for problem in _problems(word))
        )
        for item in fill(options.output, problems, options.arch):
            failed += bool(item.reason)
            first = item.reason.splitlines()[0] if item.reason else f"{item.nbytes} bytes"
            sys.stdout.write(f"{item.arch}  {item.problem.key}: {first} ({item.seconds:.1f} s)\n")
            sys.stdout.flush()
    except KernelmarkError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"{error.message}{hint}\n")
        return 2
    return 3 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
