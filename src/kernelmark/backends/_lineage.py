"""The name of a user's kernel file in history.

A file that declares `name = "…"` has that name. Any other is named after its file name, independent
of its folder and of the working directory: the path and a content digest of every measured file are
kept in the cache folder. The same path is the same kernel, changed or not; the same content at
another path is a copy of it; if the name belongs to another file, a hash is appended.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unreadable, parse_toml, write_whole
from kernelmark.core.reason import Reason
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import private_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]*\Z")
_DESCRIPTION = re.compile(r"/\*\s*kmark\s*\n(.*?)\*/", re.DOTALL)
_MOST_FILES = 1000  # maximum number of recorded files, the latest ones


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnKernel:
    """A kernel file: its name in history, and its digest when it was last measured, "" if it was
    not."""

    name: str
    path: str
    digest: str
    before: str = ""

    @property
    def changed(self) -> bool:
        return bool(self.before) and self.before != self.digest

    @property
    def marked(self) -> bool:
        """Return whether its name has a hash that distinguishes it from another file's."""
        return "@" in self.name


def identify(paths: Iterable[Path]) -> list[OwnKernel]:
    """Return the kernels of these files, in order. Nothing is recorded yet."""
    known = _load()
    found: list[OwnKernel] = []
    for path in (path.resolve() for path in paths):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UsageError(file_unreadable(path, error)) from None
        here, digest = str(path), hashlib.sha256(content).hexdigest()[:16]
        name = _declared(path, content.decode(errors="replace")) or _undeclared(path, digest, known)
        before = known.get(name, {})
        known = {**known, name: {"path": here, "digest": digest}}
        found.append(
            OwnKernel(name=name, path=here, digest=digest, before=before.get("digest", ""))
        )
    return found


def remember(kernels: Iterable[OwnKernel]) -> None:
    """Record the kernels that are about to be measured. If the record cannot be written, names are
    still derived from the files."""
    known = _load()
    for kernel in kernels:
        known.pop(kernel.name, None)
        known[kernel.name] = {"path": kernel.path, "digest": kernel.digest}
    with contextlib.suppress(OSError):
        place = _place()
        private_folder(place.parent)
        write_whole(place, json.dumps(dict(list(known.items())[-_MOST_FILES:])).encode())


def place_of(name: str) -> str:
    """Return the name of a user's kernel for `-b`: its last measured file, if that is below the
    working directory, else `name`, so that a report does not reveal the user's paths."""
    path = Path(_load().get(name, {}).get("path", ""))
    with contextlib.suppress(ValueError, OSError):
        if path.is_file():
            return f"./{path.relative_to(Path.cwd().resolve())}"
    return name


def _undeclared(path: Path, digest: str, known: dict[str, dict[str, str]]) -> str:
    mine = [name for name, one in known.items() if one["path"] == str(path)]
    copies = [name for name, one in known.items() if one["digest"] == digest]
    # The form in which stores have always written a file in the working directory.
    plain = f"./{path.name}"
    own = [name for name in (*mine, *copies) if name.partition("@")[0] == plain]
    if own:
        return own[0]
    taken = known.get(plain)
    if taken is None or not Path(taken["path"]).exists():  # it was moved, and changed since
        return plain
    return f"{plain}@{hashlib.sha256(str(path).encode()).hexdigest()[:6]}"


def _declared(path: Path, text: str) -> str:
    """Return the value of `name` in a file, parsed without running it; "" if there is none."""
    name: object = ""
    if path.suffix == ".py":
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # reported on loading
            for node in ast.parse(text).body:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    targets = [one.id for one in node.targets if isinstance(one, ast.Name)]
                    name = node.value.value if "name" in targets else name
    elif (found := _DESCRIPTION.search(text)) is not None:
        with contextlib.suppress(ValueError):
            name = parse_toml(found[1]).get("name", "")
    if name and not (isinstance(name, str) and _NAME.match(name)):
        cause = Reason("name-illegal", name=name, what="kernel")
        raise UsageError(
            Reason("in-file", file=str(path), cause=cause),
            hint='use letters, digits and . _ / + -: name = "softmax-v2"',
        )
    return str(name)


def _place() -> Path:
    return cache_root() / "kernels.json"


def _load() -> dict[str, dict[str, str]]:
    try:
        found = json.loads(_place().read_bytes())
        return {
            str(name): {"path": str(one["path"]), "digest": str(one["digest"])}
            for name, one in found.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
