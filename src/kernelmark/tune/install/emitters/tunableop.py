"""tunableop: the results CSV of PyTorch's TunableOp.

    Validator,PT_VERSION,2.9.1
    GemmTunableOp_Half_TN,tn_51866_2048_1280_ld_1280_1280_51866,Gemm_Rocblas_476662,0.301475

PyTorch rejects the whole file if one validator differs from its own, so all five are needed. They
also bind an index to the library version that it belongs to, since a row has no kernel name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue
from kernelmark.tune.install.emitters._blas import base_arch, blas_call
from kernelmark.tune.install.emitters._lines import LineEmitter, Row
from kernelmark.tune.install.emitters.base import (
    ON_AMD,
    Entry,
    Fields,
    Override,
    Unfit,
    option,
    solution_index,
)
from kernelmark.tune.records.outcome import Outcome

_VALIDATORS = {
    "PT_VERSION": "PyTorch's version, as 2.9.1",
    "HIP_VERSION": "HIP's version, as 702",
    "ROCM_VERSION": "ROCm's version, which older PyTorch asks for instead of HIP_VERSION",
    "HIPBLASLT_VERSION": "hipBLASLt's version, as 100201-5b515cf1bc",
    "GCN_ARCH_NAME": "the device's full name, as gfx950:sramecc+:xnack-",
    "ROCBLAS_VERSION": "rocBLAS's version, as 5.2.0.5b515cf1bc",
}
_TYPES = {
    "f32": "float",
    "f64": "double",
    "f16": "Half",
    "bf16": "BFloat16",
    "f8e4m3": "Float8_e4m3fn",
    "f8e5m2": "Float8_e5m2",
    "f8e4m3fnuz": "Float8_e4m3fnuz",
    "f8e5m2fnuz": "Float8_e5m2fnuz",
}
# Names of bias types by at::toString.
_BIAS_TYPES = {"f32": "Float", "f16": "Half", "bf16": "BFloat16"}
_EITHER = ("HIP_VERSION", "ROCM_VERSION")
_LIBRARIES = {"hipblaslt": "Hipblaslt", "rocblas": "Rocblas"}
_SOLUTION = re.compile(r"Gemm_(Hipblaslt|Rocblas)_(?:[NT]{2}_)?(-?\d+)\Z")
_LD = re.compile(r"_ld_\d")
_VECTOR_SCALE = "2"


class TunableOp(LineEmitter):
    name = "tunableop"
    summary = "results CSV of PyTorch's TunableOp (PYTORCH_TUNABLEOP_FILENAME)"
    facts = FormatFacts(
        versions="PyTorch, with and without leading dimensions in its parameters",
        exactness="exact; dtypes that PyTorch does not tune are rejected",
        checked="compared with TunableGemm.h and torch.cuda.tunable; read back in tests",
    )
    backends = ("hipblaslt", "rocblas")
    options = FrozenDict(
        {**_VALIDATORS, "params": "ld (default) or short: parameters with leading dimensions"}
    )
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

    def rows(self, lines: Sequence[str], path: Path) -> list[Row]:
        rows = []
        for i, line in enumerate(lines):
            cells = line.split(",")
            if cells[0] == "Validator" or len(cells) < 3:
                continue
            config = _config(cells[2])
            if config is not None:
                fields = FrozenDict({"op": cells[0], "params": cells[1]})
                rows.append(Row(first=i, end=i + 1, entry=Entry(fields=fields, config=config)))
        return rows

    def generation(self, rows: Sequence[Row], given: Fields) -> Fields:
        if "params" in given or not rows:
            return given
        short = not any(_LD.search(row.entry.fields["params"]) for row in rows)
        return FrozenDict({**given, "params": "short" if short else "ld"})

    def lookup_key(self, outcome: Outcome, given: Fields) -> Fields:
        form = option(self, given, "params", "ld")
        if form not in ("ld", "short"):
            raise UsageError(Reason("params-unknown", given=form))
        call, types = blas_call(outcome), outcome.problem.dtypes
        unknown = next((types[x] for x in "abc" if types[x] not in _TYPES), None)
        if unknown:
            op = outcome.problem.op
            raise Unfit(Reason("format-dtype", format=self.name, op=op, dtype=unknown))
        letters = call["transA"] + call["transB"]
        params = f"{letters.lower()}_{call['m']}_{call['n']}_{call['k']}"
        if call["batch_count"] != "1":
            params += f"_B_{call['batch_count']}"
        if form == "ld":
            params += f"_ld_{call['lda']}_{call['ldb']}_{call['ldc']}"
        op, more = _operation(call, types)
        return FrozenDict({"op": f"{op}_{letters}", "params": params + more})

    def entry(self, outcome: Outcome, fields: Fields) -> tuple[Config, list[str]]:
        index, backend = solution_index(outcome), outcome.tuned.backend
        solution = f"Gemm_{_LIBRARIES[backend]}_{index}"
        ms = outcome.tuned.median_s * 1e3
        text = f"{fields['op']},{fields['params']},{solution},{ms:.6g}"
        return _named(backend, index), [text]

    def head(self, winners: Sequence[Outcome], lines: Sequence[str], given: Fields) -> list[str]:
        known = {name: given[name] for name in _VALIDATORS if name in given}
        validators = [line.split(",", 2)[1:] for line in lines if line.startswith("Validator,")]
        tuned = [(f"{o.tuned.backend.upper()}_VERSION", o.tuned.version) for o in winners]
        _add_validators(known, [*((cells[0], cells[-1]) for cells in validators), *tuned])
        _check_arch(known.get("GCN_ARCH_NAME", ""), winners)
        if validators:
            return []
        if any(name not in known for name in _needed(known)):
            _add_validators(known, _installed_validators().items())
        _check_arch(known.get("GCN_ARCH_NAME", ""), winners)
        needed = _needed(known)
        missing = [name for name in needed if name not in known]
        if missing or lines:
            raise UsageError(
                Reason("validators-unknown", names=tuple(missing))
                if missing
                else Reason("validators-missing"),
                hint=f"give --with {(missing or needed)[0]}=…, or merge into a file of PyTorch's",
            )
        return [f"Validator,{name},{known[name]}" for name in needed]

    def is_head(self, line: str) -> bool:
        return line.startswith("Validator,")


def _add_validators(known: dict[str, str], more: Iterable[tuple[str, str]]) -> None:
    """Add validators to `known`; raise UsageError if one has another value there."""
    for name, value in more:
        if value and known.setdefault(name, value) != value:
            raise UsageError(
                Reason("validator-differs", name=name, known=known[name], found=value),
                hint="solution indices belong to one build: tune again with this one",
            )


def _check_arch(name: str, winners: Sequence[Outcome]) -> None:
    tuned = next((o.arch for o in winners if name and base_arch(o.arch) != base_arch(name)), None)
    if tuned is not None:
        raise UsageError(
            Reason("validator-arch", arch=name, tuned=base_arch(tuned)),
            hint="solution indices belong to one architecture: tune on this one",
        )


def _needed(known: Fields) -> list[str]:
    """Return the validators that PyTorch requires: one of the two ROCm versions, and all others."""
    version = _EITHER["ROCM_VERSION" in known]
    return [name for name in _VALIDATORS if name == version or name not in _EITHER]


def _operation(call: Fields, types: Mapping[str, str]) -> tuple[str, str]:
    """Return the op's name without its transpose letters, and the end of its parameters. The
    library's A is our B."""
    a, b, c = types["b"], types["a"], types["c"]
    bias = call["bias_vector"] != "0"
    if a.startswith("f8"):
        if call["batch_count"] != "1":
            raise Unfit(Reason("format-dtype", format="tunableop", op="batched_gemm", dtype=a))
        if bias and c not in _BIAS_TYPES:
            raise Unfit(Reason("format-bias", format="tunableop", op="gemm", dtype=c))
        rowwise = int(call["scaleA"] == _VECTOR_SCALE)
        end = f"_rw_{rowwise}_bias_{_BIAS_TYPES[c] if bias else 'None'}"
        return f"ScaledGemmTunableOp_{_TYPES[a]}_{_TYPES[b]}_{_TYPES[c]}", end
    if not a == b == c:
        raise Unfit(
            Reason("format-one-type", format="tunableop", operands=("A", "B", "C"), types=(a, b, c))
        )
    word = _word(a, call["compute_type"])
    if bias and call["batch_count"] != "1":
        raise Unfit(Reason("format-bias", format="tunableop", op="batched_gemm", dtype=c))
    if bias:
        return f"GemmAndBiasTunableOp_{word}", ""
    kind = "GemmTunableOp" if call["batch_count"] == "1" else "GemmStridedBatchedTunableOp"
    return f"{kind}_{word}", ""


def _word(dtype: str, compute: str) -> str:
    """Return TypeName of TunableGemm.h, which is tf32 for f32 if TF32 is allowed."""
    if dtype == "f32" and compute == "xf32_r":
        return "tf32"
    if compute in ("f32_f16_r", "f32_bf16_r"):
        raise Unfit(Reason("format-compute", format="tunableop", compute=compute))
    return _TYPES[dtype]


def _config(solution: str) -> Config | None:
    if solution == "Default":
        return _named("default", 0)
    match = _SOLUTION.match(solution)
    if match is None:
        return None
    return _named(match[1].lower(), int(match[2]))


def _named(library: str, index: int) -> Config:
    config: dict[str, ConfigValue] = {"library": library, "solution_index": index}
    return FrozenDict(config)


def _installed_validators() -> dict[str, str]:
    """Return the validators of the installed PyTorch if it is a ROCm build with a device."""
    try:
        import torch
    except ImportError:
        return {}
    if not getattr(torch.version, "hip", None) or not torch.cuda.is_available():
        return {}
    return dict(torch.cuda.tunable.get_validators())


emitter = TunableOp()
