"""Names of formats: one spelling in what is said, several in what is taken."""

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.workloads import importers, logs
from kernelmark_dev.raising import raises


@pytest.mark.parametrize(
    ("kind", "words", "name"),
    [
        (logs, ("aiter-csv", "aiter_csv", "AITER_CSV", "aiter", " aiter-c"), "aiter-csv"),
        (importers, ("reference-csv", "reference_csv", "ref", "Reference_CSV"), "reference-csv"),
    ],
)
def test_spellings(kind, words, name):
    assert {kind.registry.find(word).name for word in words} == {name}


def test_a_beginning_of_several_lists_these():
    with pytest.raises(UsageError) as refused:
        logs.registry.find("t")
    for name in ("torch-trace", "triton-autotune", "tunableop"):
        assert name in refused.value.message
    assert refused.value.hint == "write one of them out"
    candidates = ("reference-csv", "rocprof")
    with raises(UsageError, "r", *candidates):
        importers.registry.find("r")


@pytest.mark.parametrize("word", ["xyz", "", "_", "shapess"])
@pytest.mark.parametrize("kind", [logs, importers])
def test_an_unknown_one_lists_all_in_one_spelling(kind, word):
    with raises(UsageError, word) as refused:
        kind.registry.find(word)
    assert ", ".join(kind.registry.names()) in refused.value.hint
    assert "_" not in refused.value.hint
    with pytest.raises(UsageError) as refused:
        logs.registry.find("torch_tracer")
    assert refused.value.hint.startswith("did you mean torch-trace?")


def test_a_name_of_the_other_kind_is_told_so():
    with pytest.raises(UsageError) as refused:
        logs.registry.find("rocprof")
    assert refused.value.message == "rocprof is a format of results, not of logs of calls"
    assert "leave --workload out" in (refused.value.hint or "")
    # It is also the beginning of hipblaslt-bench, which would be a guess.
    with pytest.raises(UsageError) as refused:
        importers.registry.find("hipblaslt")
    assert refused.value.message == "hipblaslt is a format of logs of calls, not of results"
    assert "add: --workload DIR" in (refused.value.hint or "")
