"""Pages about machines: microbenchmarks by device, environments and tuning sessions."""

from __future__ import annotations

from kernelmark.compare.match import is_cpu
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, NothingToDo
from kernelmark.core.metric import Metric
from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE
from kernelmark.core.result import Result, Run
from kernelmark.core.units import bytes_text, counted
from kernelmark.report.micro import roofs_table
from kernelmark.report.names import short
from kernelmark.report.page import environment_table
from kernelmark.report.tables import date_text
from kernelmark.report.tuning import folder_figure, status_table
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.journal import plan_statuses
from kernelmark.web.pages import parts
from kernelmark.web.pages.parts import Page, Params, Section, Urls, Values, table
from kernelmark.web.pages.runs import result_url
from kernelmark.web.source import Source

_MICRO_RUNS = 40  # newest runs that are searched for microbenchmarks


def micro(source: Source, urls: Urls, params: Params) -> Page:
    """Return microbenchmarks by device: the newest headline metrics and the roofs."""
    newest: dict[str, dict[str, Values]] = {}
    infos: dict[str, tuple[str, DeviceInfo]] = {}
    shown: dict[str, set[str]] = {}
    for run in source.store.runs(limit=_MICRO_RUNS, suites=(MICRO_SUITE, ROOFS_SUITE)):
        here = run.environment
        for info in here.devices:
            name = " ".join(filter(None, (info.name, info.model, "on", here.host or "unknown")))
            infos.setdefault(name, (here.host, info))
            # Reading forty runs takes a second: most have only older results of the same cases.
            known = shown.setdefault(name, set())
            if source.store.finished(run.id, info.name) <= known:
                continue
            for result in source.results(run.id):
                for metric in result.headlines if result.device == info.name else ():
                    key = f"{result.case.id} {metric.name}"
                    row = _metric_row(run, result, metric, urls)
                    newest.setdefault(name, {}).setdefault(key, row)
                    known.add(result.case.id)
    shown_names = [name for name in sorted(infos) if params.get("device", "") in ("", name)]
    return {
        "title": "Microbenchmarks",
        "lead": "What each device can do, as measured: the roofs of every percentage here.",
        "filters": [parts.choice("device", params, sorted(infos))],
        "places": [
            _machine_row(source, name, *infos[name], newest.get(name, {})) for name in shown_names
        ],
        "empty": "" if infos else "No microbenchmark is stored: kmark micro --quick runs them.",
    }


def _machine_row(
    source: Source, name: str, host: str, info: DeviceInfo, rows_by_name: dict[str, Values]
) -> Values:
    roofs = source.store.roofs(host=host, device=info.name)
    rows = sorted(rows_by_name.values(), key=lambda row: str(row["benchmark"]))
    columns = ["benchmark:name", "metric", "value:value", "share:share:of limit"]
    columns += ["status:state", "started:date:measured"]
    return {
        "title": name,
        "table": table(columns, rows),
        "roofs": parts.text_table(roofs_table(roofs, info)) if roofs else None,
    }


def _metric_row(run: Run, result: Result, metric: Metric, urls: Urls) -> Values:
    return {
        "benchmark": short(result.case.problem),
        "metric": metric.name,
        "value": metric.value,
        "unit": metric.unit,
        "share": metric.value / metric.limit if metric.limit and not is_cpu(result) else None,
        "status": result.status.value,
        "started": run.started,
        "links": {
            "benchmark": result_url(run.id, result.case.id, result.device, urls),
            "value": urls("series", result.case.id, arch=result.arch, metric=metric.name),
            "started": urls("run", run.id),
        },
    }


def devices(source: Source, urls: Urls, params: Params) -> Page:
    """Return all devices and environments of the stored runs."""
    stored = source.store.environments()
    seen: dict[tuple[str, str, str], Values] = {}
    for entry in stored:
        for info in entry.environment.devices:
            first: Values = {"runs": 0, "newest": entry.newest, "memory": ""}
            row = seen.setdefault((entry.environment.host, info.name, info.model), first)
            row["runs"] += entry.runs
            if not row["memory"]:  # imported roofs have no memory size
                row |= {
                    "device": info.name,
                    "model": info.model,
                    "arch": info.arch,
                    "host": entry.environment.host,
                    "units": info.units,
                    "memory": bytes_text(info.memory_bytes) if info.memory_bytes else "",
                    "driver": info.driver,
                }
    rows = [
        {
            "environment": entry.fingerprint[:8],
            "host": entry.environment.host,
            "os": entry.environment.os,
            "python": entry.environment.python,
            "commit": entry.environment.commit[:12],
            "libraries": ", ".join(f"{k} {v}" for k, v in entry.environment.libraries.items()),
            "runs": entry.runs,
            "newest": entry.newest,
            "links": {"environment": urls("environment", entry.fingerprint)},
        }
        for entry in stored
    ]
    columns = ["environment:code", "host", "os::system", "python::Python", "commit:code"]
    columns += ["runs:count", "newest:date:last run", "libraries"]
    return {
        "title": "Devices and environments",
        "tables": [
            _devices_table(list(seen.values())),
            parts.paged(table(columns, rows, title="Environments"), params, urls, "devices"),
        ],
    }


def _devices_table(rows: list[Values]) -> Section:
    columns = ["device:name", "model", "arch::architecture", "host", "units:count:SMs/CUs/cores"]
    columns += ["memory:right", "driver", "runs:count", "newest:date:last run"]
    return table(columns, rows, title="Devices")


def environment(source: Source, urls: Urls, params: Params) -> Page:
    """Return one environment and its difference from the host's previous one."""
    stored = source.store.environments()
    at = next((i for i, p in enumerate(stored) if p.fingerprint == params["fingerprint"]), None)
    if at is None:
        raise NothingToDo("there is no such environment", hint="the page Devices lists them")
    entry, host = stored[at], stored[at].environment.host
    page: Page = {
        "title": f"Environment {entry.fingerprint[:8]}",
        "lead": f"{counted(entry.runs, 'run')}, the last on {date_text(entry.newest)} UTC.",
        "environment": parts.text_table(environment_table(entry.environment)),
    }
    older = next((item for item in stored[at + 1 :] if item.environment.host == host), None)
    if older is not None:
        page["changed"] = {
            "since": f"environment {older.fingerprint[:8]}",
            "href": urls("environment", older.fingerprint),
            "rows": parts.changes(older.environment, entry.environment),
        }
    return page


def tuning(source: Source, urls: Urls, params: Params) -> Page:
    """Return the tuning folders that the dashboard was started with, and their progress."""
    rows: list[Values] = []
    for path in source.tuning:
        try:
            statuses = plan_statuses(TuningFolder.open(path))
        except KernelmarkError as error:
            rows.append({"session": path.name, "why": str(error.message)})
            continue
        states = [item.state.value for item in statuses]
        rows.append(
            {
                "session": path.name,
                "plans": len(statuses),
                "kept": sum(item.outcome is not None and item.outcome.kept for item in statuses),
                "why": ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states)),
                "links": {"session": urls("session", path.name)},
            }
        )
    empty = "No tuning folder is shown: kmark serve --tuning DIR adds one."
    columns = ["session:name", "plans:count", "kept:count", "why::state"]
    return {
        "title": "Tuning",
        "lead": "Searches of the tuning folders given with --tuning, and which winners are kept.",
        "tables": [table(columns, rows, empty=empty)],
    }


def session(source: Source, urls: Urls, params: Params) -> Page:
    """Return one tuning folder: best time so far per plan, and the importance of parameters."""
    path = next((item for item in source.tuning if item.name == params["name"]), None)
    if path is None:
        raise NothingToDo("there is no such tuning session", hint="the page Tuning lists them")
    folder = TuningFolder.open(path)
    return {
        "title": f"Tuning {path.name}",
        "figures": parts.figure("Best time so far", lambda: folder_figure(folder)),
        "tables": [parts.text_table(status_table(plan_statuses(folder)))],
    }
