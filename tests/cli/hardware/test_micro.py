"""`kmark micro --precompile`: a pack for machines without a compiler."""

import pytest

from kernelmark.core.errors import CompileError
from kernelmark.gpu import pack, rtc
from kernelmark.kernels import rtc as kernels

SMALL = {"one.cu": 'extern "C" __global__ void one() {}\n', "two.cu": "// nothing\n"}


@pytest.fixture
def compiles(monkeypatch):
    """A compiler for sm_90 and gfx942 that is fast; anything else it does not know."""

    def compile_one(source, arch, name, options):
        if arch not in ("sm_90", "gfx942"):
            raise CompileError(f"it does not know {arch}\nand more words")
        return f"{arch} {name}".encode(), ""

    monkeypatch.setattr(rtc, "_compiler", lambda vendor, arch: ("quick-1", compile_one))
    monkeypatch.setattr(kernels, "names", lambda: sorted(SMALL))
    monkeypatch.setattr(kernels, "source", SMALL.__getitem__)
    rtc._cache.cache_clear()
    yield
    rtc._cache.cache_clear()


def test_one_line_a_file_and_architecture(kmark, compiles, tmp_path, monkeypatch):
    folder = tmp_path / "new" / "pack"
    ended = kmark("micro", "--precompile", "gfx942,sm_90", "-o", str(folder))
    assert ended.code == 0
    rows = [line.split()[:3] for line in ended.out.splitlines()]
    assert rows == [
        ["gfx942", "one.cu", "ok"],
        ["gfx942", "two.cu", "ok"],
        ["sm_90", "one.cu", "ok"],
        ["sm_90", "two.cu", "ok"],
    ]
    assert f"4 compiled, 0 failed; use them with KERNELMARK_PACK={folder}" in ended.err
    monkeypatch.setenv("KERNELMARK_PACK", str(folder))
    found = rtc.compile_source(SMALL["one.cu"], arch="gfx942", name="one.cu")
    assert (found.code, found.cached) == (b"gfx942 one.cu", True)
    assert len(list(folder.glob("*/*.bin"))) == 4


def test_what_cannot_be_compiled_says_why(kmark, compiles, tmp_path):
    words = ("--precompile", "sm_90", "--precompile", "gfx950,sm_90", "-o", str(tmp_path / "pack"))
    ended = kmark("micro", *words)
    assert ended.code == 3
    lines = ended.out.splitlines()
    assert len(lines) == 4  # an architecture that is named twice is compiled once
    assert lines[2] == "gfx950  one.cu  failed  it does not know gfx950"
    assert "2 compiled, 2 failed" in ended.err
    assert "2 compiled, 2 failed" in kmark("micro", "-q", *words).err
    assert kmark("micro", "-q", *words[:2], *words[4:]).err == ""  # unless something failed


def test_what_would_help_is_told_with_the_reason(kmark, compiles, tmp_path, monkeypatch):
    def refuse(source, arch, name, options):
        raise CompileError(f"clang 18 does not know {arch}", "use a newer clang, or ROCm")

    monkeypatch.setattr(rtc, "_compiler", lambda vendor, arch: ("quick-1", refuse))
    ended = kmark("micro", "--precompile", "gfx950", "-o", str(tmp_path / "pack"))
    assert ended.out.splitlines()[0] == (
        "gfx950  one.cu  failed  clang 18 does not know gfx950; use a newer clang, or ROCm"
    )


def test_nothing_compiled_ends_like_some_that_failed(kmark, compiles, tmp_path):
    ended = kmark("micro", "--precompile", "gfx950,sm_75", "-o", str(tmp_path / "pack"))
    assert ended.code == 3
    assert ended.err.startswith("0 compiled, 4 failed")
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        *(
            (("--precompile", f"sm_90,{arch}", "-o", "pack"), {"arch": arch})
            for arch in ("mi300x", "sm_90a", "gfx999")
        ),
        (("--precompile", "gfx942:xnack-", "-o", "pack"), {"arch": "gfx942:xnack-"}),
        (("--precompile", ",", "-o", "pack"), {}),
        ((), {}),
        (("cache", "-o", "pack"), {"other": "--precompile"}),
        (("-o", "pack"), {"other": "--precompile"}),
        (("--precompile", "sm_90"), {"other": "-o"}),
        (("--precompile", "sm_90", "-o", "taken"), {"path": "taken"}),
        (
            ("cache", "--precompile", "sm_90", "-o", "pack"),
            {"of": "--precompile", "most": 0, "given": 1},
        ),
        (
            ("--precompile", "sm_90", "-o", "pack", "--json", "-"),
            {"options": ("--json",), "other": "--precompile"},
        ),
        (("--precompile", "sm_90", "-o", "pack", "-d", "cpu"), {"options": ("--device",)}),
        (
            ("--precompile", "sm_90", "--full", "-p", "samples=1", "--no-store"),
            {"options": ("--full", "--parameter", "--no-store")},
        ),
    ],
)
def test_refusals_come_before_anything_is_compiled(
    refused, compiles, tmp_path, monkeypatch, words, fields
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("")
    refused("micro", *words, **fields)
    assert not (tmp_path / "pack").exists()


def test_real_kernels_for_hopper(kmark, tmp_path, monkeypatch):
    reason = rtc.unavailable("cuda")
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(kernels, "names", lambda: ["device.cu"])
    rtc._cache.cache_clear()
    ended = kmark("micro", "--precompile", "sm_90", "-o", str(tmp_path / "pack"))
    rtc._cache.cache_clear()
    assert ended.code == 0
    key = rtc.cache_key(kernels.source("device.cu"), "sm_90", ())
    monkeypatch.setenv("KERNELMARK_PACK", str(tmp_path / "pack"))
    assert (pack.find(key, "sm_90") or b"")[:4] == b"\x7fELF"
