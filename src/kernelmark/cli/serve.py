"""`kmark serve`, `kmark push`, `kmark token` and `kmark site`: share results with others."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import put, put_table, say, write
from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unreadable
from kernelmark.core.units import counted

_NEEDED = ("fastapi", "uvicorn", "jinja2")
Host = Annotated[
    str,
    o.option(
        "--host ADDRESS",
        help="Bind to this address. If other hosts can reach it, readers need a token, unless "
        "--public is set.",
    ),
]
Port = Annotated[
    int, o.option("--port N", min=0, max=65535, help="Listen on this port; 0 is any free one.")
]
Public = Annotated[
    bool, o.option("--public", help="Let everybody read without a token; reject every push.")
]
TuningFolders = Annotated[
    list[str] | None, o.option("--tuning DIR", help="Also show this tuning folder. Repeatable.")
]


def serve(
    host: Host = "127.0.0.1",
    port: Port = 8765,
    public: Public = False,
    tuning: TuningFolders = None,
    store: o.StorePlace = None,
    quiet: o.Quiet = False,
) -> int:
    """Serve the dashboard of a store over HTTP.

    It shows what changed, runs, series, results and rooflines. Pages update while a
    run is in progress; ?format=json returns a page as JSON. Other hosts send their
    runs with 'kmark push'.

    For example: kmark serve --port 8080
    """
    _require(*_NEEDED)
    from kernelmark.web import serving

    folders = [_folder(name) for name in tuning or ()]
    with serving.open_served(store, public=public) as opened:
        notes = []
        if opened.readonly and not public:
            notes.append(f"note: {opened.where} is read-only here: every push is rejected")
        if not opened.runs(limit=1):
            notes.append(f"note: {opened.where} has no runs yet: kmark run or kmark push adds them")

        def on_message(text: str) -> None:
            # The URL comes first: scripts read it.
            for line in (text, *notes):
                say(line)
            notes.clear()

        return serving.serve(
            opened,
            host=host,
            port=port,
            public=public,
            tuning=folders,
            on_message=(lambda text: None) if quiet else on_message,
        )


Url = Annotated[
    str, typer.Argument(metavar="URL", help="The URL of the dashboard: https://host:8765.")
]
Refs = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN…", help="Runs by id, label or latest~1 (default: latest)."),
]
TokenFile = Annotated[
    Path | None,
    o.option("--token-file FILE", help="Read the token from FILE. Default: $KERNELMARK_TOKEN."),
]
Patience = Annotated[
    float,
    o.option(
        "--patience SECONDS", min=0, help="Retry for this long if the server does not answer."
    ),
]


def push(
    url: Url,
    refs: Refs = None,
    token_file: TokenFile = None,
    patience: Patience = 120.0,
    store: o.StorePlace = None,
    quiet: o.Quiet = False,
) -> int:
    """Send stored runs to a dashboard on another host.

    The dashboard is a 'kmark serve'. Results that it has are not sent again: repeat
    the command after an interruption, or while a run is in progress.

    For example: kmark push https://dashboard:8765 latest
    """
    from kernelmark.api import push as pushes
    from kernelmark.stores import open_store

    token = _token(token_file)
    with open_store(store, readonly=True) as opened:
        done = pushes.push(
            opened,
            refs or ["latest"],
            url,
            token,
            patience_s=patience,
            tell=(lambda text: None) if quiet else say,
        )
    for item in done if not quiet else ():
        say(
            f"run {item.run_id}: {counted(item.added, 'result')} pushed, {item.known} already there"
        )
    return 0


def _token(file: Path | None) -> str:
    try:
        token = os.environ.get("KERNELMARK_TOKEN", "") if file is None else file.read_text()
    except OSError as error:
        raise UsageError(file_unreadable(file, error)) from None
    except UnicodeDecodeError:
        raise UsageError(
            f"{file}: is not UTF-8 text", hint="it holds the token and nothing else"
        ) from None
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise UsageError(
            "there is no token to push with",
            hint="set KERNELMARK_TOKEN or give --token-file; where the dashboard runs, "
            "'kmark token create NAME --scope write' makes one",
        )
    return token


token = typer.Typer(
    no_args_is_help=True, help="Create, list and revoke access tokens of a dashboard."
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The user or host of the token, such as gpu-host-3.")
]
ScopeName = Annotated[
    str, o.option("--scope SCOPE", help="Allow to read, or with write also to push.")
]


@token.command("create")
def create_token(name: Name, scope: ScopeName = "read", store: o.StorePlace = None) -> int:
    """Create a token and print it once; only its digest is stored."""
    from kernelmark.stores import open_store
    from kernelmark.stores.tokens import Scope

    if scope not in tuple(Scope):
        raise UsageError(f"unknown scope {scope!r}", hint=f"scopes: {', '.join(Scope)}")
    with open_store(store) as opened:
        put(opened.create_token(name, Scope(scope)) + "\n")
    return 0


@token.command("list")
def list_tokens(store: o.StorePlace = None, json: o.Json = None) -> int:
    """List the names and scopes of tokens."""
    from kernelmark.core.files import json_text
    from kernelmark.report.tables import Column, date_text, record, tabulate
    from kernelmark.stores import open_store

    columns = (
        Column("name", "name"),
        Column("scope", "scope.value"),
        Column("created", "created", text=lambda item: f"{date_text(item.created)} UTC"),
    )
    with open_store(store, readonly=True) as opened:
        tokens = opened.tokens()
    if json is not None:
        write(json, json_text([record(columns, entry) for entry in tokens]))
    else:
        put_table(tabulate(columns, tokens))
    return 0


@token.command("revoke")
def revoke_token(name: Name, store: o.StorePlace = None) -> int:
    """Revoke a token: requests that use it are rejected."""
    from kernelmark.stores import open_store

    with open_store(store) as opened:
        opened.revoke_token(name)
    say(f"token {name} is revoked")
    return 0


SiteFolder = Annotated[Path, o.option("-o --output DIR", help="Write to this folder.")]
SiteRuns = Annotated[int, o.option("--runs N", min=1, help="Write pages of the N newest runs.")]


def site(
    output: SiteFolder,
    runs: SiteRuns = 20,
    tuning: TuningFolders = None,
    store: o.StorePlace = None,
    quiet: o.Quiet = False,
) -> int:
    """Write the dashboard as static files.

    For any web host, or as a CI artifact: links are relative. Each page of the newest
    runs, of their results and of every series is also written as JSON. Figures need:
    pip install "kernelmark[plots]"

    For example: kmark site -o public
    """
    _require("jinja2")
    from kernelmark.stores import open_store
    from kernelmark.web.site import write_site
    from kernelmark.web.source import Source

    with open_store(store, readonly=True) as opened:
        source = Source(opened, [_folder(name) for name in tuning or ()])
        count = write_site(source, output, runs=runs)
    if not quiet:
        put(f"{output / 'index.html'}\n")
        say(f"{counted(count, 'page')} written")
    return 0


def _require(*names: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the dashboard needs {', '.join(missing)}, which is not installed",
            hint='pip install "kernelmark[web]"',
        )


def _folder(name: str) -> Path:
    from kernelmark.tune.folder import TuningFolder

    return TuningFolder.open(name).path.resolve()
