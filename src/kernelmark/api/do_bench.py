"""do_bench and perf_report: the calls of `triton.testing`, timed by kernelmark's protocol.

    from kernelmark import do_bench   # instead of: from triton.testing import do_bench
    ms = do_bench(lambda: softmax(x))

It takes no arguments: inputs stay the same, and the output is not checked. `km.bench`
does both. The cache is flushed before each call, as Triton does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kernelmark.api import bench
from kernelmark.api.results import Results
from kernelmark.core.errors import UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Result, ResultSet, Run, RunState
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.timing import Cache, Timing
from kernelmark.host.processes import existing_objects_frozen
from kernelmark.ops._own import OUTPUT, Definition
from kernelmark.runners.locks import hold_lock
from kernelmark.runners.targets import find
from kernelmark.stores import new_run_id, opened

if TYPE_CHECKING:
    from kernelmark.stores import StoreArgument

ReturnMode = Literal["min", "max", "mean", "median", "all"]
_SUMMARIES: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
}
# Results of the calls of do_bench inside a report.
_measured: ContextVar[list[Result] | None] = ContextVar("measured", default=None)


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: ReturnMode = "mean",
) -> float | list[float]:
    """Return the milliseconds of a call, as `triton.testing.do_bench` does.

    fn: the function, without arguments; it runs on the GPU if torch sees one, else on the CPU.
    warmup, rep: limits of the milliseconds of warm-up, and of it together with timed calls.
    grad_to_none: tensors whose gradients are reset before each call.
    quantiles: return these quantiles of the samples: a list, or the value if there is only one.
    return_mode: min, max, mean or median of the samples, or all of them.
    """
    if return_mode not in (*_SUMMARIES, "all"):
        raise UsageError(
            f"unknown return_mode {return_mode!r}", hint="min, max, mean, median or all"
        )
    # Triton's own call takes about `rep` in all: 102 ms on an H200, where rep is 100 and warmup 25.
    timed_ms = max(rep - warmup, rep / 2)
    timing = Timing(
        cache=Cache.FLUSH, max_s=timed_ms / 1e3, warmup_s=warmup / 1e3, max_allocations=5
    )
    result = _measure(fn, timing, grad_to_none or ())
    if result.measurement is None:
        raise UsageError(f"the function cannot be measured: {result.why}")
    if (results := _measured.get()) is not None:
        results.append(result)
    times = [s * 1e3 for block in result.measurement.blocks for s in block.samples_s]
    if quantiles is not None:
        values = [float(value) for value in np.quantile(times, quantiles)]
        return values[0] if len(values) == 1 else values
    return times if return_mode == "all" else _SUMMARIES[return_mode](times)


def _measure(fn: Callable[[], Any], timing: Timing, grads: Sequence[Any]) -> Result:
    """Measure a call without arguments as a kernel that writes one element when it is checked."""
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_available()
    form, device_name = "numpy", "cpu"
    ready: Any = np.ones(1, np.float32)
    if torch is not None and on_gpu:
        form = "torch"
        device_name = f"{'hip' if torch.version.hip else 'cuda'}:{torch.cuda.current_device()}"
        ready = torch.ones(1, device="cuda")

    def call() -> Any:
        for tensor in grads:
            tensor.grad = None
        fn()
        return ready

    arguments = bench._Call(
        arguments=(),
        specs={},
        output=TensorSpec(name=OUTPUT, shape=(1,), dtype="f32", role="out"),
        output_nbytes=ready.nbytes,
        is_copied=True,
        out_at=None,
        parts=(),
        form=form,
        device=device_name,
        scalars={},
        notes=(),
    )
    definition = Definition(
        inputs=bench._no_parameters,
        reference=bench._no_reference,
        flops=lambda: 0,
        nbytes=lambda: 0,
    )
    name = bench._word(getattr(fn, "__name__", "")) or "call"
    op = bench._CallOp(name, definition, arguments, checked=False)
    kind, info = find(device_name)
    case = Case(problem=op.requested, backend=name, timing=timing)
    wait = partial(bench._report_wait, info.name)
    with hold_lock(info, wait), arguments.on_device(info.index), existing_objects_frozen():
        device = kind.open(info.index, timing.threads)
        try:
            arguments.share_stream(device)
            return bench._measured(call, case, op, device, suspects=False)
        finally:
            device.close()


@contextlib.contextmanager
def _recording() -> Iterator[list[Result]]:
    results: list[Result] = []
    token = _measured.set(results)
    try:
        yield results
    finally:
        _measured.reset(token)


class Report:
    """A benchmark over the values of `triton.testing.Benchmark`; `run` measures and stores it."""

    def __init__(self, fn: Callable[..., Any], benchmarks: Sequence[Any]) -> None:
        self.fn = fn
        self.benchmarks = benchmarks

    def run(
        self,
        show_plots: bool = False,  # noqa: FBT001 - the signature of Triton's
        print_data: bool = False,  # noqa: FBT001
        save_path: str = "",
        *,
        store: StoreArgument = True,
        **arguments: Any,
    ) -> Results:
        """Measure every value; return the results, which are stored as one run.

        The kernel times are those of the last `do_bench` in each call; what the function returns is
        not used. `print_data` prints the table; `save_path` is a folder for the figures;
        `show_plots` only exists for compatibility: in a notebook, show `results.plot("sweep")`.
        """
        begun, results = time.time(), []
        for benchmark in self.benchmarks:
            for point, line in itertools.product(benchmark.x_vals, range(len(benchmark.line_vals))):
                results.append(self._point(benchmark, point, line, arguments))
        device = results[0].device
        run = Run(
            id=new_run_id(),
            started=begun,
            finished=time.time(),
            environment=bench._environment(device, "torch" if device != "cpu" else "numpy"),
            label=self.benchmarks[0].plot_name,
            cases=len(results),
            state=RunState.DONE,
        )
        made = Results(ResultSet(run=run, results=tuple(results)))
        with opened(store) as target:
            if target is not None:
                target.add_result_set(made.result_set)
        if print_data:
            sys.stdout.write(str(made))
        if save_path:
            made.plot("sweep").save(f"{save_path}/{run.label}.svg")
        return made

    def _point(self, benchmark: Any, point: Any, line: int, arguments: dict[str, Any]) -> Result:
        values = point if isinstance(point, tuple | list) else [point] * len(benchmark.x_names)
        sizes = dict(zip(benchmark.x_names, values, strict=True))
        chosen = {benchmark.line_arg: benchmark.line_vals[line]}
        with _recording() as results:
            self.fn(**sizes, **chosen, **benchmark.args, **arguments)
        if not results:
            raise UsageError(
                f"{self.fn.__name__} did not call do_bench",
                hint="from kernelmark import do_bench, and call it inside the benchmark",
            )
        problem = Problem(
            op=bench._word(benchmark.plot_name) or "report",
            dims={bench._word(name): int(value) for name, value in sizes.items()},
            dtypes={},
            options={},
        )
        case = dataclasses.replace(
            results[-1].case, problem=problem, backend=str(benchmark.line_names[line])
        )
        return dataclasses.replace(results[-1], case=case)


def perf_report(benchmarks: Any) -> Callable[[Callable[..., Any]], Report]:
    """Return a decorator like `triton.testing.perf_report`, whose report also stores its results.

    benchmarks: a `triton.testing.Benchmark`, or several.
    """
    several = benchmarks if isinstance(benchmarks, list | tuple) else [benchmarks]
    return lambda fn: Report(fn, several)
