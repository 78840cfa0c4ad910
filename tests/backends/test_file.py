"""A user's own file as a backend: loaded, refused, run by real workers on the CPU."""

import dataclasses
import importlib.metadata
from textwrap import dedent

import numpy as np
import pytest

from kernelmark import backends
from kernelmark.backends import _file
from kernelmark.backends._file import FileBackend
from kernelmark.cli.main import main
from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.core.result import Case, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.devices import registry as devices
from kernelmark.ops import parse
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark.stores import open_store
from kernelmark.testing.backends import bench
from kernelmark_dev.raising import raises, tells

PROBLEM = parse("gemm m=48 n=32 k=40 dtype=f32")
COLD = Timing(max_s=0.03, warmup_s=0.0, max_allocations=3, threads=1)
TIMING = dataclasses.replace(COLD, cache=Cache.HOT)  # one argument set is made faster than many
HEAD = """
import numpy as np

op = "gemm"
"""
# What `prepare` is made of in each file; `s` is an argument set, `config` the config.
LAUNCHES = {
    "good": 'np.matmul(s["a"], s["b"], out=s["d"])',
    "wrong": 'np.matmul(s["a"], s["b"], out=s["d"]); s["d"][0, 0] += 1',
    "lazy": 'np.matmul(s["a"][:-1], s["b"], out=s["d"][:-1])',
    "answers_from_memory": "pass",
    "raises": 'raise RuntimeError("no luck today")',
    "crashes": "import os; os.kill(os.getpid(), 11)",
    "exits": 'raise SystemExit("enough")',
    "needs_config": 'np.matmul(s["a"] * config["factor"], s["b"], out=s["d"])',
}
WHOLE = {
    "syntax": "op = 'gemm'\ndef prepare(:\n",
    "import": "import a_library_that_is_not_there\nop = 'gemm'\n",
    "leaves": "print('read me')\nimport sys\nsys.exit(0)\n",
    "no_prepare": "op = 'gemm'\n",
    "no_op": "def prepare(problem, config, sets): ...\n",
    "no_function": "op = 'gemm'\ndef prepare(problem, config, sets):\n    return 7\n",
    "no_argument": "op = 'gemm'\ndef prepare(problem, config, sets):\n    return lambda: None\n",
    "no_reason": "op = 'gemm'\ndef supports(p): return 42\n"
    + "def prepare(problem, config, sets): ...\n",
    "two_parameters": "op = 'gemm'\ndef prepare(problem, config): ...\n",
    "another_op": "op = 'conv'\ndef prepare(problem, config, sets): ...\n",
    "refuses": HEAD
    + "def supports(problem): return 'no product today, sorry'\n"
    + "def prepare(problem, config, sets): ...\n",
    "gpu_only": "op = 'gemm'\ndevices = ('cuda',)\ndef prepare(problem, config, sets): ...\n",
}


def kernel_text(launch):
    return HEAD + dedent(
        f"""
        def prepare(problem, config, sets):
            def launch(index):
                s = sets[index]
                {launch}
            return launch
        """
    )


def write(folder, name, text):
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def case(path, **config):
    return Case(problem=PROBLEM, backend=path, timing=TIMING, config=config)


@pytest.fixture
def cpu():
    device = devices.get("cpu").open(0, threads=1)
    yield device
    device.close()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Every file as one case of one run: whatever one of them does, the others must end too."""
    folder = tmp_path_factory.mktemp("kernels")
    cases = {}
    for name, launch in LAUNCHES.items():
        cases[name] = case(write(folder, name, kernel_text(launch)))
    for name, text in WHOLE.items():
        cases[name] = case(write(folder, name, text))
    cases["good"] = dataclasses.replace(cases["good"], timing=COLD)
    cases["missing"] = case(str(folder / "missing.py"))
    cases["configured"] = case(cases["needs_config"].backend, factor=1)
    cases["configured_wrong"] = case(cases["needs_config"].backend, factor=2.5)
    cases["good_again"] = case(cases["good"].backend)  # with the cache hot
    runner = LocalRunner(["cpu"], timeout_s=60.0, jobs=0)
    ended = [e.result for e in runner.run(cases.values()) if isinstance(e, CaseFinished)]
    by_id = {result.case.id: result for result in ended}
    return {name: by_id[one.id] for name, one in cases.items()}


@pytest.mark.parametrize(
    ("name", "status", "values"),
    [
        ("good", Status.OK, None),
        ("good_again", Status.OK, None),
        ("configured", Status.OK, None),
        ("wrong", Status.WRONG, None),
        ("lazy", Status.WRONG, None),
        ("answers_from_memory", Status.WRONG, None),
        ("configured_wrong", Status.WRONG, None),
        ("crashes", Status.CRASHED, None),
        ("exits", Status.RUNTIME_ERROR, None),
        ("raises", Status.RUNTIME_ERROR, {"type": "RuntimeError", "text": "no luck today"}),
        ("needs_config", Status.RUNTIME_ERROR, {"type": "KeyError"}),
        ("no_function", Status.RUNTIME_ERROR, {"name": "prepare", "type": "int"}),
        ("no_argument", Status.RUNTIME_ERROR, {"name": "launch", "arguments": ("index",)}),
        ("no_reason", Status.RUNTIME_ERROR, {"name": "supports", "type": "int"}),
        ("refuses", Status.UNSUPPORTED, {"text": "no product today, sorry"}),
        ("syntax", Status.UNSUPPORTED, {"type": "SyntaxError"}),
        ("import", Status.UNSUPPORTED, {"name": "a_library_that_is_not_there"}),
        ("no_prepare", Status.UNSUPPORTED, {"name": "prepare"}),
        ("no_op", Status.UNSUPPORTED, {"name": "op"}),
        ("two_parameters", Status.UNSUPPORTED, {"parameters": ("problem", "config")}),
        ("another_op", Status.UNSUPPORTED, {"ops": ("conv",), "asked": ("gemm",)}),
        ("gpu_only", Status.UNSUPPORTED, {"kinds": "cuda"}),
        ("missing", Status.UNSUPPORTED, {}),
    ],
)
def test_every_file_ends_as_it_must(results, name, status, values):
    assert results[name].status is status, results[name].error
    assert values is None or tells(results[name].error, **values)


@pytest.mark.parametrize(
    ("name", "code", "fields"),
    [
        ("wrong", "values-wrong", {}),
        ("lazy", "not-written", {"count": 32, "elements": 1536}),
        ("answers_from_memory", "not-written", {"count": 1536, "elements": 1536}),
    ],
)
def test_a_failed_check_has_a_code_and_its_fields(results, name, code, fields):
    findings = results[name].check.detail.fields["findings"]
    found = next(finding for finding in findings if finding.code == code)
    assert {key: found.fields[key] for key in fields} == fields


def test_a_good_one_is_measured_like_a_built_in(results):
    result = results["good"]
    assert len(result.measurement.blocks) >= 3
    assert result.measurement.sets > 1  # rotated, so that caches are cold
    assert result.check.positions > 0
    assert result.kernel.name == "good"
    # A file calls libraries, which may be others in another run.
    assert not result.kernel.binary_hash


def test_the_version_follows_the_content(tmp_path):
    first = FileBackend(write(tmp_path, "k", kernel_text(LAUNCHES["good"])))
    second = FileBackend(write(tmp_path, "k", kernel_text(LAUNCHES["wrong"])))
    assert first.version() != second.version()
    assert first.libraries()["k.py"] == first.version()


def test_libraries_that_a_file_imports_are_recorded(tmp_path):
    text = kernel_text("pass") + "import numpy as np\nfrom scipy.linalg import lu\nimport math\n"
    found = FileBackend(write(tmp_path, "k", text)).libraries()
    assert found["numpy"] == np.__version__
    assert {"k.py", "numpy", "scipy"} == set(found)


def test_packages_of_distributions_are_those_that_python_reports():
    found = {
        (package, distribution.name)
        for distribution in importlib.metadata.distributions()
        for package in _file._packages(distribution)
    }
    expected = importlib.metadata.packages_distributions()
    assert found == {(package, name) for package, names in expected.items() for name in names}


def test_space_is_a_table_or_a_function_of_the_problem(tmp_path):
    info = devices.get("cpu").infos()[0]
    plain = FileBackend(write(tmp_path, "a", kernel_text("pass") + "space = {'tile': [8, 16]}\n"))
    asked = "def space(problem): return {'tile': range(1, problem.dims['m'], 16), 'fast': [True]}\n"
    by_problem = FileBackend(write(tmp_path, "b", kernel_text("pass") + asked))
    without = FileBackend(write(tmp_path, "c", kernel_text("pass")))
    assert without.space(PROBLEM, info) is None
    space = plain.space(PROBLEM, info)
    assert space is not None
    assert [dict(config) for config in space] == [{"tile": 8}, {"tile": 16}]
    other = by_problem.space(PROBLEM, info)
    assert other.parameters == {"tile": (1, 17, 33), "fast": (True,)}


@pytest.mark.parametrize(
    # A generator is empty when it is read again, and a space is read for every block.
    "line",
    [
        *("space = 3", "space = {'tile': 3}", "space = {'tile': 'wide'}"),
        *("space = {'tile': (2**i for i in range(4))}", "tensors = 'jax'"),
    ],
)
def test_a_value_that_is_none_is_told_when_the_file_is_loaded(tmp_path, line):
    with pytest.raises(UsageError):
        FileBackend(write(tmp_path, "a", kernel_text("pass") + f"{line}\n"))


def test_a_function_that_gives_no_space_is_told(tmp_path):
    info = devices.get("cpu").infos()[0]
    made = FileBackend(write(tmp_path, "a", kernel_text("pass") + "def space(p): return None\n"))
    with pytest.raises(UsageError):
        made.space(PROBLEM, info)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("devices = ('gpu',)", "known: cpu, cuda, fake, hip"),
        ("devices = 'gpu'", "known: cpu, cuda, fake, hip"),
        ("devices = ()", 'write: devices = ("cpu",)'),
        ("devices = 3", 'write: devices = ("cpu",)'),
        ("def prepare(problem, config): ...", "write: def prepare(problem, config, sets)"),
        ("prepare = 3", "write: def prepare("),
        ("def supports(): ...", "write: def supports(problem)"),
        ("def space(problem, info): ...", "write: def space(problem)"),
    ],
)
def test_what_cannot_work_is_refused_when_the_file_is_loaded(tmp_path, text, hint):
    path = write(tmp_path, "mine", kernel_text("pass") + text + "\n")
    with pytest.raises(UsageError) as refused:
        FileBackend(path)
    assert refused.value.message
    assert path in refused.value.message
    assert (refused.value.hint or "").startswith(hint)


def test_several_ops_and_kinds_of_devices(tmp_path):
    one = write(tmp_path, "mine", kernel_text("pass") + "devices = 'cuda'\n")
    assert FileBackend(one).device_kinds == ("cuda",)  # one needs no list
    text = kernel_text("pass").replace('op = "gemm"', 'op = ("gemm", "conv")\ndevices = ["cpu"]')
    backend = FileBackend(write(tmp_path, "several", text))
    info = devices.get("cpu").infos()[0]
    assert backend.device_kinds == ("cpu",)
    assert backend.supports(PROBLEM, info) is None
    assert backend.supports(parse("conv n=1 c=2 h=4 w=4 k=2 r=1 s=1 dtype=f32"), info) is None
    refused = backend.supports(parse("batched_gemm batch=2 m=8 n=8 k=8 dtype=f32"), info)
    assert refused == "several.py computes gemm, conv, not batched_gemm"


SPACE = "space = {'rows': [64, 128], 'fast': [True], 'part': [0.5, 1], 'wide': range(100)}\n"


@pytest.mark.parametrize(
    ("config", "values"),
    [
        ({"rows": 77}, {"known": ("64", "128"), "value": "77"}),
        ({"rows": "64"}, {"name": "rows", "value": "64"}),
        ({"fast": 1}, {"known": ("yes",), "value": "1"}),
        ({"fast": False}, {"known": ("yes",), "value": "no"}),
        ({"wide": 100}, {"more": 88, "value": "100"}),
        ({"cols": 3, "rows": 64}, {"name": "cols", "known": ("rows", "fast", "part", "wide")}),
    ],
)
def test_a_config_outside_of_the_space_is_refused(tmp_path, cpu, config, values):
    backend = FileBackend(write(tmp_path, "k", kernel_text("pass") + SPACE))
    with raises(Unsupported, **values):
        backend.prepare(PROBLEM, config, cpu, [])


@pytest.mark.parametrize(
    ("space", "config"),
    [
        (SPACE, {}),
        (SPACE, {"rows": 128, "fast": True, "part": 1.0, "wide": 99}),
        ("def space(problem): return {'rows': [problem.dims['m']]}\n", {"rows": 48}),
        ("config = None\n", {}),
    ],
)
def test_other_configs_pass(tmp_path, cpu, space, config):
    backend = FileBackend(write(tmp_path, "k", kernel_text("pass") + space))
    assert backend.prepare(PROBLEM, config, cpu, []).info.name == "k"


@pytest.mark.parametrize("form", ["numpy", "torch", "address"])
@pytest.mark.parametrize("default", ["", "=None"])
def test_who_asks_for_the_stream_gets_it(tmp_path, cpu, monkeypatch, form, default):
    monkeypatch.setattr(type(cpu), "stream", 77)
    text = f"op = 'gemm'\ntensors = '{form}'\nseen = []\n" + dedent(
        f"""
        def prepare(problem, config, sets, stream{default}):
            return lambda index: seen.append(stream)
        """
    )
    backend = FileBackend(write(tmp_path, "k", text))
    with bench(backend, PROBLEM, cpu) as made:
        made.kernel.launch(cpu.stream, 0)
    assert backend._module.seen == [77]


def test_a_prepare_that_does_not_tell_its_parameters_gets_no_stream(tmp_path, cpu):
    text = "op = 'gemm'\n" + dedent(
        """
        class Compiled:
            @property
            def __signature__(self): raise ValueError("no signature found")
            def __call__(self, problem, config, sets): return print
        prepare = Compiled()
        """
    )
    backend = FileBackend(write(tmp_path, "k", text))
    assert backend.prepare(PROBLEM, {}, cpu, []).info.name == "k"


def test_a_file_has_one_name_and_is_found_once(tmp_path, monkeypatch):
    versions = set()
    for name in ("good", "wrong"):  # of one name in two folders
        (tmp_path / name).mkdir()
        path = write(tmp_path / name, "mine", kernel_text(LAUNCHES[name]))
        monkeypatch.chdir(tmp_path / name)
        for spelling in ("mine.py", "./mine.py", f"../{name}/mine.py", path):
            assert backends.canonical(spelling) == "./mine.py"
            assert backends.find(spelling).name == "./mine.py"
            assert backends.find(spelling) is backends.find(spelling)
        versions.add(backends.find("./mine.py").version())
    assert len(versions) == 2
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert backends.canonical("../wrong/mine.py") == path
    assert backends.canonical("numpy") == "numpy"


@pytest.mark.parametrize("given", ["'gem'", "('gemm', 3)"])
def test_an_op_that_there_is_not_is_refused(tmp_path, given):
    text = kernel_text("pass").replace('op = "gemm"', f"op = {given}")
    with pytest.raises(UsageError) as refused:
        FileBackend(write(tmp_path, "mine", text))
    assert refused.value.message
    assert "gemm" in (refused.value.hint or "")


@pytest.mark.parametrize("form", ["torch", "address"])
def test_other_forms_of_tensors(tmp_path, cpu, form):
    """torch tensors and plain addresses are the same memory as NumPy's arrays."""
    by_torch = 'torch.matmul(s["a"], s["b"], out=s["d"])'
    by_address = (
        "a, b, d = (np.ctypeslib.as_array((ctypes.c_float * (r * c)).from_address(s[x]))"
        '.reshape(r, c) for x, r, c in (("a", 48, 40), ("b", 40, 32), ("d", 48, 32)))'
        "; np.matmul(a, b, out=d)"
    )
    text = kernel_text(by_torch if form == "torch" else by_address)
    text = f"import ctypes\nimport torch\ntensors = '{form}'\n" + text
    backend = FileBackend(write(tmp_path, form, text))
    with bench(backend, PROBLEM, cpu) as made:
        made.outcome(1, 0xFF)
        assert made.worst(1, everywhere=True) <= 1.0
        assert made.device.guards_intact(made.output(1))


def test_a_launch_takes_time_on_the_fake_device(tmp_path):
    """Else a case of a kernel that really takes a millisecond ends by a timeout."""
    backend = FileBackend(write(tmp_path, "good", kernel_text(LAUNCHES["good"])))
    device = devices.get("fake").open(0, threads=1)
    with bench(backend, PROBLEM, device) as made:
        before = device.now_s
        made.kernel.launch(device.stream, 0)
        assert device.now_s - before == pytest.approx(0.01)
    device.close()


@pytest.fixture
def kmark(tmp_path, monkeypatch, capsys):
    """`kmark run` over files in the current folder; (exit code, stdout, stderr)."""
    monkeypatch.setenv("KERNELMARK_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.chdir(tmp_path)

    def call(backend, *more):
        words = ["run", "-b", backend, "-p", "gemm m=48 n=32 k=40 dtype=f32", "--roofs", "none"]
        words += ["--max-s", "0.03", "--warmup-s", "0", "--threads", "1", "--cache", "hot", *more]
        with pytest.raises(SystemExit) as ended:
            main(words)
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


def test_the_command_line_takes_a_path(kmark, tmp_path):
    write(tmp_path, "mine", kernel_text('np.matmul(s["a"] * config["factor"], s["b"], out=s["d"])'))
    code, out, _ = kmark("./mine.py", "--config", "factor=1")
    assert code == 0
    assert "./mine.py [factor=1]" in out
    assert "./mine.py [factor=1]" in kmark("mine.py", "--config", "factor=1")[1]
    code, out, err = kmark("./mine.py", "--config", "factor=2")
    assert code == 3
    assert "wrong" in out
    assert "again: kmark run -p" in err


def test_the_command_line_says_what_a_space_has(kmark, tmp_path):
    write(tmp_path, "mine", kernel_text(LAUNCHES["good"]) + "space = {'rows': [64, 128]}\n")
    assert "ok" in kmark("mine.py", "--config", "rows=64")[1]
    code, out, err = kmark("mine.py", "--config", "rows=77")
    assert code == 4
    assert "unsupported" in out
    assert "mine.py: rows is one of 64, 128, not 77" in err


@pytest.mark.parametrize("space", ["", "space = {'rows': [64, 128]}\n"])
def test_the_command_line_stores_nothing_of_a_misspelt_config(kmark, tmp_path, space):
    write(tmp_path, "mine", kernel_text(f"config.get('rows'); {LAUNCHES['good']}") + space)
    code, out, err = kmark("mine.py", "--config", "rowz=64")
    assert (code, out) == (2, "")
    assert "rows" in err  # the name that it has
    with open_store(tmp_path / "store.sqlite") as store:
        assert store.runs() == []


@pytest.mark.parametrize("name", ["missing", "leaves"])
def test_the_command_line_refuses_before_anything_runs(kmark, tmp_path, name):
    if name in WHOLE:
        write(tmp_path, name, WHOLE[name])
    code, out, err = kmark(f"{name}.py")
    assert (code, out) == (2, "")
    assert f"{name}.py" in err
    assert "Traceback" not in err


READS = {
    "prepare": "rows = config.get('rows', 4)\n    return lambda index: None",
    "launch": "return lambda index: config['rows']",
    "whole": "dict(**config)\n    return lambda index: None",
    "loop": "[name for name in config]\n    return lambda index: None",
}


def reading(folder, body):
    """The backend of a file without a space whose `prepare` is this."""
    text = f"op = 'gemm'\ndef prepare(problem, config, sets):\n    {body}\n"
    return FileBackend(write(folder, "mine", text))


@pytest.mark.parametrize("how", READS)
def test_a_config_that_a_file_without_a_space_reads_is_taken(tmp_path, cpu, how):
    backend = reading(tmp_path, READS[how])
    assert backend.prepare(PROBLEM, {"rows": 8}, cpu, []).info.name == "mine"


@pytest.mark.parametrize(
    ("body", "config", "known"),
    [
        (READS["prepare"], {"rows": 8, "row": 8}, ("rows",)),
        (READS["launch"], {"rows": 8, "row": 8}, ("rows",)),
        ("return lambda index: config.get('rows')", {"row": 8}, ("rows",)),
        ("return print", {"row": 8}, ()),
    ],
)
def test_a_misspelt_config_of_a_file_without_a_space_is_refused(tmp_path, cpu, body, config, known):
    with pytest.raises(Unsupported) as refused:
        reading(tmp_path, body).prepare(PROBLEM, config, cpu, [])
    reason = refused.value.message.root
    assert (reason.code, reason.fields["name"]) == ("config-unknown-name", "row")
    assert reason.fields["known"] == known
