"""tunableop: the results CSV of PyTorch's TunableOp.

    Validator,PT_VERSION,2.9.1
    GemmTunableOp_Half_TN,tn_51866_2048_1280_ld_1280_1280_51866,Gemm_Rocblas_476662,0.301475

A row has the op, its parameters, the solution and milliseconds. PyTorch rejects the whole file if
one validator differs from its own, so all five are needed. They also bind an index to the library
version that it belongs to, since a row has no kernel name.

Until 2.6, parameters have no leading dimensions, and the names of hipBLASLt's solutions have the
letters of the op: `tn_512_16_1024,Gemm_Hipblaslt_TN_9`. PyTorch raises in the user's program for a
solution that it does not have. After 2.13 it also tunes cuBLASLt, whose solutions are named by the
attributes of an algorithm; which validators it has there, only the installed PyTorch says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, ConfigValue
from kernelmark.tune.install.emitters.base import (
    ON_AMD,
    CannotWrite,
    Entry,
    Key,
    LineEmitter,
    LineFile,
    NewEntry,
    Options,
    Override,
    Row,
    Winners,
)
from kernelmark.tune.install.emitters.blas import (
    Call,
    base_arch,
    blas_call,
    cannot_compute,
    solution_index,
)
from kernelmark.tune.results import Outcome

_LEADING_SINCE = (2, 7)
_CUBLASLT_SINCE = (2, 14)


class TunableOpEmitter(LineEmitter):
    name = "tunableop"
    summary = "results CSV of PyTorch's TunableOp (PYTORCH_TUNABLEOP_FILENAME)"
    facts = FormatFacts(
        versions="PyTorch 2.3 to 2.13 on ROCm, by PT_VERSION; cuBLASLt of its main branch, 2026-06",
        exactness="exact; dtypes, accumulators and layouts that PyTorch does not tune are rejected",
        checked="compared with the headers of 2.5.1, 2.6.0, 2.7.1 and 2.13, and GemmCublaslt.h; "
        "read back in tests; torch 2.13 rebuilds the GEMM of each row on the CPU; cuBLASLt's rows "
        "have not been run",
    )
    backends = ("cublaslt", "hipblaslt", "rocblas")
    validators = FrozenDict(
        {
            "PT_VERSION": "PyTorch's version, as 2.9.1",
            "HIP_VERSION": "HIP's version, as 702",
            "ROCM_VERSION": "ROCm's version, which older PyTorch asks for instead of HIP_VERSION",
            "HIPBLASLT_VERSION": "hipBLASLt's version, as 100201-5b515cf1bc",
            "GCN_ARCH_NAME": "the device's full name, as gfx950:sramecc+:xnack-",
            "ROCBLAS_VERSION": "rocBLAS's version, as 5.2.0.5b515cf1bc",
        }
    )
    options = validators
    caution = ON_AMD
    # PyTorch replaces %d with the device index, or inserts the index before the suffix.
    override = Override(
        backend="torch",
        variables={
            "PYTORCH_TUNABLEOP_ENABLED": "1",
            "PYTORCH_TUNABLEOP_TUNING": "0",
            "PYTORCH_TUNABLEOP_FILENAME": "{path}",
        },
        copy="tunableop_results%d.csv",
    )

    types = FrozenDict(
        {
            "f32": "float",
            "f64": "double",
            "f16": "Half",
            "bf16": "BFloat16",
            "f8e4m3": "Float8_e4m3fn",
            "f8e5m2": "Float8_e5m2",
            "f8e4m3fnuz": "Float8_e4m3fnuz",
            "f8e5m2fnuz": "Float8_e5m2fnuz",
        }
    )
    # Names of bias types by at::toString.
    bias_types = FrozenDict({"f32": "Float", "f16": "Half", "bf16": "BFloat16"})
    # What PyTorch computes in: f32 also as tf32, if the program allows it.
    computes = FrozenDict({"f64": ("f64_r",), "f32": ("f32_r", "xf32_r")})
    solution = re.compile(r"Gemm_(Hipblaslt|Rocblas)_(?:([NT]{2})_)?(-?\d+)\Z")
    algorithm = re.compile(r"Gemm_Cublaslt_id_\d+(?:_[a-z]+_\d+)+\Z")
    # The attributes of an algorithm, by PyTorch's names.
    attributes = FrozenDict(
        {
            **{name: name for name in ("id", "tile", "stages")},
            "splitk": "split_k",
            "red": "reduction",
            **{name: name for name in ("swizzle", "custom", "inner", "cluster")},
        }
    )

    def rows(self, lines: Sequence[str]) -> list[Row]:
        rows = []
        for i, line in enumerate(lines):
            cells = line.split(",")
            if "TunableOp_" not in cells[0] or len(cells) < 3:
                continue
            key = FrozenDict({"op": cells[0], "params": cells[1]})
            config = _parse_solution(cells[2], key)
            rows.append(Row(first=i, end=i + 1, entry=Entry(key=key, config=config)))
        return rows

    def complete(self, document: LineFile, options: Options) -> Options:
        """Add PyTorch's version, which decides how keys and solutions are written."""
        mark = "Validator,PT_VERSION,"
        there = next((line for line in document.content if line.startswith(mark)), "")
        version = options.get("PT_VERSION") or there.removeprefix(mark)
        version = version or _installed_validators().get("PT_VERSION", "")
        return FrozenDict({**options, "PT_VERSION": version}) if version else options

    def lookup_key(self, outcome: Outcome, options: Options) -> Key:
        version = _release(options.get("PT_VERSION", ""))
        if outcome.tuned.backend == "cublaslt" and version < _CUBLASLT_SINCE:
            raise CannotWrite(f"PyTorch {options.get('PT_VERSION', '')} does not tune cuBLASLt")
        call, types = blas_call(outcome), outcome.problem.dtypes
        unknown = next((types[x] for x in "abc" if types[x] not in self.types), None)
        if unknown:
            raise CannotWrite(f"{self.name} has no entries for {outcome.problem.op} of {unknown}")
        letters = call["transA"] + call["transB"]
        params = f"{letters.lower()}_{call['m']}_{call['n']}_{call['k']}"
        if call["batch_count"] != "1":
            params += f"_B_{call['batch_count']}"
        op, end = self._operation(call, types, outcome.tuned.backend)
        if version >= _LEADING_SINCE:
            params += f"_ld_{call['lda']}_{call['ldb']}_{call['ldc']}{end}"
        return FrozenDict({"op": f"{op}_{letters}", "params": params})

    def _operation(self, call: Call, types: Mapping[str, str], backend: str) -> tuple[str, str]:
        """Return the op's name without its transpose letters, and the end of its parameters. The
        library's A is our B."""
        a, b, c = types["b"], types["a"], types["c"]
        bias, batched = call["bias_vector"] != "0", call["batch_count"] != "1"
        if call["compute_type"] not in self.computes.get(a, ("f32_r",)):
            raise cannot_compute(self.name, call["compute_type"])
        if a.startswith("f8"):
            if backend != "hipblaslt":
                raise CannotWrite(f"PyTorch has scaled GEMMs of hipBLASLt, not of {backend}")
            if call["transA"] + call["transB"] != "TN":
                raise CannotWrite(
                    f"PyTorch has scaled GEMMs of TN only, not of {call['transA']}{call['transB']}"
                )
            if batched:
                raise CannotWrite(f"{self.name} has no entries for batched_gemm of {a}")
            if bias and c not in self.bias_types:
                raise CannotWrite(f"{self.name} has no entries for gemm with a bias of {c}")
            rowwise = int(call["scaleA"] == "2")  # a vector of scales
            end = f"_rw_{rowwise}_bias_{self.bias_types[c] if bias else 'None'}"
            return "_".join(("ScaledGemmTunableOp", *(self.types[x] for x in (a, b, c)))), end
        if not a == b == c:
            raise CannotWrite(f"{self.name} has the same type for A and B and C, not {a}, {b}, {c}")
        if bias and batched:
            raise CannotWrite(f"{self.name} has no entries for batched_gemm with a bias of {c}")
        kind = "GemmStridedBatched" if batched else "GemmAndBias" if bias else "Gemm"
        return f"{kind}TunableOp_{self._type_name(a, call['compute_type'])}", ""

    def _type_name(self, dtype: str, compute: str) -> str:
        """Return TypeName of TunableGemm.h, which is tf32 for f32 if TF32 is allowed."""
        return "tf32" if compute == "xf32_r" else self.types[dtype]

    def entry(self, outcome: Outcome, key: Key) -> NewEntry:
        solution = self._solution(outcome, key)
        line = ",".join((key["op"], key["params"], solution, f"{outcome.tuned.median_s * 1e3:.6g}"))
        return NewEntry(winner=outcome, config=_parse_solution(solution, key), content=[line])

    def _solution(self, outcome: Outcome, key: Key) -> str:
        backend = outcome.tuned.backend
        if backend == "cublaslt":
            words = str(outcome.tuned.config.get("algo", "")).split()
            algo = dict(word.partition("=")[::2] for word in words)
            if lacking := [name for name in self.attributes.values() if name not in algo]:
                raise CannotWrite(f"its algorithm has no {lacking[0]}, which PyTorch needs")
            named = (f"{theirs}_{algo[ours]}" for theirs, ours in self.attributes.items())
            return f"Gemm_Cublaslt_{'_'.join(named)}"
        letters = f"{key['op'][-2:]}_" if _has_letters(backend, key) else ""
        return f"Gemm_{backend.capitalize()}_{letters}{solution_index(outcome)}"

    def head(self, winners: Winners, content: Sequence[str], options: Options) -> list[str]:
        validators = {name: options[name] for name in self.validators if name in options}
        there = [line.split(",", 2)[1:] for line in content if self.is_head(line)]
        tuned = [
            (f"{o.tuned.backend.upper()}_VERSION", o.tuned.version)
            for o in winners
            if o.tuned.backend != "cublaslt"  # no PyTorch is known to compare its version
        ]
        _add_validators(validators, [*((cells[0], cells[-1]) for cells in there), *tuned])
        _check_arch(validators, winners)
        if there:
            return []
        needed = self._needed(validators, winners)
        if any(name not in validators for name in needed):
            _add_validators(validators, _installed_for(winners).items())
            _check_arch(validators, winners)
        needed = self._needed(validators, winners)
        missing = [name for name in needed if name not in validators]
        if missing or content:
            lacks = f"{', '.join(missing)} not known" if missing else "the file has no validators"
            raise UsageError(
                f"tunableop: {lacks}, and PyTorch would refuse the file",
                hint=f"give --with {(missing or needed)[0]}=…, or merge into a file of PyTorch's",
            )
        return [f"Validator,{name},{validators[name]}" for name in needed]

    def _needed(self, validators: Mapping[str, str], winners: Sequence[Outcome]) -> list[str]:
        """Return the validators that PyTorch requires: one of the two ROCm versions, and all
        others; on CUDA those of the installed PyTorch."""
        if _are_of_cuda(winners):
            if not (installed := _installed_for(winners)):
                raise UsageError(
                    "tunableop: the validators of PyTorch for CUDA are not known here",
                    hint="merge into a file that PyTorch wrote, or run this where it is installed",
                )
            return list(installed)
        unneeded = "HIP_VERSION" if "ROCM_VERSION" in validators else "ROCM_VERSION"
        return [name for name in self.validators if name != unneeded]

    def is_head(self, line: str) -> bool:
        return line.startswith("Validator,")


def _release(version: str) -> tuple[int, int]:
    """Return the release of PyTorch, as (2, 9); a version that cannot be read counts as new."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else _LEADING_SINCE


def _has_letters(library: str, key: Key) -> bool:
    """Return whether the names of a library's solutions have the letters of the op, as in PyTorch
    without leading dimensions in its keys."""
    return library == "hipblaslt" and "_ld_" not in key["params"]


def _parse_solution(text: str, key: Key) -> Config:
    """Return the solution of a row; one that PyTorch does not have is only a text."""
    match = TunableOpEmitter.solution.match(text)
    config: dict[str, ConfigValue] = {"solution": text}
    if text == "Default":
        config = {"library": "default", "solution_index": 0}
    elif TunableOpEmitter.algorithm.match(text):
        config = {"library": "cublaslt", "algo": text}
    elif match and bool(match[2]) == _has_letters(match[1].lower(), key):
        config = {"library": match[1].lower(), "solution_index": int(match[3])}
    return FrozenDict(config)


def _add_validators(validators: dict[str, str], more: Iterable[tuple[str, str]]) -> None:
    """Add validators to `validators`; raise UsageError if one has another value there."""
    for name, value in more:
        if value and validators.setdefault(name, value) != value:
            raise UsageError(
                f"tunableop: validator {name} differs: {validators[name]} and {value}",
                hint="solution indices belong to one build: tune again with this one",
            )


def _check_arch(validators: Mapping[str, str], winners: Sequence[Outcome]) -> None:
    name = validators.get("GCN_ARCH_NAME", "")
    tuned = next((o.arch for o in winners if name and base_arch(o.arch) != base_arch(name)), None)
    if tuned is not None:
        raise UsageError(
            f"tunableop: GCN_ARCH_NAME is {name}, but the kernels were tuned for "
            f"{base_arch(tuned)}",
            hint="solution indices belong to one architecture: tune on this one",
        )


def _are_of_cuda(winners: Sequence[Outcome]) -> bool:
    return any(outcome.tuned.backend == "cublaslt" for outcome in winners)


def _installed_for(winners: Sequence[Outcome]) -> dict[str, str]:
    """Return the validators of the installed PyTorch if it is of the winners' vendor."""
    validators = _installed_validators()
    return validators if ("GCN_ARCH_NAME" in validators) != _are_of_cuda(winners) else {}


def _installed_validators() -> dict[str, str]:
    """Return the validators of the installed PyTorch if it has a device."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    return dict(torch.cuda.tunable.get_validators())


emitter = TunableOpEmitter()
