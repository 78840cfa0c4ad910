"""The public namespace: small, sorted, complete, and cheap to import."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

import kernelmark

HEAVY = ("numpy", "scipy", "sqlalchemy", "typer", "rich", "torch", "triton", "iree", "pandas")


def test_all_is_sorted_and_small():
    assert list(kernelmark.__all__) == sorted(kernelmark.__all__, key=str)
    assert len(kernelmark.__all__) == len(set(kernelmark.__all__)) <= 27


def test_every_name_is_there():
    for name in kernelmark.__all__:
        assert getattr(kernelmark, name) is not None
    assert set(kernelmark.__all__) == set(dir(kernelmark))


def test_modules_show_what_is_public():
    assert set(dir(kernelmark.tuning)) == set(kernelmark.tuning.__all__)
    assert set(dir(kernelmark.micro)) == {"registry", *kernelmark.micro.registry.names()}


def test_public_classes_and_functions_say_what_they_are():
    for name in kernelmark.__all__:
        thing = getattr(kernelmark, name)
        if callable(thing):
            assert thing.__doc__, name


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = kernelmark.nonsense


def test_importing_loads_nothing_heavy():
    program = (
        "import sys, kernelmark\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])\n"
        "print([m for m in sys.modules if m.startswith('kernelmark.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_names_are_loaded_without_walking_over_existing_objects(monkeypatch):
    gc.unfreeze()  # a worker's loop, run in this process by another test, freezes
    frozen = []

    def load(module):
        frozen.append(gc.get_freeze_count())
        return sys.modules[module]

    monkeypatch.delitem(vars(kernelmark), "ops", raising=False)
    monkeypatch.setattr(kernelmark.importlib, "import_module", load)
    assert kernelmark.ops is sys.modules["kernelmark.ops"]
    assert frozen[0] > 0
    assert gc.get_freeze_count() == 0


def test_bench_loads_nothing_of_runs_suites_and_microbenchmarks():
    program = (
        "import sys, kernelmark as km\n"
        "x = __import__('numpy').ones((4, 4))\n"
        "how = km.Timing(cache='hot', allocations=1, max_allocations=1, max_s=.01, warmup_s=.01)\n"
        "(one,) = found = km.bench(lambda x: x + 1, x, ref=lambda x: x + 1, timing=how)\n"
        "def loaded(*no):\n"
        "    return [m for m in sys.modules if m.removeprefix('kernelmark.').startswith(no)]\n"
        "print(one.status, loaded('report', 'core.codec', 'tomllib'))\n"
        "str(found)\n"
        "print(loaded('workloads', 'micro.', 'tune', 'api.plan', 'runners.pool'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["ok []", "[]"]


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert kernelmark.__version__ == version("kernelmark")
