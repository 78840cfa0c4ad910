#!/usr/bin/env python3
"""Write docs/cli.md from the commands themselves: `python scripts/cli_docs.py [--check]`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

from kernelmark.cli.main import app

PLACE = Path(__file__).parent.parent / "docs" / "cli.md"

HEAD = """\
# The command line

<!-- Written by scripts/cli_docs.py from the commands themselves. Do not edit. -->

`kmark COMMAND --help` prints the common options of a command, `--help-all` all of them, as on this
page.

- Data goes to stdout; progress, warnings and notes go to stderr. With `--json -`, `--csv -` or
  `--md -` stdout holds nothing else.
- On a terminal there is a progress bar, elsewhere one line per case; `kmark micro` and `kmark
  roofs` print lines everywhere. `--quiet` suppresses both. `NO_COLOR` is respected.
- On a terminal, a table that is too wide is folded: the name of a row moves to a line above it, and
  columns that do not fit to a line below it. `--wide`, anywhere on the command line, keeps all
  columns side by side, as in a pipe.
- An error is one sentence, followed by `hint: …`. `--debug`, anywhere on the command line, adds the
  traceback.
- An invalid command line ends with exit code 2 before anything runs. So does a backend that `-b`
  names and that is unavailable. Without `-b`, unavailable backends are left out with a note.
- If a backend or device does not support a problem, its `--config`, `--cache` or `--strain`, or the
  timer, the row is `unsupported`, with the reason. If no case uses a name in `--config`, the
  command ends with exit code 2 and stores nothing.
- Commands that kernelmark suggests include the given `--store`, without its password.

| exit code | meaning |
| --- | --- |
| 0 | success |
| 1 | a regression (commands that compare) |
| 2 | usage, configuration or store error, or an internal error |
| 3 | some cases are wrong or `impossible`, crashed, ran out of time or memory, or did not compile |
| 4 | nothing to run, show or compare, or every case of `kmark run` is `unsupported` |
| 130 | interrupted; everything so far is stored: `kmark run --resume` |

`of roof` in the table of a run is the shortest time that the roofs allow, divided by the measured
time, with the bottleneck: `compute` (FMA rate of the problem's dtype) or `memory` (bandwidth of
main memory), whichever takes longer. Roofs are measured on this machine:
[roof.md](roof.md). The percentage is not clamped at 100. `–` means that
there is no roof, for example for a dtype that the CPU has no arithmetic for.
"""


def text() -> str:
    """The whole page."""
    group: Any = get_command(app)
    parts = [HEAD, "## Global options\n", _options(group)]
    for name, command in group.commands.items():
        parts += _section(f"kmark {name}", command)
    return "\n".join(parts)


def _section(name: str, command: Any) -> list[str]:
    """A command, or a group and then each of its commands."""
    if hasattr(command, "commands"):
        shown = {word: one for word, one in command.commands.items() if not one.hidden}
        parts = [f"## {name}\n", f"`{name} COMMAND …`\n", f"{command.help}\n"]
        return parts + [p for word, one in shown.items() for p in _section(f"{name} {word}", one)]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = " ".join(p.metavar for p in arguments)
    parts = [f"## {name}\n", f"`{name} [OPTIONS] {words}".rstrip() + "`\n"]
    # A paragraph that ends in a command is an example: "For example: kmark run -s demo".
    about = re.sub(r": (kmark .*)$", r": `\1`", command.help, flags=re.MULTILINE)
    about = about.replace("\\[", "[")  # escaped for rich
    # The help names pages from the root of the repository; this page is in docs.
    parts.append(re.sub(r"docs/(\w+\.md)", r"[\1](\1)", about) + "\n")
    if arguments:
        rows = [f"| `{p.metavar}` | {_help(p)} |" for p in arguments]
        parts.append("\n".join(["| argument | |", "| --- | --- |", *rows]) + "\n")
    return [*parts, _options(command)]


def _options(command: Any) -> str:
    panels: dict[str, list[str]] = {}
    rest = getattr(command, "rest", ())
    for option in command.params:
        if option.param_type_name == "option" and (not option.hidden or option in rest):
            panel = getattr(option, "rich_help_panel", None) or "Options"
            value = "" if option.is_flag else f" {option.metavar}"
            names = ", ".join(f"`{name}{value}`" for name in (*option.opts, *option.secondary_opts))
            panels.setdefault(panel, []).append(
                f"| {names.replace('|', chr(92) + '|')} | {_help(option)} |"
            )
    made = []
    for panel, rows in panels.items():
        made.append("\n".join([f"| {panel} | |", "| --- | --- |", *rows]) + "\n")
    return "\n".join(made)


def _help(parameter: Any) -> str:
    words = " ".join((parameter.help or "").split()).replace("|", "\\|")
    default = parameter.default
    if default not in (None, False, True, "", ()) and not callable(default):
        words += f" Default: `{default}`."
    return words


def main() -> None:
    page = text()
    if "--check" in sys.argv:
        if not PLACE.exists() or PLACE.read_text(encoding="utf-8") != page:
            sys.exit(f"{PLACE.name} does not say what the commands do: run {Path(__file__).name}")
        return
    PLACE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
