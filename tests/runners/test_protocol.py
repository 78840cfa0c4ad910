from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.errors import CodecError
from kernelmark.runners.protocol import decode, encode
from kernelmark_dev.raising import raises_code

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
    ("line", "code"),
    [
        *((line, "message-unreadable") for line in (b"", b"hello", b"{", b"\xff\xfe")),
        *(
            (line, "message-without-kind")
            for line in (b"[1]", b"3", b"{}", b'{"kind":1}', b'{"do":"x"}')
        ),
    ],
)
def test_what_is_not_a_message_is_refused(line, code):
    with raises_code(CodecError, code):
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
