"""The dashboard as static files: the same data and templates, with relative links."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.files import file_unwritable, write_whole
from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE
from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
from kernelmark.web import rendering
from kernelmark.web.pages.kernels import CHANGED
from kernelmark.web.pages.parts import Params, Urls, device_query
from kernelmark.web.pages.runs import CHARTS
from kernelmark.web.rendering import VIEWS
from kernelmark.web.source import Source

# Pages without path parameters, and their file names.
_FIXED = {
    "overview": "index",
    "kernels": "kernels",
    "runs": "runs",
    "compare": "compare",
    "roofline": "roofline",
    "charts": "charts",
    "micro": "micro",
    "tuning": "tuning",
    "devices": "devices",
}
_OF_A_RUN = ("roofline", "charts")
_ALL = {"rows": "all"}
# Runs together, and series, that all have whole pages: a row takes a kilobyte on a run's page, and
# a series twelve on its own.
_WHOLE = 500
_UNSAFE = re.compile(r"[^0-9A-Za-z._-]")


def write_site(
    source: Source, folder: Path, *, runs: int, every_result: bool = False
) -> tuple[int, int]:
    """Write all pages to `folder`; return their number, and the number of results and series
    without one. A result has a page if it needs an explanation: it is not ok, not reliable, or of a
    series that changed. If there are many results, older runs have the first rows, the failures and
    no figures, and only changed series have a page. With `every_result`, each has its page."""
    summary = source.refresh()
    changed = {(k.case_id, k.arch) for k in summary.kernels if k.state in CHANGED}
    plain = 0
    newest, _ = source.store.find_runs(limit=runs)
    if not newest:
        raise NothingToDo(
            Reason("the store has no runs yet", "store-empty"), hint="`kmark run` adds results"
        )
    pages: dict[str, tuple[str, Params]] = {}
    for name, stem in _FIXED.items():
        # Rows of the newest run's figures are all on the page of that run.
        whole = "rows" in {field.name for field in VIEWS[name].fields} and name not in _OF_A_RUN
        pages[stem] = (name, _ALL if whole else {})
    older: set[str] = set()
    same: dict[str, str] = {}  # the files of figures of the newest run
    rows = 0
    sizes = source.store.sizes([run.id for run in newest])
    for run in newest:
        rows += sizes[run.id]
        if run is not newest[0] and rows > _WHOLE and not every_result:
            older.add(run.id)
            plain += sizes[run.id]
            pages[_stem("run", run.id)] = ("run", {"run_id": run.id})
            continue
        pages[_stem("run", run.id)] = ("run", {"run_id": run.id, **_ALL})
        own = {_stem("roofline", run=run.id): ("roofline", {"run": run.id})}
        for kind in CHARTS:
            params = {"run": run.id, "kind": kind}
            own[_stem("charts", **params)] = ("charts", params)
        if not same and run.suite not in (MICRO_SUITE, ROOFS_SUITE):
            # Its first figures are those without a run, which link to it.
            same = {stem: own.pop(stem)[0] for stem in list(own)[:2]}
        pages |= own
        for result in source.results(run.id):
            measured = result.measurement
            is_plain = result.status is Status.OK and (measured is None or measured.reliable)
            if is_plain and not every_result and (result.case.id, result.arch) not in changed:
                plain += 1
                continue
            device = device_query(result.device)
            params = {"run_id": run.id, "case_id": result.case.id, "device": device}
            pages[_stem("result", run.id, result.case.id, device=device)] = ("result", params)
    for base, head in zip(newest[1:], newest, strict=False):
        if (base.label, base.suite) == (head.label, head.suite):
            params = {"base": base.id, "head": head.id}
            whole_rows = {} if head.id in older else _ALL
            pages[_stem("compare", **params)] = ("compare", {**params, **whole_rows})
    ids = {run.id for run in newest}
    kernels = [kernel for kernel in summary.kernels if kernel.story.newest.run_id in ids]
    for kernel in kernels:
        if len(kernels) > _WHOLE and kernel.state not in CHANGED and not every_result:
            plain += 1
            continue
        query = {"arch": kernel.arch, "metric": kernel.story.newest.metric}
        pages[_stem("series", kernel.case_id, **query)] = (
            "series",
            {"case_id": kernel.case_id, **query, **_ALL},
        )
    fingerprints = {run.environment.fingerprint for run in newest}
    for environment in source.store.environments():
        if environment.fingerprint not in fingerprints:
            continue
        pages[_stem("environment", environment.fingerprint)] = (
            "environment",
            {"fingerprint": environment.fingerprint},
        )
    for path in source.tuning:
        pages[_stem("session", path.name)] = ("session", {"name": path.name})
    return _write(source, folder, pages, same), plain


def _write(
    source: Source, folder: Path, pages: dict[str, tuple[str, Params]], same: dict[str, str]
) -> int:
    count = 0
    try:
        for name, data in rendering.STATIC.items():
            _put(folder / "static" / name, data)
        for stem, (name, params) in pages.items():
            up = "../" * stem.count("/")
            urls = _urls(up, pages, same)
            try:
                page = VIEWS[name].build(source, urls, params)
            except KernelmarkError:  # e.g. nothing to compare
                if "/" in stem:
                    continue
                page = {"title": VIEWS[name].menu, "lead": "Nothing here yet."}
            page["filters"] = []  # forms need a server
            own = stem.rpartition("/")[2]
            twins: dict[str, str | None] = {"JSON": f"{own}.json"}
            static: Callable[[str], str] = f"{up}static/{{}}".format
            template = name if "answer" in page or name != "overview" else "kernels"
            html = rendering.html(template, page, urls, static=static, twins=twins)
            _put(folder / f"{stem}.html", html)
            if name in _OF_A_RUN:  # its figure has the rows of the run's page again
                page["figures"] = []
            for figure in page.get("figures", ()):  # the theme is a third of a small figure
                figure["spec"] = {n: part for n, part in figure["spec"].items() if n != "config"}
            _put(folder / f"{stem}.json", rendering.json_bytes(page))
            count += 1
    except OSError as error:
        raise UsageError(
            file_unwritable(error.filename or folder, error), hint="name another folder"
        ) from None
    return count


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)


def _urls(up: str, pages: dict[str, tuple[str, Params]], same: dict[str, str]) -> Urls:
    """Return a function that returns relative URLs of the written pages; `same` are the files of
    pages that are not written twice."""

    def url(page: str, *parts: str, **query: str) -> str | None:
        stem = _FIXED.get(page, "") if not (parts or query) else _stem(page, *parts, **query)
        stem = same.get(stem, stem)
        return f"{up}{stem}.html" if stem in pages else None

    return url


def _stem(page: str, *parts: str, **query: str) -> str:
    """Return the file of a page without suffix; names that are not valid file names are hashed."""
    parts_of_name = [page, *parts, *(value for _, value in sorted(query.items()) if value)]
    text = "-".join(parts_of_name[1:])
    if _UNSAFE.search(text) or len(text) > 150 or text.startswith("."):
        digest = hashlib.sha256(
            "\0".join(parts_of_name).encode("utf-8", "surrogatepass")
        ).hexdigest()
        text = f"{_UNSAFE.sub('_', text)[:60]}-{digest[:12]}"
    return f"{page}/{text}"
