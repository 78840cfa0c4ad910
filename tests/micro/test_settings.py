"""What a user may choose: words that are known, numbers that something can be measured with."""

import pytest

from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.core.result import Status
from kernelmark.micro import registry
from kernelmark.micro.base import MODES, fitting, rounded
from kernelmark.micro.session import execute, open_rig
from kernelmark_dev import emulator
from kernelmark_dev.raising import raises, tells

KIB, MIB = 2**10, 2**20


@pytest.fixture(scope="module")
def cpu(compiler):
    made = open_rig("cpu", 1)
    yield made
    made.close()


@pytest.fixture
def rig(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def gpu(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
    with emulator.emulated(devices=2, block=64):
        made = open_rig("cuda:0")
        yield made
        made.close()


@pytest.mark.parametrize("name", registry.names())
def test_every_word_parameter_has_its_choices(name):
    for word, parameter in registry.get(name).parameters.items():
        values = [parameter.value(mode) for mode in MODES]
        every = [v for value in values for v in (value if isinstance(value, tuple) else (value,))]
        if isinstance(every[0], str):
            assert parameter.choices, word
        if parameter.choices:
            assert set(every) <= set(parameter.choices), word


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("latency", {"nonsense": 1}),
        ("latency", {"samples": "few"}),
        ("latency", {"samples": "1,2"}),
        ("latency", {"sizes": ""}),
        ("latency", {"sizes": []}),
        ("atomics", {"kernels": "foo"}),
        ("cache", {"windows": "private,foo"}),
        ("incore", {"ilps": 3}),
        ("shared", {"strides": 33}),
        ("matrix", {"seconds": "inf"}),
        ("matrix", {"seconds": "nan"}),
        ("matrix", {"seconds": 0}),
        ("latency", {"sizes": [4096, 0]}),
        ("latency", {"refine": -1}),
        ("roofline", {"most": 1}),
        ("stream", {"nbytes": 1000}),
        ("small_kernels", {"sizes": 1}),
        ("small_kernels", {"sizes": 100}),
        ("tlb", {"strides": 100 * KIB + 8}),
        ("um_stream", {"sizes": 1}),
    ],
)
def test_a_value_that_measures_nothing_is_refused(name, chosen):
    (parameter,) = chosen
    benchmark = registry.get(name)
    with raises(UsageError, name=parameter, benchmark=benchmark.name) as refused:
        benchmark.settings("quick", chosen)
    assert refused.value.exit_code == 2
    known = benchmark.parameters.get(parameter)
    choices = known.choices if known else benchmark.parameters
    assert all(str(choice) in refused.value.hint for choice in choices)


def test_what_a_mode_has_may_be_chosen():
    assert registry.get("matrix").settings("quick", {"rest": 0})["rest"] == 0
    assert registry.get("matrix").settings("quick", {"sustained": 0})["sustained"] == 0
    assert registry.get("cache").settings("quick", {"sizes": "8,8,4"})["sizes"] == (8, 4)


def test_sizes_that_do_not_fit_are_told():
    assert fitting([1, 5, 3], 4, "half") == ([1, 3], ["left out: 5 B; 4 B can be used, half"])
    assert fitting([1, 3], 4, "half") == ([1, 3], [])
    with raises(Unsupported, share="half"):
        fitting([7, 5], 4, "half")


def test_sizes_are_rounded_once_each():
    found, notes = rounded([1, 100, 5000, 8192], 4096, 4096)
    assert found == [4096, 8192]
    assert len(notes) == 1
    assert "1 B as 4096 B, 100 B as 4096 B, 5000 B as 4096 B" in notes[0]
    assert rounded([4096, 8192], 4096, 4096) == ([4096, 8192], [])


HUGE = 99_999_999_999_999


ON_CPU = [
    ("latency", {"sizes": HUGE}),
    ("memcpy", {"sizes": HUGE}),
    ("cache", {"sizes": HUGE}),
    ("cache", {"sizes": 65536, "most": 4096}),
    ("stream", {"grids": "passing", "nbytes": MIB}),
    ("instructions", {"ops": "shuffle_i32"}),
    ("incore", {"ops": "shuffle_i32"}),
]
ON_GPU = [
    ("l2_cache", {"sizes": HUGE}),
    ("latency", {"sizes": HUGE}),
    ("latency", {"sizes": 4096, "most": HUGE}),
    ("loaded_latency", {"hops": 2**20, "nbytes": MIB}),
    ("matrix", {"dtypes": "f4e2m1"}),
    ("memcpy", {"sizes": HUGE}),
    ("peer", {"nbytes": HUGE}),
    ("small_kernels", {"sizes": HUGE // 16 * 16}),
    ("stream", {"kernels": "read", "grids": "passing", "nbytes": MIB}),
    ("tlb", {"span": 4096}),
    ("um_stream", {"sizes": HUGE}),
]


@pytest.mark.parametrize(
    ("rig", "name", "chosen"),
    [*(("cpu", *case) for case in ON_CPU), *(("gpu", *case) for case in ON_GPU)],
    indirect=["rig"],
)
def test_what_a_device_cannot_do_is_one_sentence(rig, name, chosen):
    result = execute(registry.get(name), rig, "brief", chosen)
    assert result.status is Status.UNSUPPORTED, result.error
    assert result.error
    assert "Error" not in result.error
    assert "\n" not in result.error


def test_each_rounded_size_of_the_cache_is_measured_once(cpu):
    few = {"sizes": "1,100,5000", "seconds": 1e-4, "samples": 1}
    result = execute(registry.get("cache"), cpu, "brief", few)
    assert result.status is Status.OK, result.error
    assert [row["size_bytes"] for row in result.rows] == [4096]
    assert any("5000 B as 4096 B" in note for note in result.notes)


def test_only_dtypes_that_were_asked_for_are_missed(gpu):
    few = {"seconds": 1e-5, "samples": 1, "sustained": 0}
    alone = execute(registry.get("matrix"), gpu, "quick", {**few, "dtypes": "bf16"})
    assert alone.notes == ()
    pair = execute(registry.get("matrix"), gpu, "quick", {**few, "dtypes": "bf16,f64"})
    (note,) = pair.notes
    assert tells(note, missing="f64")
    assert "bf16" not in note


def test_small_arrays_are_checked_inside_themselves(gpu):
    """A check of a fixed size would write beyond them: the emulated memory ends where they do."""
    result = execute(registry.get("peer"), gpu, "quick", {"nbytes": 4096, "repeats": 1})
    assert result.status is Status.OK, result.error


def test_sizes_in_any_order_are_the_same_curve(cpu):
    few = {"sizes": "16384,4096,1", "samples": 1, "most": 2**12}
    result = execute(registry.get("latency"), cpu, "brief", few)
    assert [row["size_bytes"] for row in result.rows] == [256, 4096, 16384]
    assert any("1 B as 256 B" in note for note in result.notes)
