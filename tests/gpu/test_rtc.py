"""Run-time compiling: NVRTC for real, hipRTC through a stand-in, cache and packs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmark.core.errors import CompileError, UsageError
from kernelmark.gpu import pack, rtc
from kernelmark.gpu.objects import resources
from kernelmark.kernels import rtc as kernels
from kernelmark.ops._checks import PRODUCTS
from kernelmark_dev.raising import raises, raises_code

KERNEL = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1.0f; }\n'


@pytest.fixture
def no_compiler(cache, monkeypatch):
    """A machine with neither NVRTC nor hipRTC nor clang."""
    monkeypatch.setattr(rtc, "_library", lambda vendor: None)
    monkeypatch.setattr(rtc, "find_clang", lambda: None)


# -- NVRTC


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_the_devices_kernels_compile(nvrtc, arch):
    binary = rtc.compile_source(kernels.source("device.cu"), arch=arch, name="device.cu")
    assert binary.code[:4] == b"\x7fELF"
    assert (binary.arch, binary.cached) == (arch, False)
    assert binary.seconds > 0
    found = resources(binary.code)
    wanted = {"stamp", "gate", "spin", "nothing", "evict", "strain_bandwidth", "strain_compute"}
    wanted |= {"disturb", "poison_all"}
    words = ("generate", "generate_all", "changed", "inspect", "gather")
    wanted |= {f"{word}_{n}" for word in words for n in (1, 2, 4, 8)}
    assert found.keys() == wanted
    assert all(used["registers"] > 0 and used["stack_bytes"] == 0 for used in found.values())


@pytest.mark.slow
def test_the_projections_kernels_compile(nvrtc):
    binary = rtc.compile_source(kernels.source("project.cu"), arch="sm_90", name="project.cu")
    found = resources(binary.code)
    kinds = {kind for rule in PRODUCTS.values() for kind in (*rule.partners, *rule.out)}
    sums = {f"{walk}_{kind}" for walk in ("along", "across") for kind in kinds}
    assert found.keys() == {"signs", *sums}
    assert all(used["stack_bytes"] == 0 for used in found.values())


def test_a_second_time_comes_from_the_cache(nvrtc, cache):
    first = rtc.compile_source(KERNEL, arch="sm_90")
    again = rtc.compile_source(KERNEL, arch="sm_90")
    assert (first.cached, again.cached) == (False, True)
    assert again.code == first.code
    assert again.hash == first.hash
    assert again.seconds == 0.0
    assert list(cache.glob("rtc/*/*.entry"))


def test_what_makes_another_binary_makes_another_key(nvrtc):
    plain = rtc.cache_key(KERNEL, "sm_90", ())
    others = [
        rtc.cache_key(KERNEL + " ", "sm_90", ()),
        rtc.cache_key(KERNEL, "sm_80", ()),
        rtc.cache_key(KERNEL, "sm_90", ("-DX=1",)),
        rtc.cache_key(KERNEL, "sm_90", ("-DX=1", "-DY")),
        rtc.cache_key(KERNEL, "sm_90", ("-DX=1 -DY",)),
    ]
    assert len({plain, *others}) == 6
    source = KERNEL.replace("1.0f", "VALUE")
    one = rtc.compile_source(source, arch="sm_90", options=("-DVALUE=1.0f",))
    two = rtc.compile_source(source, arch="sm_90", options=("-DVALUE=2.0f",))
    assert one.code != two.code
    assert not two.cached


def test_an_error_shows_the_line_it_speaks_of(nvrtc):
    with pytest.raises(CompileError) as caught:
        rtc.compile_source(KERNEL + "\nthis is not C;\n", arch="sm_90", name="mine.cu")
    first, second = caught.value.message.splitlines()[:2]
    assert first.startswith("mine.cu(3): error:")
    assert second == "  mine.cu:3: this is not C;"


def test_an_error_in_the_shared_header_is_told_apart(nvrtc):
    good = kernels.source("device.cu")
    header = good.replace("typedef unsigned short u16;", "typedef unsigned shot u16;")
    body = good.replace("u64 mine = 0;", "u64 mine = undefined_thing;")
    for broken, line in ((header, "typedef unsigned shot u16;"), (body, "u64 mine = undef")):
        assert broken != good
        with pytest.raises(CompileError) as caught:
            rtc.compile_source(broken, arch="sm_90", name="device.cu")
        shown = caught.value.message.splitlines()[1]
        assert line in shown
        file, number, _ = shown.strip().split(":", 2)
        text = (Path(kernels.__file__).parent / file).read_text(encoding="utf-8").splitlines()
        assert line.split(" ")[0] in text[int(number) - 1]


def test_a_failed_compile_is_not_kept(nvrtc, cache):
    for _ in range(2):
        with pytest.raises(CompileError):
            rtc.compile_source("nonsense", arch="sm_90")
    assert not list(cache.glob("rtc/*/*.entry"))


@pytest.mark.parametrize("arch", ["", "90", "sm90", "gfx942:sramecc+", "mi300x", "sm_"])
def test_what_is_no_architecture_is_a_usage_error(arch):
    with raises(UsageError, arch=arch) as caught:
        rtc.compile_source(KERNEL, arch=arch)
    assert caught.value.hint == "write sm_90 or gfx942"


def test_processes_may_compile_the_same_at_once(nvrtc, cache):
    say = (
        "from kernelmark.gpu import rtc\n"
        f"print(rtc.compile_source({KERNEL!r}, arch='sm_90').hash)\n"
    )
    command = [sys.executable, "-c", say]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    hashes = {process.communicate(timeout=600)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(hashes) == 1
    again = rtc.compile_source(KERNEL, arch="sm_90")
    assert again.cached
    assert {again.hash + "\n"} == hashes
    assert len(list(cache.glob("rtc/*/*.entry"))) == 1
    assert not list(cache.glob("rtc/*/.*"))  # nothing half-written is left


@pytest.mark.parametrize(("arch", "library"), [("sm_90", "NVRTC"), ("gfx942", "hipRTC")])
def test_without_a_compiler_the_sentence_says_what_to_install(no_compiler, arch, library):
    with raises_code(CompileError, "library-missing", library=library) as caught:
        rtc.compile_source(KERNEL, arch=arch)
    assert caught.value.message == rtc.unavailable(rtc.vendor_of(arch))


# -- packs


def test_a_pack_is_preferred_to_cache_and_compiler(nvrtc, tmp_path, monkeypatch):
    real = rtc.compile_source(KERNEL, arch="sm_90")
    key = rtc.cache_key(KERNEL, "sm_90", ())
    first, second = tmp_path / "first", tmp_path / "second"
    path = pack.add(second, key, "sm_90", b"from the second pack")
    assert path == second / "sm_90" / f"{key}.bin"
    assert list(path.parent.iterdir()) == [path]
    monkeypatch.setenv("KERNELMARK_PACK", f"{first}:{second}")
    assert rtc.compile_source(KERNEL, arch="sm_90").code == b"from the second pack"
    pack.add(first, key, "sm_90", b"from the first pack")
    found = rtc.compile_source(KERNEL, arch="sm_90")
    assert (found.code, found.cached) == (b"from the first pack", True)
    # Other options and other architectures are not in it.
    assert rtc.compile_source(KERNEL, arch="sm_90", options=("-DX",)).code[:4] == b"\x7fELF"
    assert rtc.compile_source(KERNEL, arch="sm_80").code[:4] == b"\x7fELF"
    monkeypatch.delenv("KERNELMARK_PACK")
    assert rtc.compile_source(KERNEL, arch="sm_90").code == real.code


def test_a_pack_needs_no_compiler(no_compiler, tmp_path, monkeypatch):
    folder = tmp_path / "pack"
    pack.add(folder, rtc.cache_key(KERNEL, "gfx942", ()), "gfx942", b"code")
    monkeypatch.setenv("KERNELMARK_PACK", str(folder))
    assert pack.holds("gfx")
    assert not pack.holds("sm_")
    assert rtc.compile_source(KERNEL, arch="gfx942").code == b"code"
    with pytest.raises(CompileError) as caught:
        rtc.compile_source(KERNEL + "\n", arch="gfx942")
    assert "KERNELMARK_PACK hold other kernels for gfx942" in caught.value.hint


def damage(path, kind):
    whole = path.read_bytes()
    other = whole[:-1] + bytes([whole[-1] ^ 1])
    path.write_bytes({"empty": b"", "truncated": whole[:-1], "changed": other}[kind])


kinds_of_damage = pytest.mark.parametrize("kind", ["empty", "truncated", "changed"])


@kinds_of_damage
def test_a_damaged_file_is_passed_over(nvrtc, tmp_path, monkeypatch, kind):
    key = rtc.cache_key(KERNEL, "sm_90", ())
    first, second = tmp_path / "first", tmp_path / "second"
    damage(pack.add(first, key, "sm_90", b"from the first pack"), kind)
    monkeypatch.setenv("KERNELMARK_PACK", f"{first}:{second}")
    assert rtc.compile_source(KERNEL, arch="sm_90").code[:4] == b"\x7fELF"
    pack.add(second, key, "sm_90", b"from the second pack")
    assert rtc.compile_source(KERNEL, arch="sm_90").code == b"from the second pack"


@kinds_of_damage
def test_a_damaged_file_is_named_where_nothing_else_helps(no_compiler, tmp_path, monkeypatch, kind):
    key = rtc.cache_key(KERNEL, "gfx942", ())
    paths = [pack.add(tmp_path / name, key, "gfx942", b"code") for name in ("first", "second")]
    monkeypatch.setenv("KERNELMARK_PACK", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    damage(paths[0], kind)
    assert rtc.compile_source(KERNEL, arch="gfx942").code == b"code"
    damage(paths[1], kind)
    with raises(CompileError, damaged=[str(path) for path in paths]) as caught:
        rtc.compile_source(KERNEL, arch="gfx942")
    assert caught.value.message
    assert caught.value.hint


def test_a_file_from_another_place_is_damaged(cache, tmp_path, monkeypatch):
    path = pack.add(tmp_path, "key", "gfx942", b"code")
    monkeypatch.setenv("KERNELMARK_PACK", str(tmp_path))
    for key, arch in (("key", "gfx90a"), ("other", "gfx942")):
        copy = pack.path_in(tmp_path, key, arch)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
        assert pack.find(key, arch) is None
    assert pack.find("key", "gfx942") == b"code"


# -- hipRTC


@pytest.fixture
def hiprtc(cache, tmp_path, monkeypatch):
    """A stand-in for hipRTC under a ROCM_PATH of its own; child processes find it too."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("the stand-in library needs a C compiler: cc, gcc or clang")
    library = tmp_path / "rocm" / "lib" / "libhiprtc.so"
    library.parent.mkdir(parents=True)
    source = str(Path(__file__).parent / "fakehiprtc.c")
    command = [compiler, "-shared", "-fPIC", source, "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    return library


def test_hiprtc_compiles_in_a_child_and_is_preferred_to_clang(hiprtc):
    binary = rtc.compile_source("kernel text\n", arch="gfx942", options=("-O2",))
    # The library's own chatter on stdout is not in it, and no byte is lost.
    assert binary.code == b"\x7fELF\n\0\r\n\xff-O2|kernel text\n"
    assert rtc.compile_source("kernel text\n", arch="gfx942", options=("-O2",)).cached
    label, _ = rtc._compiler("hip", "gfx942")
    assert label.startswith("hiprtc-9.5-")


def test_a_hiprtc_that_aborts_is_a_sentence(hiprtc):
    with raises(CompileError, exit_code=-6, arch="gfx950") as caught:
        rtc.compile_source("kernel text", arch="gfx950")
    assert "munmap_chunk(): invalid pointer" in caught.value.message
    assert caught.value.hint == "this hipRTC may not know gfx950"


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        ("echo garbage", {"exit_code": 0}),
        ("echo '[1]'; exit 3", {"exit_code": 3}),
        ("exit 127", {"exit_code": 127}),
        ("echo last words >&2; kill -9 $$", {"exit_code": -9, "error": "last words"}),
        ("exec sleep 20", {"limit_s": 0.3}),
    ],
)
def test_any_end_of_the_child_is_a_sentence(hiprtc, tmp_path, monkeypatch, script, fields):
    stub = tmp_path / "python"
    stub.write_text(f"#!/bin/sh\n{script}\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))
    monkeypatch.setattr(rtc, "_CHILD_SECONDS", 0.3 if "sleep" in script else 60)
    with raises(CompileError, arch="gfx942", **fields):
        rtc.compile_source("kernel text", arch="gfx942")


def test_another_rocm_compiles_again(hiprtc):
    """The version that hipRTC tells is the same in every ROCm."""

    def cached():
        rtc._library.cache_clear()
        return rtc.compile_source("kernel text\n", arch="gfx942").cached

    assert [cached(), cached()] == [False, True]
    os.utime(hiprtc, (1, 1))
    assert [cached(), cached()] == [False, True]
    # The compiler itself: loaded only when something is compiled, and a link as a rule.
    comgr = hiprtc.parent / "libamd_comgr.so.3.0"
    comgr.write_bytes(b"a compiler")
    (hiprtc.parent / "libamd_comgr.so.3").symlink_to(comgr.name)
    assert [cached(), cached()] == [False, True]
    comgr.write_bytes(b"a newer compiler")
    os.utime(comgr, (1, 1))
    assert [cached(), cached()] == [False, True]


def test_the_newest_nvrtc_of_the_wheels_comes_first(tmp_path, monkeypatch):
    names = [
        "cuda_nvrtc/lib/libnvrtc.so.12",
        "cu13/lib/libnvrtc.so.13",
        "old/lib/libnvrtc.so.11.2",
        "older/lib/libnvrtc.so.9",
        "cu13/lib/libnvrtc-builtins.so.13.0",
    ]
    for name in names:
        (tmp_path / "nvidia" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nvidia" / name).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    found = [p for p in rtc._wheel_libraries() if p.startswith(str(tmp_path))]
    assert [p.rpartition("/")[2] for p in found] == [
        "libnvrtc.so.13",
        "libnvrtc.so.12",
        "libnvrtc.so.11.2",
        "libnvrtc.so.9",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100"])
def test_a_real_hiprtc_compiles_every_kernel(cache, arch):
    if rtc._library("hip") is None:
        pytest.skip("needs hipRTC: install ROCm, or set ROCM_PATH to where it is")
    assert kernels.__file__ is not None
    for file in sorted(Path(kernels.__file__).parent.glob("*.cu")):
        binary = rtc.compile_source(kernels.source(file.name), arch=arch, name=file.name)
        assert resources(binary.code), file.name


def test_a_pack_that_others_can_write_to_is_not_used(tmp_path, monkeypatch):
    pack.add(tmp_path / "pack", "key", "gfx942", b"code")
    monkeypatch.setenv("KERNELMARK_PACK", str(tmp_path / "pack"))
    assert pack.find("key", "gfx942") == b"code"
    assert pack.refused() == []
    (tmp_path / "pack").chmod(0o777)
    assert pack.find("key", "gfx942") is None
    assert not pack.holds("gfx")
    assert [one.code for one in pack.refused()] == ["writable-by-others"]
