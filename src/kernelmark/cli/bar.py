"""A progress bar of one line that fits the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.progress import Progress, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_BAR, _LEAST_BAR = 24, 8
# The start of a description is cut to this width before its end, the backend and the phase, is cut.
_LEAST_NAME = 12


class OneLine(Progress):
    """A bar, the count, the time left (the field `left`) and the description of each task, followed
    by the field `end`. If the terminal is too narrow, the bar is narrowed first, then the
    description is cut in front of `end`, then the bar is left out, then the count."""

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        grid = Table.grid(padding=0)
        for task in tasks:
            grid.add_row(_line(task, self.console.width))
        return grid


def _line(task: Task, width: int) -> Table:
    total = "?" if task.total is None else str(int(task.total))
    count = f"{int(task.completed):{len(total)}d}/{total}"
    left, end = str(task.fields.get("left", "")), Text(str(task.fields.get("end", "")))
    name = Text(task.description)
    room = width - len(left)
    has_count = room > len(count)
    room -= len(count) + 1 if has_count else 0
    # Not as wide as there is room: the bar would change its width with every phase.
    bar = _BAR if name.cell_len + end.cell_len + _BAR + 2 <= room else _LEAST_BAR
    has_bar = has_count and room > bar
    room -= bar + 1 if has_bar else 0
    name = _cut(name, end, max(1, room - 1))

    line = Table.grid(padding=(0, 1))
    cells: list[Text | ProgressBar] = []
    if has_bar:
        made = ProgressBar(
            total=task.total,
            completed=task.completed,
            width=bar,
            pulse=not task.started,
            animation_time=task.get_time(),
        )
        cells.append(made)
    if has_count:
        cells.append(Text(count, style="progress.download"))
    cells += [text for text in (Text(left), name) if text.cell_len > 1]
    for _ in cells:
        line.add_column(no_wrap=True)
    line.add_row(*cells)
    return line


def _cut(name: Text, end: Text, room: int) -> Text:
    """Return name and end in `room` columns, cut at the end of the name if enough of it is left."""
    if name.cell_len + end.cell_len > room >= _LEAST_NAME + end.cell_len:
        name.truncate(room - end.cell_len, overflow="ellipsis")
    name.append_text(end)
    name.truncate(room, overflow="ellipsis")
    return name
