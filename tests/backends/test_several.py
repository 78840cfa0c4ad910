"""Several backends as one: the fake one and NumPy, on the CPU and the fake device."""

import numpy as np
import pytest

from kernelmark import backends, devices, ops
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Space, join_config, split_config
from kernelmark.devices.cpu import array
from kernelmark.runners.jobs import compiles
from kernelmark.testing.backends import bench

GEMM = ops.parse("gemm m=8 n=8 k=8 dtype=f32")
CPU = DeviceInfo(name="cpu", kind="cpu", model="a CPU", arch="x86_64")


def test_a_name_with_commas_is_several_backends(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert backends.parse("numpy, fake").name == "numpy,fake"
    assert backends.parse("numpy,numpy").name == "numpy"
    ref = backends.parse(f"numpy,{tmp_path}/mine.py")
    assert ref.name == "numpy,./mine.py"
    assert ref.parts[1].file == tmp_path / "mine.py"
    assert not backends.is_file("numpy,./mine.py")
    with pytest.raises(UsageError):
        backends.parse("numpy,nonesuch")


def test_a_config_names_its_backend():
    config = join_config("triton", {"block_m": 64})
    assert config == {"backend": "triton", "triton.block_m": 64}
    assert split_config(config) == ("triton", {"block_m": 64})
    for wrong in ({}, {"block_m": 64}, {"backend": "numpy", "triton.block_m": 64}):
        with pytest.raises(UsageError):
            split_config(wrong)


def test_the_space_is_the_union_of_those_that_support_the_problem():
    space = backends.find("numpy,triton").space(GEMM, CPU)
    assert list(space.alternatives) == ["numpy"]
    assert list(space) == [{"backend": "numpy"}]
    assert space.default == {"backend": "numpy"}
    assert space.size == 1


def test_a_union_starts_from_each_default():
    a = Space(parameters={"x": (1, 2)}, default={"x": 2})
    b = Space(parameters={"y": (3,)}, default={"y": 3}, seeds=({"y": 3},))
    union = Space.union({"a": a, "b": b})
    assert union.default == {"backend": "a", "a.x": 2}
    assert union.seeds[0] == {"backend": "b", "b.y": 3}
    assert [split_config(config) for config in union] == [
        ("a", {"x": 1}),
        ("a", {"x": 2}),
        ("b", {"y": 3}),
    ]


def test_what_supports_nothing_says_why_for_each():
    reason = backends.find("numpy,torch").supports(ops.parse("gemm m=8 n=8 k=8 dtype=f8e4m3"), CPU)
    assert "numpy" in reason
    assert backends.find("numpy,torch").supports(GEMM, CPU) is None


def test_it_runs_the_backend_of_the_config():
    several = backends.find("numpy,torch")
    with (
        devices.registry.get("cpu").open(0) as device,
        bench(several, GEMM, device, config=join_config("numpy", {})) as made,
    ):
        made.kernel.launch(device.stream, 0)
        expected = array(made.sets[0]["a"]) @ array(made.sets[0]["b"])
        assert np.allclose(array(made.sets[0]["d"]), expected, rtol=1e-4)
        with pytest.raises(UsageError):
            several.prepare(GEMM, join_config("iree", {}), device, made.sets)


def test_several_compile_if_one_does():
    assert compiles("numpy,triton")
    assert not compiles("numpy,torch")
