"""Registers and spills read from object files: real ones, damaged ones, hand-made metadata."""

import contextlib
import functools
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernelmark.core.errors import UsageError
from kernelmark.gpu import rtc
from kernelmark.gpu.objects import resources, unpack
from kernelmark_dev.raising import raises

KERNELS = """
extern "C" __global__ void simple(float* x) { x[threadIdx.x] += 1.0f; }
extern "C" __global__ void shares(float* x) {
  __shared__ float tile[512];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = tile[511 - threadIdx.x];
}
extern "C" __global__ void stacks(float* x, int n) {
  volatile float room[300];
  for (int i = 0; i < n; ++i) room[i % 300] = x[i];
  x[0] = room[n % 300];
}
"""


@functools.cache
def cubin():
    code, _ = rtc.compile_here(KERNELS, "sm_90", "kernels.cu", ())
    return code


def test_a_cubins_kernels(nvrtc):
    found = resources(cubin())
    assert found.keys() == {"simple", "shares", "stacks"}
    assert all(0 < used["registers"] <= 255 for used in found.values())
    assert found["simple"]["stack_bytes"] == 0
    assert found["stacks"]["stack_bytes"] >= 1200


# -- an AMD code object, made by hand from the format's description


def note(metadata, *, name=b"AMDGPU\0", kind=32):
    padded = name.ljust(-(-len(name) // 4) * 4, b"\0")
    body = metadata.ljust(-(-len(metadata) // 4) * 4, b"\0")
    return struct.pack("<III", len(name), len(metadata), kind) + padded + body


def code_object(notes, machine=224):
    header = bytearray(64)
    header[:7] = b"\x7fELF\2\1\1"
    struct.pack_into("<H", header, 18, machine)
    struct.pack_into("<Q", header, 32, 64)  # program headers follow at once
    struct.pack_into("<HH", header, 54, 56, 2)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 64, 64, 4096)
    noted = struct.pack("<IIQQQQQQ", 4, 4, 64 + 112, 0, 0, len(notes), len(notes), 4)
    return bytes(header) + load + noted + notes


def packed(value):
    """msgpack, as its specification says; the long forms where a short one does not fit."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return packed_int(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        raw = value.encode()
        return sized(len(raw), (0xA0, 31), (0xD9, 0xDA, 0xDB)) + raw
    if isinstance(value, list):
        return sized(len(value), (0x90, 15), (None, 0xDC, 0xDD)) + b"".join(map(packed, value))
    body = b"".join(packed(k) + packed(v) for k, v in value.items())
    return sized(len(value), (0x80, 15), (None, 0xDE, 0xDF)) + body


def packed_int(value):
    if 0 <= value <= 127:
        return bytes([value])
    if -32 <= value < 0:
        return struct.pack(">b", value)
    for tag, form, least, most in (
        (0xCC, ">B", 0, 2**8),
        (0xCD, ">H", 0, 2**16),
        (0xCE, ">I", 0, 2**32),
        (0xCF, ">Q", 0, 2**64),
        (0xD0, ">b", -(2**7), 0),
        (0xD1, ">h", -(2**15), 0),
        (0xD2, ">i", -(2**31), 0),
        (0xD3, ">q", -(2**63), 0),
    ):
        if least <= value < most:
            return bytes([tag]) + struct.pack(form, value)
    raise OverflowError(value)


def sized(length, short, tags):
    if length <= short[1]:
        return bytes([short[0] | length])
    for tag, form, most in zip(tags, (">B", ">H", ">I"), (2**8, 2**16, 2**32), strict=True):
        if tag is not None and length < most:
            return bytes([tag]) + struct.pack(form, length)
    raise OverflowError(length)


AMD = code_object(
    note(b"other", name=b"GNU\0", kind=3)
    + note(
        packed(
            {
                "amdhsa.kernels": [
                    {
                        ".name": "first",
                        ".vgpr_count": 128,
                        ".agpr_count": 64,
                        ".sgpr_count": 40,
                        ".vgpr_spill_count": 3,
                        ".sgpr_spill_count": 0,
                        ".private_segment_fixed_size": 16,
                        ".group_segment_fixed_size": 65536,
                        ".args": [{".size": 8, ".offset": 0}],
                    },
                    {".name": "second", ".vgpr_count": 5},
                ],
                "amdhsa.target": "amdgcn-amd-amdhsa--gfx942",
                "amdhsa.version": [1, 2],
            }
        )
    )
)


def test_an_amd_objects_kernels():
    assert resources(AMD) == {
        "first": {
            "registers": 128,
            "accumulation_registers": 64,
            "scalar_registers": 40,
            "spilled_registers": 3,
            "spilled_scalar_registers": 0,
            "stack_bytes": 16,
            "shared_bytes": 65536,
        },
        "second": {"registers": 5},
    }


@pytest.mark.parametrize(
    ("code", "machine"),
    [
        (b"", None),
        (b"\x7fELF", None),
        (b"MZ" + bytes(100), None),
        (b"\x7fELF\1\1" + bytes(100), None),  # 32 bits
        (code_object(b"", machine=62), 62),
    ],
)
def test_what_is_no_object_is_refused(code, machine):
    with raises(UsageError, machine=machine):
        resources(code)


@pytest.mark.parametrize(
    "code",
    [
        code_object(b""),
        code_object(b"", machine=190),
        code_object(note(packed({"else": 1}))),
        code_object(note(packed(7))),
        code_object(note(packed({"amdhsa.kernels": [3]}))),
        code_object(note(packed({"amdhsa.kernels": [{".name": []}]}))),
        code_object(note(b"\x81" * 4000)),
    ],
)
def test_a_damaged_object_is_one_sentence(code):
    with pytest.raises(UsageError) as caught:
        resources(code)
    assert "\n" not in caught.value.message


def survive(code):
    """Read it, or refuse it: anything else that is raised fails the test."""
    with contextlib.suppress(UsageError):
        resources(code)


@given(st.integers(0, len(AMD)), st.binary(max_size=8), st.integers(0, len(AMD)))
@settings(max_examples=200, deadline=None)
@example(0, b"", 64)
def test_a_damaged_amd_object_never_raises_otherwise(cut, other, at):
    survive(AMD[:cut])
    survive(AMD[:at] + other + AMD[at + len(other) :])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_cubin_never_raises_otherwise(data):
    reason = rtc.unavailable("cuda")
    if reason is not None:
        pytest.skip(reason)
    code = cubin()
    survive(code[: data.draw(st.integers(0, len(code)))])
    # Headers and tables, where a wrong number leads astray, are hit more often.
    (sections,) = struct.unpack_from("<Q", code, 40)
    at = data.draw(st.one_of(st.integers(0, 200), st.integers(sections, len(code))))
    other = data.draw(st.binary(max_size=8))
    survive(code[:at] + other + code[at + len(other) :])


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_any_bytes_behind_a_right_header_are_survived(body):
    for machine in (190, 224):
        survive(code_object(b"", machine)[:64] + body)


# -- msgpack

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=40,
)


@given(values)
@settings(deadline=None)
def test_msgpack_reads_what_its_specification_says(value):
    data = packed(value)
    assert unpack(data, 0) == (value, len(data))
    assert unpack(b"\xff" + data + b"\0", 1) == (value, len(data) + 1)


@pytest.mark.parametrize(
    "value",
    ["x" * 300, "x" * 70_000, list(range(20)), [None] * 70_000, {str(i): i for i in range(100)}],
)
def test_msgpack_long_forms(value):
    assert unpack(packed(value), 0)[0] == value


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xa5abc", b"\x92\x01", b"\xcd\x01", b"\xc4\x01x"])
def test_msgpack_refuses_what_is_cut_or_unknown(data):
    with pytest.raises((ValueError, IndexError, struct.error)):
        unpack(data, 0)
