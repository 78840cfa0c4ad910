"""Output: data to stdout, messages to stderr, files as requested."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, overload

from kernelmark.core.errors import UsageError
from kernelmark.core.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task
    from rich.text import Text

    from kernelmark.report.tables import Table
    from kernelmark.report.vega import Spec

_COMMAND = re.compile(r"(.*?)(?:(?<=: )(kmark [^:]*))?", re.DOTALL)
# The space between a number and its unit, where lines must not break.
_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|[nmµ]?s|min|h)(?!\w))")
_BAR, _LEAST_NAME = 12, 12  # columns of a progress bar, and of its description
_STYLES = {"title": "italic", "head": "bold", "name": "cyan"}


def check_writable(place: str) -> None:
    """Refuse a file that cannot be written before anything is measured."""
    if place == "-":
        return
    path = Path(place)
    if path.is_dir():
        raise UsageError(f"{place} is a folder, not a file", hint="give a file name, or -")
    if not path.parent.is_dir():
        raise UsageError(
            f"{place} cannot be written: there is no folder {path.parent}",
            hint=f"make it: mkdir -p {shlex.quote(str(path.parent))}",
        )
    hint = "name another file, or - for stdout"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(_refused(place, "permission denied"), hint=hint)
    if path.exists() and not path.is_file():  # /dev/stdout, a named pipe
        return
    import tempfile  # imported late: only needed with output files

    try:
        # Permissions are not sufficient: root may write to /proc or to a full disk.
        with tempfile.NamedTemporaryFile(dir=path.resolve().parent, prefix=".kmark."):
            pass
    except OSError as error:
        raise UsageError(_refused(place, error.strerror or str(error)), hint=hint) from None


def write(place: str, text: str) -> None:
    """Write `text` to stdout for `-`, else to a file, atomically."""
    try:
        _write(place, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        if place == "-":
            silenced(sys.stdout)
        raise _unwritable("stdout" if place == "-" else place, error) from None


def _write(place: str, text: str) -> None:
    if place == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(place)
    if not path.is_file() and path.exists():  # /dev/stdout, a named pipe
        path.write_text(text, encoding="utf-8")
        return
    from kernelmark.core.files import write_whole

    write_whole(path, text.encode())


def flush() -> None:
    """Flush stdout; raise UsageError if that fails."""
    write("-", "")


def _refused(place: str, error: str) -> str:
    return f"{place} cannot be written: {error}"


def _unwritable(place: str, error: OSError) -> UsageError:
    """Return an error that names the requested path, not the temporary file."""
    return UsageError(
        _refused(place, error.strerror or str(error)),
        hint="make room or name another file; 'kmark export' writes a stored run again",
    )


def silenced(stream: TextIO) -> None:
    """Discard all further output to `stream`, including what is still buffered."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: closed, or has no file descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def say(text: str = "") -> None:
    """Print a message to stderr, folded to the width of a terminal. A closed stderr is ignored."""
    try:
        sys.stderr.write(f"{stderr_text(text)}\n")
        sys.stderr.flush()
    except OSError:
        silenced(sys.stderr)


def stderr_text(text: str, spare: int = 0) -> str:
    """Return the text as stderr shows it; on a terminal, lines leave `spare` columns free."""
    whole = printable(text)
    return folded(whole, _width() - spare) if fancy(sys.stderr) else whole


def folded(text: str, width: int) -> str:
    """Return the text with lines of at most `width` columns, broken between words. Commands stay on
    one line, to be copied: indented lines, and `kmark …` after the last colon."""
    return "\n".join(_folded(line, width) for line in text.split("\n"))


def _folded(line: str, width: int) -> str:
    if len(line) <= width or line.startswith(" "):
        return line
    words, command = _COMMAND.fullmatch(line).groups()  # type: ignore[union-attr]
    whole = textwrap.wrap(
        _UNIT.sub("\u00a0", words),
        width,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    made = [line.replace("\u00a0", " ") for line in whole]
    if command and (not made or len(made[-1]) + 1 + len(command) > width):
        return "\n".join([*made, f"  {command}"])
    return "\n".join([*made[:-1], " ".join(filter(None, (made[-1], command)))])


def _width() -> int:
    """Return the width of the terminal at stderr."""
    with contextlib.suppress(ValueError):
        if (given := int(os.environ.get("COLUMNS", "0"))) > 0:
            return given
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    return 80


def complain(message: str, hint: str | None) -> None:
    """Print an error and its hint."""
    say(f"kmark: {message}")
    if hint:
        say(f"hint: {hint}")


def put(text: str) -> None:
    """Print data to stdout."""
    write("-", printable(text))


_all_columns = False


def show_all_columns(asked: bool) -> None:
    """Set whether tables ignore the width of the terminal (`--wide`)."""
    global _all_columns
    _all_columns = asked


def put_table(table: Table, *, styles: Sequence[str] = ()) -> None:
    """Print a table, folded to the width of a terminal, else in full; one style per row."""
    from kernelmark.report.tables import draw, text

    if not fancy(sys.stdout):
        put(text(table))
        return
    from rich.text import Text

    drawn = console()
    for line in draw(table, math.inf if _all_columns else drawn.width):
        style = styles[line.row] if styles and line.kind == "row" else ""
        made = Text(line.text, style=_STYLES.get(line.kind, style))
        drawn.print(made, soft_wrap=True)


def put_tables(tables: Iterable[Table]) -> None:
    """Print tables with blank lines between them."""
    for i, table in enumerate(tables):
        if i:
            put("\n")
        put_table(table)


def fancy(stream: object) -> bool:
    """Return whether `stream` is a terminal that can move its cursor."""
    terminal = getattr(stream, "isatty", lambda: False)()
    return bool(terminal) and os.environ.get("TERM", "") not in ("", "dumb")


def console(*, stderr: bool = False) -> Console:
    """Return a rich Console. NO_COLOR also disables bold and dim."""
    from rich.console import Console

    return Console(stderr=stderr, color_system=None if os.environ.get("NO_COLOR") else "auto")


def progress_bar() -> Progress:
    """Return a transient progress bar on stderr. It has one line for each task: a bar, the count,
    the time left (the field `left`), and the description followed by the field `end`. On a narrow
    terminal the description is cut in front of `end`; the bar, then the count, are left out."""
    from rich.progress import Progress
    from rich.table import Table

    class OneLine(Progress):
        def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
            grid = Table.grid(padding=0)
            for task in tasks:
                grid.add_row(_bar_line(task, self.console.width))
            return grid

    return OneLine(console=console(stderr=True), transient=True)


def _bar_line(task: Task, width: int) -> Text:
    from rich.text import Text

    total = "?" if task.total is None else str(int(task.total))
    done = int(_BAR * min(task.completed / task.total, 1.0)) if task.total else 0
    parts = [f"{'━' * done:{_BAR}}", f"{int(task.completed):{len(total)}d}/{total}"]
    parts.append(str(task.fields.get("left", "")))
    while len(parts) > 1 and len(" ".join(parts)) > width:
        parts.pop(0)
    name, end = Text(task.description), Text(str(task.fields.get("end", "")))
    start = " ".join(filter(None, parts)) + " "
    room = width - len(start)
    if name.cell_len + end.cell_len > room >= _LEAST_NAME + end.cell_len:
        name.truncate(room - end.cell_len, overflow="ellipsis")
    line = Text(start).append_text(name).append_text(end)
    line.truncate(width, overflow="ellipsis")
    return line


def say_above(bar: Progress, text: str) -> None:
    """Print a message above a progress bar, folded as by `say`."""
    # soft_wrap: rich would fold the lines once more, without the indent and within commands
    whole = folded(printable(text), bar.console.width)
    bar.console.print(whole, markup=False, highlight=False, soft_wrap=True)


@overload
def check_drawable(figure: str) -> Path: ...
@overload
def check_drawable(figure: str | None) -> Path | None: ...
def check_drawable(figure: str | None) -> Path | None:
    """Return the path if a figure can be rendered to it; None without a figure."""
    if figure is None:
        return None
    from kernelmark.report.vega import check_ready

    return check_ready(figure)


def draw(spec: Spec, path: Path, title: str, subtitle: str = "", *, dark: bool = False) -> None:
    """Render a figure with its title to a file."""
    from kernelmark.report import figures, vega

    vega.save(figures.themed(spec, title=title, subtitle=subtitle, dark=dark), path)
