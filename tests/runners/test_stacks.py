"""What the standard error of a lost worker says of its end."""

from __future__ import annotations

import pytest

from kernelmark.runners.protocol import parse_stderr

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
