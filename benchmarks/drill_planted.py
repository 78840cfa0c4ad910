"""Drills: code that another user planted where kmark loads compiled code from, and files that lie
where kmark runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from drilling import Facts, must
from kernelmark.gpu import pack
from kernelmark.host import processes  # noqa: F401  the victim cannot import any more
from kernelmark.host.cache import DiskCache, cache_root
from kernelmark.host.permissions import temporary_folder
from kernelmark.micro import _kernels

# What the tests plant, and where.
sys.path.append(str(Path(__file__).parent.parent / "tests" / "runners"))
import test_planted as files

ATTACKER, VICTIM = 33, 65534
FILE = "micro_launch.cu"
MARK = 666
_PLANTED = f'extern "C" int host_vector_bytes() {{ return {MARK}; }}\n'


def planted_code(count: int) -> Facts:
    """Libraries, cache entries and packs of uid 33, met by uid 65534."""
    if os.geteuid() != 0:
        return {"skipped": "only root can be two users"}
    with tempfile.TemporaryDirectory() as text:
        place = Path(text)
        place.chmod(0o1777)
        library, name = _library(place)
        attacks = {
            "temporary folder": lambda: _temporary(place, library, name),
            "cache of another": lambda: _cache(place / "theirs", library, name, 0o755, ATTACKER),
            "cache that all write to": lambda: _cache(place / "all", library, name, 0o777, VICTIM),
            "link of another": lambda: _link(place, library, name),
            "cache entry": lambda: _entry(place),
            "pack": lambda: _pack(place),
        }
        failed = [what for what, attack in attacks.items() if not attack()]
    must(not failed, f"planted code was loaded: {', '.join(failed)}")
    return {"attacks": len(attacks), "loaded": 0}


def _library(place: Path) -> tuple[Path, str]:
    """The attacker's library, and the name that kmark would give its own."""
    os.environ["KERNELMARK_CACHE"] = str(place / "first")
    _kernels.library.cache_clear()
    _kernels.library(FILE)
    real = next((place / "first" / "micro").glob("*.so"))
    program, made = place / "planted.cc", place / "planted.so"
    program.write_text(_PLANTED)
    subprocess.run(["c++", "-shared", "-fPIC", str(program), "-o", str(made)], check=True)
    return made, real.stem


def _plant(folder: Path, library: Path, name: str, mode: int, owner: int) -> None:
    folder.mkdir(parents=True)
    shutil.copy(library, folder / f"{name}.so")
    (folder / f"{name}.txt").write_text("launch_empty")
    for path in (folder, *folder.iterdir()):
        os.chown(path, ATTACKER, ATTACKER)
    os.chown(folder, owner, owner)
    os.chown(folder.parent, owner, owner)
    folder.chmod(mode)
    folder.parent.chmod(mode)


def _loads_own(cache: Path, temporary: Path) -> bool:
    """Whether the victim's library is its own."""

    def look() -> bool:
        os.environ["KERNELMARK_CACHE"] = str(cache)
        tempfile.tempdir = str(temporary)
        _kernels.library.cache_clear()
        return _kernels.library(FILE).vector_bytes != MARK

    return as_victim(look)


def _temporary(place: Path, library: Path, name: str) -> bool:
    shared = place / "tmp"
    shared.mkdir()
    _plant(shared / f"kmark-{VICTIM}", library, name, 0o755, ATTACKER)
    shared.chmod(0o1777)
    return _loads_own(Path("/dev/null/cache"), shared)


def _cache(root: Path, library: Path, name: str, mode: int, owner: int) -> bool:
    _plant(root / "micro", library, name, mode, owner)
    return _loads_own(root, root.parent)


def _link(place: Path, library: Path, name: str) -> bool:
    _plant(place / "behind" / "micro", library, name, 0o755, VICTIM)
    link = place / "link"
    link.symlink_to(place / "behind")
    os.lchown(link, ATTACKER, ATTACKER)
    return _loads_own(link, place)


def _entry(place: Path) -> bool:
    folder = place / "entries"
    DiskCache(folder, 1 << 20).put("key", b"planted")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ATTACKER, ATTACKER)
        path.chmod(0o755)
    return as_victim(lambda: DiskCache(folder, 1 << 20).get("key") is None)


def _pack(place: Path) -> bool:
    folder = place / "pack"
    pack.add(folder, "key", "sm_90", b"planted")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ATTACKER, ATTACKER)
        path.chmod(0o755)

    def look() -> bool:
        os.environ["KERNELMARK_PACK"] = str(folder)
        return pack.find("key", "sm_90") is None and len(pack.refused()) == 1

    return as_victim(look)


def as_victim(look: Callable[[], bool]) -> bool:
    """What `look` returns in a process of the victim."""
    _kernels._output(["c++", "--version"])  # imports what it needs while that can be read
    assert cache_root()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(VICTIM)
            os.setuid(VICTIM)
            temporary_folder.cache_clear()
            code = 0 if look() else 3
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    must(status in (0, 3), f"the victim's process ended with {status}")
    return status == 0


def planted_files(count: int) -> Facts:
    """Every file of the tests in every place of them."""
    ran: list[str] = []
    for place in files.PLACES:
        with tempfile.TemporaryDirectory() as text:
            names, done = files.execute(place, Path(text))
            must(done.returncode in (0, 4), f"{place}: {done.stderr}")
            ran += [f"{name} in {place}" for name in names]
    must(not ran, f"{len(ran)} were run: {', '.join(ran[:5])}")
    return {"files": len(files.PLACES) * len(files.PLANTED), "places": len(files.PLACES), "run": 0}
