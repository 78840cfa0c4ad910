"""Output: data to stdout, messages to stderr, files as requested, and commands as next steps."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
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

_PASSWORD = re.compile(r"^([\w+]+://[^:/]*):[^@]*@")
# Options of a run that its results do not record, in printed order.
_CONDUCT = ("--timeout", "--compile-timeout", "--roofs")


def without_password(url: str) -> str:
    """Return a store's URL without its password, for printing."""
    if "://" not in url:
        return url
    whole, _, query = _PASSWORD.sub(r"\1@", url).partition("?")
    kept = [pair for pair in query.split("&") if "password" not in pair.partition("=")[0].lower()]
    return "?".join(filter(None, (whole, "&".join(kept))))


def store_words(store: str | None) -> tuple[str, ...]:
    """Return `--store PLACE` if the option was given; KERNELMARK_STORE needs no option."""
    return () if store is None else ("--store", without_password(store))


def redacted(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without passwords, for storing and printing."""
    safe = []
    for before, argument in zip(("", *argv), argv, strict=False):
        name, equals, store = argument.partition("=")
        if before == "--store":
            safe.append(without_password(argument))
        else:
            safe.append(
                f"--store={without_password(store)}" if equals and name == "--store" else argument
            )
    return tuple(safe)


def rerun_words(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the options that a rerun of this `kmark run`'s cases needs besides the case."""
    if tuple(argv[:1]) != ("run",):
        return ()
    options: dict[str, str] = {}
    for argument, after in zip(argv, (*argv[1:], ""), strict=True):
        name, equals, value = argument.partition("=")
        if name in _CONDUCT:
            options[name] = value if equals else after
    kept = [argument for name in _CONDUCT if name in options for argument in (name, options[name])]
    return (*kept, *(["--no-store"] if "--no-store" in argv else []))


def started_as() -> str:
    """Return `kmark` if the shell finds it, else the words that started this process, such as
    `.venv/bin/kmark` of a virtual environment that is not active."""
    import shutil  # imported late: only needed for hints

    program = sys.argv[0]
    if shutil.which("kmark") is None:
        if Path(program).name == "kmark":
            return shlex.quote(program)
        if Path(program).name == "__main__.py":
            return shlex.join([sys.executable, "-m", "kernelmark"])
    return "kmark"


def extended(command: str, arguments: Sequence[str]) -> str:
    """Return a command with `arguments` appended."""
    return f"{command} {shlex.join(arguments)}" if arguments else command


@contextlib.contextmanager
def kept_by(arguments: Sequence[str], store: str | None = None) -> Iterator[None]:
    """Suggest the command to regenerate a file that cannot be written; () if not stored."""
    try:
        yield
    except UsageError as error:
        command = shlex.join(["kmark", *arguments, *store_words(store)])
        again = f"to write it again: {command}" if arguments else "nothing is stored: measure again"
        raise UsageError(error.message, hint=f"make room or name another file; {again}") from None


_COMMAND = re.compile(r"(.*?)(?:(?<=: )(kmark [^:]*))?", re.DOTALL)
# The space between a number and its unit, where lines must not break.
_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|[nmµ]?s|min|h)(?!\w))")
_BAR, _LEAST_NAME = 12, 12  # columns of a progress bar, and of its description
_STYLES = {"title": "italic", "head": "bold", "name": "cyan"}


def check_writable(file_name: str) -> None:
    """Refuse a file that cannot be written before anything is measured."""
    if file_name == "-":
        return
    path = Path(file_name)
    if path.is_dir():
        raise UsageError(f"{file_name} is a folder, not a file", hint="give a file name, or -")
    if not path.parent.is_dir():
        raise UsageError(
            f"{file_name} cannot be written: there is no folder {path.parent}",
            hint=f"make it: mkdir -p {shlex.quote(str(path.parent))}",
        )
    hint = "name another file, or - for stdout"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(_refused(file_name, "permission denied"), hint=hint)
    if path.exists() and not path.is_file():  # /dev/stdout, a named pipe
        return
    import tempfile  # imported late: only needed with output files

    try:
        # Permissions are not sufficient: root may write to /proc or to a full disk.
        with tempfile.NamedTemporaryFile(dir=path.resolve().parent, prefix=".kmark."):
            pass
    except OSError as error:
        raise UsageError(_refused(file_name, error.strerror or str(error)), hint=hint) from None


def write(file_name: str, text: str) -> None:
    """Write `text` to stdout for `-`, else to a file, atomically."""
    try:
        _write(file_name, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        if file_name == "-":
            silenced(sys.stdout)
        raise _unwritable("stdout" if file_name == "-" else file_name, error) from None


def _write(file_name: str, text: str) -> None:
    if file_name == "-":
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
        return
    path = Path(file_name)
    if not path.is_file() and path.exists():  # /dev/stdout, a named pipe
        path.write_text(text, encoding="utf-8", errors="replace")
        return
    from kernelmark.core.files import write_whole

    write_whole(path, text.encode(errors="replace"))


def flush() -> None:
    """Flush stdout; raise UsageError if that fails."""
    write("-", "")


def _refused(file_name: str, error: str) -> str:
    return f"{file_name} cannot be written: {error}"


def _unwritable(file_name: str, error: OSError) -> UsageError:
    """Return an error that names the requested path, not the temporary file."""
    return UsageError(
        _refused(file_name, error.strerror or str(error)),
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
    sentence, command = _COMMAND.fullmatch(line).groups()  # type: ignore[union-attr]
    whole = textwrap.wrap(
        _UNIT.sub("\u00a0", sentence),
        width,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [line.replace("\u00a0", " ") for line in whole]
    if command and (not lines or len(lines[-1]) + 1 + len(command) > width):
        return "\n".join([*lines, f"  {command}"])
    return "\n".join([*lines[:-1], " ".join(filter(None, (lines[-1], command)))])


def _width() -> int:
    """Return the width of the terminal at stderr."""
    with contextlib.suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", "0"))) > 0:
            return columns
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


def show_all_columns(enabled: bool) -> None:
    """Set whether tables ignore the width of the terminal (`--wide`)."""
    global _all_columns
    _all_columns = enabled


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
        styled = Text(line.text, style=_STYLES.get(line.kind, style))
        drawn.print(styled, soft_wrap=True)


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
