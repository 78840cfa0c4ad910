"""tunableop: the results CSV of PyTorch's TunableOp.

    Validator,PT_VERSION,2.9.1
    GemmTunableOp_Half_TN,tn_51866_2048_1280_ld_1280_1280_51866,Gemm_Rocblas_476662,0.301475

A row has the op, its parameters, the solution and milliseconds. PyTorch rejects the whole file if
one validator differs from its own, so all five are needed. They also bind an index to the library
version that it belongs to, since a row has no kernel name.
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
from kernelmark.tune.records.results import Outcome


class TunableOp(LineEmitter):
    name = "tunableop"
    summary = "results CSV of PyTorch's TunableOp (PYTORCH_TUNABLEOP_FILENAME)"
    facts = FormatFacts(
        versions="PyTorch, with and without leading dimensions in its parameters",
        exactness="exact; dtypes that PyTorch does not tune are rejected",
        checked="compared with TunableGemm.h and torch.cuda.tunable; read back in tests",
    )
    backends = ("hipblaslt", "rocblas")
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
    options = FrozenDict(
        {**validators, "params": "ld (default) or short: parameters with leading dimensions"}
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
    libraries = FrozenDict({"hipblaslt": "Hipblaslt", "rocblas": "Rocblas"})
    solution = re.compile(r"Gemm_(Hipblaslt|Rocblas)_(?:[NT]{2}_)?(-?\d+)\Z")
    leading = re.compile(r"_ld_\d")

    def rows(self, lines: Sequence[str]) -> list[Row]:
        rows = []
        for i, line in enumerate(lines):
            cells = line.split(",")
            if self.is_head(line) or len(cells) < 3:
                continue
            config = self._parse_solution(cells[2])
            if config is not None:
                key = FrozenDict({"op": cells[0], "params": cells[1]})
                rows.append(Row(first=i, end=i + 1, entry=Entry(key=key, config=config)))
        return rows

    def _parse_solution(self, solution: str) -> Config | None:
        if solution == "Default":
            return _library_config("default", 0)
        match = self.solution.match(solution)
        return None if match is None else _library_config(match[1].lower(), int(match[2]))

    def complete(self, document: LineFile, options: Options) -> Options:
        """Write parameters as the rows of the file have them."""
        if "params" in options or not document.rows:
            return options
        long = any(self.leading.search(row.entry.key["params"]) for row in document.rows)
        return FrozenDict({**options, "params": "ld" if long else "short"})

    def lookup_key(self, outcome: Outcome, options: Options) -> Key:
        form = options.get("params", "ld")
        if form not in ("ld", "short"):
            raise UsageError(f"params={form} is neither ld nor short")
        call, types = blas_call(outcome), outcome.problem.dtypes
        unknown = next((types[x] for x in "abc" if types[x] not in self.types), None)
        if unknown:
            raise CannotWrite(f"{self.name} has no entries for {outcome.problem.op} of {unknown}")
        letters = call["transA"] + call["transB"]
        params = f"{letters.lower()}_{call['m']}_{call['n']}_{call['k']}"
        if call["batch_count"] != "1":
            params += f"_B_{call['batch_count']}"
        if form == "ld":
            params += f"_ld_{call['lda']}_{call['ldb']}_{call['ldc']}"
        op, end = self._operation(call, types)
        return FrozenDict({"op": f"{op}_{letters}", "params": params + end})

    def _operation(self, call: Call, types: Mapping[str, str]) -> tuple[str, str]:
        """Return the op's name without its transpose letters, and the end of its parameters. The
        library's A is our B."""
        a, b, c = types["b"], types["a"], types["c"]
        bias, batched = call["bias_vector"] != "0", call["batch_count"] != "1"
        if a.startswith("f8"):
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
        if dtype == "f32" and compute == "xf32_r":
            return "tf32"
        if compute in ("f32_f16_r", "f32_bf16_r"):
            raise cannot_compute(self.name, compute)
        return self.types[dtype]

    def entry(self, outcome: Outcome, key: Key) -> NewEntry:
        index, backend = solution_index(outcome), outcome.tuned.backend
        cells = (key["op"], key["params"], f"Gemm_{self.libraries[backend]}_{index}")
        line = ",".join((*cells, f"{outcome.tuned.median_s * 1e3:.6g}"))
        config = _library_config(backend, index)
        return NewEntry(winner=outcome, config=config, content=[line])

    def head(self, winners: Winners, content: Sequence[str], options: Options) -> list[str]:
        validators = {name: options[name] for name in self.validators if name in options}
        there = [line.split(",", 2)[1:] for line in content if self.is_head(line)]
        tuned = [(f"{o.tuned.backend.upper()}_VERSION", o.tuned.version) for o in winners]
        _add_validators(validators, [*((cells[0], cells[-1]) for cells in there), *tuned])
        _check_arch(validators, winners)
        if there:
            return []
        if any(name not in validators for name in self._needed(validators)):
            _add_validators(validators, _installed_validators().items())
            _check_arch(validators, winners)
        needed = self._needed(validators)
        missing = [name for name in needed if name not in validators]
        if missing or content:
            lacks = f"{', '.join(missing)} not known" if missing else "the file has no validators"
            raise UsageError(
                f"tunableop: {lacks}, and PyTorch would refuse the file",
                hint=f"give --with {(missing or needed)[0]}=…, or merge into a file of PyTorch's",
            )
        return [f"Validator,{name},{validators[name]}" for name in needed]

    def _needed(self, validators: Mapping[str, str]) -> list[str]:
        """Return the validators that PyTorch requires: one of the two ROCm versions, and all
        others."""
        unneeded = "HIP_VERSION" if "ROCM_VERSION" in validators else "ROCM_VERSION"
        return [name for name in self.validators if name != unneeded]

    def is_head(self, line: str) -> bool:
        return line.startswith("Validator,")


def _library_config(library: str, index: int) -> Config:
    config: dict[str, ConfigValue] = {"library": library, "solution_index": index}
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
