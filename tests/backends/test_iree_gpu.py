"""IREE for GPUs: the real compiler, and the real runtime on a CPU and on a GPU modelled in C."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmark import backends, devices, ops
from kernelmark.backends.iree import choices, compiler, pack, runtime
from kernelmark.backends.iree.targets import target
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.result import KernelInfo
from kernelmark.devices.base import OwnQueue, own_queue
from kernelmark.gpu import pack as packs
from kernelmark.gpu import rtc
from kernelmark.kernels import rtc as kernels
from kernelmark.testing.backends import bench
from kernelmark_dev.raising import raises

backend = backends.registry.get("iree")
pytestmark = pytest.mark.skipif(
    backend.available() is not None, reason=backend.available() or "available"
)

GEMM = "gemm m=40 n=24 k=56 dtype=f32"
BFLOATS = "gemm m=64 n=48 k=128 dtype=bf16 tb=t"
H200 = DeviceInfo(name="cuda:0", kind="cuda", model="absent", arch="sm_90")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELMARK_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("KERNELMARK_PACK", raising=False)
        yield


# -- packs


def test_a_pack_holds_what_compiling_here_gives(tmp_path, monkeypatch):
    problem = ops.parse(BFLOATS)
    (made,) = pack.fill(tmp_path, [problem], ["sm_90"])
    assert made.reason == ""
    here = backend.compile(problem, {}, H200)
    monkeypatch.setenv("KERNELMARK_PACK", str(tmp_path))
    monkeypatch.setattr(compiler, "present", lambda name: name != "iree.compiler")
    there = backend.compile(problem, {}, H200)
    assert there.binary_hash == here.binary_hash
    assert there.cached
    assert there.resources["binary_bytes"] == made.nbytes
    assert list(here.configs) == ["main_dispatch_0_matmul_64x48x128_bf16xbf16xf32"]
    assert there.configs == here.configs
    assert there.name == ("gemm cuda sm_89: main_dispatch_0_matmul_64x48x128_bf16xbf16xf32")
    assert compiler.packed_by() == backend.libraries()["iree-compiler"]


def test_the_command_says_what_became_of_each(tmp_path, capsys):
    listed = tmp_path / "problems.txt"
    listed.write_text(
        f"# what the service calls\n{BFLOATS}\n\n  gemm m=8 n=8 k=8 dtype=f8e4m3fnuz  # once\n"
    )
    folder = tmp_path / "pack"
    assert pack.main(["-o", str(folder), "--arch", "sm_90", f"@{listed}"]) == 3
    good, bad = capsys.readouterr().out.splitlines()
    assert "bytes" in good
    assert "iree-compile" in bad
    assert len(list(folder.glob("iree-sm_89/*.bin"))) == 1
    assert pack.main(["-o", str(folder), "--arch", "sm_90", "gem m=8"]) == 2
    assert pack.main(["-o", str(folder), "--arch", "h200", BFLOATS]) == 2
    assert "hint: write sm_90 or gfx942" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (f"{BFLOATS}\n\ngem m=8\n", {"name": "gem"}),
        (f"{BFLOATS}\ngemm m=8 n=8 k=8\n", {"name": "dtype"}),
        ("\n# nothing\n", {}),
        (None, {}),
        (b"\xff\xfe", {}),
    ],
)
def test_a_bad_file_of_problems_is_one_sentence(tmp_path, capsys, text, fields):
    listed = tmp_path / "problems.txt"
    if text is not None:
        listed.write_bytes(text.encode() if isinstance(text, str) else text)
    with raises(UsageError, **fields):
        pack._problems(f"@{listed}")
    assert pack.main(["-o", str(tmp_path / "pack"), "--arch", "sm_90", f"@{listed}"]) == 2
    assert str(listed) in capsys.readouterr().err.splitlines()[0]
    assert not (tmp_path / "pack").exists()


def test_filling_needs_the_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "present", lambda name: False)
    with pytest.raises(UsageError):
        pack.fill(tmp_path, [ops.parse(GEMM)], ["sm_90"])


def test_a_batch_of_products_is_one_kernel_in_one_submission():
    problem = ops.parse(GEMM)
    goal = target(H200)
    assert goal is not None
    choice = choices.choose(problem, {}, goal)
    flags = (*choice.flags, "--compile-to=stream")
    text = compiler.compile_now(choices.source(problem, choice), flags, "").binary.decode()
    _, _, many = text.partition(f"util.func public @{choices.BATCH_FUNCTION}(")
    assert many.count("stream.cmd.execute") == 1
    assert many.count("stream.cmd.dispatch") == choices.BATCH
    assert "stream.cmd.copy" not in many
    assert "alloca" not in many


@pytest.mark.skipif(
    runtime.absent("cuda") is None, reason="there is a CUDA device: the other tests use it"
)
def test_without_a_gpu_everything_has_a_reason():
    reason = backend.supports(ops.parse(GEMM), H200)
    assert reason is not None
    assert "cuda" in reason
    assert "\n" not in reason


# -- the queue, on a CPU: the same code as on a GPU, but for its driver


@pytest.fixture(scope="module")
def program():
    import iree.runtime as rt

    problem = ops.parse(GEMM)
    specs = ops.registry.get(problem.op).tensors(problem)
    info = devices.registry.get("cpu").infos()[0]
    cpu, gpu = target(info), target(H200)
    assert cpu is not None
    text = choices.source(problem, choices.choose(problem, {}, cpu))
    flags = (*cpu.flags, *(flag for flag in gpu.flags if "target" not in flag))
    built = compiler.compile_now(choices.with_batch(text, specs), flags, cpu.identity)
    return runtime.load(rt.get_driver("local-sync").create_default_device(), built.binary)


@pytest.fixture
def made():
    device = devices.registry.get("cpu").open(0, threads=1)
    with bench(backend, ops.parse(GEMM), device, sets=3) as found:
        yield found
    device.close()


def queued(program, made, calls):
    specs = ops.registry.get("gemm").tensors(made.problem)
    return runtime.QueueKernel(
        program, specs, made.sets, KernelInfo(), ready=lambda: calls.append("ready")
    )


def written(made):
    """Which sets' outputs hold no poison at all."""
    return [made.device.count_poison(made.output(i), 0xFF) == 0 for i in range(3)]


def test_a_launch_waits_before_and_is_done_after(program, made):
    calls = []
    kernel = queued(program, made, calls)
    made.device.poison(made.output(1), 0xFF)
    kernel.launch(0, 1)
    assert calls == ["ready"]
    assert written(made) == [False, True, False]
    assert made.worst(1, everywhere=True) <= 1
    assert made.device.guards_intact(made.output(1))
    kernel.close()


@pytest.mark.parametrize("count", [1, 2, choices.BATCH - 1, choices.BATCH, 2 * choices.BATCH + 3])
def test_a_replay_works_on_the_sets_in_its_order(program, made, count):
    kernel = queued(program, made, [])
    for index in range(3):
        made.device.poison(made.output(index), 0xFF)
    order = [2 * (i % 2) for i in range(count)]
    for _ in range(2):
        assert kernel.replay_s(order) > 0
        assert written(made) == [True, False, count > 1]
    assert all(made.worst(i, everywhere=True) <= 1 for i in set(order))
    kernel.close()


def test_a_queue_that_breaks_says_so(program, made):
    kernel = queued(program, made, [])
    kernel._timeline.fail("the GPU fell off the bus")
    with pytest.raises(RuntimeError, match=r"^iree: "):
        kernel.launch(0, 0)
    kernel.close()


def test_devices_know_the_kernel_by_its_launch(program, made):
    kernel = queued(program, made, [])
    assert isinstance(kernel, OwnQueue)
    assert own_queue(kernel.launch) is kernel
    assert own_queue(made.kernel.launch) is None
    assert own_queue(lambda stream, index: None) is None
    kernel.close()


# -- IREE's CUDA driver, on a GPU modelled in C, where no compiler is


SCRIPT = """
import ctypes, dataclasses, json, sys
sys.modules["iree.compiler"] = None
from kernelmark import backends, devices, ops
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.measure import audit
from kernelmark.runners.execute import execute
from kernelmark.testing.backends import bench

# A driver made of C on a busy host: its times say nothing about skipped work.
audit.FACTOR = audit.FACTOR_UNCACHED = float("inf")

iree = backends.registry.get("iree")
device = devices.registry.get("cuda").open(1)
problem = ops.parse(sys.argv[1])
model = ctypes.CDLL("libcuda.so.1")
model.fake_launched.restype = ctypes.c_uint64
out = {"available": iree.available(), "libraries": iree.libraries()}
with bench(iree, problem, device, sets=3) as made:
    order = [i % 3 for i in range(37)]
    before = model.fake_launches()
    made.kernel.replay_s(order)
    seen = [model.fake_launched(i) for i in range(before, model.fake_launches())]
    out["in order"] = seen == [made.output(i).address for i in order]
    out["worst"] = max(made.worst(i, everywhere=True) for i in range(3))
    out["guards"] = all(device.guards_intact(made.output(i)) for i in range(3))
short = Timing(max_s=0.1, warmup_s=0.02, allocations=2, max_allocations=2)
for name, change in json.loads(sys.argv[2]).items():
    timing = dataclasses.replace(short, **change)
    case = Case(problem=problem, backend="iree", timing=timing)
    result = execute(case, device, 0, lambda phase: None)
    m = result.measurement
    out[name] = {"status": str(result.status), "error": result.error, "name": result.kernel.name}
    if m:
        out[name] |= {"method": m.method, "launches": m.launches, "also": sorted(m.also)}
        out[name] |= {"clock": m.blocks[0].clocks_mhz[0], "unwritten": result.check.unwritten}
other = Case(problem=ops.parse("gemm m=8 n=8 k=8 dtype=f32"), backend="iree", timing=short)
reason = execute(other, device, 0, lambda phase: None).error.root
out["not packed"] = reason
device.close()
print(json.dumps(out))
"""
TIMINGS = {
    "cold": {},
    "hot": {"cache": "hot"},
    "flush": {"cache": "flush"},
    "strain": {"strain": "compute"},
    "graph": {"timer": "graph"},
    "gate": {"timer": "gate"},
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What a process says that has the model for its driver, and packs in place of compilers."""
    cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if cc is None:
        pytest.skip("the model GPU needs a C compiler: cc, gcc or clang")
    folder = tmp_path_factory.mktemp("fakecuda")
    source = str(Path(__file__).parent / "fakecuda.c")
    command = [cc, "-O1", "-shared", "-fPIC", source, "-o", str(folder / "libcuda.so"), "-lpthread"]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "libcuda.so.1").symlink_to("libcuda.so")
    (made,) = pack.fill(folder / "pack", [ops.parse(GEMM)], ["sm_90"])
    assert made.reason == ""
    # The model looks at no more of our own kernels than that they are made for its machine.
    elf = b"\x7fELF\2\1\1" + bytes(11) + (190).to_bytes(2, "little") + bytes(44)
    for name in ("device.cu", "project.cu"):
        key = rtc.cache_key(kernels.source(name), "sm_90", ())
        packs.add(folder / "pack", key, "sm_90", elf)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, GEMM, json.dumps(TIMINGS)],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), "KERNELMARK_PACK": str(folder / "pack")},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_pack_stands_in_for_the_compiler(told):
    assert told["available"] is None
    assert told["libraries"] == backend.libraries()
    assert "iree-sm_89" in told["not packed"]


def test_our_memory_is_worked_on_in_order(told):
    assert told["in order"]
    assert told["worst"] <= 1
    assert told["guards"]


@pytest.mark.parametrize("name", ["cold", "hot"])
def test_a_case_is_measured_and_checked(told, name):
    case = told[name]
    assert (case["status"], case["error"]) == ("ok", "")
    assert case["name"] == "gemm cuda sm_89: main_dispatch_0_matmul_40x24x56_f32"
    assert case["method"] == "loop"
    # Whole batches, or fewer launches than half of one where each takes long, as on a busy machine.
    assert case["launches"] % choices.BATCH == 0 or 2 * case["launches"] < choices.BATCH
    assert case["clock"] == 1500.0
    assert case["unwritten"] == 0
    assert case["also"] == (["host_s", "hot_s"] if name == "cold" else ["host_s"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("flush", "cache=flush"),
        ("strain", "strain=compute"),
        ("graph", "timer=graph"),
        ("gate", "timer=gate"),
    ],
)
def test_what_the_queue_cannot_show_is_unsupported(told, name, words):
    assert told[name]["status"] == "unsupported"
    assert told[name]["error"].startswith(f"{words} ")
