"""Plain clang as the compiler for AMD targets."""

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark.core.errors import CompileError
from kernelmark.gpu import rtc
from kernelmark.gpu.objects import resources
from kernelmark.gpu.rtc import Clang, explain
from kernelmark.kernels import rtc as kernels
from kernelmark_dev.raising import tells


@pytest.fixture
def real(cache):
    found = rtc.find_clang()
    if found is None:
        pytest.skip(
            f"needs ziglang, which make test installs, or clang {rtc.OLDEST_CLANG} for AMD GPUs"
        )
    return found


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_the_devices_kernels_compile_for_amd(real, arch):
    code, _ = real.compile(kernels.source("device.cu"), arch, "device.cu")
    found = resources(code)
    assert all(used["spilled_registers"] == 0 for used in found.values())
    assert all(found[name]["registers"] > 0 for name in ("stamp", "generate_4", "inspect_8"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in kernels.names() if name != "device.cu"])
def test_every_other_kernel_file_compiles_for_amd(real, name):
    code, _ = real.compile(kernels.source(name), "gfx942", name)
    assert resources(code)


def test_compile_source_takes_clang_where_there_is_no_hiprtc(real, monkeypatch):
    monkeypatch.setattr(rtc, "_library", lambda vendor: None)
    assert rtc.unavailable("hip") is None
    source = kernels.source("device.cu")
    first = rtc.compile_source(source, arch="gfx90a", name="device.cu")
    again = rtc.compile_source(source, arch="gfx90a", name="device.cu")
    assert (first.cached, again.cached) == (False, True)
    assert again.code == first.code


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
def test_code_objects_are_of_the_version_that_old_rocm_loads(real, arch):
    code, _ = real.compile(kernels.source("copy.cu"), arch, "copy.cu")
    assert code[7:9] == bytes([64, 3])  # AMD's, code object version 5


def test_prelude_and_flags_are_part_of_the_key(tmp_path, monkeypatch):
    """Of AMD's alone: packs for NVIDIA stay valid."""
    keys = []
    prelude = tmp_path / "prelude.h"
    prelude.write_text("// another one\n")
    changes = ((None, None), ("_PRELUDE", prelude), ("_CLANG_FLAGS", (*rtc._CLANG_FLAGS, "-DNEW")))
    for name, value in changes:
        if name:
            monkeypatch.setattr(rtc, name, value)
        keys.append([rtc.cache_key("text", arch, ()) for arch in ("gfx942", "sm_90")])
    assert len({amd for amd, _ in keys}) == 3
    assert len({nvidia for _, nvidia in keys}) == 1
    plain = json.dumps(["text", "sm_90", []]).encode()
    assert keys[0][1] == hashlib.sha256(plain).hexdigest()


def test_an_error_shows_the_line(real):
    broken = kernels.source("device.cu").replace("u64 mine = 0;", "u64 mine = undefined_thing;")
    with pytest.raises(CompileError) as caught:
        real.compile(broken, "gfx942", "device.cu")
    assert caught.value.message.splitlines()[1].endswith("u64 mine = undefined_thing;")


# -- stand-ins


def stand_in(folder, name, version, *, body="", amd=True):
    target = "amdgcn - AMD GCN GPUs" if amd else "x86-64 - 64-bit X86"
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(
        "#!/bin/sh\n"
        f'case "$1" in --version) echo "Some clang version {version} (vendor)"; exit;;\n'
        f'--print-targets) echo "    {target}"; exit;; esac\n{body}\n'
    )
    place.chmod(0o755)
    return place


def found_in(folder, monkeypatch, zig=None):
    rtc._find_clang.cache_clear()
    monkeypatch.setattr(rtc, "_zig", lambda: str(zig) if zig else None)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("ROCM_PATH", str(folder / "rocm"))
    return rtc.find_clang()


def test_the_newest_that_can_is_taken(tmp_path, monkeypatch):
    assert found_in(tmp_path, monkeypatch) is None
    stand_in(tmp_path, "clang", "16.0.6")  # too old for gfx942
    stand_in(tmp_path, "clang-21", "21.1.0", amd=False)
    assert found_in(tmp_path, monkeypatch) is None
    plain = stand_in(tmp_path, "clang", "18.1.3")
    assert found_in(tmp_path, monkeypatch) == Clang(path=str(plain), version="18.1.3")
    numbered = stand_in(tmp_path, "clang-20", "20.1.2")
    assert found_in(tmp_path, monkeypatch) == Clang(path=str(numbered), version="20.1.2")
    rocm = stand_in(tmp_path, "rocm/llvm/bin/clang", "19.0.0git")
    assert found_in(tmp_path, monkeypatch) == Clang(path=str(rocm), version="19.0.0")


def test_the_one_in_the_ziglang_wheel_comes_last(tmp_path, monkeypatch):
    plain = stand_in(tmp_path / "zig", "inner", "22.1.8")
    zig = tmp_path / "zig" / "zig"
    zig.write_text(f'#!/bin/sh\n[ "$1" = clang ] && shift && exec {plain} "$@"\n')
    zig.chmod(0o755)
    found = found_in(tmp_path, monkeypatch, zig)
    assert found == Clang(path=str(zig), version="22.1.8", word="clang", linker_word="ld.lld")
    other = stand_in(tmp_path, "clang", "18.1.3")
    assert found_in(tmp_path, monkeypatch, zig) == Clang(path=str(other), version="18.1.3")
    rtc._find_clang.cache_clear()


@pytest.mark.parametrize(
    "body",
    [
        'echo "clang: error: unsupported HIP gpu architecture: gfx950" >&2; exit 1',
        "echo \"clang: error: invalid target ID 'gfx950'; format is a name\" >&2; exit 1",
        "echo 'clang: error: unable to execute command: Executable \"lld\" is not there' >&2;"
        " exit 1",
        "exit 0",
        "kill -11 $$",
    ],
)
def test_refusals_have_codes(tmp_path, body):
    place = stand_in(tmp_path, "clang", "18.1.3", body=body)
    with pytest.raises(CompileError):
        Clang(path=str(place), version="18.1.3").compile("", "gfx950", "k.cu")


SOURCE = '#line 1 "common.h"\nheader one\nheader two\n\n#line 1 "mine.cu"\nbody one\nbody two\n'


@pytest.mark.parametrize(
    ("log", "place"),
    [
        ("mine.cu(2): error: expected a ;", "mine.cu:2: body two"),
        ("mine.cu(1): catastrophic error: cannot open", "mine.cu:1: body one"),
        ("common.h(2): error: expected a ;", "common.h:2: header two"),
        ("mine.cu:2:7: error: expected ';'", "mine.cu:2: body two"),
        ("/tmp/x/mine.cu:1:1: fatal error: no", "mine.cu:1: body one"),
        ("warning first\nmine.cu(1): warning: odd\nmine.cu(2): error: bad", "mine.cu:2: body two"),
    ],
)
def test_the_first_error_comes_with_its_line(log, place):
    told = explain(log, SOURCE, "mine.cu").splitlines()
    assert "error" in told[0]
    assert told[1] == f"  {place}"
    assert told[2:] == log.splitlines()


def test_a_source_of_one_piece_needs_no_directive():
    assert "  k.cu:2: second" in explain("k.cu(2): error: no", "first\nsecond\n", "k.cu")


@pytest.mark.parametrize("log", ["other.h(1): error: no", "mine.cu(99): error: no"])
def test_no_line_is_shown_where_it_is_not_known(log):
    assert explain(log, SOURCE, "mine.cu") == f"{log}\n{log}"


def test_a_log_without_a_place_is_shown():
    assert tells(explain("out of memory", SOURCE, "mine.cu"), file="mine.cu", log="out of memory")


@given(st.text(), st.text(), st.text())
@settings(deadline=None)
def test_any_log_gives_some_text(log, source, name):
    assert explain(log, source, name)
