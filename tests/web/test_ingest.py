from __future__ import annotations

import base64
import dataclasses
import json

import pytest
from fastapi.testclient import TestClient

from kernelmark.core import codec
from kernelmark.core.result import Measurement, ResultSet, RunState
from kernelmark.stores import open_store
from kernelmark.stores.store import Scope
from kernelmark.web import ingest, receiving
from kernelmark.web.app import create_app
from kernelmark.web.ingest import Limits
from kernelmark.web.receiving import Refusal
from kernelmark.web.source import Source

from .conftest import HOSTILE, RUNS, a_run, results_of

NEW = ResultSet(run=a_run(90), results=tuple(results_of(0)))


def body(results: ResultSet = NEW) -> bytes:
    return codec.dumps(results).encode()


def code(answer) -> str:
    return answer.json()["error"]["code"]


@pytest.fixture
def writer(store):
    return {"authorization": f"Bearer {store.create_token('writer', Scope.WRITE)}"}


@pytest.fixture
def reader(store):
    return {"authorization": f"Bearer {store.create_token('reader', Scope.READ)}"}


def test_a_pushed_run_is_stored_exactly(client, store, writer):
    answer = client.post("/api/runs", content=body(), headers=writer)
    assert answer.json() == {"run": "run-090", "added": 6, "known": 0}
    assert store.result_set("run-090") == NEW


def test_pushing_twice_changes_nothing(client, store, writer):
    for added, known in ((6, 0), (0, 6)):
        answer = client.post("/api/runs", content=body(), headers=writer).json()
        assert (answer["added"], answer["known"]) == (added, known)
    assert store.result_set("run-090") == NEW


def test_parts_of_a_run_come_together(client, store, writer):
    started = dataclasses.replace(NEW.run, state=RunState.RUNNING, finished=None)
    parts = [
        ResultSet(run=started, results=NEW.results[:2]),
        ResultSet(run=started, results=NEW.results[1:4]),  # one of them again
        ResultSet(run=NEW.run, results=NEW.results[4:]),
    ]
    for part in parts:
        assert client.post("/api/runs", content=body(part), headers=writer).status_code == 200
    found = client.get("/api/runs/run-090", headers=writer).json()
    assert found["results"] == 6
    assert {tuple(one) for one in found["positions"]} == store.positions("run-090")
    assert store.run("run-090").state is RunState.DONE


def test_a_run_that_is_another_one_is_refused(client, store, writer):
    other = dataclasses.replace(NEW, run=dataclasses.replace(NEW.run, id="run-001"))
    answer = client.post("/api/runs", content=body(other), headers=writer)
    assert (answer.status_code, code(answer)) == (409, "run-differs")
    assert len(store.positions("run-001")) == 6


@pytest.mark.parametrize(
    ("headers", "why"), [({}, "token"), ({"authorization": "Bearer nope"}, "unknown-token")]
)
def test_nothing_is_written_without_a_token(client, store, headers, why):
    for method, path in (("post", "/api/runs"), ("get", "/api/runs/run-001")):
        answer = client.request(method, path, content=body(), headers=headers)
        assert (answer.status_code, code(answer)) == (401, why)
    assert len(store.runs()) == RUNS


def test_a_reader_cannot_write(client, store, reader):
    answer = client.post("/api/runs", content=body(), headers=reader)
    assert (answer.status_code, code(answer)) == (403, "scope")
    assert len(store.runs()) == RUNS


def test_a_password_prompt_of_a_browser_cannot_write(client, store):
    """A form on another site sends the password that the browser remembers, never a header."""
    secret = store.create_token("writer", Scope.WRITE)
    basic = base64.b64encode(f"me:{secret}".encode()).decode()
    answer = client.post("/api/runs", content=body(), headers={"authorization": f"Basic {basic}"})
    assert (answer.status_code, code(answer)) == (401, "token")


def test_a_revoked_token_is_refused_at_once(client, store, writer):
    assert client.post("/api/runs", content=body(), headers=writer).status_code == 200
    store.revoke_token("writer")
    answer = client.post("/api/runs", content=body(), headers=writer)
    assert (answer.status_code, code(answer)) == (401, "unknown-token")


def test_public_mode_is_read_only(serve, store, writer):
    client = serve(local=False, public=True)
    answer = client.post("/api/runs", content=body(), headers=writer)
    assert (answer.status_code, code(answer)) == (403, "read-only")
    assert client.get("/").status_code == 200


def test_a_store_that_can_only_be_read_takes_no_push(store, writer):
    with open_store(store.where, readonly=True) as opened:
        source = Source(opened)
        source.refresh()
        client = TestClient(create_app(source), base_url="http://localhost")
        answer = client.post("/api/runs", content=body(), headers=writer)
        assert (answer.status_code, code(answer)) == (403, "read-only")
        assert client.get("/").status_code == 200


def test_elsewhere_reading_needs_a_token(serve, store, reader):
    client = serve(local=False)
    for address in ("/", "/index.json", "/runs", "/events"):
        answer = client.get(address)
        assert (answer.status_code, code(answer)) == (401, "token")
        assert answer.headers["www-authenticate"].startswith("Basic")
    assert client.get("/", headers=reader).status_code == 200
    secret = reader["authorization"].removeprefix("Bearer ")
    assert client.get("/", auth=("anybody", secret)).status_code == 200
    assert client.get("/", auth=("anybody", "nope")).status_code == 401
    assert client.get("/healthz").status_code == 200


def test_a_local_server_does_not_answer_to_other_names(client):
    """A page of another site must not read it by a name that it lets mean 127.0.0.1."""
    for host in ("evil.example", "evil.example:8765", "127.0.0.1.evil.example"):
        answer = client.get("/index.json", headers={"host": host})
        assert (answer.status_code, code(answer)) == (421, "unknown-host")
    for host in ("localhost:8765", "127.0.0.1", "[::1]:80"):
        assert client.get("/index.json", headers={"host": host}).status_code == 200


def document(**changes):
    return {**json.loads(body()), **changes}


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps(document(version=99)).encode(),
        json.dumps(document(kernelmark="run")).encode(),
        json.dumps(document(more=1)).encode(),
        json.dumps(document(results=[{}])).encode(),
        json.dumps(document(run={**document()["run"], "id": "../../etc/passwd"})).encode(),
        json.dumps(document(run={**document()["run"], "id": HOSTILE})).encode(),
        json.dumps(document(run={**document()["run"], "started": "nan"})).encode(),
        json.dumps(document(run={**document()["run"], "started": 10**400})).encode(),
        body().replace(b'"samples_s":[', b'"samples_s":[-1.0,'),
    ],
)
def test_what_is_no_results_document_is_refused(client, store, writer, sent):
    answer = client.post("/api/runs", content=sent, headers=writer)
    assert (answer.status_code, code(answer)) == (400, "document")
    assert len(store.runs()) == RUNS


def test_a_body_that_is_too_large_is_refused(serve, store, writer):
    client = serve(limits=Limits(body_bytes=1000))
    answer = client.post("/api/runs", content=body(), headers=writer)
    assert (answer.status_code, code(answer)) == (413, "too-large")

    def parts():  # without a length in its header
        for _ in range(10):
            yield b"x" * 500

    answer = client.post("/api/runs", content=parts(), headers=writer)
    assert (answer.status_code, code(answer)) == (413, "too-large")
    assert len(store.runs()) == RUNS


@pytest.mark.parametrize("unit", [b"[]", b"{}", b'""'])
def test_a_body_of_too_many_values_is_refused_unparsed(client, store, writer, unit, monkeypatch):
    monkeypatch.setattr(receiving.Receiver, "_ask", None)  # not reached
    sent = b"[" + b",".join([unit] * 2_100_000) + b"]"
    answer = client.post("/api/runs", content=sent, headers=writer)
    assert (answer.status_code, code(answer)) == (413, "too-large")


@pytest.fixture
def receiver(store):
    made = receiving.Receiver(store)
    yield made
    made.close()


def test_a_large_body_is_stored_by_another_process(store, receiver, monkeypatch):
    monkeypatch.setattr(receiving, "_SMALL", 0)
    assert receiver.receive(body()) == {"run": "run-090", "added": 6, "known": 0}
    assert store.result_set("run-090") == NEW
    with pytest.raises(Refusal) as error:
        receiver.receive(b"{")
    assert (error.value.status, error.value.code) == (400, "document")
    process = receiver._process
    process.kill()
    process.wait()
    assert receiver.receive(body())["known"] == 6  # by a new one


def test_a_process_that_ends_is_told(receiver, monkeypatch):
    monkeypatch.setattr(receiving, "_SMALL", 0)
    monkeypatch.setattr(receiving, "_MOST_S", 0.0)  # killed at once
    with pytest.raises(Refusal) as error:
        receiver.receive(body())
    assert (error.value.status, error.value.code) == (503, "store")


def test_all_bodies_together_are_limited(serve, writer):
    client = serve(limits=Limits(bodies_bytes=1000))
    answer = client.post("/api/runs", content=body(), headers=writer)
    assert (answer.status_code, code(answer)) == (503, "busy")
    assert client.post("/api/runs", content=b"{", headers=writer).status_code == 400


def with_another_sample(measurement: Measurement) -> Measurement:
    """The least and the greatest sample differ, so that the median does not."""
    block = measurement.blocks[0]
    ordered = sorted(block.samples_s)
    samples = (ordered[0] / 2, *ordered[1:-1], ordered[-1] * 2)
    blocks = (dataclasses.replace(block, samples_s=samples), *measurement.blocks[1:])
    return dataclasses.replace(measurement, blocks=blocks)


@pytest.mark.parametrize(
    "change", [lambda m: dataclasses.replace(m, high_s=1.0), with_another_sample]
)
def test_a_run_with_other_results_is_refused(client, store, writer, change):
    assert client.post("/api/runs", content=body(), headers=writer).status_code == 200
    slower = change(NEW.results[0].measurement)
    assert slower.median_s == NEW.results[0].measurement.median_s
    other = dataclasses.replace(NEW.results[0], measurement=slower)
    answer = client.post(
        "/api/runs", content=body(dataclasses.replace(NEW, results=(other,))), headers=writer
    )
    assert (answer.status_code, code(answer)) == (409, "run-differs")
    assert store.result_set("run-090") == NEW


def test_a_run_whose_samples_were_thinned_is_known(client, store, writer):
    assert client.post("/api/runs", content=body(), headers=writer).status_code == 200
    assert store.thin_samples("run-090") == 6
    answer = client.post("/api/runs", content=body(), headers=writer)
    assert answer.json() == {"run": "run-090", "added": 0, "known": 6}


@pytest.mark.parametrize("path", ["/", "/runs", "/run/run-001", "/healthz", "/static/style.css"])
def test_head_is_get_without_the_body(client, path):
    answer, whole = client.head(path), client.get(path)
    assert answer.status_code == whole.status_code
    assert answer.content == b""
    assert answer.headers["content-type"] == whole.headers["content-type"]


def test_too_many_requests_are_told_to_wait(serve, store, writer):
    client = serve(limits=Limits(requests_per_min=2))
    statuses = [
        client.post("/api/runs", content=body(), headers=writer).status_code for _ in range(3)
    ]
    assert statuses == [200, 200, 429]
    answer = client.post("/api/runs", content=body(), headers=writer)
    assert 0 < int(answer.headers["retry-after"]) <= 61


def test_guessing_tokens_is_slowed_down(client, monkeypatch):
    headers = [{"authorization": f"Bearer guess-{n}"} for n in range(40)]
    statuses = {client.post("/api/runs", headers=one).status_code for one in headers}
    assert statuses == {401, 429}


def test_the_limiter_forgets(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(ingest.time, "monotonic", lambda: now[0])
    limiter = ingest.Limiter(1)
    assert limiter.wait_s("a") == 0
    assert limiter.wait_s("a") > 0
    assert limiter.wait_s("b") == 0
    now[0] = 61.0
    assert limiter.wait_s("a") == 0


def test_only_a_digest_of_a_token_is_stored(tmp_path):
    path = tmp_path / "results.sqlite"
    with open_store(path) as store:
        secret = store.create_token("one", Scope.READ)
        assert store.find_token(secret).name == "one"
        assert store.find_token(secret[:-1]) is None
    everything = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert secret.encode() not in everything


def test_hostile_results_are_shown_as_text(client, source, writer):
    label = '</title><script>alert("label")</script>'
    new = dataclasses.replace(NEW, run=dataclasses.replace(NEW.run, label=label))
    assert client.post("/api/runs", content=body(new), headers=writer).status_code == 200
    source.refresh()
    for address in ("/", "/runs", "/run/run-090", "/search?q=alert"):
        text = client.get(address).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text


def test_a_regression_is_accepted_and_that_is_undone_with_a_write_token(client, store, writer,
                                                                        reader):  # fmt: skip
    from kernelmark.api.compare import history

    def states():
        return {one.series: one for one in history(store, canaries="").stories}

    worse = [name for name, one in states().items() if one.is_regression]
    assert worse, "the store of these tests has a step"
    asked = {"series": worse[0], "reason": "it does more now"}
    for headers, status in (({}, 401), (reader, 403)):
        answer = client.post("/api/acceptances", json=asked, headers=headers)
        assert answer.status_code == status
    answer = client.post("/api/acceptances", json=asked, headers=writer)
    assert (answer.status_code, answer.json()["accepted"]) == (200, True)
    accepted = states()[worse[0]]
    assert not accepted.alarm
    assert (accepted.accepted.reason, accepted.accepted.author) == ("it does more now", "writer")
    answer = client.post("/api/acceptances", json=asked, headers=writer)
    assert (answer.status_code, code(answer)) == (409, "nothing")
    undo = {"series": worse[0], "accepted": False}
    assert client.post("/api/acceptances", json=undo, headers=writer).status_code == 200
    assert states()[worse[0]].alarm


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"[", 400), (b"[]", 400), (b'{"series": 3}', 400), (b'{"series": "x"}', 404)],
)
def test_what_is_no_acceptance_is_refused(client, writer, content, status):
    assert client.post("/api/acceptances", content=content, headers=writer).status_code == status
