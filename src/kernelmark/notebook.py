"""Jupyter: `%load_ext kernelmark`, then `%kmark run …`, `%%kmark` and `%kmark watch`."""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import shlex
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from kernelmark.api.bench import compare_kernels
from kernelmark.api.results import Results, load
from kernelmark.api.watch import KEPT, METRICS, open_reader
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.verdict import INTERRUPTED, REGRESSION, SOME_FAILED

_REFERENCES = ("reference", "ref")


def load_ipython_extension(shell: Any) -> None:
    """Register the magics; `%load_ext kernelmark` calls this."""

    def magic(line: str, cell: str | None = None) -> Any:
        try:
            return kmark(line) if cell is None else time_cell(line, cell, shell)
        except KernelmarkError as error:
            hint = f"\nhint: {error.hint}" if error.hint else ""
            raise _shown(f"{error.message}{hint}") from None

    shell.register_magic_function(magic, "line_cell", "kmark")


def _shown(text: str) -> Exception:
    from IPython.core.error import UsageError as Shown

    return Shown(text)  # type: ignore[no-any-return]


def kmark(line: str) -> Any:
    """Run a command of `kmark`. `run` and `show` return their `Results`, `watch` a live chart;
    other commands print."""
    from kernelmark.cli.main import main

    words = _split(line)
    if words[:1] == ["watch"]:
        parser = _Parser(prog="%kmark watch")
        parser.add_argument("-d", "--device", default="cpu")
        parser.add_argument("--every", type=float, default=1.0)
        return watch(**vars(parser.parse_args(words[1:])))
    shows = words[:1] in (["run"], ["show"]) and not {"--json", "--csv", "--md"} & {*words}
    if not shows or {"--help", "--help-all", "-h", "--dry-run", "--samples"} & {*words}:
        with _exit_raised():
            main(words)
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        with contextlib.redirect_stdout(io.StringIO()), _exit_raised():
            main([*words, "--json", str(file)])
        return load(file) if file.exists() else None


@contextlib.contextmanager
def _exit_raised() -> Iterator[None]:
    """Convert the exit of a command that could not do its work to an error of the cell; the command
    has printed why. A regression or a failed case is a result."""
    try:
        yield
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            raise KeyboardInterrupt from None
        if ended.code not in (0, None, REGRESSION, SOME_FAILED):
            raise _shown(f"kmark ended with exit code {ended.code}") from None


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:  # an open quotation
        raise UsageError(f"%kmark {line}: {error}", hint="close the quotation") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"{self.prog}: {message}", hint=self.format_usage().strip())


def time_cell(line: str, cell: str, shell: Any) -> Results:
    """Execute the cell, then measure and check the functions that it defines.

    The function called `reference` or `ref`, or that of `--ref`, is the reference; its arguments,
    and those of the kernels, are the variables of these names. Names on the line select kernels."""
    parser = _Parser(prog="%%kmark")
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--ref")
    parser.add_argument("--timing")
    parser.add_argument("--flops", type=int, default=0)
    parser.add_argument("--label", default="")
    parser.add_argument("--store", nargs="?", const=True)
    options = parser.parse_args(_split(line))
    done = shell.run_cell(cell)
    done.raise_error()
    variables: Mapping[str, Any] = shell.user_ns
    defined = [node.name for node in ast.parse(cell).body if isinstance(node, ast.FunctionDef)]
    names = options.kernels or [
        name for name in defined if isinstance(variables.get(name), FunctionType)
    ]
    ref = options.ref or next((name for name in _REFERENCES if name in defined), None)
    kernels = {name: _variable(variables, name) for name in names if name != ref}
    if not kernels:
        raise UsageError(
            "the cell defines no kernel", hint="define a function whose arguments are variables"
        )
    first = next(iter(kernels.values()))
    return compare_kernels(
        kernels,
        inputs=[_variable(variables, name) for name in inspect.signature(first).parameters],
        ref=None if ref is None else _variable(variables, ref),
        flops=options.flops,
        timing=options.timing,
        store=options.store,
        label=options.label,
    )


def _variable(variables: Mapping[str, Any], name: str) -> Any:
    if name not in variables:
        raise UsageError(f"there is no {name!r}", hint="assign or define it in a cell before")
    return variables[name]


# Lines over time, one panel a metric. Colours follow the page.
_CHART = """
function render({ model, el }) {
  const draw = () => {
    const panels = Object.entries(model.get("values")).map(([name, values]) => {
      const unit = model.get("units")[name], low = unit == "%" ? 0 : Math.min(...values);
      const high = unit == "%" ? 100 : Math.max(...values), span = high - low || 1;
      const points = values.map((v, i) => `${(i * 240 / model.get("kept")).toFixed(1)},` +
        `${(44 - 40 * (v - low) / span).toFixed(1)}`).join(" ");
      const now = values[values.length - 1].toPrecision(4);
      return `<div style="display:inline-block;margin:4px 12px 4px 0"><div>${name}: ` +
        `<b>${now} ${unit}</b></div><svg width="240" height="48" viewBox="0 0 240 48">` +
        `<polyline points="${points}" fill="none" stroke="#0072b2"/></svg></div>`;
    });
    el.innerHTML = `<div>${model.get("device")}</div>` + panels.join("");
  };
  model.on("change:values", draw);
  draw();
}
export default { render };
"""


def watch(device: str = "cpu", every: float = 1.0) -> Any:
    """Return a live chart of a device: an anywidget; its `stop()` ends the readings."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise UsageError(
            "a live chart needs anywidget, which is not installed",
            hint='pip install "kernelmark[notebook]", or run kmark watch in a terminal',
        ) from None
    read = open_reader(device)

    class Monitor(anywidget.AnyWidget):  # type: ignore[misc]
        _esm = _CHART
        device = traitlets.Unicode().tag(sync=True)
        values = traitlets.Dict().tag(sync=True)
        units = traitlets.Dict(dict(METRICS)).tag(sync=True)
        kept = traitlets.Int(KEPT).tag(sync=True)

        def __init__(self, **state: Any) -> None:
            super().__init__(**state)
            self._stopped = threading.Event()
            self.take()
            threading.Thread(target=self._run, name="kmark watch", daemon=True).start()

        def take(self) -> None:
            new = read()
            self.values = {
                name: [*self.values.get(name, ()), new[name]][-KEPT:]
                for name in METRICS
                if name in new
            }

        def _run(self) -> None:
            while not self._stopped.wait(every):
                self.take()

        def stop(self) -> None:
            """End the readings; the chart stays."""
            self._stopped.set()

    return Monitor(device=device)
