"""A process that runs the user's TensileLite: it answers each line of JSON on stdin with a line on
stdout.

`checkout.Generator` starts it, with the checkout in PYTHONPATH. It imports nothing of kernelmark,
and nothing else imports Tensile. Tensile moved its functions twice and changed their arguments:
that of 2024 takes no compiler, that of early 2025 its path, and that with `rocisa` a table of
capabilities. Functions are therefore looked up by name in all modules that have had them, and their
signatures decide.

What Tensile prints while it handles a request is its reason for a refusal, and is returned.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import importlib
import inspect
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

_MODULES = (
    *("Common", "Common.GlobalParameters", "Common.ValidParameters", "Common.Architectures"),
    *("Common.Types", "Common.Capabilities", "SolutionStructs", "SolutionStructs.Solution"),
    *("SolutionStructs.Problem", "SolutionStructs.Naming", "Toolchain.Assembly", "LibraryIO"),
    *("SolutionStructs.Validators.MatrixInstruction", "KernelWriterAssembly"),
    "TensileInstructions",
)
_Version = collections.namedtuple("_Version", "major minor patch")
_WAVE = 64  # lanes of a wave on every GPU with MFMA
_LAST_LINES = 3
Json = dict[str, Any]


def _find(name: str, default: Any = None) -> Any:
    """Return a function, class or table of Tensile by its name."""
    for module in _MODULES:
        try:
            value = getattr(importlib.import_module(f"Tensile.{module}"), name, None)
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("Tensile"):  # a package that this Python lacks
                raise
            continue
        if value is not None:
            return value
    if default is None:
        raise LookupError(f"this Tensile has no {name}")
    return default


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with as many of the arguments as it has parameters."""
    return function(*arguments[: len(inspect.signature(function).parameters)])


class Tensile:
    """The Tensile of a checkout, for one architecture and compiler."""

    def __init__(self, arch: str, compiler: str) -> None:
        self._compiler = compiler
        self.isa = _find("gfxToIsa", _isa_of)(arch)
        known = _find("globalParameters").get("SupportedISA")
        if self.isa is None or (known is not None and self.isa not in known):
            raise LookupError(f"this Tensile has no {arch}")
        self.valid: Mapping[str, Any] = _find("validParameters")
        self._make = _find("Solution")
        self._table: Any = None  # of capabilities, where there is rocisa
        if "isaInfoMap" in inspect.signature(self._make).parameters:
            self._table = _find("makeIsaInfoMap")([self.isa], compiler)
            _find("assignGlobalParameters")({}, self._table)
            tools = _find("makeAssemblyToolchain")(compiler, compiler, "4")
            self._assembler = tools.assembler
            self._debug = _find("DebugConfig")(printSolutionRejectionReason=True)
            return
        parameters = _find("globalParameters")
        parameters |= {"SupportedISA": [self.isa], "AssemblerPath": compiler}
        # With a current ISA, Tensile does not look for a GPU by ROCm's programs.
        settings = {"PrintSolutionRejectionReason": True, "CurrentISA": self.isa, "PrintLevel": 0}
        parameters |= settings
        _call(_find("assignGlobalParameters"), settings, compiler)

    def solution(self, problem: Json, config: Json) -> Any:
        """Return Tensile's solution; its "Valid" is False if the parameters are illegal."""
        state = {"ISA": self.isa, "WavefrontSize": _WAVE, "WorkGroup": [16, 16, 1]}
        state |= {"KernelLanguage": "Assembly", "ThreadTile": [1, 1], **copy.deepcopy(config)}
        kind = _call(_find("ProblemType"), copy.deepcopy(problem), False)
        state["ProblemType"] = copy.deepcopy(kind.state)
        if self._table is None:
            return _call(self._make, state, self._compiler)
        instruction = (state["MatrixInstruction"], self.isa, _WAVE, state["ProblemType"])
        derive = _find("matrixInstructionToMIParameters")
        state |= derive(*instruction, state["WorkGroup"], self._table)
        if not _find("validateMIParameters")(state, self._table):
            return {"Valid": False}
        return self._make(state, False, True, False, self._assembler, self._table)

    def name(self, solution: Any, *, kernel: bool = False) -> str:
        """Return the name of a solution, or of its kernel, in a library that has no other."""
        if self._table is not None:
            return str(
                _find("getKernelNameMin" if kernel else "getSolutionNameMin")(solution, False)
            )
        return str(self._make.getNameMin(solution, self._make.getMinNaming([solution]), kernel))

    def source(self, solution: Any) -> str:
        """Return the assembly of a solution's kernel. Raise RuntimeError if it cannot be generated,
        usually because it needs more registers than there are."""
        (kernel,) = solution.getKernels()
        kernel.duplicate = False
        make = _find("KernelWriterAssembly")
        if self._table is not None:
            kernel["BaseName"] = _find("getKernelFileBase")(False, kernel)
            writer = make(self._assembler, self._debug)
            rocisa = importlib.import_module("rocisa")
            writer.setRocIsa(rocisa.rocIsa.getInstance().getData())
        else:
            naming = (self._make.getMinNaming([kernel]), self._make.getSerialNaming([kernel]))
            # Older clangs need other directives; 19 stands for any recent one.
            version = _find("SemanticVersion", _Version)(19, 0, 0)
            writer = _call(make, *naming, self._compiler, version)
            writer.setTensileInstructions(_find("TensileInstructions")())
        return str(writer._getKernelSource(kernel))

    def logic(self, arch: str, solution: Any, size: list[int]) -> list[Any]:
        """Return a logic file in which the solution is that of one size, m, n, batch and k."""
        names = {"SolutionNameMin": self.name(solution)}
        names["KernelNameMin"] = self.name(solution, kernel=True)
        state = {**solution._state, "SolutionIndex": 0, **names}
        version = {"MinimumRequiredVersion": importlib.import_module("Tensile").__version__}
        # As LibraryIO.createLibraryLogic writes it, which in newer versions asks for a GPU.
        head = [version, arch, arch, ["Device 0000"], solution["ProblemType"], [state]]
        rows = [[size, [0, 0.0]]]
        data = [*head, [2, 3, 0, 1], rows, None, None, "DeviceEfficiency", "Equality"]
        plain: list[Any] = json.loads(json.dumps(data, default=_plain))
        return plain

    def create_library(self, arch: str, source: str, out: str) -> None:
        """Run TensileCreateLibrary here, where the capabilities of the assembler are known: its own
        process would find out those of twenty architectures, which takes longer than all else."""
        program = importlib.import_module("Tensile.TensileCreateLibrary")
        run = getattr(program, "run", None) or program.TensileCreateLibrary
        parameters = _find("globalParameters")
        before, arguments = dict(parameters), sys.argv
        sys.argv = ["", source, out, "HIP", "--architecture", arch, "--jobs", "1"]
        try:
            run()
        finally:
            sys.argv = arguments
            parameters.clear()
            parameters.update(before)


def _isa_of(arch: str) -> tuple[int, int, int]:
    """Return (9, 4, 2) for gfx942: Tensile of 2024 has no such function."""
    digits = arch.removeprefix("gfx")
    return int(digits[:-2]), int(digits[-2], 16), int(digits[-1], 16)


def _plain(value: Any) -> Any:
    """Return a value of Tensile as JSON has it: types as their numbers, as in logic files."""
    if hasattr(value, "value"):
        return value.value
    if hasattr(value, "state"):
        return value.state
    return list(value)


def answer(tensile: Tensile, arch: str, request: Json) -> Json:
    """Return the answer to one request."""
    if request["do"] == "valid":
        names = {name: tensile.valid.get(name, []) for name in request["names"]}
        return {"values": {n: None if v == -1 else list(v) for n, v in names.items()}}
    if request["do"] == "check":
        return {"reasons": [_refusal(tensile, request["problem"], c) for c in request["configs"]]}
    if request["do"] == "library":
        tensile.create_library(arch, request["source"], request["out"])
        return {}
    solution = tensile.solution(request["problem"], request["config"])
    if not solution["Valid"]:
        raise RuntimeError("Tensile rejects it")
    if request["do"] == "logic":
        return {"logic": tensile.logic(arch, solution, request["size"])}
    return {"source": tensile.source(solution)}


def _refusal(tensile: Tensile, problem: Json, config: Json) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            if tensile.solution(problem, config)["Valid"]:
                return ""
        except (Exception, SystemExit) as error:  # some rules are violated by an exception
            return f"{type(error).__name__}: {error}"
    return _said(printed) or "Tensile rejects it"


def _said(printed: io.StringIO) -> str:
    """Return what Tensile printed as a line; a reason begins with "reject: "."""
    text = printed.getvalue()
    _, found, reason = text.partition("reject: ")
    lines = [line.strip() for line in (reason or text).splitlines() if line.strip()]
    return lines[0] if found and lines else " ".join(lines[-_LAST_LINES:])


def main() -> None:
    """Answer requests until stdin ends; the first one names the architecture and the compiler."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # of programs that Tensile starts
    tensile: Tensile | None = None
    arch = ""
    for line in sys.stdin:
        request = json.loads(line)
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                if tensile is None:
                    arch = request["arch"]
                    tensile = Tensile(arch, request["compiler"])
                    reply: Json = {"version": str(importlib.import_module("Tensile").__version__)}
                else:
                    reply = answer(tensile, arch, request)
        except (Exception, SystemExit) as error:  # Tensile ends its process where others raise
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}", "said": _said(printed)}
        print(json.dumps(reply, default=_plain), file=answers, flush=True)


if __name__ == "__main__":
    main()
