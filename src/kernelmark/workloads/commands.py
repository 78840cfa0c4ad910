"""Calls that libraries log as command lines of a benchmark client, or as maps in braces.

Both become (name, value) pairs; `calls_of` splits those of a grouped GEMM, which repeats its sizes
for each member. Unknown options are kept: `blas.call` names them as lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kernelmark.workloads.fields import BadLine

_SOLUTION = b"--solution_index "
# The prefix of `uniq -c`: a right-aligned count. A number without blanks may be anything.
_COUNT = re.compile(rb"\A[ \t]+(\d{1,9})[ \t](?:\S*/)?\Z")
# Options that may have no value; a line that ends with any other option is truncated.
_BARE = frozenset(
    (
        *("grouped_gemm", "bias_vector", "scaleC", "scaleD", "scaleAlpha_vector", "gradient"),
        *("use_e", "flush", "any_stride", "c_equal_d", "use_gpu_timer", "swizzleA", "swizzleB"),
        *("amaxD", "amaxScaleA", "amaxScaleB", "print_kernel_info", "use_user_args", "verify", "v"),
    )
)
# Fields of both clients and of the libraries' profiles that choose a kernel, or how it is timed and
# checked: they do not change what is computed.
HARMLESS = frozenset(
    (
        *("f", "r", "precision", "v", "verify", "i", "j", "iters", "cold_iters", "hot_iters"),
        *("algo", "algo_method", "solution_index", "requested_solution", "flags", "api_method"),
        *("any_stride", "rotating", "flush", "use_gpu_timer", "print_kernel_info", "device"),
        *("workspace", "initialization", "use_user_args", "splitk", "wgm", "c_equal_d"),
        *("c_noalias_d", "log_function_name", "log_datatype", "function_filter", "math_mode"),
        *("skip_slow_solution_ratio", "norm_check", "solution_name", "solution_Name"),
        *("kernel_name", "bias_source", "lde", "stride_e", "aux_type", "atomics_mode"),
        *("atomics_not_allowed", "geam_ex_op", "flush_batch_count", "flush_memory_size"),
    )
)
_GROUPED = "grouped_gemm"
_OFF = ("0", "false")
# Fields that differ between the members of a group; they share all others.
_OF_MEMBERS = frozenset(
    (
        *("m", "n", "k", "lda", "ldb", "ldc", "ldd", "lde", "batch_count"),
        *("stride_a", "stride_b", "stride_c", "stride_d", "stride_e", "M", "N", "K"),
    )
)
_QUOTES = " \t'\""


def without_solution(line: bytes) -> bytes:
    """Return the command without the chosen kernel."""
    at = line.find(_SOLUTION)
    if at < 0:
        return line.rstrip()
    end = line.find(b" ", at + len(_SOLUTION))
    return line[:at].rstrip() if end < 0 else line[:at] + line[end + 1 :].rstrip()


def count_before(line: bytes, at: int) -> int:
    """Return the count of `uniq -c` before the command at `at`; 1 without one."""
    match = _COUNT.match(line[:at])
    return int(match[1]) if match else 1


def options(text: str) -> list[tuple[str, str]]:
    """Return the (name, value) pairs of the options in order; the default value is 1."""
    pairs: list[tuple[str, str]] = []
    name = ""
    for word in text.split():
        if _is_option(word):
            if name:
                pairs.append(_bare(name))
            name, equals, value = word.lstrip("-").partition("=")
            if equals:
                pairs.append((name, value))
                name = ""
        elif name:
            pairs.append((name, word))
            name = ""
        else:
            raise BadLine(f"expected an option, found {word[:24]!r}")
    if name:
        pairs.append(_bare(name))
    return pairs


def _bare(name: str) -> tuple[str, str]:
    if name not in _BARE:
        raise BadLine(f"the option {name} has no value: the line is cut")
    return name, "1"


def _is_option(word: str) -> bool:
    """Return whether a word is an option, such as -m or --lda, and not a number such as -1.5."""
    return word.startswith("-") and len(word) > 1 and not (word[1].isdigit() or word[1] == ".")


def cut(line: bytes, name: bytes) -> tuple[bytes, bytes]:
    """Return the map without the entry `name`, and the value of that entry or b""."""
    at = line.find(name)
    if at < 0:
        return line, b""
    start = at + len(name)
    comma = line.find(b",", start)
    end = line.find(b"}", start) if comma < 0 else comma
    if end < 0:
        return line, b""
    return line[:at] + line[end + (comma >= 0) :], line[start:end].strip(b" \t:'\"")


def entries(text: str) -> list[tuple[str, str]]:
    """Return the (name, value) pairs between the first and the last brace, without empty values.

    A map is close to YAML. Some versions leave out values (`scaleC: , swizzleA: ,`), and grouped
    GEMMs repeat names, which YAML parsers refuse; this parser accepts both.
    """
    start, end = text.find("{"), text.rfind("}")
    if end < start:
        raise BadLine("the map is cut: it has no closing brace")
    pairs = []
    for piece in text[start + 1 : end].split(","):
        name, colon, value = piece.partition(":")
        if name.strip(_QUOTES) == _GROUPED:  # followed by the first size of the group
            pairs.append((_GROUPED, value.strip(_QUOTES) if ":" not in value else "1"))
            name, colon, value = value.partition(":")
        if name.strip(_QUOTES) and value.strip(_QUOTES):
            pairs.append((name.strip(_QUOTES), value.strip(_QUOTES)))
        elif name.strip() and not colon:
            raise BadLine(f"expected name: value, found {name.strip()[:24]!r}")
    return pairs


def calls_of(pairs: Iterable[tuple[str, str]]) -> Iterator[dict[str, str]]:
    """Yield the fields of each call in a list of (name, value) pairs: one call, or the members of a
    group. A name with two values is ambiguous, and refused."""
    values_of: dict[str, list[str]] = {}
    for name, value in pairs:
        values_of.setdefault(name, []).append(value)
    is_grouped = values_of.get(_GROUPED, ["0"])[0].lower() not in _OFF
    shared = {name: values[0] for name, values in values_of.items()}
    repeated = {name: values for name, values in values_of.items() if len(values) > 1}
    of_members = {n: values for n, values in repeated.items() if is_grouped and n in _OF_MEMBERS}
    for name, values in repeated.items():
        if name not in of_members and len(set(values)) > 1:
            first, second = (value[:24] for value in values[:2])
            raise BadLine(f"gives {name} twice, as {first} and as {second}")
    members = 1
    if is_grouped:
        members = max(len(values_of.get("m", ())), len(values_of.get("M", ())), 1)
    for name, values in of_members.items():
        if len(values) != members:
            raise BadLine(f"has {len(values)} values of {name} for {members} members of a group")
    for index in range(members):
        yield shared | {name: values[index] for name, values in of_members.items()}
