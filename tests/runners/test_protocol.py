"""Messages between parent and worker, and what a lost worker left on standard error."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.errors import CodecError
from kernelmark.runners.protocol import decode, encode, parse_stderr

VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
NESTED = st.lists(VALUES, max_size=3) | st.dictionaries(st.text(), VALUES, max_size=3)


@given(st.dictionaries(st.text(), VALUES | NESTED, max_size=5), st.text())
def test_a_message_is_one_line_and_reads_back(fields, word):
    message = {**fields, "kind": word}
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == message


@pytest.mark.parametrize(
    "line", [b"", b"hello", b"{", b"\xff\xfe", b"[1]", b"3", b"{}", b'{"kind":1}', b'{"do":"x"}']
)
def test_what_is_not_a_message_is_refused(line):
    with pytest.raises(CodecError):
        decode(line)


@given(st.binary(max_size=60))
def test_no_bytes_escape_as_another_exception(line):
    try:
        message = decode(line)
    except CodecError:
        return
    assert isinstance(message["kind"], str)


def test_nan_cannot_be_sent_as_invalid_json():
    with pytest.raises(ValueError, match="JSON"):
        encode({"kind": "x", "value": math.nan})


DUMP = """\
{said}Fatal Python error: Aborted

Thread 0x0000fffe (most recent call first):
  File "/x/other.py", line 3 in wait

Current thread 0x0000ffff (most recent call first):
  File "/opt/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/kernelmark/own.py", line 10 in launch
  File "/cache/import/ab/kernelmark/backends/_file.py", line 44 in launch
  File "/cache/import/ab/kernelmark/measure/loop.py", line 167 in replay
  File "<frozen runpy>", line 88 in _run_code

Extension modules: numpy._core._multiarray_umath (total: 1)"""
TRACE = """\
Traceback (most recent call last):
  File "/x/own.py", line 3, in <module>
    import nothing
ModuleNotFoundError: No module named 'nothing'"""
ASSERTION = "own.c:3: x > 0 does not hold"
OWN = "own.py line 10 in launch"


@pytest.mark.parametrize(
    ("output", "said", "frame"),
    [
        (DUMP.format(said=""), "", OWN),
        (DUMP.format(said=f"{ASSERTION}\n"), ASSERTION, OWN),
        (TRACE, "ModuleNotFoundError: No module named 'nothing'", ""),
        ("", "", ""),
    ],
)
def test_last_words(output: str, said: str, frame: str) -> None:
    assert parse_stderr(output) == {"output": output, "said": said, "frame": frame}
