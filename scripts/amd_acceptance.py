#!/usr/bin/env python3
"""Try everything of kernelmark on an AMD GPU, and pack what came out into one file to send back.

    make amd-acceptance                                   an hour at most (--seconds)
    python scripts/amd_acceptance.py -d hip:1 -o report.tar.gz

Runs kmark doctor, the contract tests, a suite on every backend that is there, microbenchmarks and
two tuning runs with the files they write, and confirms that the libraries run the tuned kernels. A
step that fails is recorded and the next one runs. The file holds the results, every command with
its output, and a description of the machine: read it before you send it.

Exit code: 0 if every step passed, 3 if one failed, 2 if nothing was run, for example without such a
GPU, and 130 after Ctrl-C, with a file of the steps so far.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KMARK = (sys.executable, "-m", "kernelmark")
MODULES = ("numpy", "scipy", "typer", "rich", "sqlalchemy", "yaml", "pytest")
# Sizes of language models, and such that no tile divides: where a library's own choice is often
# not its best solution.
SHAPES = (
    *((8, 7168, 2048), (1, 4096, 4096), (16, 1280, 8192), (33, 1032, 8200), (64, 512, 16384)),
    *((100, 3000, 5000), (128, 8192, 8192), (192, 136, 32768), (300, 300, 30000), (512, 4096, 512)),
    *((640, 200, 12288), (777, 1544, 2056), (1024, 1024, 1024), (1000, 1000, 8000)),
    *((1536, 264, 4096), (2048, 7168, 256), (2056, 2056, 2056), (3072, 96, 3072)),
    *((4096, 4096, 4096), (5407, 1024, 2048)),
)
# By tuned library, the files that are written for its winners.
WRITTEN = {"hipblaslt": ("hipblaslt", "tunableop", "tensile"), "rocblas": ("rocblas", "tunableop")}
# rocBLAS's override file holds solutions of Tensile alone: hipBLASLt's could not be written.
VARIABLES = {"rocblas": {"ROCBLAS_USE_HIPBLASLT": "0"}}
MACHINE = (
    ("rocminfo",),
    ("amd-smi", "static"),
    ("amd-smi", "version"),
    ("amd-smi", "partition"),
    ("rocm-smi", "--showall"),
    ("hipconfig", "--full"),
    ("uname", "-a"),
)
# In a process of its own: the runtime would keep the GPU open in this one.
FIND_DEVICE = """
import sys
from kernelmark.core.errors import KernelmarkError
from kernelmark.runners.targets import find
try:
    find(sys.argv[1])
except KernelmarkError as error:
    sys.exit(str(error))
"""


# Times of an empty kernel and one of 3 µs, by which the device decides how to time graphs.
DISPATCH = """
import sys
from kernelmark.runners.targets import find
kind, info = find(sys.argv[1])
device = kind.open(info.index)
try:
    costs = device.dispatch_costs()
    for cost in costs:
        how = "agree" if cost.agrees else "waits for the host, so every graph is gated"
        times = f"{cost.gated_s * 1e6:.3f} us gated, {cost.series_s * 1e6:.3f} us in a series"
        print(f"{cost.kernel}: {times}: {how}")
    sys.exit(0 if all(0 <= cost.gated_s < 1e-4 for cost in costs) else 3)
finally:
    device.close()
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command: how it ended and how long it took. `code` is None if it was not run."""

    name: str
    command: str
    code: int | None
    seconds: float
    passed: bool
    why: str = ""


class Session:
    """Steps that run one after the other, with a log and a deadline."""

    def __init__(self, folder: Path, seconds: float, step_seconds: float = 600.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.steps: list[Step] = []
        self._step_seconds = step_seconds
        self._deadline = time.monotonic() + seconds
        self._log = (folder / "log.txt").open("a", encoding="utf-8")

    def run(
        self,
        name: str,
        *command: object,
        seconds: float = 1.0,
        share: float = 1.0,
        variables: Mapping[str, str] | None = None,
        good: Sequence[int] = (0,),
    ) -> str:
        """Run a command; return what it printed. A failure is recorded, not raised. `seconds` is a
        factor of the limit of a step, `share` the fraction of the time left that it may take."""
        words = [str(word) for word in command]
        text = " ".join([*(f"{k}={v}" for k, v in (variables or {}).items()), *words])
        text = text.replace(sys.executable, "python3").replace(str(ROOT) + "/", "")
        begun = time.monotonic()
        limit = self.limit_s(seconds, share)
        code, out, why = None, "", "no time left"
        if limit > 1:
            surroundings = {**os.environ, "NO_COLOR": "1", "COLUMNS": "140", **(variables or {})}
            try:
                code, out, why = run_child(words, surroundings, limit)
            except KeyboardInterrupt:
                taken = time.monotonic() - begun
                self.add(name, text, code=None, seconds=taken, passed=False, why="interrupted")
                raise
        taken = time.monotonic() - begun
        self.add(name, text, code=code, seconds=taken, passed=code in good, why=why, out=out)
        return out

    def limit_s(self, factor: float = 1.0, share: float = 1.0) -> float:
        """Return how long a step may take that starts now."""
        return min(factor * self._step_seconds, share * (self._deadline - time.monotonic()))

    def add(
        self,
        name: str,
        command: str,
        *,
        code: int | None,
        seconds: float,
        passed: bool,
        why: str = "",
        out: str = "",
    ) -> None:
        """Record a step."""
        step = Step(name=name, command=command, code=code, seconds=seconds, passed=passed, why=why)
        self.steps.append(step)
        self._log.write(f"\n== {name}: {'passed' if passed else 'FAILED'} (exit {code}, ")
        self._log.write(f"{seconds:.1f} s) {why}\n$ {command}\n{out}\n")
        self._log.flush()
        mark = "ok    " if passed else "FAILED"
        print(f"{mark} {seconds:6.1f} s  {name} {why}", flush=True)
        if not passed and out:
            print("\n".join(f"         | {line}" for line in out.splitlines()[-12:]), flush=True)

    @property
    def failed(self) -> list[str]:
        return [step.name for step in self.steps if not step.passed]

    def write(self, name: str) -> None:
        """Write the steps as JSON into the folder."""
        rows = [dataclasses.asdict(step) for step in self.steps]
        facts = {"failed": self.failed, "steps": rows, "python": platform.python_version()}
        (self.folder / name).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def run_child(
    words: Sequence[str], variables: Mapping[str, str], seconds: float
) -> tuple[int | None, str, str]:
    """Return a command's exit code, its output, and why it has none. One that runs too long or is
    interrupted is ended with its worker processes, which would keep the GPU busy."""
    try:
        child = subprocess.Popen(
            words,
            cwd=ROOT,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return None, "", str(error)
    try:
        out, _ = child.communicate(timeout=seconds)
        return child.returncode, out.decode("utf-8", "replace"), ""
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, _ = child.communicate()
        return None, out.decode("utf-8", "replace"), f"stopped after {seconds:.0f} s"
    except KeyboardInterrupt:  # it has a session of its own, which Ctrl-C does not reach
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise


def missing_device(device: str) -> str:
    """Return why there is no such AMD GPU; empty if there is one."""
    if device.partition(":")[0] != "hip":
        return f"{device} is no AMD GPU; they are hip:0, hip:1, ..."
    command = [sys.executable, "-c", FIND_DEVICE, device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    return done.stderr.strip() or f"the search for {device} ended with code {done.returncode}"


def is_of_others(folder: Path) -> bool:
    """Return whether a folder holds anything but an earlier run of this script."""
    if not folder.exists():
        return False
    return not folder.is_dir() or (any(folder.iterdir()) and not (folder / "log.txt").is_file())


def describe_machine(session: Session) -> None:
    """Record what ROCm's own tools say; one that is missing is no failure."""
    for command in MACHINE:
        if shutil.which(command[0]):
            session.run(" ".join(command), *command, good=range(256))
    git = ("git", "-C", ROOT, "describe", "--always", "--dirty")
    session.run("git revision", *git, good=range(256))


def check(session: Session, device: str, skipped: Sequence[str]) -> None:
    """Doctor, lists, dispatch costs and the contract tests of device, compiler and backends."""
    folder = session.folder
    session.run("doctor", *KMARK, "doctor", "--json", folder / "doctor.json")
    session.run("devices", *KMARK, "list", "devices")
    session.run("dispatch costs", sys.executable, "-c", DISPATCH, device)
    session.run("backends", *KMARK, "list", "backends", "--json", folder / "backends.json")
    tests = ("tests/contract/test_devices_contract.py", "tests/contract/test_backends_contract.py")
    names = "(hip and (TestDevices or Test_rtc) or Test_hipblaslt or Test_rocblas)"
    names += "".join(f" and not {word}" for word in skipped)
    options = ("-q", "--no-header", "--noconftest", "-p", "no:cacheprovider", "-k", names)
    session.run("contract tests", sys.executable, "-m", "pytest", *options, *tests)


def available(listed: Path, device: str) -> list[str]:
    """Return the backends that `kmark list backends --json` lists as ready for a device."""
    kind = device.partition(":")[0]
    try:
        rows = json.loads(listed.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the step that writes it has failed, and is recorded
        return []
    return [row["backend"] for row in rows if row["state"] == "ready" and kind in row["devices"]]


def measure(session: Session, device: str, backends: str) -> None:
    """A suite and GEMMs on all backends, and one GEMM under rocprofv3 if it is installed."""
    if not backends:
        backends = ",".join(available(session.folder / "backends.json", device))
    if not backends:
        why = "no backend is available"
        session.add("suite", "", code=None, seconds=0, passed=False, why=why)
        return
    store = ("--store", session.folder / "acceptance.sqlite")
    some = ("-d", device, "-b", backends, "--timing", "quick", *store)
    session.run("suite smoke", *KMARK, "run", "-s", "smoke", *some)
    gemm = ("-o", "gemm", "-a", "m=[16,1024,4096]", "-a", "n=4096", "-a", "k=4096", "-a", "tb=t")
    types = ("--dtype", "bf16,f16,f32")
    session.run("suite gemm", *KMARK, "run", *gemm, *types, *some)
    session.run("export", *KMARK, "export", "latest", *store, "--json", session.folder / "run.json")
    if has_rocprofv3():
        one = ("-p", "gemm m=4096 n=4096 k=4096 dtype=bf16 tb=t", "--timer", "profiler")
        session.run("profiler", *KMARK, "run", *one, *some)


def micro(session: Session, device: str, names: Sequence[str]) -> None:
    """Microbenchmarks: those of `names`, or all in their short form."""
    store = ("--store", session.folder / "acceptance.sqlite")
    which = names or ("--all",)
    session.run("micro", *KMARK, "micro", *which, "--brief", "-d", device, *store)


def bench_log(problems: int) -> str:
    """Return GEMMs in bf16 as hipBLASLt logs them: column-major, C = AᵀB as in torch's Linear."""
    line = (
        "hipblaslt-bench --api_method c -m {n} -n {m} -k {k} "
        "--lda {k} --ldb {k} --ldc {n} --ldd {n} "
        "--stride_a 0 --stride_b 0 --stride_c 0 --stride_d 0 --alpha 1.000000 --beta 0.000000 "
        "--transA T --transB N --batch_count 1 --scaleA 0 --scaleB 0 "
        "--a_type bf16_r --b_type bf16_r --c_type bf16_r --d_type bf16_r "
        "--scale_type f32_r --bias_type f32_r --compute_type f32_r "
        "--algo_method heuristic --activation_type none\n"
    )
    return "".join(line.format(m=m, n=n, k=k) for m, n, k in SHAPES[:problems])


def plan(
    session: Session,
    name: str,
    backend: str,
    device: str,
    problems: int,
    evaluations: int,
    variables: Mapping[str, str] | None = None,
) -> Path:
    """Plan the tuning of the GEMMs in a log; return the tuning folder, `name` in the session's."""
    log, folder = session.folder / "gemms.log", session.folder / name
    log.write_text(bench_log(problems), encoding="utf-8")
    session.run(f"{name}: import", *KMARK, "import", log, "--workload", folder)
    # Winners by any margin: their files are what is tried here.
    options = ("--min-ratio", "1.0", "--min-gain-us", "0", "--evaluations", evaluations)
    command = (*KMARK, "tune", "plan", folder, "-b", backend, "-d", device, *options)
    session.run(f"{name}: plan", *command, variables=variables)
    return folder


def tune(
    session: Session, device: str, backend: str, given: argparse.Namespace, libraries: int
) -> None:
    """Tune a log's GEMMs, write the winners for each library, and confirm that it runs them.
    `libraries` are still to be tuned, this one included, and share the time that is left."""
    own = VARIABLES.get(backend)
    name = f"tune-{backend}"
    folder = plan(session, name, backend, device, given.problems, given.evaluations, own)
    # Stop the search in time for the finals: a step that is killed leaves no winners to write.
    share = 0.75 / libraries
    minutes = max(0.1, 0.6 * session.limit_s(3, share) / 60)
    run = (*KMARK, "tune", "run", folder, "-d", device, "-q", "--minutes", f"{minutes:.1f}")
    session.run(f"{backend}: tune", *run, seconds=3, share=share, variables=own)
    session.run(f"{backend}: show", *KMARK, "tune", "show", folder, "--all")
    for emitter in WRITTEN[backend]:
        options: list[object] = []
        if emitter == "tunableop":
            if not given.validators and not has_torch():
                continue  # PyTorch refuses a file without its version
            options = [word for one in given.validators for word in ("--with", one)]
        elif emitter == "tensile":
            if given.tensile_logic is None:
                continue
            options = ["--base", given.tensile_logic]
        place = session.folder / f"{backend}.{emitter}"
        command = [*KMARK, "export", folder, "--as", emitter, "-o", place, *options]
        session.run(f"{backend}: write {emitter}", *command)
        # Tensile's files want a library built from them; TunableOp is PyTorch's.
        if emitter == backend or (emitter == "tunableop" and has_torch()):
            command = [*KMARK, "tune", "confirm", folder, "--as", emitter, "--to", place]
            session.run(f"{backend}: confirm {emitter}", *command, variables=own)


def has_rocprofv3() -> bool:
    """Return whether kernelmark finds rocprofv3."""
    code = "import sys; from kernelmark.gpu.rocm import program; sys.exit(not program('rocprofv3'))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def has_torch() -> bool:
    """Return whether this Python has a PyTorch for ROCm."""
    code = "import torch, sys; sys.exit(torch.version.hip is None)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def collect(folder: Path, output: Path) -> None:
    """Pack the folder into one file."""
    with tarfile.open(output, "w:gz") as file:
        file.add(folder, arcname="amd-acceptance")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-d", "--device", default="hip:0")
    parser.add_argument("-b", "--backends", default="", help="default: all that are available")
    parser.add_argument("-o", "--output", type=Path, default=Path("amd-acceptance.tar.gz"))
    parser.add_argument("--folder", type=Path, default=Path("build/amd-acceptance"))
    parser.add_argument("--problems", type=int, default=len(SHAPES), help="GEMMs to tune")
    parser.add_argument("--evaluations", type=int, default=16, help="candidates for each")
    parser.add_argument("--skip-tests", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--micro", nargs="*", default=[], metavar="NAME")
    parser.add_argument(
        "--validators", nargs="*", default=[], metavar="NAME=VALUE", help="of PyTorch's TunableOp"
    )
    logic = "a folder of hipBLASLt's logic files"
    parser.add_argument("--tensile-logic", type=lambda text: Path(text).resolve(), help=logic)
    parser.add_argument("--seconds", type=float, default=3600.0, help="end after this time")
    parser.add_argument("--step-seconds", type=float, default=600.0, help="limit of one step")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    )
    missing = subprocess.run([sys.executable, "-c", f"import {','.join(MODULES)}"], check=False)
    reason = ""
    if missing.returncode:
        reason = "python3 -m pip install -e . pytest installs what is missing"
    elif is_of_others(given.folder):
        reason = f"{given.folder} holds other files, and would be emptied; give another --folder"
    if reason := reason or missing_device(given.device):
        print(f"Nothing was run: {reason}", file=sys.stderr)
        sys.exit(2)
    shutil.rmtree(given.folder, ignore_errors=True)
    session = Session(given.folder.resolve(), given.seconds, given.step_seconds)
    interrupted = False
    try:
        run_steps(session, given)
    except KeyboardInterrupt:
        interrupted = True
    session.write("acceptance.json")
    collect(given.folder, given.output)
    passed = len(session.steps) - len(session.failed)
    print(f"{passed} of {len(session.steps)} steps passed; send back {given.output}")
    sys.exit(130 if interrupted else 3 if session.failed else 0)


def run_steps(session: Session, given: argparse.Namespace) -> None:
    """Run all steps, one after the other."""
    describe_machine(session)
    check(session, given.device, given.skip_tests)
    measure(session, given.device, given.backends)
    micro(session, given.device, given.micro)
    for number, backend in enumerate(WRITTEN):
        tune(session, given.device, backend, given, len(WRITTEN) - number)


if __name__ == "__main__":
    main()
