"""The name of a user's kernel file in history.

A file that declares `name = "…"` has that name. Any other is named after its path in its git
repository, which is the same in every clone and worktree, or outside of one after its file name.
The cache folder records the path and a content digest of every measured file, for notes only: a
name must be the same with an empty cache.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelmark.backends import BackendRef
from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unreadable, parse_toml, write_whole
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import private_folder

_NAME = re.compile(r"(\./)?[A-Za-z0-9][A-Za-z0-9._/+-]*\Z")
_DESCRIPTION = re.compile(r"/\*\s*kmark\s*\n(.*?)\*/", re.DOTALL)
_MOST_FILES = 1000  # maximum number of recorded files, the latest ones


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnKernel:
    """A kernel file: its name in history, and digest and path of the file last measured under this
    name, "" if none was."""

    name: str
    path: str
    digest: str
    before: str = ""
    before_path: str = ""

    @property
    def changed(self) -> bool:
        return bool(self.before) and self.before != self.digest

    @property
    def replaces(self) -> bool:
        """Return whether its name was last that of another file, which still exists."""
        return self.changed and self.before_path != self.path and Path(self.before_path).exists()


def identify(paths: Iterable[Path]) -> list[OwnKernel]:
    """Return the kernels of these files, in order. Nothing is recorded yet."""
    recorded = _load()
    kernels: list[OwnKernel] = []
    for path in (path.resolve() for path in paths):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UsageError(file_unreadable(path, error)) from None
        name = _declared(path, content.decode(errors="replace")) or _undeclared(path)
        before = recorded.get(name, {})
        kernels.append(
            OwnKernel(
                name=name,
                path=str(path),
                digest=hashlib.sha256(content).hexdigest()[:16],
                before=before.get("digest", ""),
                before_path=before.get("path", ""),
            )
        )
    return kernels


def own_kernels(refs: Iterable[BackendRef]) -> dict[str, OwnKernel]:
    """Return the identity in history of each kernel file among these backends, by their names."""
    files = {ref.name: ref.file for ref in refs if ref.file is not None}
    return dict(zip(files, identify(files.values()), strict=True))


def check_names(kernels: Mapping[str, OwnKernel]) -> None:
    """Refuse two kernel files with the same name in history; the keys are their paths."""
    first: dict[str, str] = {}
    for file, kernel in kernels.items():
        if (other := first.setdefault(kernel.name, file)) != file:
            raise UsageError(
                f"{other} and {file} both have the name {kernel.name!r}",
                hint="declare another name in one of them",
            )


def change_notes(kernels: Iterable[OwnKernel]) -> list[str]:
    """Return notes on kernel files whose content is not what was last measured under their name."""
    notes = []
    for kernel in kernels:
        if kernel.replaces:
            notes.append(
                f"{kernel.path} continues the series {kernel.name}, which was last measured with "
                f'{kernel.before_path}; name = "..." in the file separates them'
            )
        elif kernel.changed:
            notes.append(
                f"{kernel.path} has changed since it was last measured as {kernel.name} "
                f"(content {kernel.before[:8]} → {kernel.digest[:8]})"
            )
    return notes


def remember(kernels: Iterable[OwnKernel]) -> None:
    """Record the kernels that are about to be measured. If the record cannot be written, only notes
    are lost."""
    recorded = _load()
    for kernel in kernels:
        recorded.pop(kernel.name, None)
        recorded[kernel.name] = {"path": kernel.path, "digest": kernel.digest}
    with contextlib.suppress(OSError):
        file = _place()
        private_folder(file.parent)
        write_whole(file, json.dumps(dict(list(recorded.items())[-_MOST_FILES:])).encode())


def place_of(name: str) -> str:
    """Return the name of a user's kernel for `-b`: its last measured file, if that is below the
    working directory, else `name`, so that a report does not reveal the user's paths."""
    path = Path(_load().get(name, {}).get("path", ""))
    with contextlib.suppress(ValueError, OSError):
        if path.is_file():
            return f"./{path.relative_to(Path.cwd().resolve())}"
    return name


def _undeclared(path: Path) -> str:
    # In the form in which stores have always written a file at the top of a repository.
    top = next((folder for folder in path.parents if (folder / ".git").exists()), path.parent)
    return f"./{path.relative_to(top)}"


def former_name(path: Path) -> str:
    """Return the name that older versions stored for a file, without the suffix `@…` that it got
    if another file had the name first."""
    return f"./{path.name}"


def _declared(path: Path, text: str) -> str:
    """Return the value of `name` in a file, parsed without running it; "" if there is none."""
    name: object = ""
    if path.suffix == ".py":
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # reported on loading
            for node in ast.parse(text).body:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
                    name = node.value.value if "name" in targets else name
    elif (comment := _DESCRIPTION.search(text)) is not None:
        with contextlib.suppress(ValueError):
            name = parse_toml(comment[1]).get("name", "")
    if name and not (isinstance(name, str) and _NAME.match(name)):
        raise UsageError(
            f"{path}: {name!r} cannot be the name of a kernel",
            hint='use letters, digits and . _ / + -: name = "softmax-v2"',
        )
    return str(name)


def _place() -> Path:
    return cache_root() / "kernels.json"


def _load() -> dict[str, dict[str, str]]:
    try:
        entries = json.loads(_place().read_bytes())
        return {
            str(name): {"path": str(entry["path"]), "digest": str(entry["digest"])}
            for name, entry in entries.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
