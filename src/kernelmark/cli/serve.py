"""`kmark serve`, `kmark push`, `kmark token` and `kmark site`: results for others to see."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import say
from kernelmark.core.errors import UsageError

if TYPE_CHECKING:
    pass

_NEEDED = ("fastapi", "uvicorn", "jinja2")
Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Address to bind to. Any but this machine's own needs a read token, or --public "
        "(default: 127.0.0.1).",
    ),
]
Port = Annotated[
    int,
    typer.Option(
        "--port", metavar="N", min=0, max=65535, help="Port; 0 is any free one (default: 8765)."
    ),
]
Public = Annotated[
    bool,
    typer.Option("--public", help="Let everybody read without a token, and nobody push."),
]
TuningFolders = Annotated[
    list[str] | None,
    typer.Option("--tuning", metavar="DIR", help="Also show this tuning folder; repeatable."),
]


def serve(
    host: Host = "127.0.0.1",
    port: Port = 8765,
    public: Public = False,
    tuning: TuningFolders = None,
    store: o.StorePlace = None,
    quiet: o.Quiet = False,
) -> int:
    """Serve the dashboard of a store: what changed, runs, series, results, rooflines.

    Pages update while a run is in progress, and each has a JSON twin (?format=json). Runs of other
    hosts come in by 'kmark push'.

    For example: kmark serve --port 8080
    """
    _require()
    from kernelmark.stores import open_store
    from kernelmark.web import serving

    folders = [_folder(name) for name in tuning or ()]
    with open_store(store, readonly=public) as opened:
        return serving.serve(
            opened,
            host=host,
            port=port,
            public=public,
            tuning=folders,
            tell=(lambda text: None) if quiet else say,
        )


def _require() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the dashboard needs {', '.join(missing)}, which is not installed",
            hint='pip install "kernelmark[web]"',
        )


def _folder(name: str) -> Path:
    from kernelmark.tune.folder import TuningFolder

    return TuningFolder.open(name).path.resolve()
