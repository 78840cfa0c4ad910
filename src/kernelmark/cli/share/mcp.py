"""`kmark mcp`: commands of kmark as tools of the Model Context Protocol, for agents.

The protocol is JSON-RPC 2.0, a message per line: the client calls `initialize`, `tools/list` and
`tools/call`. A tool is a command of kmark, its schema is derived from the command's parameters, and
a call runs the command in a process group of its own, so that a client can cancel it and no call
takes longer than allowed. Calls that measure wait for the device's lock, like every kmark.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import IO, Annotated, Any, Literal, get_args, get_origin

import kernelmark
from kernelmark.cli import options as o
from kernelmark.core.errors import UsageError
from kernelmark.core.units import duration_text, join_and
from kernelmark.host.processes import child_group, kill_group, own_command

# What an agent needs to learn and to judge. Others may execute the agent's code with the rights of
# the user who started the server.
TOOLS = ("list", "show", "compare", "history", "judge", "doctor")
_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
# The answer is JSON, on stdout.
_OUTPUTS = ("--json", "--csv", "--md", "--figure", "--help-all", "--quiet")
_MEANINGS = {
    0: "done",
    1: "a regression",
    2: "refused: a usage or configuration error",
    3: "some cases are wrong, impossible or failed, or the kernel was refused",
    4: "nothing to run or show",
}
_NOTES_CHARACTERS = 4000
_PARSE, _METHOD, _PARAMETERS = -32700, -32601, -32602  # error codes of JSON-RPC

Minutes = Annotated[
    float, o.option("--minutes M", min=0.01, help="End a call after this many minutes.")
]
Allow = Annotated[
    list[str] | None,
    o.option(
        "--allow COMMAND",
        help="Also offer this command, such as run. Repeatable. It executes an agent's kernel"
        " files with your rights; only judge has a sandbox.",
    ),
]


def mcp(*, allow: Allow = None, minutes: Minutes = 10.0) -> int:
    """Serve commands to agents, by the Model Context Protocol on stdin and stdout.

    Tools: list, show, compare, history, judge, doctor. In the settings of a client:
    command kmark, arguments ["mcp"].
    """
    tools = [Tool(name) for name in dict.fromkeys((*_offered(), *(allow or ())))]
    Server(tools, 60.0 * minutes, sys.stdout).serve(sys.stdin)
    return 0


def _offered() -> list[str]:
    from kernelmark.cli.app import command

    return [name for name in TOOLS if name in command().commands]


@dataclass(frozen=True, slots=True)
class Tool:
    """A command as a tool."""

    name: str

    def __post_init__(self) -> None:
        from kernelmark.cli.app import command

        known = command().commands
        if self.name == "mcp" or not hasattr(known.get(self.name), "callback"):
            raise UsageError(f"there is no command {self.name}")
        if hasattr(known[self.name], "commands"):
            raise UsageError(f"{self.name} is a group of commands, which cannot be a tool")

    @property
    def _parameters(self) -> list[Any]:
        from kernelmark.cli.app import command

        parameters: list[Any] = command().commands[self.name].params
        return [p for p in parameters if not {*p.opts} & {*_OUTPUTS}]

    @property
    def _has_json(self) -> bool:
        from kernelmark.cli.app import command

        return any("--json" in p.opts for p in command().commands[self.name].params)

    def document(self) -> dict[str, Any]:
        """Return the tool's description and the schema of its arguments."""
        from kernelmark.cli.app import command

        known = command().commands[self.name]
        hints = known.callback.__annotations__
        return {
            "name": self.name,
            "description": known.help,
            "inputSchema": {
                "type": "object",
                "properties": {p.name: _schema(p, hints[p.name]) for p in self._parameters},
                "required": [p.name for p in self._parameters if p.required],
                "additionalProperties": False,
            },
        }

    def command_line(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the words of the command for these arguments of a call."""
        known = {p.name: p for p in self._parameters}
        if unknown := arguments.keys() - known.keys():
            raise UsageError(f"{self.name} has no argument {join_and(sorted(unknown))}")
        options: list[str] = ["--json=-"] if self._has_json else []
        words: list[str] = []
        for name, parameter in known.items():
            if (value := arguments.get(name)) is None:
                continue
            values = [str(v) for v in (value if isinstance(value, list) else [value])]
            if parameter.param_type_name == "argument":
                words += values
            elif parameter.is_flag:
                options += (parameter.opts if value is True else parameter.secondary_opts)[-1:]
            else:
                options += [f"{parameter.opts[-1]}={text}" for text in values]
        # After -- nothing is an option, whatever an argument begins with.
        return [self.name, *options, *(["--", *words] if words else [])]


def _schema(parameter: Any, hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a command's parameter with this annotation."""
    annotation, *described = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    kinds = {bool: "boolean", int: "integer", float: "number"}
    # A parameter that may be left out: `list[str] | None`.
    (annotation,) = [a for a in _members(annotation) if a is not type(None)]
    several = get_origin(annotation) is list
    if several:
        (annotation,) = get_args(annotation)
    schema: dict[str, Any] = {"type": kinds.get(annotation, "string")}
    if get_origin(annotation) is Literal:
        schema["enum"] = list(get_args(annotation))
    for info in described:
        limits = {"minimum": info.min, "maximum": info.max}
        schema |= {name: limit for name, limit in limits.items() if limit is not None}
    if several:
        schema = {"type": "array", "items": schema}
    return {**schema, "description": parameter.help or parameter.metavar or ""}


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    return get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)


class Server:
    """Answers the messages of one client. Calls run in threads, so that they can be cancelled."""

    def __init__(self, tools: Sequence[Tool], most_s: float, out: IO[str]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._most_s = most_s
        self._out = out
        self._groups: dict[Any, int] = {}  # process groups of running calls, by message id
        self._lock = threading.Lock()

    def serve(self, lines: IO[str]) -> None:
        """Answer every line, until the client closes its side; then end the calls that run."""
        threads: list[threading.Thread] = []
        for line in lines:
            if not line.strip():
                continue
            try:
                message = json.loads(line)
                method, number = message["method"], message.get("id")
                parameters = message.get("params") or {}
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                self._put(None, error=(_PARSE, "a message is a JSON object with a method"))
                continue
            if method == "tools/call":
                thread = threading.Thread(target=self._call, args=(number, parameters), daemon=True)
                thread.start()
                threads = [*(t for t in threads if t.is_alive()), thread]
            elif method == "notifications/cancelled":
                self._cancel(parameters.get("requestId"))
            elif number is not None:
                self._answer(number, method, parameters)
        with self._lock:
            running = list(self._groups)
        for number in running:
            self._cancel(number)
        for thread in threads:
            thread.join()

    def _answer(self, number: Any, method: str, parameters: Mapping[str, Any]) -> None:
        if method == "initialize":
            asked = parameters.get("protocolVersion")
            result: dict[str, Any] = {
                "protocolVersion": asked if asked in _VERSIONS else _VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "kernelmark", "version": kernelmark.__version__},
            }
        elif method == "ping":
            result = {}
        elif method == "tools/list":
            result = {"tools": [tool.document() for tool in self._tools.values()]}
        else:
            self._put(number, error=(_METHOD, f"there is no method {method}"))
            return
        self._put(number, result=result)

    def _call(self, number: Any, parameters: Mapping[str, Any]) -> None:
        try:
            tool = self._tools.get(str(parameters.get("name")))
            if tool is None:
                raise UsageError(f"there is no tool {parameters.get('name')}")
            words = tool.command_line(parameters.get("arguments") or {})
        except (UsageError, AttributeError) as error:
            self._put(number, error=(_PARAMETERS, str(error)))
            return
        code, out, notes = self._run(number, words)
        texts = [out.strip(), f"{_MEANINGS.get(code, 'ended early')}\n{notes.strip()}".strip()]
        content = [{"type": "text", "text": text} for text in texts if text]
        self._put(number, result={"content": content, "isError": code not in (0, 1, 3, 4)})

    def _run(self, number: Any, words: Sequence[str]) -> tuple[int, str, str]:
        """Run a command. Return its exit code, output and the end of its notes."""
        with (
            child_group() as group,
            subprocess.Popen(
                own_command("kernelmark", *words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                process_group=group,
            ) as process,
        ):
            with self._lock:
                self._groups[number] = group
            try:
                out, notes = process.communicate(timeout=self._most_s)
            except subprocess.TimeoutExpired:
                kill_group(group)
                out, notes = process.communicate()
                notes += f"\nthis call took longer than {duration_text(self._most_s)}"
            finally:
                with self._lock:
                    self._groups.pop(number, None)
        return process.returncode, out, notes[-_NOTES_CHARACTERS:]

    def _cancel(self, number: Any) -> None:
        with self._lock:
            if number in self._groups:
                kill_group(self._groups[number])

    def _put(
        self, number: Any, *, result: Any = None, error: tuple[int, str] | None = None
    ) -> None:
        body = {"result": result}
        if error is not None:
            body = {"error": {"code": error[0], "message": error[1]}}
        with self._lock:
            self._out.write(json.dumps({"jsonrpc": "2.0", "id": number, **body}) + "\n")
            self._out.flush()
