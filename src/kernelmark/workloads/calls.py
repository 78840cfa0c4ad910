"""LogReader: the interface of a format of calls, and the forms that several formats share: command
lines of a benchmark client, maps in braces, and tables.

A format describes how a line is recognised, which part of it identifies a call, and how that part
becomes a call. The rest is done by the engine in `counting` and `logs`: files, encodings, equal
lines, counts, positions, skipped lines and errors.
"""

from __future__ import annotations

import csv
import re
from abc import abstractmethod
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernelmark.core.registry import FormatFacts
from kernelmark.workloads import blas
from kernelmark.workloads.source import BadLine, Fields, check_columns
from kernelmark.workloads.workload import BLAS_FIELDS, Call

LIST_DTYPE = "bf16"
ASSUMED_DTYPE = f"names no dtype: read as {LIST_DTYPE}; another: --dtype"
ASSUMED_F8 = "fp8 was read as f8e4m3, OCP's; for gfx940 to gfx942: --arch gfx942"
# hipblaslt-bench of 2022 and 2023 printed only d_type: with f32, inputs may be f16 or f32.
OUTPUT_ALONE = "only the type of the output is given: --dtype sets that of the inputs"
NO_TYPES = (
    "the table has no types, and --dtype does not name all of them: print them with "
    "rocblas-bench --log_function_name --log_datatype"
)
NO_DTYPE = "the call has no dtype: --dtype sets it"
_MARK = b"\0"
_PAIR = re.compile(r"(?<![^,])\([^()\"]*\)(?![^,])")
_SEPARATORS = ",;\t|"
_SOLUTION = b"--solution_index "
# The prefix of `uniq -c`: a right-aligned count. A number without blanks may be anything.
_COUNT = re.compile(rb"\A[ \t]+(\d{1,9})[ \t](?:\S*/)?\Z")
_SHORT = re.compile(r"-([A-Za-z])(-?[0-9.]+)\Z")  # -m64
# Options that may have no value; a line that ends with any other option is truncated.
_BARE = frozenset(
    (
        *("grouped_gemm", "bias_vector", "scaleC", "scaleD", "scaleAlpha_vector", "gradient"),
        *("use_e", "flush", "any_stride", "c_equal_d", "use_gpu_timer", "swizzleA", "swizzleB"),
        *("amaxD", "amaxScaleA", "amaxScaleB", "print_kernel_info", "use_user_args", "verify", "v"),
        *("atomics_not_allowed", "atomics_allowed", "log_function_name", "log_datatype", "HMM"),
        *("outofplace", "fortran", "c_noalias_d"),
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
        *("atomics_allowed", "HMM", "fortran", "outofplace"),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Facts that the user gives because a log lacks them: the architecture, the dtype of lists that
    have only sizes, and the names of the values in an autotuner's key. "" is not given."""

    arch: str = ""
    dtype: str = ""
    key: str = ""

    @property
    def list_dtype(self) -> str:
        """The dtype for a list of sizes: the given one, or bf16."""
        return self.dtype or LIST_DTYPE


NO_LOG_OPTIONS = LogOptions()


@dataclass(frozen=True, slots=True)
class Remark:
    """A note on a document: how it was interpreted, or what was not read."""

    text: str


# (kind of line, the part that identifies the call, number of calls)
Part = tuple[str, bytes, int]
# A line of the format that is not a call.
NOTHING: Part = ("", b"", 0)


class RowReader:
    """A reader of independent lines.

    `part` is called for every distinct line of a log, possibly a million times: it must be fast,
    and removes what differs from call to call (times, pointers, the chosen kernel). `calls` is
    called once for each distinct part.
    """

    # Whether the rows are a set: a call then counts once, however many rows it has.
    once = False

    def part(self, line: bytes) -> Part | None:
        """Return the part that identifies the call; None for a line of another format."""
        return None

    def calls(self, kind: str, part: bytes, options: LogOptions) -> Iterable[Call]:
        """Return the calls of a part; raise BadLine or another UsageError if it cannot be read."""
        return ()

    def notes(self) -> tuple[str, ...]:
        """Return notes on a log with such lines: how they were interpreted, what was not read."""
        return ()


class LogReader(RowReader):
    """The reader of one format: of lines, of tables under a header, or of a document."""

    name: str
    summary: str  # one line
    facts: FormatFacts
    # Whether its lines are not distinctive: then only a file that begins with one is read.
    alone = False
    # Fields that the format does not have, and that are taken to be 1.
    absent: tuple[str, ...] = ()
    # Text in logs of this library that lack the sizes of calls, and how to log them.
    without_sizes: tuple[bytes, str] | None = None

    def notes(self) -> tuple[str, ...]:
        if not self.absent:
            return ()
        return (f"{self.name} logs have no {' or '.join(self.absent)}: read as 1",)

    def of_file(self, first: bytes) -> LogReader:
        """Return the reader of the independent lines of a file that begins with this line."""
        return self

    def rows(self, line: bytes) -> RowReader | None:
        """Return the reader of a file that begins with this row, without a header; else None."""
        return None

    def table(self, line: bytes, file: str) -> RowReader | None:
        """Return the reader of the rows below this line of a file, if it is a header of the format;
        else None."""
        return None

    def is_document(self, head: bytes) -> bool:
        """Return whether a file with these first bytes is a document of the format."""
        return False

    def document(
        self, chunks: Iterable[bytes], options: LogOptions
    ) -> Iterator[tuple[int, Call | str | Remark]]:
        """Yield (line number, call) of a document. Instead of the call, a string is the reason why
        it cannot be read, and a remark is a note on the whole document."""
        return iter(())


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
            if short := _SHORT.match(word):
                name, equals, value = short[1], "=", short[2]
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


class Table(RowReader):
    """A reader of rows in which the columns in `read` identify the call. Without a separator,
    cells are separated by spaces.

    A column in `read` that occurs twice makes every row unreadable. Other columns are named in a
    note (`unread`), unless they are `harmless`. A row may lack its last cell if that column is in
    `optional`.
    """

    optional: Container[str] = ()

    def __init__(
        self,
        columns: Sequence[str],
        read: Iterable[str],
        separator: str = ",",
        harmless: Container[str] | None = None,
    ) -> None:
        self._columns = [name.strip().strip('"') for name in columns]
        self._separator = separator
        read = frozenset(read)
        self.least = len(self._columns) - (self._columns[-1] in self.optional)
        self._kept = [i for i, name in enumerate(self._columns) if name in read]
        self._twice = check_columns(self._columns, sorted(read))
        self.unread = [
            name
            for name in self._columns
            if harmless is not None and name and name not in read and name not in harmless
        ]

    def notes(self) -> tuple[str, ...]:
        if not self.unread:
            return ()
        return (f"columns that were not read: {', '.join(dict.fromkeys(self.unread))}",)

    def part(self, line: bytes) -> Part | None:
        if self._separator == "|" and not line.strip(b"|:- \r"):
            return NOTHING
        cells = self._cells(line)
        if len(cells) < 2:
            return None
        if self._twice:
            return "twice", b"", 1
        if not self.least <= len(cells) <= len(self._columns):
            return "cells", str(len(cells)).encode(), 1
        return "row", _MARK.join(cells[i].strip() for i in self._kept), 1

    def calls(self, kind: str, part: bytes, options: LogOptions) -> Iterable[Call]:
        if kind == "twice":
            raise BadLine(self._twice)
        if kind == "cells":
            raise BadLine(f"{int(part)} values for {len(self._columns)} columns")
        texts = part.decode("utf-8", "replace").split(_MARK.decode())
        names = [self._columns[i] for i in self._kept]
        return self.row(Fields(dict(zip(names, texts, strict=True))), options)

    @abstractmethod
    def row(self, cells: Fields, options: LogOptions) -> Iterable[Call]:
        """Return the calls of one row."""

    def _cells(self, line: bytes) -> list[bytes]:
        line = line.replace(_MARK, b" ")
        # With tabs as separators, a tab at the end of a row is an empty cell.
        line = line.strip(b" \r\n") if self._separator == "\t" else line.strip()
        if not self._separator:
            return line.split()
        if b'"' in line:
            return _quoted(line.decode("latin-1"), self._separator)
        if b"(" in line and self._separator == ",":  # a complex factor is (1,0)
            return _quoted(_PAIR.sub(r'"\g<0>"', line.decode("latin-1")), ",")
        return line.split(self._separator.encode())


def header(line: bytes) -> tuple[list[str], str]:
    """Return the cells of a line, and its most frequent separator; "" for spaces."""
    text = line.strip(b" \r\n").decode("latin-1")
    separator = max(_SEPARATORS, key=text.count)
    separated = separator in text
    cells = _quoted(text, separator) if separated else line.split()
    names = [cell.decode("utf-8", "replace").strip() for cell in cells]
    return names, separator if separated else ""


def _quoted(text: str, separator: str) -> list[bytes]:
    try:
        cells = next(csv.reader([text], delimiter=separator), [])
        return [cell.encode("latin-1") for cell in cells]
    except csv.Error:
        return []


class BlasTable(Table):
    """A reader of rows of BLAS fields, as printed by the libraries' benchmark clients."""

    def __init__(self, columns: Sequence[str], harmless: Container[str] | None = None) -> None:
        extras = ("M", "N", "K", "swizzle_a", "swizzle_b", "bias_source", "call_count")
        types = ("input_type", "output_type")
        super().__init__(columns, (*BLAS_FIELDS, *blas.EXTRAS, *extras, *types), ",", harmless)

    def row(self, cells: Fields, options: LogOptions) -> Iterable[Call]:
        fields = {name: text for name, text in cells.items() if not name.endswith("put_type")}
        if source := cells.text("input_type"):
            fields |= {"a_type": source, "b_type": source}
        if target := cells.text("output_type"):
            fields |= {"c_type": target, "d_type": target}
        if not fields.get("a_type") and not fields.get("d_type"):
            # The types of accumulation and output may differ from that of the inputs.
            raise BadLine(NO_TYPES)
        if not fields.get("a_type"):
            if not options.dtype:
                raise BadLine(OUTPUT_ALONE)
            fields["a_type"] = blas.token(blas.dtype_named(options.dtype, options.arch))
        yield blas.call(fields, options.arch)
