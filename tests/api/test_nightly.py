"""A night's steps: their order, what an interruption leaves, locks, messages and retention."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelmark import ops
from kernelmark.api import nightly
from kernelmark.api.nightly import (
    NotSent,
    SetupFailed,
    Tools,
    load,
    moved_roofs,
    post_webhook,
    run_night,
    send_mail,
    steps_of,
)
from kernelmark.core.environment import Environment
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.metric import Roof
from kernelmark.core.result import Case, Result, ResultSet, Run, RunState
from kernelmark.stores import open_store
from kernelmark.testing.stores import measured
from kernelmark_dev.raising import raises
from kernelmark_dev.results import make_roof

SUITE = '[[problems]]\nop = "gemm"\nm = 8\nn = 8\nk = 8\ndtype = "f32"\n'
RUN = '[[run]]\nsuites = ["small.toml"]\nbackends = ["fake"]\ndevices = ["fake"]\n'
TWO = RUN.replace('devices = ["fake"]', 'devices = ["fake", "fake:1"]')
DAY_S = 86400.0


def result(factor: float, device: str) -> Result:
    case = Case(problem=ops.parse("gemm m=8 n=8 k=8 dtype=f32"), backend="fake")
    return dataclasses.replace(measured(case, *[(1e-5 * factor,) * 3] * 3), device=device)


class World:
    """A folder with a nightly.toml, a store, a clock, and scripted measurements."""

    def __init__(self, folder, store, patch) -> None:
        self.folder, self.store = folder, store
        self.now, self.factor = 1e9, 1.0
        self.measured: list[tuple[str, str]] = []  # label and devices
        self.told: list[str] = []
        self.posted: list[str] = []
        self.mails: list[tuple] = []
        self.stop_in: str | None = None
        self.commands: list[list[str]] = []
        (folder / "small.toml").write_text(SUITE)
        self.write(RUN)
        patch.setattr(nightly, "measure", self.measure)
        patch.setattr(nightly, "post_webhook", lambda url, text: self.posted.append(text))
        patch.setattr(nightly, "send_mail", lambda *words: self.mails.append(words))
        patch.setattr("kernelmark.api.suspects.measure", self.measure)
        real = nightly.run_child

        def run_child(command, **more):
            if "kernelmark" in command:
                self.commands.append(command[command.index("kernelmark") + 1 :])
                return SimpleNamespace(returncode=0, stderr=b"", stdout=b"")
            return real(command, **more)

        patch.setattr(nightly, "run_child", run_child)

    def write(self, text: str) -> None:
        (self.folder / "nightly.toml").write_text(f'name = "n"\n{text}')

    def measure(self, plan, *, conduct, store, on_event=None, resumed=None):
        devices = ",".join(info.name for info in plan.devices)
        self.measured.append((conduct.label, devices))
        run = resumed or Run(
            id=f"run-{len(self.measured)}-{int(self.now)}",
            started=self.now,
            environment=Environment(devices=plan.devices),
            label=conduct.label,
            argv=conduct.argv,
            state=RunState.DONE,
        )
        if resumed is None:
            store.add_run(run)
        if self.stop_in == devices:
            self.stop_in = None
            return SimpleNamespace(run=Run(**{**_fields(run), "state": RunState.INTERRUPTED}))
        made = tuple(result(self.factor, info.name) for info in plan.devices)
        store.add_results(run.id, made)
        return _Results(ResultSet(run=run, results=made))

    def night(self, *, days: float = 1.0, fresh=False):
        self.now += days * DAY_S
        tools = Tools(tell=self.told.append, now=lambda: self.now, fresh=fresh)
        return run_night(load(self.folder / "nightly.toml"), self.store, tools)


class _Results(tuple):
    def __new__(cls, result_set):
        made = super().__new__(cls, result_set.results)
        made.run = result_set.run
        return made


def _fields(run: Run) -> dict:
    return {name: getattr(run, name) for name in Run.__dataclass_fields__}


@pytest.fixture
def world(tmp_path, monkeypatch) -> Iterator[World]:
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "2")
    with open_store(tmp_path / "store.sqlite") as store:
        yield World(tmp_path, store, monkeypatch)


@pytest.fixture
def repository(tmp_path) -> tuple[Path, str]:
    """A repository of one commit in `tmp_path`, and that commit."""
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "kernel.py").write_text("")
    git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=n@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return folder, head.stdout.strip()


def test_a_night_within_the_same_second_measures_anew(world):
    world.night()
    world.night(days=0)
    assert len({run.argv for run in world.store.runs()}) == len(world.measured) == 2


def test_quiet_nights_then_a_slow_one(world):
    assert [world.night().code for _ in range(6)] == [0] * 6
    world.factor = 1.1
    ended = world.night()
    assert ended.code == 1
    assert world.measured[-1] == ("n-again", "fake"), "the suspect was measured again"
    text = (world.folder / "nightly.state" / "summary.md").read_text()
    assert text == ended.summary
    assert text.startswith("### kernelmark: 1 of 1 kernel got slower")


def test_a_night_is_of_the_commit_of_the_repository_that_it_names(tmp_path, repository):
    """The nightly.toml lies beside the repository, not in it."""
    folder, commit = repository
    (tmp_path / "small.toml").write_text(SUITE)
    (tmp_path / "nightly.toml").write_text(f'name = "n"\n{RUN}[base]\nrepo = "{folder.name}"\n')
    with open_store(tmp_path / "store.sqlite") as store:
        run_night(load(tmp_path / "nightly.toml"), store, Tools(tell=lambda text: None))
        (run,) = store.runs(label="n")
    assert run.environment.commit == commit


def test_one_bad_measurement_alarms_nobody(world):
    for _ in range(6):
        world.night()
    world.factor = 1.1
    real = world.measure

    def recovers(plan, **more):
        if more["conduct"].label == "n-again":
            world.factor = 1.0
        return real(plan, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernelmark.api.suspects.measure", recovers)
        ended = world.night()
    assert ended.code == 0
    assert "1 suspect of the first stage measured again: 0 confirmed" in ended.summary


def test_an_interrupted_night_repeats_nothing_that_is_done(world):
    log = world.folder / "log"
    world.write(f"[setup]\ncommands = ['echo one >> {log}', 'echo two >> {log}']\n{TWO}")
    world.stop_in = "fake:1"
    with pytest.raises(KeyboardInterrupt):
        world.night()
    assert log.read_text() == "one\ntwo\n"
    ended = world.night(days=0.1)
    assert ended.code == 0
    assert log.read_text() == "one\ntwo\n", "set-up is done"
    assert [device for _, device in world.measured] == ["fake", "fake:1", "fake:1"]
    ids = {run.id for run in world.store.runs()}
    assert len(ids) == 2, "the run that was cut off goes on"
    world.night()
    assert log.read_text() == "one\ntwo\n" * 2, "the next night does all again"


@pytest.mark.parametrize("way", ["old", "edited", "damaged", "fresh"])
def test_what_begins_a_new_night_instead(world, way):
    world.write(TWO)
    world.stop_in = "fake:1"
    with pytest.raises(KeyboardInterrupt):
        world.night()
    if way == "edited":
        text = (world.folder / "nightly.toml").read_text()
        (world.folder / "nightly.toml").write_text(f"{text}\n# another\n")
    if way == "damaged":
        (world.folder / "nightly.state" / "state.json").write_text("{")
    world.night(days=2 if way == "old" else 0.1, fresh=way == "fresh")
    assert [device for _, device in world.measured] == ["fake", "fake:1", "fake", "fake:1"]


def test_a_second_night_at_the_same_time_does_nothing(world):
    def while_running(plan, **more):
        with raises(NothingToDo, process=str(os.getpid())):
            world.night(days=0)
        return World.measure(world, plan, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nightly, "measure", while_running)
        assert world.night().code == 0
    assert len(world.measured) == 1


def test_a_setup_that_fails_ends_the_night_and_is_told(world):
    world.write(f"[setup]\ncommands = ['echo no network; exit 7']\n{RUN}"
                "[notify]\nwebhook = 'https://x'\n")  # fmt: skip
    with raises(SetupFailed, exit_code=7) as caught:
        world.night()
    assert "no network" in str(caught.value)
    assert world.measured == []
    assert "exit code 7" in world.posted[0]


def test_a_table_that_cannot_be_measured_costs_only_itself(world):
    world.write(RUN + '[[run]]\nsuites = ["nothing-here"]\n')
    ended = world.night()
    assert ended.code == 3
    assert "run 2 cpu was not measured" in ended.summary
    assert world.measured == [("n", "fake")]


@pytest.mark.parametrize(
    ("when", "factor", "sent"),
    [
        ("alarm", 1.0, 0),
        ("alarm", 1.1, 1),
        ("change", 0.8, 1),
        ("change", 1.0, 0),
        ("always", 1, 1),
    ],
)
def test_who_is_told_when(world, when, factor, sent):
    for _ in range(6):
        world.night()
    world.write(
        RUN + f"[notify]\nwhen = '{when}'\nwebhook = 'https://x'\nlink = 'https://site'\n"
        "mail_to = ['a@x.org']\nmail_from = 'b@x.org'\n"
    )
    world.factor = factor
    world.night()
    assert len(world.posted) == len(world.mails) == sent
    if sent:
        assert world.posted[0].endswith("https://site")
        assert world.mails[0][1:3] == ("b@x.org", ("a@x.org",))


def test_a_message_that_cannot_be_sent_is_no_failure(world, monkeypatch):
    def refuse(*words):
        raise NotSent("nobody there")

    monkeypatch.setattr(nightly, "post_webhook", refuse)
    world.write(RUN + "[notify]\nwhen = 'always'\nwebhook = 'https://x'\n"
                "mail_to = ['a@x.org']\nmail_from = 'b@x.org'\n")  # fmt: skip
    assert world.night().code == 0
    assert any("nobody there" in line for line in world.told)
    assert len(world.mails) == 1, "the mail is sent all the same"


def test_a_secret_that_is_missing_is_refused_before_anything_runs(world):
    world.write(RUN + "[notify]\nwebhook = '$NOT_THERE'\n")
    with raises(UsageError, name="NOT_THERE"):
        world.night()
    assert world.measured == []


def test_push_and_site_are_called(world):
    world.write(f'push = "https://board"\nsite = "out"\nstore = "store.sqlite"\n{RUN}')
    world.night()
    assert world.commands == [
        ["push", "https://board", world.store.runs()[0].id],
        ["site", "-o", "out"],
    ]


def test_retention_thins_samples_and_keeps_one_run_a_week(world):
    world.write(RUN + "[keep]\nsamples = 5\nruns = 10\n")
    other = Run(id="other", started=1e9, environment=Environment(), label="mine")
    world.store.add_run(other)
    for night in range(28):
        world.night()
        if night == 0:
            pinned = world.store.runs(label="n")[0].id
            world.store.pin("golden", pinned)
    left = world.store.runs(label="n")
    ages = [(world.now - run.started) / DAY_S for run in left]
    assert sum(age <= 10 for age in ages) == 11
    assert 2 <= sum(age > 10 for age in ages) <= 5
    assert pinned in {run.id for run in left}
    assert "other" in {run.id for run in world.store.runs()}, "runs of others are not ours"
    samples = {
        round(age): one.measurement.samples
        for run, age in zip(left, ages, strict=True)
        for one in world.store.results(run.id)
        if run.id != pinned
    }
    assert samples[3] == 9
    assert samples[8] == 3


def test_the_steps_of_a_file(world):
    world.write(
        f"push = 'u'\n[setup]\ncommands = ['git pull']\n{RUN}[canaries]\nroofs = true\n"
        "[notify]\nwebhook = 'https://x'\n[keep]\nruns = 30\n"
    )
    steps = steps_of(load(world.folder / "nightly.toml"))
    assert [step.split()[0] for step in steps] == [
        *("set-up:", "measure", "run", "judge:", "push", "notify", "thin")
    ]


def roof(value: float, measured: float, **more) -> Roof:
    return make_roof("bytes", "dram", value, measured=measured, **more)


def test_a_roof_that_moved_is_told():
    assert moved_roofs([roof(1e12, 1.0)], [roof(0.9e12, 2.0)], 0.03)
    assert not moved_roofs([roof(1e12, 1.0)], [roof(0.99e12, 2.0)], 0.03)
    assert not moved_roofs([roof(1e12, 1.0)], [roof(0.5e12, 2.0, steady=False)], 0.03)
    assert not moved_roofs([], [roof(1e12, 2.0)], 0.03)


@pytest.fixture
def server():
    """A web server that answers with the statuses it is given, and keeps what it got."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.got.append((self.headers["Content-Type"], json.loads(body)))
            self.send_response(self.statuses.pop(0) if self.statuses else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    Handler.statuses, Handler.got = [], []
    made = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    Handler.url = f"http://127.0.0.1:{made.server_port}/hook"
    yield Handler
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.mark.parametrize(("text", "sent"), [("*night*: 1 got slower", 21), ("x" * 10_000, 3000)])
def test_a_webhook_gets_the_text_as_slack_wants_it(server, text, sent):
    post_webhook(server.url, text)
    assert server.got == [("application/json", {"text": server.got[0][1]["text"]})]
    assert len(server.got[0][1]["text"]) == sent


def test_a_server_in_trouble_is_asked_again_and_a_refusal_is_not(server):
    waits: list[float] = []
    server.statuses = [503, 502]
    post_webhook(server.url, "text", wait=waits.append)
    assert len(server.got) == 3
    assert len(waits) == 2
    server.statuses = [404]
    with raises(NotSent, error="status 404") as caught:
        post_webhook(server.url, "text", wait=waits.append)
    assert len(server.got) == 4
    assert server.url not in str(caught.value), "the address is a secret"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "nonsense", "file:///etc/passwd"])
def test_what_cannot_be_reached(url):
    with pytest.raises(NotSent):
        post_webhook(url, "text", wait=lambda seconds: None)


def test_mail_goes_to_sendmail(tmp_path):
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat > {tmp_path}/mail\n')
    program.chmod(0o755)
    send_mail(str(program), "a@example.com", ["b@example.com", "c@x.org"], "slower\nBcc: x", "µs")
    assert (tmp_path / "words").read_text() == "-t -i\n"
    head = (tmp_path / "mail").read_text()
    assert "To: b@example.com, c@x.org" in head
    assert "Subject: slower Bcc: x" in head, "no header can be slipped in"


def test_mail_that_cannot_be_sent(tmp_path):
    with raises(NotSent, program=str(tmp_path / "none")):
        send_mail(str(tmp_path / "none"), "a@x.org", ["b@x.org"], "s", "t")
    program = tmp_path / "sendmail"
    program.write_text("#!/bin/sh\necho no queue >&2; exit 3\n")
    program.chmod(0o755)
    with raises(NotSent, program=str(program), error="no queue"):
        send_mail(str(program), "a@x.org", ["b@x.org"], "s", "t")
