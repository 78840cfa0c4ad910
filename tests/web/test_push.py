"""`kmark push`, `kmark token` and `kmark site` against a server that really listens."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from kernelmark.api import push
from kernelmark.cli.main import main
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.result import ResultSet, RunState
from kernelmark.report import vega
from kernelmark.stores import open_store
from kernelmark.stores.store import Scope, Store
from kernelmark.web.app import create_app
from kernelmark.web.pages.kernels import CHANGED
from kernelmark.web.site import write_site
from kernelmark.web.source import Source

from .conftest import RUNS, Tags, a_run, results_of

LAST = f"run-{RUNS - 1:03}"


@contextlib.contextmanager
def listening(app: object, port: int = 0) -> Iterator[str]:
    bound = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Store]:
    """The dashboard's store."""
    with open_store(tmp_path / "there.sqlite") as opened:
        yield opened


@pytest.fixture
def token(there: Store) -> str:
    return there.create_token("host", Scope.WRITE)


def run_cli(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_runs_arrive_exactly_with_their_roofs(store, there, token):
    with listening(create_app(Source(there))) as url:
        done = push.push(store, ["latest", "run-002"], url, token)
    assert [(one.run_id, one.added, one.known) for one in done] == [(LAST, 6, 0), ("run-002", 6, 0)]
    for run_id in (LAST, "run-002"):
        assert there.result_set(run_id) == store.result_set(run_id)
    assert there.roofs(host="here") == store.roofs(host="here")


def test_other_results_of_a_run_are_refused(store, there, token):
    whole = store.result_set(LAST)
    changed = dataclasses.replace(whole.results[0], flops=1)
    there.add_result_set(dataclasses.replace(whole, results=(changed, *whole.results[1:])))
    with listening(create_app(Source(there))) as url, pytest.raises(KernelmarkError) as error:
        push.push(store, [LAST], url, token)
    assert error.value.status == 409


def test_only_what_is_missing_is_sent(store, there, token, monkeypatch):
    whole = store.result_set(LAST)
    there.add_result_set(dataclasses.replace(whole, results=whole.results[:4]))
    sent: list[int] = []
    real = push._Server.send
    monkeypatch.setattr(
        push._Server, "send", lambda s, part: sent.append(len(part.results)) or real(s, part)
    )
    with listening(create_app(Source(there))) as url:
        (done,) = push.push(store, [LAST], url, token)
    assert (done.added, done.known, sent) == (2, 4, [2])
    assert there.result_set(LAST) == whole


def test_a_push_that_breaks_off_leaves_no_complete_run(store, there, token, monkeypatch):
    monkeypatch.setattr(push, "_PART", 2)
    whole, real = store.result_set(LAST), push._Server.send

    def first_only(server, part):
        if there.runs():
            raise KeyboardInterrupt
        return real(server, part)

    with listening(create_app(Source(there))) as url:
        monkeypatch.setattr(push._Server, "send", first_only)
        with pytest.raises(KeyboardInterrupt):
            push.push(store, [LAST], url, token)
        part = there.result_set(LAST)
        assert (len(part.results), part.run.state) == (2, RunState.RUNNING)
        monkeypatch.setattr(push._Server, "send", real)
        push.push(store, [LAST], url, token)
    assert there.result_set(LAST) == whole
    assert whole.run.state is RunState.DONE


def test_processes_of_a_case_stay_together(tmp_path, there, token, monkeypatch):
    """A document tells processes apart by order alone."""
    monkeypatch.setattr(push, "_PART", 1)
    with open_store(tmp_path / "here.sqlite") as here:
        here.add_run(a_run(1))
        for process in range(3):
            here.add_results("run-001", results_of(process)[:2], process=process)
        with listening(create_app(Source(there))) as url:
            push.push(here, ["run-001"], url, token)
        assert there.positions("run-001") == here.positions("run-001")
        assert len(there.positions("run-001")) == 6


def test_a_server_that_fails_is_tried_again(store, there, token, monkeypatch):
    monkeypatch.setattr(push, "_FIRST_PAUSE_S", 0.001)
    app = create_app(Source(there))
    failing = iter(range(100))

    async def flaky(scope, receive, send):
        if scope["type"] == "http" and next(failing) % 3 != 2:
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
            return
        await app(scope, receive, send)

    with listening(flaky) as url:
        (done,) = push.push(store, [LAST], url, token)
    assert done.added == 6
    assert there.result_set(LAST) == store.result_set(LAST)


def test_an_answer_that_is_lost_is_not_stored_twice(store, there, token, monkeypatch):
    monkeypatch.setattr(push, "_FIRST_PAUSE_S", 0.001)
    app = create_app(Source(there))
    lost: list[str] = []

    async def dropping(scope, receive, send):
        async def quiet(message):
            return

        if scope["type"] == "http" and scope["method"] == "POST" and not lost:
            lost.append(scope["path"])
            await app(scope, receive, quiet)
            await send({"type": "http.response.start", "status": 502, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    with listening(dropping) as url:
        push.push(store, [LAST], url, token)
    assert lost
    assert there.result_set(LAST) == store.result_set(LAST)


def test_patience_ends(store, token):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(KernelmarkError):
        push.push(store, [LAST], f"http://127.0.0.1:{port}", token, patience_s=0)


def test_a_redirect_does_not_get_the_token(store, token):
    seen: list[str] = []

    async def redirecting(scope, receive, send):
        seen.append(scope["path"])
        where = [(b"location", b"/elsewhere")]
        await send({"type": "http.response.start", "status": 302, "headers": where})
        await send({"type": "http.response.body", "body": b""})

    with listening(redirecting) as url, pytest.raises(KernelmarkError):
        push.push(store, [LAST], url, token)
    assert seen == [f"/api/runs/{LAST}"]


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://x", "localhost:80", "http://", "http://me:pw@host"),
        *("http://[27.0.0.1:1", "http://h:x", "http://h:99999"),
    ],
)
def test_an_address_that_is_none_is_refused(store, url):
    with pytest.raises(UsageError):
        push.push(store, [LAST], url, "t")


def test_a_server_that_says_when_is_waited_for(store, there, token, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(push, "sleep", waits.append)
    app = create_app(Source(there))
    refused: list[str] = []

    async def limited(scope, receive, send):
        if scope["type"] == "http" and not refused:
            refused.append(scope["path"])
            headers = [(b"retry-after", b"37")]
            await send({"type": "http.response.start", "status": 429, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    with listening(limited) as url:
        push.push(store, [LAST], url, token)
    assert waits == [37.0]


def test_the_commands_work_together(store, there, tmp_path, capsys, monkeypatch):
    here, other = str(tmp_path / "results.sqlite"), str(tmp_path / "there.sqlite")
    assert run_cli("token", "create", "gpu", "--scope", "write", "--store", other) == 0
    secret = capsys.readouterr().out.strip()
    assert run_cli("token", "create", "gpu", "--store", other) == 2
    assert run_cli("token", "create", "x", "--scope", "nope", "--store", other) == 2
    assert run_cli("token", "list", "--json", "-", "--store", other) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["scope"]) == ("gpu", "write")
    (tmp_path / "token").write_text(f"{secret}\n")
    with listening(create_app(Source(there))) as url:
        words = ("push", url, "latest", "--store", here)
        monkeypatch.delenv("KERNELMARK_TOKEN", raising=False)
        assert run_cli(*words) == 2
        assert run_cli(*words, "--token-file", str(tmp_path / "token")) == 0
        monkeypatch.setenv("KERNELMARK_TOKEN", secret)
        assert run_cli(*words) == 0
        assert run_cli("token", "revoke", "gpu", "--store", other) == 0
        assert run_cli(*words) == 2
    assert run_cli("token", "revoke", "gpu", "--store", other) == 2
    assert there.result_set(LAST) == store.result_set(LAST)


def test_a_site_has_every_page_and_no_broken_link(store, tmp_path, monkeypatch):
    monkeypatch.setattr(vega, "missing", lambda: "figures take most of the time")
    folder = tmp_path / "site"
    words = ("site", "-o", str(folder), "--runs", "2", "--store", str(tmp_path / "results.sqlite"))
    assert run_cli(*words) == 0
    pages = sorted(folder.rglob("*.html"))
    names = {page.relative_to(folder).parts[0] for page in pages}
    assert {"index.html", "kernels.html", "runs.html", "run", "result", "series"} <= names
    assert {"compare", "roofline", "environment"} <= names
    for page in pages:
        assert page.with_suffix(".json").is_file()
        json.loads(page.with_suffix(".json").read_text())
        for tag, attributes in Tags(page.read_text()).found:
            for name in ("href", "src"):
                link = attributes.get(name)
                if link and not link.startswith("#"):
                    assert (page.parent / link).resolve().is_file(), (page.name, tag, link)
    index = json.loads((folder / "index.json").read_text())
    assert index["answer"]["slower"] == 1
    explained = set((folder / "result").iterdir())
    assert run_cli(*words, "--every-result") == 0
    assert explained < set((folder / "result").iterdir())


def test_a_site_of_many_results_has_whole_pages_of_the_newest_run(store, tmp_path, monkeypatch):
    monkeypatch.setattr(vega, "missing", lambda: "figures take most of the time")
    monkeypatch.setattr("kernelmark.web.site._WHOLE", 3)
    source = Source(store)
    few, rest = write_site(source, tmp_path / "few", runs=3)
    every, none = write_site(source, tmp_path / "every", runs=3, every_result=True)
    assert (rest > none == 0, few < every) == (True, True)

    def names(folder: str, kind: str) -> list[str]:
        return sorted(file.stem for file in (tmp_path / folder / kind).glob("*.html"))

    assert names("few", "run") == names("every", "run") == [f"run-{n:03}" for n in (5, 6, 7)]
    assert {name.removesuffix("-cpu")[:7] for name in names("few", "result")} == {LAST}
    assert all(LAST in name for name in names("few", "charts"))
    changed = {k.case_id for k in source.refresh().kernels if k.state in CHANGED}
    assert {name.partition("-")[0] for name in names("few", "series")} == changed
    for page in (tmp_path / "few").rglob("*.html"):
        for _, attributes in Tags(page.read_text()).found:
            link = attributes.get("href")
            if link and not link.startswith("#"):
                assert (page.parent / link).resolve().is_file(), (page.name, link)


def test_a_site_of_nothing_is_refused(tmp_path):
    with open_store(tmp_path / "empty.sqlite"):
        pass
    words = ("site", "-o", str(tmp_path / "s"), "--store", str(tmp_path / "empty.sqlite"))
    assert run_cli(*words) == 4


def test_a_site_file_never_leaves_its_folder(tmp_path):
    """Names of devices and metrics come from files."""
    from kernelmark.web.site import _stem

    for name in ("../../etc/passwd", "..", "a/b", "x" * 300, "ü\0", ""):
        stem = _stem("result", "run", "case", device=name)
        assert stem.startswith("result/")
        assert stem.count("/") == 1
        assert "\0" not in stem
        assert len(stem) < 200


def test_results_of_another_store_are_not_lost(there):
    """`add_result_set` knows what is there without reading it."""
    there.add_result_set(ResultSet(run=a_run(1), results=tuple(results_of(1)[:3])))
    done = there.add_result_set(ResultSet(run=a_run(1), results=tuple(results_of(1))))
    assert (done.added, done.known) == (3, 3)


def test_a_signal_ends_the_server_and_open_pages(store, tmp_path, default_signals):
    words = ["serve", "--port", "0", "--store", str(tmp_path / "results.sqlite")]
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelmark", *words], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    found = re.search(r"http://\S+?:\d+", process.stderr.readline())
    assert found
    page = urllib.request.urlopen(f"{found[0]}/index.json")
    assert json.loads(page.read())["title"] == "Overview"
    with urllib.request.urlopen(f"{found[0]}/events") as live:  # goes on for as long as it is read
        assert live.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    process.stderr.close()


def test_a_port_that_is_taken_is_told(store, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ("serve", "--port", port, "--store", str(tmp_path / "results.sqlite"))
        assert run_cli(*words) == 2


def test_without_its_libraries_the_dashboard_says_what_to_install(monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "fastapi" else real(name)
    )
    assert run_cli("serve") == 2
    assert "kernelmark[web]" in capsys.readouterr().err
