from __future__ import annotations

import csv
import dataclasses
import io
import random
import subprocess
import sys
from html import escape
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree

import pytest
from fastapi.testclient import TestClient

from kernelmark.cli.main import main
from kernelmark.core.errors import StoreError
from kernelmark.core.metric import Metric
from kernelmark.core.micro import MICRO_SUITE
from kernelmark.core.result import ResultSet, RunState
from kernelmark.stores import open_store
from kernelmark.testing.micro import micro_result
from kernelmark.web import rendering as cells
from kernelmark.web.app import create_app
from kernelmark.web.pages import kernels
from kernelmark.web.pages.parts import table
from kernelmark.web.rendering import VIEWS, server_url
from kernelmark.web.source import Source

from .conftest import HOSTILE, PROBLEMS, RUNS, Tags, a_result, a_run, fill, fill_long, results_of

LAST = f"run-{RUNS - 1:03}"


def twin(client, address):
    """The JSON twin of a page."""
    return client.get(f"{address}{'&' if '?' in address else '?'}format=json").json()


def rows(client, address):
    return client.get(address).json()["tables"][-1]["rows"]


def row_of(client, backend="torch", size=512):
    found = rows(client, "/kernels.json")
    return next(r for r in found if r["backend"] == backend and f"m={size} " in r["problem"])


@pytest.fixture
def addresses(client):
    """Each kind of page once."""
    row = row_of(client)
    places = rows(client, "/devices.json")
    return {
        **{name: view.path for name, view in VIEWS.items() if "{" not in view.path},
        "run": f"/run/{LAST}",
        "series": row["links"]["problem"],
        "result": row["links"]["value"],
        "environment": places[0]["links"]["environment"],
        "search": "/search?q=gemm",
    }


def test_every_page_is_there_with_its_twin(client, addresses):
    for name, address in addresses.items():
        page = client.get(address)
        assert page.status_code == 200, name
        assert page.headers["content-type"].startswith("text/html")
        path, _, query = address.partition("?")
        other = client.get(f"{'/index' if path == '/' else path}.json?{query}").json()
        assert twin(client, address) == other, name
        assert other["title"].split()[0] in page.text or name == "overview"
    assert set(addresses) == set(VIEWS) - {"session"}


def test_the_overview_answers(client):
    page = client.get("/index.json").json()
    answer = page["answer"]
    assert (answer["state"], answer["slower"], answer["broken"]) == ("bad", 1, 1)
    assert answer["worst"]["backend"] == "torch"
    assert answer["worst"]["ratio"] == pytest.approx(1.1, abs=0.01)
    assert [row["state"] for row in page["movers"]["rows"]] == ["broken", "slower"]
    cells = dict(zip(page["grid"]["backends"], page["grid"]["rows"][0]["cells"], strict=True))
    assert (cells["torch"]["slower"], cells["torch"]["failed"]) == (1, 1)
    assert (cells["numpy"]["slower"], cells["numpy"]["failed"], cells["numpy"]["cases"]) == (
        0,
        0,
        3,
    )
    assert 0 < cells["numpy"]["share"] < 1


def test_a_regression_is_followed_to_its_samples(client):
    worst = client.get("/index.json").json()["answer"]["worst"]
    series = twin(client, worst["href"])
    newest = series["tables"][-1]["rows"][0]
    assert newest["run"] == LAST
    result = twin(client, newest["links"]["value"])
    assert [len(block) for block in result["samples"]] == [5, 5, 5]
    assert result["command"].startswith("kmark run -p 'gemm m=512 ")
    assert result["command"] in client.get(newest["links"]["value"]).text.replace("&#39;", "'")


def test_filters_narrow_and_sort_orders(client):
    assert {r["backend"] for r in rows(client, "/kernels.json?backend=numpy")} == {"numpy"}
    assert len(rows(client, "/kernels.json?q=m=256+torch")) == 1
    assert [r["state"] for r in rows(client, "/kernels.json?state=broken")] == ["broken"]
    times = [r["value"] for r in rows(client, "/kernels.json?backend=numpy&sort=value&order=desc")]
    assert times == sorted(times, reverse=True)
    failed = rows(client, f"/run/{LAST}.json?status=crashed")
    assert [(r["backend"], r["status"]) for r in failed] == [("torch", "crashed")]
    assert rows(client, "/runs.json?q=run-003")[0]["run"] == "run-003"
    assert rows(client, "/runs.json?label=other") == []


def test_a_failure_is_a_row_with_its_reason_and_command(client):
    page = client.get(f"/run/{LAST}.json").json()
    (failure,) = page["failures"]
    assert (failure["status"], failure["cases"]) == ("crashed", 1)
    assert failure["commands"][0].startswith("kmark run -p 'gemm m=128 ")


def test_a_failure_without_a_time_is_followed_by_its_state(client):
    row = row_of(client, size=128)
    assert (row["state"], row["value"]) == ("broken", None)
    assert twin(client, row["links"]["state"])["status"] == "crashed"
    newest, before = twin(client, row["links"]["problem"])["tables"][-1]["rows"][:2]
    assert newest["links"]["status"] == row["links"]["state"]
    assert "status" not in before["links"]
    page = client.get(row["links"]["problem"]).text
    assert f'<a href="{escape(newest["links"]["status"])}"><span class="badge is-crashed' in page


def test_compare_shows_changed_rows_first(client):
    page = client.get("/compare.json").json()
    assert page["counts"] == {"slower": 1, "same": 4, "broken": 1}
    assert [row["verdict"] for row in page["tables"][0]["rows"]] == ["broken", "slower"]
    assert ["library torch", "2.8", "2.9"] in page["changed"]["rows"]
    every = rows(client, "/compare.json?show=all")
    assert [row["verdict"] for row in every[:2]] == ["broken", "slower"]
    assert len(every) == 6


def test_csv_has_every_row(client):
    answer = client.get(f"/run/{LAST}?format=csv")
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(found) == 6
    assert {row["backend"] for row in found} == {"numpy", "torch"}
    assert answer.headers["content-type"].startswith("text/csv")


def test_pages_of_a_table_follow_each_other(client, source, monkeypatch):
    monkeypatch.setattr("kernelmark.web.pages.parts.PAGE_ROWS", 3)
    first = client.get("/runs.json").json()["tables"][0]
    assert [row["run"] for row in first["rows"]] == ["run-007", "run-006", "run-005"]
    second = twin(client, first["next"])["tables"][0]
    assert [row["run"] for row in second["rows"]] == ["run-004", "run-003", "run-002"]
    assert client.get(second["previous"]).status_code == 200


@pytest.fixture
def long_client(tmp_path):
    """A client of a store whose one run has 120 results."""
    with open_store(tmp_path / "long.sqlite") as store:
        fill_long(store, 120)
        source = Source(store)
        source.refresh()
        yield TestClient(create_app(source), base_url="http://localhost")


def follow(client, address):
    """The rows of a table over all its pages, and of its HTML, by the links between them."""
    found, shown = [], 0
    while address:
        table = twin(client, address)["tables"][-1]
        found += table["rows"]
        html = client.get(address, headers={"accept": "text/html"}).text
        shown += sum(tag == "td" and "k-name" in more["class"] for tag, more in Tags(html).found)
        assert (f'rel="next" href="{escape(table["next"])}"' in html) if "next" in table else True
        address = table.get("next")
    return found, shown


@pytest.mark.parametrize(
    "query", ["", "?sort=median_s&order=desc", "?backend=torch", "?backend=torch&sort=median_s"]
)
def test_all_rows_of_a_long_table_are_reached_in_order(long_client, query):
    address = f"/run/run-000{query}"
    found, shown = follow(long_client, address)
    count = 60 if "torch" in query else 120
    assert len({row["problem"] for row in found}) == len(found) == shown == count
    times = [row["median_s"] for row in found]
    if "sort" in query:
        assert times == sorted(times, reverse="desc" in query)
    whole = rows(long_client, f"/run/run-000.json{query}{'&' if query else '?'}rows=all")
    assert [row["problem"] for row in whole] == [row["problem"] for row in found]
    text = long_client.get(f"{address}{'&' if query else '?'}format=csv").text
    table = list(csv.DictReader(io.StringIO(text)))
    assert [row["problem"] for row in table] == [row["problem"] for row in found]
    assert [float(row["median_s"]) for row in table] == times


def test_a_result_is_the_same_whether_its_run_was_read_or_not(client, addresses):
    row = row_of(client)
    fresh = client.get(f"/result/run-001/{row['case']}.json").json()
    assert len(fresh["tables"][0]["rows"]) == 2
    client.get("/run/run-001.json")
    again = client.get(f"/result/run-001/{row['case']}?format=json").json()
    assert again == fresh
    assert client.get("/result/run-001/none.json").status_code == 404


def test_hostile_names_stay_text(client, addresses):
    """Names, errors, labels and variables come from logs: none becomes a tag of the page."""
    seen = 0
    for name, address in addresses.items():
        text = client.get(address).text
        found = Tags(text).found
        assert [a for tag, a in found if tag == "script"] == [
            {"src": "/static/app.js", "defer": None}
        ], name
        assert not [tag for tag, _ in found if tag in ("iframe", "object")], name
        images = [attributes["src"] for tag, attributes in found if tag == "img"]
        assert all(one.startswith("/") and one.endswith("format=svg") for one in images), name
        assert HOSTILE not in text, name
        seen += "alert(1)" in text
    assert seen >= 4
    answer = client.get("/search", params={"q": HOSTILE})
    assert HOSTILE not in answer.text
    assert "&lt;script&gt;" in answer.text


def test_a_figure_is_an_image_of_its_own(client, addresses):
    """Names of logs are in its labels: none becomes an element or a script."""
    drawn = 0
    for name, address in addresses.items():
        answer = client.get(
            address, params={"format": "svg"} | dict(parse_qsl(urlsplit(address).query))
        )
        if not twin(client, address).get("figures"):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "nothing"), name
            continue
        assert answer.headers["content-type"] == "image/svg+xml"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        parts = list(ElementTree.fromstring(answer.text).iter())
        assert parts[0].tag == "{http://www.w3.org/2000/svg}svg"
        assert not [one.tag for one in parts if one.tag.endswith(("script", "image", "}a"))]
        assert not [n for one in parts for n in one.attrib if n == "style" or n.startswith("on")]
        drawn += 1
        (figure,) = [a for tag, a in Tags(client.get(address).text).found if tag == "figure"]
        assert client.get(figure["data-figure"]).content == answer.content, name
    assert drawn == 5  # overview, series, result, roofline, charts


def test_a_page_is_built_once_for_all_its_forms(serve, monkeypatch):
    built = []
    view = VIEWS["roofline"]

    def build(*given):
        built.append(given)
        return view.build(*given)

    counted = {**VIEWS, "roofline": dataclasses.replace(view, build=build)}
    monkeypatch.setattr("kernelmark.web.app.VIEWS", counted)
    client = serve()
    for form in ("html", "svg", "json"):
        assert client.get(f"/roofline?format={form}").status_code == 200
    assert len(built) == 1


def test_a_store_that_could_not_be_read_is_asked_again(serve, monkeypatch):
    view, failures = VIEWS["roofline"], [StoreError("the store is locked")]

    def build(*given):
        if failures:
            raise failures.pop()
        return view.build(*given)

    failing = {**VIEWS, "roofline": dataclasses.replace(view, build=build)}
    monkeypatch.setattr("kernelmark.web.app.VIEWS", failing)
    client = serve()
    assert [client.get("/roofline").status_code for _ in range(2)] == [503, 200]


def test_headers_forbid_what_pages_do_not_need(client):
    for address in ("/", "/nope", "/static/app.css", "/kernels?nope=1", "/index.json"):
        headers = client.get(address).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "'unsafe-inline'" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_pages_use_nothing_that_the_policy_forbids(client, addresses):
    for name, address in addresses.items():
        for _, attributes in Tags(client.get(address).text).found:
            assert "style" not in attributes, name
            assert not [one for one in attributes if one.startswith("on")], name
            for link in ("src", "href", "action"):
                assert (attributes.get(link) or "/").startswith(("/", "#")), name
                assert not (attributes.get(link) or "/").startswith("//"), name


@pytest.mark.parametrize(
    ("address", "status", "code"),
    [
        ("/nope", 404, "nothing"),
        ("/run/nope", 404, "usage"),
        ("/result/run-001/0000", 404, "nothing"),
        ("/series/0000", 404, "nothing"),
        ("/tuning/nope", 404, "nothing"),
        ("/environment/nope", 404, "nothing"),
        ("/kernels?nope=1", 400, "parameter"),
        ("/kernels?state=nope", 400, "parameter"),
        ("/kernels?sort=nope", 404, "usage"),
        ("/kernels?offset=-1", 400, "parameter"),
        ("/kernels?offset=" + "9" * 30, 400, "parameter"),
        ("/kernels?q=" + "x" * 400, 400, "parameter"),
        ("/compare?base=nope", 404, "usage"),
        ("/static/../app.py", 404, "nothing"),
        ("/static/..%2fapp.py", 404, "nothing"),
        ("/static/%2e%2e%2fapp.py", 404, "nothing"),
        ("/tuning/..%2f..%2fetc", 404, "nothing"),
    ],
)
def test_what_is_not_there_is_refused_with_a_code(client, address, status, code):
    join = "&" if "?" in address else "?"
    known = not address.startswith(("/nope", "/static")) and status == 404
    answer = client.get(f"{address}{join}format=json" if known else address)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    html = client.get(address, headers={"accept": "text/html"})
    assert html.status_code == status
    assert "<main" in html.text


def test_a_page_that_did_not_change_is_not_sent_again(client, store, source):
    first = client.get("/runs")
    again = client.get("/runs", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    store.add_run(a_run(50))
    changed = client.get("/runs", headers={"if-none-match": first.headers["etag"]})
    assert changed.status_code == 200
    assert "run-050" in changed.text


def test_a_new_result_changes_the_stamp_and_the_answer(client, store, source):
    before = source.stamp
    assert not source.is_stale
    store.add_run(a_run(50, state=RunState.RUNNING, finished=None))
    store.add_results("run-050", results_of(0)[:2])
    assert source.is_stale
    assert source.stamp != before
    page = client.get("/index.json").json()
    assert page["updating"] is True
    assert [(one["run"], one["done"], one["cases"]) for one in page["running"]] == [
        ("run-050", 2, 6)
    ]
    source.refresh()
    fixed = client.get("/index.json").json()
    assert fixed["updating"] is False
    assert fixed["answer"]["broken"] == 0  # m=128 works again


def test_only_series_with_new_points_are_judged_again(store, source, monkeypatch):
    judged = []
    from kernelmark.web import source as module

    real = module.story

    def story(points, **more):
        judged.append(points)
        return real(points, **more)

    monkeypatch.setattr(module, "story", story)
    source.refresh()
    assert not judged
    store.add_run(a_run(50))
    store.add_results("run-050", results_of(0)[:1])
    source.refresh()
    assert [points[-1].run_id for points in judged] == ["run-050"]


def test_what_was_judged_is_kept_where_no_run_changed(source, store):
    made = []
    source._prepare = made.append
    before = source.summary()
    store.pin("bench", "run-001")
    assert source.is_stale
    source.refresh()
    after = source.summary()
    assert not source.is_stale
    assert not made
    assert after.number == before.number + 1
    assert (after.kernels, after.derived) == (before.kernels, before.derived)
    store.add_run(a_run(50))
    store.add_results("run-050", results_of(0)[:1])
    source.refresh()
    assert [summary.number for summary in made] == [after.number + 1]
    assert source.summary().history is not after.history


def test_an_empty_store_has_pages_too(tmp_path):
    from fastapi.testclient import TestClient

    with open_store(tmp_path / "empty.sqlite") as store:
        source = Source(store)
        source.refresh()
        client = TestClient(create_app(source), base_url="http://localhost")
        for view in VIEWS.values():
            if "{" not in view.path:
                assert client.get(view.path).status_code in (200, 404), view.path
        assert client.get("/index.json").json()["answer"]["state"] == "none"


def test_two_runs_are_too_few_to_say_that_nothing_got_slower(tmp_path):
    with open_store(tmp_path / "two.sqlite") as store:
        fill(store, runs=2)
        source = Source(store)
        source.refresh()
        page = kernels.overview(source, server_url, {})
    assert page["answer"]["state"] == "none"
    assert {cell["new"] for row in page["grid"]["rows"] for cell in row["cells"]} == {3}


def test_figures_have_the_colours_of_the_page(source):
    """Text in black cannot be read on a dark page."""
    page = kernels.series(
        source, server_url, {"case_id": source.summary().kernels[0].case_id, "arch": "x86_64"}
    )
    spec = page["figures"][0]["spec"]
    assert spec["config"]["axis"]["labelColor"] == "currentColor"
    drawn = cells.figure(spec)
    assert 'fill="currentColor"' in drawn
    assert '="#0072B2"' not in drawn


def test_a_step_of_the_last_runs_is_news_though_the_newest_point_fits(store):
    """The level has moved: the newest point is where it is expected now."""
    for number in range(RUNS, RUNS + 5):
        slow = results_of(RUNS - 1)
        store.add_run(a_run(number))
        store.add_results(f"run-{number:03}", [dataclasses.replace(slow[5])])
    source = Source(store)
    summary = source.refresh()
    large = PROBLEMS[2].split()[1]
    (found,) = [k for k in summary.kernels if large in k.story.problem and k.backend == "torch"]
    assert found.state == "slower"
    assert found.since == LAST


def test_addresses_are_quoted():
    assert server_url("run", "a/b?c") == "/run/a%2Fb%3Fc"
    assert server_url("kernels", q='"<&') == "/kernels?q=%22%3C%26"
    assert server_url("series", "id", arch="sm_90", metric="") == "/series/id?arch=sm_90"


def test_importing_the_cli_does_not_import_the_web():
    """Starting kmark must stay quick, and work without the extra."""
    code = "import kernelmark.cli.app, sys; sys.exit('fastapi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_tuning_session_has_its_plans_in_a_table(store, tmp_path):
    words = ["-b", "fake", "-d", "fake", "-o", "gemm", "-a", "m=64", "-a", "n=64", "-a", "k=64"]
    folder = tmp_path / "try"
    with pytest.raises(SystemExit) as ended:
        main(["tune", "plan", str(folder), *words, "--dtype", "f32", "--evaluations", "5"])
    assert not ended.value.code
    source = Source(store, [folder])
    client = TestClient(create_app(source), base_url="http://localhost")
    (link,) = [row["links"]["session"] for row in rows(client, "/tuning.json")]
    assert len(twin(client, link)["tables"][-1]["rows"]) == 1


def test_a_comparison_shows_what_changed_or_every_row(client):
    assert 0 < len(rows(client, "/compare.json")) < len(PROBLEMS) * 2
    every = rows(client, "/compare.json?show=all")
    assert len(every) == len(PROBLEMS) * 2
    assert all(row["why"] for row in every)


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("kind=bars", {"torch", "numpy"}),
        ("kind=sweep&x=m&backend=numpy", {"numpy"}),
        ("kind=bars&op=copy", None),
        ("kind=heatmap", None),  # only one dim varies
        ("kind=ecdf&base=nosuch", None),
    ],
)
def test_charts_are_drawn_or_say_why_not(client, query, values):
    page = twin(client, f"/charts?run=run-000&{query}")
    assert bool(page["figures"]) is (values is not None)
    assert bool(page["notes"]) is (values is None)
    if values:
        data = page["figures"][0]["spec"]["data"]["values"]
        assert {value["backend"] for value in data} == values


def test_a_failure_is_in_the_chart_of_its_run(client):
    spec = twin(client, f"/charts?run={LAST}")["figures"][0]["spec"]
    (failed,) = [layer["data"]["values"] for layer in spec["layer"] if "data" in layer]
    assert [(value["problem"], value["backend"]) for value in failed] == [
        ("gemm m=128 n=512 k=512 dtype=f32", "torch")
    ]


def test_pages_of_one_run_begin_with_the_newest_that_timed_kernels(store, client):
    micro = a_run(RUNS, suite=MICRO_SUITE, cases=0)
    store.add_run(micro)
    for address in ("/roofline", "/charts"):
        chosen = {field["name"]: field["value"] for field in twin(client, address)["filters"]}
        assert chosen["run"] == LAST, address
    chosen = {field["name"]: field["value"] for field in twin(client, "/compare")["filters"]}
    assert chosen["head"] == LAST


def test_a_roofline_has_the_memory_levels_of_its_machine(store, client):
    run = a_run(RUNS, suite=MICRO_SUITE, cases=1)
    metric = Metric(name="l1", value=1e12, unit="B/s", roof="bytes l1")
    result = micro_result("cache", metrics=(metric,), device="cpu", arch="x86_64")
    store.add_result_set(ResultSet(run=run, results=(result,)))
    layers = twin(client, f"/roofline?run={LAST}")["figures"][0]["spec"]["layer"]
    lines = layers[0]["data"]["values"]
    assert {value["roof"].split()[0] for value in lines} == {"dram", "f32", "l1"}


def test_runs_of_known_microbenchmarks_only_are_not_read(store, source, client, monkeypatch):
    read: list[str] = []
    results_of = Source.results
    monkeypatch.setattr(
        Source, "results", lambda self, ref: read.append(ref) or results_of(self, ref)
    )
    for number, names in enumerate((("cache", "tlb"), ("cache",), ("cache",))):
        run = a_run(RUNS + number, suite=MICRO_SUITE, cases=len(names))
        metric = Metric(name="l1", value=1e12 + number, unit="B/s")
        results = tuple(
            micro_result(name, metrics=(metric,), device="cpu", arch="x86_64") for name in names
        )
        store.add_result_set(ResultSet(run=run, results=results))
    places = twin(client, "/micro")["places"]
    rows_shown = [row for place in places for row in place["table"]["rows"]]
    shown = {row["benchmark"].split()[0]: row["value"] for row in rows_shown}
    assert (shown["cache"], shown["tlb"]) == (1e12 + 2, 1e12)
    assert f"run-{RUNS + 1:03}" not in read
    assert {f"run-{RUNS + 2:03}", f"run-{RUNS:03}"} <= set(read)


def test_canaries_are_not_in_the_means_of_the_overview(store, source, client):
    source_of = random.Random(1)
    copies = ("copy n=1 dtype=f32", "copy n=1000000 dtype=f32")
    found = [a_result(problem, "numpy", 1e-3, source_of) for problem in copies]
    store.add_run(a_run(RUNS, cases=2, suite="demo,sentinels"))
    store.add_results(f"run-{RUNS:03}", found)
    source.refresh()
    row = next(r for r in client.get("/index.json").json()["grid"]["rows"] if r["op"] == "copy")
    assert sum(cell["cases"] for cell in row["cells"]) == 1
    problems = [r["problem"] for r in rows(client, f"/roofline.json?run=run-{RUNS:03}")]
    assert problems == [copies[1]]


def test_a_column_of_an_unknown_kind_is_refused():
    assert table(["a:time:A"], [])["columns"] == [{"key": "a", "title": "A", "kind": "time"}]
    with pytest.raises(ValueError, match="tim"):
        table(["a:tim"], [])
