"""triton-autotune: the problem of NAME.autotune.json, from the cache of Triton's autotuner.

    {"key": [512, 1024, 2048, "torch.bfloat16", "torch.bfloat16", "torch.bfloat16"], …}

The key has the values that a kernel is tuned by and the dtypes of its arguments, without names
(autotuner.py). The user gives the names: `--key 'gemm m,n,k,a,b,c tb=t'`. A file is one problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.workloads.logs import dtypes
from kernelmark.workloads.logs.base import BadLine, Given, LogReader, Remark
from kernelmark.workloads.workload import Call

_MARK = b'"configs_timings"'
_UNNAMED = "_"  # a value that is not a size of the op


class TritonAutotune(LogReader):
    name = "triton-autotune"
    summary = "*.autotune.json of Triton's cache: the problem that was tuned, with --key"
    facts = FormatFacts(
        versions="Triton 3.9",
        exactness="exact with the names and layouts that --key gives to the key's values; "
        "rejected without --key; counts are not in the file",
        checked="compared with autotuner.py; a file that Triton's own code wrote",
    )

    def is_document(self, head: bytes) -> bool:
        return head.lstrip()[:1] == b"{" and _MARK in head

    def document(
        self, chunks: Iterable[bytes], given: Given
    ) -> Iterator[tuple[int, Call | str | Remark]]:
        try:
            document = json.loads(b"".join(chunks))
        except (ValueError, RecursionError) as error:
            yield 1, Reason("not-json", error=str(error))
            return
        key = document.get("key") if isinstance(document, dict) else None
        if not isinstance(key, list) or not key:
            yield 1, Reason("call-lacks", name="key")
            return
        try:
            yield 1, Call(problem=named_problem(key, given.key))
        except UsageError as error:
            yield 1, error.message

    def notes(self) -> tuple[str, ...]:
        return (Reason("read-as-one", format=self.name, names=("count",)),)


def named_problem(key: list[object], names: str) -> Problem:
    """Return the problem of a key. `names`, such as `gemm m,n,k,a,b,c tb=t`, has an op, a name for
    each value (_ to ignore it), and further parameters. Dtypes at the end need no names if all are
    equal."""
    op, _, rest = names.strip().partition(" ")
    if not op:
        raise BadLine(Reason("tuned-key-names", values=len(key), names=0))
    listed, *known = rest.split() or [""]
    wanted = [name for name in listed.split(",") if name]
    values: dict[str, str | int | float | bool] = {}
    for word in known:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadLine(Reason("problem-not-name-value", word=word))
        values[name] = value
    unnamed = key[len(wanted) :]
    if len(wanted) > len(key) or any(not isinstance(part, str) for part in unnamed):
        raise BadLine(Reason("tuned-key-names", values=len(key), names=len(wanted)))
    for name, part in zip(wanted, key, strict=False):
        if name != _UNNAMED:
            values[name] = part if isinstance(part, int | float) else dtypes.named(str(part))
    kinds = {dtypes.named(str(part)) for part in unnamed}
    if len(kinds) > 1:
        raise BadLine(Reason("tuned-key-dtypes", dtypes=sorted(kinds)))
    for kind in kinds:
        values.setdefault("dtype", kind)
    return ops.parse(" ".join([op, *(f"{name}={value}" for name, value in values.items())]))


reader = TritonAutotune()
