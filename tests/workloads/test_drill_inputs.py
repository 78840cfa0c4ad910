"""benchmarks/drill_inputs.py: every reader has whole files to be damaged, and reads them."""

import random

import pytest


@pytest.fixture(scope="module")
def drill(benchmark_script):
    return benchmark_script("drill_inputs.py")


@pytest.fixture(scope="module")
def seeds(benchmark_script, tmp_path_factory):
    return list(benchmark_script("drill_seeds.py").seeds(tmp_path_factory.mktemp("seeds")))


def test_every_registered_reader_has_a_seed(benchmark_script, seeds):
    readers = benchmark_script("drill_seeds.py").readers()
    assert set(readers) == {reader for reader, _, _ in seeds}


def test_whole_files_are_read_and_damaged_ones_at_least_refused(drill, seeds, tmp_path):
    for reader, name, content in seeds:
        path = tmp_path / name
        path.write_bytes(content)
        assert drill.read_one(reader, path) == "read", f"{reader}: {name}"
        for number in range(4):
            path.write_bytes(drill.mutated(content, random.Random(number)))
            assert drill.read_one(reader, path) in ("read", "refused"), (
                f"{reader}: {name}, {number}"
            )
