from __future__ import annotations

import dataclasses
import shutil

import pytest

from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.roof import Roof
from kernelmark.devices import registry
from kernelmark.micro import _fallback, _native, roofs

HAS_COMPILER = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
ROOF = Roof(
    device="cpu",
    arch="aarch64",
    kind="flops",
    name="f32",
    value=1e9,
    how="a test",
    measured=0.0,
    threads=1,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)


def test_quick_gives_plausible_roofs_of_the_cpu(monkeypatch):
    # Four times a cache of hundreds of megabytes takes twenty seconds.
    monkeypatch.setattr(roofs, "_stream_bytes", lambda info, parts: 2**28)
    found = roofs.quick("cpu", 1)
    named = {(roof.kind, roof.name): roof for roof in found}
    info = registry.get("cpu").infos()[0]
    assert {("flops", "f32"), ("flops", "f64"), ("bytes", "dram")} <= named.keys()
    for roof in found:
        assert (roof.device, roof.arch, roof.threads) == ("cpu", info.arch, 1)
        assert roof.how
        assert roof.measured > 1.7e9
        assert roof.value > 0
    # Twice the lanes, whatever the core: other work slows either down, and nothing speeds one up.
    best = {name: named["flops", name].value for name in ("f32", "f64")}
    for _ in range(20):
        if 1.2 < best["f32"] / best["f64"] < 3.5:
            break
        again = {roof.name: roof.value for roof in roofs.quick("cpu", 1)}
        best = {name: max(value, again[name]) for name, value in best.items()}
    else:
        pytest.fail(f"FLOP/s: {best}")


@pytest.mark.parametrize(
    ("rounds", "best", "steady", "taken"),
    [
        ([10.0, 10.0, 10.0], 10.0, True, 3),
        # Slowed down by other work at first: what is lower counts neither for nor against.
        ([3.0, 10.0, 5.0, 9.95, 4.0, 10.05], 10.05, True, 6),
        ([1.0 * 2**n for n in range(10)], 512.0, False, 10),  # never twice the same
        ([8.0, None], None, False, 2),
    ],
)
def test_rounds_go_on_until_two_more_agree_with_the_best(rounds, best, steady, taken):
    left = iter(rounds)
    found = roofs._best(lambda: next(left))
    assert (found and (found.per_s, found.steady)) == (best and (best, steady))
    assert len(list(left)) == len(rounds) - taken


def test_more_threads_than_cores_are_refused():
    with pytest.raises(UsageError, match="9999 threads were asked for"):
        roofs.quick("cpu", 9999)


def test_other_devices_have_none_here():
    assert roofs.quick("cuda:0", 0) == ()
    assert roofs.quick("fake", 0) == ()


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler here")
class TestCompiled:
    def test_computes_what_it_counts(self):
        library = _native.library()
        assert library is not None
        cpus = roofs._cpus(1)
        for name, kind in _native.FMA.items():
            if name == "f16" and not library.has_f16:
                continue
            lanes = library.vector_bytes * 8 // roofs._BITS[name]
            done = library.run(kind, cpus, 100, 2)
            assert done is not None
            assert done.total == 100 * library.chains * lanes
            assert 0 < done.alone_s[0] <= done.whole_s

    def test_streams_touch_every_element(self):
        library = _native.library()
        assert library is not None
        count = 512 * library.parts
        for kind, expected in (("read", 512.0), ("copy", 1.0), ("triad", 4.0)):
            done = library.run(_native.STREAM[kind], roofs._cpus(1), count, 3)
            assert done is not None
            assert done.total == expected

    def test_memory_that_is_kept_is_what_each_stream_expects(self):
        """Triad leaves fours where the next one wants ones, and other sizes lie elsewhere."""
        library = _native.library()
        assert library is not None
        cpus = roofs._cpus(1)
        turns = [("triad", 512), ("read", 512), ("triad", 1024), ("triad", 512), ("copy", 1024)]
        for kind, count in turns * 2:
            done = library.run(_native.STREAM[kind], cpus, count * library.parts, library.parts)
            assert done is not None
            assert done.total == {"read": float(count), "copy": 1.0, "triad": 4.0}[kind]
        library.release()
        library.release()
        done = library.run(_native.STREAM["read"], cpus, 512 * library.parts, library.parts)
        assert done is not None
        assert done.total == 512.0
        library.release()

    def test_too_much_memory_is_told_not_crashed(self):
        library = _native.library()
        assert library is not None
        assert library.run(_native.STREAM["read"], roofs._cpus(1), 2**58, 1) is None

    def test_threads_that_share_a_core_are_timed_as_a_whole(self):
        """Each alone would be as fast as if it had the core for itself: their sum is a lie."""
        library = _native.library()
        assert library is not None
        (cpu,) = roofs._cpus(1)
        done = library.run(_native.FMA["f32"], [cpu, cpu], 100_000, 5)
        assert done is not None
        assert done.alone_s == (done.whole_s, done.whole_s)

    def test_threads_that_cannot_be_pinned_are_timed_as_a_whole(self):
        library = _native.library()
        assert library is not None
        done = library.run(_native.FMA["f32"], [1023], 1000, 2)
        assert done is not None
        assert done.alone_s == (done.whole_s,)

    def test_is_compiled_once(self, tmp_path, monkeypatch):
        assert _native.library() is not None
        built = list((tmp_path / "cache" / "roofs").glob("*.so"))
        assert len(built) == 1

        def refuse(*given):
            raise AssertionError("compiled again")

        monkeypatch.setattr(_native, "_compile", refuse)
        assert _native.library() is not None

    def test_a_cache_that_cannot_be_written_costs_only_the_caching(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("not a folder")
        monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "file"))
        assert _native.library() is not None

    def test_a_broken_compiler_is_passed_over(self, tmp_path, monkeypatch):
        broken = tmp_path / "broken-cc"
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)
        monkeypatch.setenv("CC", str(broken))
        library = _native.library()
        assert library is not None
        assert "broken" not in library.compiler


def test_without_a_compiler_numpy_stands_in_and_says_so(monkeypatch):
    monkeypatch.setattr(_native, "_compilers", list)
    found = roofs.quick("cpu", 1)
    assert {roof.name for roof in found} == {"f32", "f64", "dram"}
    assert all("numpy" in roof.how and not roof.limit for roof in found)


def test_no_figures_where_even_numpy_fails(monkeypatch):
    monkeypatch.setattr(_native, "_compilers", list)
    monkeypatch.setattr(_fallback.sys, "executable", "/nonexistent")
    assert roofs.quick("cpu", 1) == ()


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("flops", "f32", 1e13),  # a planted unit error: FLOP/ms
        ("flops", "f64", 1e13),
        ("flops", "f32", 0.0),
        ("flops", "f32", float("nan")),
        ("bytes", "dram", 1e12),
        ("bytes", "dram", -1.0),
    ],
)
def test_an_impossible_roof_is_refused(kind, name, value):
    with pytest.raises(KernelmarkError, match="not physically possible"):
        roofs.check(dataclasses.replace(ROOF, kind=kind, name=name, value=value))


def test_real_machines_are_not_refused():
    # 64 cores with two 512-bit pipes at 4 GHz, and twelve channels of DDR5.
    roofs.check(dataclasses.replace(ROOF, value=64 * 32 * 2 * 4e9, threads=64))
    roofs.check(dataclasses.replace(ROOF, kind="bytes", name="dram", value=460e9, threads=64))
    roofs.check(dataclasses.replace(ROOF, kind="bytes", name="dram", value=60e9))
