"""`kmark mcp`: what an agent's client sees."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from kernelmark.cli.app import command
from kernelmark.cli.share.mcp import Server, Tool, _offered
from kernelmark.core.errors import UsageError

COMMANDS = [name for name, c in command().commands.items() if not hasattr(c, "commands")]


class Client:
    """Messages as a server reads them; what it answers, by message id."""

    def __init__(self, *messages: Any, most_s: float = 60.0, ends: bool = True) -> None:
        self._messages, self._ends = messages, ends
        self._answered = threading.Semaphore(0)
        self.answers: dict[Any, Any] = {}
        Server([Tool(name) for name in _offered()], most_s, self).serve(self)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[str]:
        for message in self._messages:
            yield message if isinstance(message, str) else json.dumps(message)
        # An agent waits for its answers; one that goes away does not.
        for _ in self._messages if self._ends else ():
            self._answered.acquire(timeout=60)

    def write(self, text: str) -> None:
        answer = json.loads(text)
        self.answers[answer["id"]] = answer
        self._answered.release()

    def flush(self) -> None: ...


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    parameters = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": parameters}


def ask(number: int, method: str, **parameters: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}


@pytest.mark.parametrize("name", [n for n in COMMANDS if n != "mcp"])
def test_every_command_has_a_schema_of_its_parameters(name: str) -> None:
    document = Tool(name).document()
    schema = document["inputSchema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert document["description"]
    assert "--json" not in {f"--{key}" for key in schema["properties"]}
    assert set(schema["required"]) <= set(schema["properties"])


def test_arguments_become_words_of_a_command_line() -> None:
    words = Tool("compare").command_line({"base": "-x", "head": "b", "fail_on": "slower:3%"})
    assert words == ["compare", "--json=-", "--fail-on=slower:3%", "--", "-x", "b"]
    assert "--check" in Tool("history").command_line({"check": True})
    assert "--check" not in Tool("history").command_line({"check": None})
    assert Tool("history").command_line({"backends": ["a", "b"]})[2:] == [
        "--backend=a",
        "--backend=b",
    ]
    with pytest.raises(UsageError):
        Tool("history").command_line({"nope": 1})


@pytest.mark.parametrize("name", ["mcp", "tune", "nope"])
def test_what_can_be_no_tool(name: str) -> None:
    with pytest.raises(UsageError):
        Tool(name)


def test_a_session_of_an_agent(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/none.sqlite"
    client = Client(
        ask(1, "initialize", protocolVersion="2025-06-18"),
        ask(2, "tools/list"),
        call(3, "list", what="strategies"),
        call(4, "show", store=store),
        call(5, "nope"),
        ask(6, "nope"),
        "not json",
        ask(7, "ping"),
    )
    answers = client.answers
    assert answers[1]["result"]["protocolVersion"] == "2025-06-18"
    assert {"list", "compare"} <= {tool["name"] for tool in answers[2]["result"]["tools"]}
    (text, *_) = answers[3]["result"]["content"]
    assert "genetic" in {row["strategy"] for row in json.loads(text["text"])}
    assert not answers[3]["result"]["isError"]
    assert answers[4]["result"]["content"]  # a sentence, as on a terminal
    assert answers[5]["error"]["code"] == -32602
    assert answers[6]["error"]["code"] == -32601
    assert answers[None]["error"]["code"] == -32700
    assert answers[7]["result"] == {}


def test_a_call_ends_after_its_time() -> None:
    answers = Client(call(1, "list", what="ops"), most_s=0.05).answers
    assert answers[1]["result"]["isError"]


def test_calls_end_with_their_client() -> None:
    answers = Client(call(1, "doctor"), ends=False).answers
    assert set(answers) <= {1}
    assert threading.active_count() < 20


def test_nothing_but_answers_is_written() -> None:
    out = io.StringIO()
    Server([], 1.0, out).serve(io.StringIO("\n" + json.dumps({"method": "notifications/x"}) + "\n"))
    assert out.getvalue() == ""
