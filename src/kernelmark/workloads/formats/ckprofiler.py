"""ckprofiler: output of Composable Kernel's ckProfiler for GEMMs.

    Perf:   8.0511 ms, 136.567 TFlops, 50.0122 GB/s, GemmXdlSplitKCShuffle_…, KBatch 2
    Best Perf for datatype = f16 ALayout =  RowMajor … M = 8192 N = 8192 K = 8192 … : 2.17246 ms, …

A line of a kernel precedes the line of the best one, which alone has the sizes. That names only the
dtype of the output, so a problem is named by these facts, and is no problem of the op gemm.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.registry import FormatFacts
from kernelmark.core.timing import Cache, Timing
from kernelmark.workloads.importers import (
    CUT,
    Importer,
    ResultFile,
    ResultRow,
    legal_word,
    problem_of,
    setting,
)
from kernelmark.workloads.source import BadLine, parse_number

_BEST = "Best Perf for datatype"
# How results of other operations end, and those of a GEMM whose output dtype has no name there.
_OTHERS = ("Best ", " ALayout =")
_FAILED = "Incorrect results"
_PERF = re.compile(r"\s*Perf:\s*(\S+) ms, \S+ TFlops, \S+ GB/s, (\S.*)")
_FACT = re.compile(r"(\w+) = +([\w.-]+)")
_NEEDED = ("M", "N", "K", "ALayout", "BLayout")
_TIMING = Timing(cache=Cache.HOT)


class CkProfiler(Importer):
    name = "ckprofiler"
    summary = "output of ckProfiler for GEMMs: every kernel"
    facts = FormatFacts(
        versions="Composable Kernel develop (2024 to 2026)",
        exactness="every time; only the dtype of the output is printed, so problems are named by "
        "what is printed; output of other operations is rejected",
        checked="compared with profile_gemm_impl.hpp; the layout of a public log, with rows of "
        "our own",
    )
    method = "mean of ckProfiler"

    def recognizes(self, name: str, head: bytes) -> bool:
        return _BEST.encode() in head

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        timed: list[tuple[str, str, str]] = []  # position, milliseconds, kernel
        for text in file.lines():
            if match := _PERF.match(text):
                if match[2].strip().endswith("KBatch"):
                    raise BadLine("KBatch has no value", hint=CUT)
                timed.append((file.at, match[1], match[2].strip()))
            elif text.startswith(_BEST):
                head, colon, end = text.rpartition(" : ")
                facts = dict(_FACT.findall(head))
                if not colon or not all(name in facts for name in _NEEDED):
                    raise BadLine("is of no GEMM that can be read", hint=CUT)
                if not timed:
                    raise BadLine("stands below no line of a kernel", hint=CUT)
                best = parse_number(end.partition(" ms")[0], "the best time")
                every = [parse_number(ms, "the time") for _, ms, _ in timed]
                # Kernels that did not run have a time of 0, and are never the best.
                if min((ms for ms in every if ms > 1e-10), default=best) != best:
                    raise BadLine("has a time that is not the best of the lines above", hint=CUT)
                batch = facts.pop("KBatch", None)  # of the best kernel
                problem = problem_of("ck_gemm", facts)
                seen: Counter[str] = Counter()
                for file.at, time_ms, kernel in timed:
                    # A type has several kernels: some print neither all parameters nor KBatch.
                    seen[kernel] += 1
                    config: dict[str, int | str] = {"kernel": legal_word(kernel)}
                    if batch and "KBatch" not in kernel:
                        config["kbatch_of_best"] = setting(batch)
                    if seen[kernel] > 1:
                        config["instance"] = seen[kernel]
                    yield ResultRow(
                        problem=problem,
                        backend="ck",
                        samples_s=(parse_number(time_ms, "the time") * 1e-3,),
                        timing=_TIMING,
                        config=FrozenDict(config),
                        kernel=kernel,
                    )
                timed = []
            elif text.lstrip().startswith("Perf:"):
                raise BadLine("a time that cannot be read", hint=CUT)
            elif _FAILED in text:
                raise BadLine("a kernel's results were wrong", hint="take it out of the log")
            elif timed and text.startswith(_OTHERS):
                raise BadLine("the kernels before it are of no GEMM that can be read")
        if timed:
            raise UsageError(f"{timed[0][0]}: no line of the best kernel follows", hint=CUT)


importers = (CkProfiler(),)
