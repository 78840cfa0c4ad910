"""A shared library that another user planted is never loaded."""

import os
import shutil
import stat
import subprocess
import tempfile

import pytest

from kernelmark.micro import _kernels

FILE = "micro_launch.cu"
MARK = 666
_PLANTED = f'extern "C" int host_vector_bytes() {{ return {MARK}; }}\n'


@pytest.fixture
def planted(compiler, tmp_path, monkeypatch):
    """Plant the library of FILE, as whoever knows its name would, into a folder."""
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "first"))
    _kernels.library.cache_clear()
    _kernels.library(FILE)
    _kernels.library.cache_clear()
    (real,) = (tmp_path / "first" / "micro").glob("*.so")
    program, library = tmp_path / "planted.cc", tmp_path / "planted.so"
    program.write_text(_PLANTED)
    compiler_name = next(n for n in ("c++", "g++", "clang++") if shutil.which(n))
    subprocess.run([compiler_name, "-shared", "-fPIC", program, "-o", library], check=True)

    def plant(folder):
        folder.mkdir(parents=True)
        shutil.copy(library, folder / real.name)
        shutil.copy(real.with_suffix(".txt"), folder / real.with_suffix(".txt").name)
        folder.chmod(0o777)

    yield plant
    _kernels.library.cache_clear()


def test_not_from_the_temporary_folder(planted, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder can be made below this")
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    planted(tmp_path / "temporary" / f"kmark-{os.getuid()}")
    assert _kernels.library(FILE).vector_bytes != MARK


def test_not_from_a_cache_that_others_can_write_to(planted, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    planted(tmp_path / "cache" / "micro")
    assert _kernels.library(FILE).vector_bytes != MARK


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who can change the owner of a file")
def test_not_a_file_of_another_user_in_an_own_folder(planted, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "micro"
    planted(folder)
    folder.chmod(0o755)
    for path in folder.iterdir():
        os.chown(path, 33, 33)
    assert _kernels.library(FILE).vector_bytes != MARK


def test_what_is_built_is_for_this_user_alone(planted, tmp_path):
    folder = tmp_path / "first" / "micro"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
