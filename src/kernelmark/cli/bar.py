"""A progress bar of one line that fits the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.progress import Progress, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_BAR, _LEAST_BAR = 24, 8
# The name of a case is cut to this width before the bar is narrowed.
_LEAST_NAME = 24


class OneLine(Progress):
    """A bar, the count, the time left (the field `left`) and the description of each task. If the
    terminal is too narrow, the description is cut first, then the bar, then the count."""

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        grid = Table.grid(padding=0)
        for task in tasks:
            grid.add_row(_line(task, self.console.width))
        return grid


def _line(task: Task, width: int) -> Table:
    total = "?" if task.total is None else str(int(task.total))
    count = f"{int(task.completed):{len(total)}d}/{total}"
    left, name = str(task.fields.get("left", "")), Text(task.description)
    room = width - len(left)
    has_count = room > len(count)
    room -= len(count) + 1 if has_count else 0
    bar = min(_BAR, max(_LEAST_BAR, room - 2 - min(name.cell_len, _LEAST_NAME)))
    has_bar = has_count and room > bar
    room -= bar + 1 if has_bar else 0
    name.truncate(max(1, room - 1), overflow="ellipsis")

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
