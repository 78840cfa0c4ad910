"""Drill: mutated command lines. Each ends by itself with a documented exit code and without an
internal error; half of them reach past the checks of arguments."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import kernelmark
from drill_seeds import TEXTS
from drill_stores import fill
from drilling import Facts, must
from kernelmark.cli import main as cli
from kernelmark.cli.app import command as parser
from kernelmark_dev.tuning import fake_plans, make_folder

SOURCE = Path(kernelmark.__file__).parent
INTERNAL = re.compile(r"^kmark: unexpected [A-Z]\w+:|^Traceback", re.MULTILINE)
CODES = (0, 1, 2, 3, 4, 130)
HUNG_S, CPU_S, MEMORY_BYTES = 120.0, 30, 3 << 30
_BATCH = 100  # lines in one copy of the folder
_GEMM = "-o gemm -a m=8 -a n=8 -a k=8 --dtype f32 -d fake -b fake"
_RUN = f"{_GEMM} --timing timing.toml --roofs none --no-canaries -q"
# Lines that work, in a folder with a store, a results file, a suite, a tuning folder and a kernel.
LINES = (
    f"run {_RUN}",
    *(f"run {_RUN} --dry-run --limit {limit}" for limit in range(1, 4)),
    "run -s suite.toml -d fake -b fake --timing timing.toml --roofs none --dry-run",
    "show run-1 --filter m=1 -o gemm",
    "show run-1 -b numpy --filter n=8 --json -",
    "show run-1 --status ok --csv - --samples",
    "compare run-0 run-1 --rule robust --all --md -",
    "compare own.json run-1 --fail-on slower:2%,broken --json -",
    "history -o gemm -b numpy --runs 5",
    "history --check --runs 3 --min-effect 0.02 --json -",
    "history --pin golden=run-1",
    "history --exclude run-1 --reason known",
    "list runs --limit 3 --json -",
    "list ops -o gemm --json -",
    "list backends",
    "list suites --limit 2",
    "list micro --limit 2",
    "export run-1 --json -",
    "export run-1 --csv out.csv",
    "import rocblas-gemm.csv --label x --device hip:0 --arch gfx942 -q",
    "import own.json -q",
    "plot sweep run-1 -f out.html --x m",
    "plot bars run-1 -f out.svg --dark",
    "report run-1 -o out.html --title x --figures none",
    "delete run-2 --yes",
    "store check --json -",
    "tune show FOLDER --all --json -",
    "tune summarise FOLDER --json -",
    "tune plan PLANS -b fake -d fake -o gemm -a m=8 -a n=8 -a k=8 --dtype f32 --evaluations 4",
    "token create someone --scope read",
    "token list --json -",
    "nightly nightly.toml --dry-run",
    f"ab --env a --env b {_GEMM} --dry-run --rounds 6",
    "lint-configs FOLDER --json -",
    "site -o public --runs 1",
)
VALUES = (
    *("", " ", "-1", "0", "1e999", "nan", "inf", "9" * 400, "0x10", "٣", "1.5", "-0.0", "1e-320"),
    *("latest", "latest~9", "run-", "all", "none", "cpu", "fake:7", "cuda:0", "gemm", "numpy"),
    *("../..", "/", "/dev/null", ".", "own.json", "suite.toml", "no/such/file", "store.sqlite"),
    *("\udcff", "a\x1b[31mb", "é" * 50, "{}", "[1:", "m=[1:9:0]", "m=[1:1000000000]", "a=b=c", "*"),
    *("[", "(?P<", "%s", "$HOME", "slower:-1%", "problem,problem", "f8_e4m3fnuz", "x:y", "--"),
)


def arrange(folder: Path) -> None:
    """Write what the lines name."""
    fill(folder / "store.sqlite", runs=3, results=12)
    (folder / "rocblas-gemm.csv").write_text(TEXTS["times reference_csv"]["rocblas-gemm.csv"])
    (folder / "suite.toml").write_text(
        'why = "x"\nsource = "y"\n[[problems]]\nop = "gemm"\nm = 8\nn = 8\nk = 8\ndtype = "f32"\n'
    )
    (folder / "timing.toml").write_text('preset = "quick"\nmax_s = 0.01\nwarmup_s = 0.0\n')
    (folder / "own.py").write_text(
        'op = "gemm"\ndef prepare(problem, config, sets):\n    return lambda index: None\n'
    )
    (folder / "nightly.toml").write_text(
        'name = "n"\n[[run]]\nsuites = ["suite.toml"]\nbackends = ["fake"]\ndevices = ["fake"]\n'
    )
    (folder / "calls.txt").write_text("gemm m=8 n=8 k=8 dtype=f32\n")
    make_folder(folder / "FOLDER", fake_plans(1))
    ended(folder, ["export", "run-1", "--json", "own.json"])


def warm() -> None:
    """Import what commands import, so that each copy of this process need not."""
    for package in ("cli", "api", "report", "compare", "stores", "tune", "ops", "backends", "web"):
        for module in pkgutil.walk_packages([str(SOURCE / package)], f"kernelmark.{package}."):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


def options() -> list[str]:
    """All options of all commands."""
    names: set[str] = set()
    pending = [parser()]
    while pending:
        known = pending.pop()
        pending += list(getattr(known, "commands", {}).values())
        names |= {name for parameter in known.params for name in parameter.opts if name[0] == "-"}
    # --debug prints the traceback of every error.
    return sorted(names - {"--help", "-h", "--debug"})


def mutated(words: list[str], names: list[str], source: random.Random) -> list[str]:
    """A line with one or two changes; most of them change a value and keep the line's form."""
    words = list(words)
    for _ in range(source.randint(1, 2)):
        at = source.randrange(1, len(words))
        kind = source.choice(
            ("value", "value", "value", "drop", "twice", "swap", "option", "damage")
        )
        if kind == "value":
            values = [i for i, word in enumerate(words) if i and word[:1] != "-"] or [at]
            words[source.choice(values)] = source.choice(VALUES)
        elif kind == "drop" and len(words) > 2:
            del words[at]
        elif kind == "twice":
            words.insert(at, words[at])
        elif kind == "swap":
            other = source.randrange(1, len(words))
            words[at], words[other] = words[other], words[at]
        elif kind == "option":
            words += [source.choice(names), source.choice(VALUES)][: source.randint(1, 2)]
        else:
            word = words[at]
            cut = source.randrange(len(word) + 1)
            words[at] = (
                word[:cut] + source.choice("=,:-~[]%\x00\n0é")[: len(word)] + word[cut + 1 :]
            )
    return [word.replace("\x00", "") for word in words]  # the system passes no NUL


def ended(folder: Path, words: list[str]) -> tuple[int, str, str]:
    """Run a line in a copy of this process: (exit code or minus signal, its errors, how)."""
    errors = folder / "stderr"
    child = os.fork()
    if child == 0:
        try:
            _become_command(folder, errors)
            cli.main(words)
        except SystemExit as error:
            os._exit(error.code if isinstance(error.code, int) else 0)
        finally:
            os._exit(70)
    end = time.monotonic() + HUNG_S
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), errors.read_text(errors="replace"), ""
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -9, errors.read_text(errors="replace"), "hung"


def _become_command(folder: Path, errors: Path) -> None:
    os.setsid()
    os.chdir(folder)
    null = os.open(os.devnull, os.O_RDWR)
    handle = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, descriptor in enumerate((null, null, handle)):
        os.dup2(descriptor, number)
    sys.stdin = os.fdopen(0)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    os.environ["KERNELMARK_STORE"] = str(folder / "store.sqlite")


def command_lines(count: int) -> Facts:
    """10,000 lines for a `count` of 100, 400 for one of 20; a process on each core."""
    warm()
    names = options()
    with tempfile.TemporaryDirectory() as text:
        sound = Path(text) / "sound"
        sound.mkdir()
        arrange(sound)
        # Forked, as that is what `warm` is for.
        with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
            batches = [(number, sound, names) for number in range(count * count // _BATCH)]
            done = pool.starmap(_batch, batches, chunksize=1)
    codes = sum((counted for counted, _ in done), Counter[int]())
    wrong = [line for _, lines in done for line in lines]
    must(not wrong, f"{len(wrong)} of {codes.total()}: {'; '.join(wrong[:5])}")
    deep = codes.total() - codes[2]
    must(
        2 * deep >= codes.total() - 1, f"only {deep} of {codes.total()} reached past the arguments"
    )
    return {"lines": codes.total(), "exit codes": dict(sorted(codes.items())), "unexpected": 0}


def _batch(number: int, sound: Path, names: list[str]) -> tuple[Counter[int], list[str]]:
    """The exit codes of some lines in a new copy of the folder, as lines write files and delete
    runs; and the lines that ended otherwise than they should."""
    source = random.Random(number)
    codes: Counter[int] = Counter()
    wrong: list[str] = []
    work = sound.with_name(f"work-{number}")
    shutil.copytree(sound, work)
    for _ in range(_BATCH):
        words = mutated(source.choice(LINES).split(), names, source)
        code, errors, how = ended(work, words)
        codes[code] += 1
        if how or code not in CODES or INTERNAL.search(errors):
            told = errors.strip().splitlines()[:1]
            wrong.append(f"{words}: {how or code} {told}")
            print(wrong[-1], flush=True)
    shutil.rmtree(work, ignore_errors=True)
    return codes, wrong
