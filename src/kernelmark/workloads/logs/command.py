"""Commands: calls logged as command lines of a benchmark client."""

from __future__ import annotations

import re

from kernelmark.core.reason import Reason
from kernelmark.workloads.logs.base import BadLine

_SOLUTION = b"--solution_index "
# The prefix of `uniq -c`: a right-aligned count. A number without blanks may be anything.
_COUNT = re.compile(rb"\A[ \t]+(\d{1,9})[ \t](?:\S*/)?\Z")
# Options without a value; a line that ends with any other option is truncated.
_BARE = frozenset(
    (
        *("grouped_gemm", "bias_vector", "scaleC", "scaleD", "scaleAlpha_vector", "gradient"),
        *("use_e", "flush", "any_stride", "c_equal_d", "use_gpu_timer", "swizzleA", "swizzleB"),
        *("amaxD", "amaxScaleA", "amaxScaleB", "print_kernel_info", "use_user_args", "verify"),
    )
)


def without_solution(line: bytes) -> bytes:
    """Return the command without the chosen kernel."""
    at = line.find(_SOLUTION)
    if at < 0:
        return line.rstrip()
    end = line.find(b" ", at + len(_SOLUTION))
    return line[:at].rstrip() if end < 0 else line[:at] + line[end + 1 :].rstrip()


def count_before(line: bytes, at: int) -> int:
    """Return the count of `uniq -c` before the command at `at`; 1 without one."""
    found = _COUNT.match(line[:at])
    return int(found[1]) if found else 1


def options(text: str) -> list[tuple[str, str]]:
    """Return the (name, value) pairs of the options in order; the default value is 1."""
    found: list[tuple[str, str]] = []
    name = ""
    for word in text.split():
        if _is_option(word):
            if name:
                found.append(_bare(name))
            name, equals, value = word.lstrip("-").partition("=")
            if equals:
                found.append((name, value))
                name = ""
        elif name:
            found.append((name, word))
            name = ""
        else:
            raise BadLine(Reason("call-expected", expected="an option", found=word[:24]))
    if name:
        found.append(_bare(name))
    return found


def _bare(name: str) -> tuple[str, str]:
    if name not in _BARE:
        raise BadLine(Reason("option-without-value", name=name))
    return name, "1"


def _is_option(word: str) -> bool:
    """Return whether a word is an option, such as -m or --lda, and not a number such as -1.5."""
    return word.startswith("-") and len(word) > 1 and not (word[1].isdigit() or word[1] == ".")
