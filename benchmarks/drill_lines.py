"""Drill: mutated command lines. Each ends by itself with a documented exit code and without an
internal error; half of them reach past the checks of arguments."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import itertools
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
PARSED = re.compile(r"^hint: see 'kmark .*--help'", re.MULTILINE)  # the parser's own errors
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
    f"ab --env a --env b {_GEMM} --dry-run --rounds 8",
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


def combined(words: list[str], source: random.Random) -> list[str]:
    """A line with options of other lines of its command, whose values are those of other lines or,
    now and then, odd: most of them pass the parser."""
    command, *others = (line.split() for line in LINES if line.split()[0] == words[0])
    parts, more = _pairs(words), _pairs(source.choice([command, *others]))
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(parts))
        kind = source.choice(("value", "odd", "drop", "more"))
        if kind == "drop" and at:
            del parts[at]
        elif kind == "more":
            parts.append(source.choice(more[1:] or more[-1:]))
        elif len(parts[at]) > 1 and parts[at][0] in _ACCEPTED:
            option = parts[at][0]
            parts[at] = [option, source.choice(VALUES if kind == "odd" else _ACCEPTED[option])]
    return [word.replace("\x00", "") for part in parts for word in part]


def _pairs(words: list[str]) -> list[list[str]]:
    """The options of a line, each with its value; before them the rest as one part."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word[:1] == "-" and word != "-":
            parts.append([word])
        elif len(parts) > 1 and len(parts[-1]) == 1 and parts[-1][0] in _ACCEPTED:
            parts[-1].append(word)
        else:
            parts[0].append(word)
    return parts


_FLAGS = frozenset(
    [
        "--all",
        "--check",
        "--dark",
        "--dry-run",
        "--no-canaries",
        "--samples",
        "--yes",
        "-q",
    ]  # have no value
)
_ACCEPTED: dict[str, list[str]] = {}
for _words in (_line.split() for _line in LINES):
    for _option, _value in itertools.pairwise(_words):
        if _option[:1] == "-" and _option not in _FLAGS | {"-"}:
            _ACCEPTED.setdefault(_option, []).append(_value)


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
    codes = sum((counted for counted, _, _ in done), Counter[int]())
    deep = sum(reached for _, reached, _ in done)
    wrong = [line for _, _, lines in done for line in lines]
    must(not wrong, f"{len(wrong)} of {codes.total()}: {'; '.join(wrong[:5])}")
    must(2 * deep >= codes.total(), f"the parser accepts only {deep} of {codes.total()}")
    return {
        "lines": codes.total(),
        "accepted by the parser": deep,
        "exit codes": dict(sorted(codes.items())),
        "unexpected": 0,
    }


def _batch(number: int, sound: Path, names: list[str]) -> tuple[Counter[int], int, list[str]]:
    """The exit codes of some lines in a new copy of the folder, as lines write files and delete
    runs; and the lines that ended otherwise than they should."""
    source = random.Random(number)
    codes: Counter[int] = Counter()
    wrong: list[str] = []
    deep = 0  # lines that the parser accepts
    work = sound.with_name(f"work-{number}")
    shutil.copytree(sound, work)
    for _ in range(_BATCH):
        line = source.choice(LINES).split()
        words = mutated(line, names, source) if source.random() < 0.5 else combined(line, source)
        code, errors, how = ended(work, words)
        codes[code] += 1
        deep += not (code == 2 and PARSED.search(errors))
        if how or code not in CODES or INTERNAL.search(errors):
            first = errors.strip().splitlines()[:1]
            wrong.append(f"{words}: {how or code} {first}")
            print(wrong[-1], flush=True)
    shutil.rmtree(work, ignore_errors=True)
    return codes, deep, wrong
