"""Choices of PyTorch and aiter: inductor's max-autotune log, TunableOp's CSV, aiter's CSV tables.

Inductor's log is no file that it reads back. Its extern kernels (mm, addmm) are what runs without
max-autotune: torch's default, which every choice is compared with. A triton_mm is measured with
kernelmark's Triton GEMM.

TunableOp names solutions of hipBLASLt and rocBLAS by an index, which belongs to one build; the
backends take names. Algorithms of cuBLASLt are complete, and measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, Status, config_key
from kernelmark.tune.install.emitters.tunableop import TunableOpEmitter
from kernelmark.tune.recorded.base import (
    Applied,
    AuditFacts,
    ChoiceFormat,
    Contender,
    RecordedChoice,
    own_config,
)
from kernelmark.workloads.formats.aiter_csv import AiterTimes
from kernelmark.workloads.formats.inductor import InductorTimes
from kernelmark.workloads.formats.tunableop import TunableOpTimes
from kernelmark.workloads.importers import ResultFile, ResultRow

_TORCH = Contender(backend="torch")
# Extern kernels of inductor's GEMMs; those with a bias first have it in torch's own call.
_EXTERN = ("mm", "bmm", "addmm", "bias_addmm", "baddbmm", "_int_mm", "_scaled_mm")
# What inductor's template computes and kernelmark's kernel always does, or never.
_OF_TEMPLATE = ("choice", "ACC_TYPE", "ALLOW_TF32", "EVEN_K", "USE_FAST_ACCUM")
_UNKNOWN_OP = "no op computes what inductor tuned here"


class InductorChoices(ChoiceFormat):
    name = "inductor"
    summary = "PyTorch inductor's max-autotune log: the first choice of each AUTOTUNE block"
    facts = FormatFacts(
        versions="PyTorch 2.13, and older blocks without strides and dtypes",
        exactness="every logged choice is an alternative; triton_mm is measured with kernelmark's "
        "Triton GEMM, other templates are not",
        checked="read by the importer of inductor's logs",
    )
    writes = False

    def recognizes(self, name: str, head: bytes) -> bool:
        return not name.endswith(".json") and InductorTimes().recognizes(name, head)

    def rows(self, file: ResultFile, facts: AuditFacts) -> Iterator[RecordedChoice]:
        blocks: dict[str, list[ResultRow]] = {}  # by their first lines
        where = ""
        for row in InductorTimes().rows(file):
            block = blocks.get(where)
            # A block begins with its fastest choice.
            if block is None or row.problem != block[0].problem or _is_faster(row, block[-1]):
                where = file.at
            blocks.setdefault(where, []).append(row)
        for where, block in blocks.items():
            yield self._choice(where, [row for row in block if row.status is Status.OK], block[0])

    def _choice(self, where: str, timed: list[ResultRow], first: ResultRow) -> RecordedChoice:
        recorded = config_key(first.config)
        label = str(first.config.get("choice", ""))
        if first.problem.op.startswith("inductor_"):
            return RecordedChoice(where=where, label=label, recorded=recorded, reason=_UNKNOWN_OP)
        contenders = [_of_inductor(row) for row in timed]
        if not contenders or contenders[0] is None:
            reason = f"kernelmark has no kernel like inductor's {label}"
            return RecordedChoice(where=where, label=label, recorded=recorded, reason=reason)
        return RecordedChoice(
            where=where,
            label=label,
            recorded=recorded,
            problem=first.problem,
            choice=contenders[0],
            default=_TORCH,
            others=tuple(contender for contender in contenders[1:] if contender is not None),
            stand_in=contenders[0].backend == "triton",
        )


def _is_faster(row: ResultRow, last: ResultRow) -> bool:
    return bool(row.samples_s) and (not last.samples_s or row.samples_s[0] < last.samples_s[0])


def _of_inductor(row: ResultRow) -> Contender | None:
    name = str(row.config.get("choice", ""))
    if name in _EXTERN:
        return _TORCH
    if name not in ("triton_mm", "triton_bmm"):
        return None
    kept = {key: value for key, value in row.config.items() if key not in _OF_TEMPLATE}
    if kept.get("GROUP_M") == -1:  # the order of inductor's bmm
        kept["GROUP_M"] = 1
    return Contender(backend="triton", config=own_config(kept, "triton"))


_ALGORITHM = re.compile(r"([a-z]+)_(\d+)")


class TunableOpChoices(ChoiceFormat):
    name = "tunableop"
    summary = "results CSV of PyTorch's TunableOp: the solution of each GEMM"
    facts = FormatFacts(
        versions="PyTorch 2.3 to 2.13 on ROCm; cuBLASLt of its main branch, 2026-06",
        exactness="algorithms of cuBLASLt are exact; hipBLASLt's and rocBLAS's indices are not "
        "measured, as they belong to one build",
        checked="rows are read by the importer; of `applied`, compared with Tunable.cpp",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        return TunableOpTimes().recognizes(name, head)

    def rows(self, file: ResultFile, facts: AuditFacts) -> Iterator[RecordedChoice]:
        for row in TunableOpTimes().rows(file):
            solution = str(row.config["solution"])
            contender = _of_tunableop(solution)
            reason = ""
            if contender is None:
                reason = f"{solution} is an index of one build of {row.backend}, not a name"
            yield RecordedChoice(
                where=file.at,
                label=" ".join(row.key),
                recorded=solution,
                problem=None if reason else row.problem,
                choice=contender,
                default=_TORCH,  # what PyTorch runs without the file
                reason=reason,
            )

    def rewritten(self, file: ResultFile, changes: Mapping[str, Contender]) -> str:
        lines = file.text.splitlines(keepends=True)
        for where, contender in changes.items():
            at = int(where.removeprefix("line ")) - 1
            operation, sizes, _, rest = lines[at].split(",", 3)
            lines[at] = ",".join((operation, sizes, _solution(contender), rest))
        return "".join(lines)

    def applied(self, file: ResultFile, row: RecordedChoice, log: str) -> Applied:
        """PYTORCH_TUNABLEOP_VERBOSE=3 logs every lookup."""
        key = row.label.replace(" ", ",")
        ends = re.escape(key) + r"(?![\w,])"
        if re.search(r"ResultEntry found for " + ends, log):
            return Applied.YES
        missing = re.search(r"returning null ResultEntry for " + ends, log)
        return Applied.NO if missing else Applied.UNKNOWN


def _of_tunableop(solution: str) -> Contender | None:
    if solution == "Default":
        return _TORCH
    if TunableOpEmitter.algorithm.match(solution) is None:
        return None
    ours = TunableOpEmitter.attributes
    pairs = _ALGORITHM.findall(solution.removeprefix("Gemm_Cublaslt_"))
    algo = " ".join(f"{ours.get(name, name)}={value}" for name, value in pairs)
    return Contender(backend="cublaslt", config=FrozenDict({"algo": algo}))


def _solution(contender: Contender) -> str:
    """Return a contender as TunableOp writes it; a default is PyTorch's."""
    if not contender.config:
        return "Default"
    values = dict(word.partition("=")[::2] for word in str(contender.config["algo"]).split())
    named = (f"{name}_{values[own]}" for name, own in TunableOpEmitter.attributes.items())
    return f"Gemm_Cublaslt_{'_'.join(named)}"


_LOGGED_SHAPE = r"shape is (?:B:{b}, )?M:\d+, N:{n}, K:{k}[^\n]*?found padded_M: {m},"
_EXACT_SHAPE = r"shape is (?:B:{b}, )?M:{m}, N:{n}, K:{k}, is tuned on cu_num"
_UNTUNED_SHAPE = r"shape is (?:B:{b}, )?M:{m}, N:{n}, K:{k}\b[^\n]*not found tuned config"


class AiterTables(ChoiceFormat):
    name = "aiter-csv"
    summary = "aiter's tuned tables of GEMMs and fused MoE: the kernel of each shape"
    facts = FormatFacts(
        versions="aiter e4048607 (2026-08)",
        exactness="kernels of CK by their ids, and of fused MoE by their names; other libraries' "
        "indices are not measured",
        checked="rows are read by the importer; of `applied`, compared with aiter's log messages",
    )
    writes = False  # a row also has the kernel's name, which only aiter's tuner knows

    def recognizes(self, name: str, head: bytes) -> bool:
        return AiterTimes().recognizes(name, head)

    def rows(self, file: ResultFile, facts: AuditFacts) -> Iterator[RecordedChoice]:
        for row in AiterTimes().rows(file):
            config = _of_aiter(row)
            yield RecordedChoice(
                where=file.at,
                label=row.kernel or " ".join(row.key),
                recorded=config_key(row.config),
                problem=None if config is None else row.problem,
                choice=None if config is None else Contender(backend="aiter", config=config),
                reason="the row names no kernel of CK" if config is None else "",
            )

    def applied(self, file: ResultFile, row: RecordedChoice, log: str) -> Applied:
        """AITER_LOG_TUNED_CONFIG=1 logs every lookup of a GEMM. In a profile, the name of a kernel
        that only this row has is a proof too."""
        if row.label in log and file.text.count(row.label) == 1:
            return Applied.YES
        if row.problem is None or row.problem.op == "moe":
            return Applied.UNKNOWN
        dims = {name: row.problem.dims.get(name, 0) for name in "mnk"}
        shape = dims | {"b": row.problem.dims.get("batch", r"\d+")}
        if any(re.search(text.format(**shape), log) for text in (_LOGGED_SHAPE, _EXACT_SHAPE)):
            return Applied.YES
        missed = re.search(_UNTUNED_SHAPE.format(**shape), log)
        return Applied.NO if missed else Applied.UNKNOWN


def _of_aiter(row: ResultRow) -> Config | None:
    names = ("kernel_id", "split_k", "kernel1", "kernel2")
    config = {name: row.config[name] for name in names if name in row.config}
    if row.problem.op == "moe":
        return FrozenDict(config) if "kernel1" in config else None
    is_ck = "kernel_id" in config and row.config.get("library", "ck") == "ck"
    return FrozenDict({"kernel": "ck", **config}) if is_ck else None
