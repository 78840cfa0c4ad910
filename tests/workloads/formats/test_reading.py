"""Logs as one workload: files, ranks, noise, folded lines, whatever bytes there are."""

import gzip
import io
import json
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.workloads import logs
from kernelmark.workloads import source as opening
from kernelmark.workloads.calls import LogOptions
from kernelmark.workloads.logs import NO_CALL, Skips
from kernelmark_dev.logs import Logged, bench_line, profile_line, trace_line, write_log
from kernelmark_dev.raising import raises

ONE = Logged(
    m=48, n=5, k=32, batch=1, trans_a="T", trans_b="N", a_type="bf16_r", d_type="bf16_r", bias=False
)
LINE = bench_line(ONE, 3)


def other(n):
    return LINE.replace("-n 5 ", f"-n {n} ")


def test_ranks_are_summed_and_their_order_is_no_matter(tmp_path):
    first, second = tmp_path / "0.log", tmp_path / "1.log.gz"
    first.write_text("\n".join([LINE, other(6), LINE]))
    second.write_bytes(gzip.compress("\n".join([other(7), other(6), LINE, other(6)]).encode()))
    one = logs.read([str(first), str(second)])
    two = logs.read([str(second), str(first)])
    assert [(call.count, call.problem.dims["m"]) for call in one.workload.calls] == [
        (3, 5),
        (3, 6),
        (1, 7),
    ]
    assert [c.problem for c in one.workload.calls] == [c.problem for c in two.workload.calls]
    assert one.workload.calls[0].sources == (str(first), str(second))
    assert one.workload.calls[2].sources == (str(second),)
    assert [item.calls for item in one.inputs] == [3, 4]
    assert one.workload.total == 7


def test_stdin_is_a_log(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINE.encode())))
    assert logs.read(["-"]).workload.total == 1


def test_calls_that_differ_in_what_is_lost_are_distinct_but_one_problem(read):
    lines = [LINE, LINE.replace("none", "gelu"), LINE.replace("--lda 32", "--lda 64")]
    calls = read("\n".join(lines)).workload.calls
    assert len(calls) == 3
    assert len({call.problem for call in calls}) == 1
    assert {call.lost for call in calls} == {(), ("activation_type",), ("lda",)}


def test_noise_is_told_by_line_and_nothing_else_is(read, told):
    text = ["INFO starting", LINE, "", "   ", "W0101 k, m", "# note", other(6), "\x00\xff", "{}"]
    reading = read("\r\n".join(text))
    assert reading.workload.total == 2
    assert told(reading) == [(n, NO_CALL) for n in (1, 5, 8, 9)]


@pytest.mark.parametrize("first", ["128,256,-64", "128,256", "12.5,1,2", "1 2 3 4 5"])
def test_a_list_may_begin_with_a_bad_row(read, told, first):
    found = read(f"{first}\n128,256,64\n")
    assert [c.problem.key for c in found.workload.calls] == [
        ops.parse("gemm m=128 n=256 k=64 dtype=bf16 tb=t").key
    ]
    assert [line for line, _ in told(found)] == [1]


def test_formats_in_one_file(read):
    rows = "GemmTunableOp_Half_TN,tn_48_5_32"
    reading = read("\n".join([rows, LINE, "M,N,K,q_dtype_w", "5,48,32,torch.int8", LINE, rows]))
    assert reading.inputs[0].formats == ("tunableop", "hipblaslt", "aiter-csv")
    assert reading.workload.total == 5


@pytest.mark.parametrize(
    "text",
    [
        "- {K: 32, M: 48, N: 5, a_type: bf16_r, compute_type: c_f32_r,\n"
        "  transA: T,\n  transB: N, call_count: 3}\n"
        "- {K: 32, M: 48, N: 6, a_type: bf16_r,\n  compute_type: c_f32_r, transA: T, transB: N}\n",
        "- M: 48\n  N: 5\n  K: 32\n  a_type: bf16_r\n  compute_type: c_f32_r\n  transA: T\n"
        "  transB: N\n  call_count: 3\n- M: 48\n  N: 6\n  K: 32\n  a_type: bf16_r\n"
        "  compute_type: c_f32_r\n  transA: T\n  transB: N\n",
    ],
)
def test_maps_over_several_lines(read, told, text):
    reading = read(text)
    assert [(call.count, call.problem.dims["m"]) for call in reading.workload.calls] == [
        (3, 5),
        (1, 6),
    ]
    broken = read(text + "- {M: 48, transA: T,\n  transB: N}\nend\n")
    lines = text.count("\n")
    (first, missing), (last, noise) = told(broken)
    assert (first, last) == (lines + 1, lines + 3)
    assert "no n" in missing
    assert noise == NO_CALL


def test_a_compressed_log_that_ends_early_keeps_what_it_has(read, told):
    whole = gzip.compress("\n".join(other(n) for n in range(5, 400)).encode())
    reading = read(whole[: len(whole) // 2], "a.log.gz")
    assert 0 < reading.workload.total < 395
    assert told(reading)[-1][1] == opening.CUT_OFF
    lines = [other(random.Random(n).getrandbits(30) + 1) for n in range(5000)]
    packed = gzip.compress("\n".join(lines).encode())
    damaged = read(packed[:20_000] + b"\xff" * 40 + packed[20_040:], "b.log.gz")
    assert damaged.workload.total > 1000
    assert told(damaged)[-1][1] == opening.DAMAGED
    assert read(whole + gzip.compress(b"\n" + LINE.encode()), "c.log.gz").workload.total == 396


@pytest.mark.parametrize(
    ("text", "values"), [("nothing\nto see\n", ()), (LINE[:100], ("line 1", "transA"))]
)
def test_a_log_without_calls_is_an_error_that_says_what_was_tried(read, text, values):
    with raises(UsageError, *values) as caught:
        read(text)
    assert all(name in (caught.value.hint or "") for name in logs.registry.names())


def test_what_is_asked_for_has_to_be_there(tmp_path):
    log, none = tmp_path / "a", tmp_path / "none.log"
    log.write_text(LINE)
    for paths, form, told in (
        ([none], None, none),
        ([tmp_path], None, tmp_path),
        ([log], "nvbench", "nvbench"),
        ([log, log], None, log),
    ):
        with raises(UsageError, str(told)):
            logs.read([*map(str, paths)], form=form)


def test_a_named_format_is_the_only_one(read, told):
    text = f"{LINE}\n8 8 8\n"
    assert read(text, form="hipblaslt").workload.calls[0].problem.dims["m"] == 5
    reading = read(text, form="shapes")
    assert reading.workload.calls[0].problem.dims["m"] == 8
    assert [line for line, _ in told(reading)] == [1]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"noise\n{LINE}\n", "hipblaslt"),
        (json.dumps({"schemaVersion": 1, "traceEvents": []}), "torch-trace"),
        ("M,N,K\n1,2,3\n", "shapes"),
        ("nothing", None),
        ("", None),
    ],
)
def test_formats_are_recognized(tmp_path, text, name):
    (tmp_path / "x").write_text(text)
    assert logs.recognized(str(tmp_path / "x")) == name


@pytest.mark.parametrize("form", ["mask32", "mask64", "mask128", "trace"])
def test_a_synthetic_log_reads_back_as_it_was_written(tmp_path, form):
    counts = write_log(tmp_path / "a.log", calls=700, shapes=40, form=form, seed=5, largest=512)
    reading = logs.read([str(tmp_path / "a.log")])
    assert not len(reading.skipped)
    expected = {}
    for call, count in counts.items():
        key = (call.batch, call.n, call.m, call.k, call.a_type, call.bias)
        expected[key] = expected.get(key, 0) + count
    found = {
        (
            call.problem.dims.get("batch", 1),
            *(call.problem.dims[name] for name in ("m", "n", "k")),
            call.blas["a_type"],
            call.problem.options["bias"],
        ): call.count
        for call in reading.workload.calls
    }
    assert found == expected
    assert sum(expected.values()) == 700


def test_synthetic_logs_go_by_their_seed_and_limits(tmp_path):
    first = write_log(tmp_path / "a", seed=3, largest=64)
    assert (len(first), sum(first.values())) == (209, 25_000)
    assert max(max(one.m, one.n, one.k, one.batch) for one in first) <= 64
    write_log(tmp_path / "b", seed=3, largest=64)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert write_log(tmp_path / "b", seed=4, largest=64) != first
    with pytest.raises(UsageError, match="209"):  # distinct shapes
        write_log(tmp_path / "c", largest=1)
    with pytest.raises(UsageError, match="3 calls"):
        write_log(tmp_path / "c", calls=3)


GOOD = (
    LINE,
    profile_line(ONE, 7, 3),
    trace_line(ONE, 1, random.Random(1)),
    "rocblas_sgemm,T,N,48,5,32,1,0x1,32,0x2,32,0,0x3,48,atomics_allowed",
    "GemmStridedBatchedTunableOp_Half_TN,tn_48_5_32_B_3_ld_32_32_48,Default,0.5",
)
PIECES = st.sampled_from(
    (
        *(*GOOD, "M,N,K,q_dtype_w", "5,48,32,torch.int8", "m,n,k", "5 48 32", "- {", "}", "- M: 4"),
        *("[", "M,N,K,transA,transB,dtype,alpha,bias", "48,5,32,T,N,fp16,1,no", "B;H;S;D"),
        *("2;4;128;64", "n,c,h_out,w_out,k,r,s,layout", "1,4,7,6,8,3,3,nchw_fchw", "problem,count"),
        *("gemm m=8 n=8 k=8 dtype=f16,3", "| M | N | K |", "|---|---|---|"),
    )
)


def rebroken(lines, cuts):
    """Lines cut short, or with a byte in the middle replaced."""
    for line, (at, byte) in zip(lines, cuts, strict=False):
        data = line.encode()
        at %= len(data) + 1
        yield data[:at] + (bytes([byte]) + data[at + 1 :] if byte else b"")


def read_bytes(data):
    """The calls, and the numbers of the lines that were skipped."""
    skips = Skips()
    found, _ = logs._read_log(opening.InputFile("x", io.BytesIO(data)), LogOptions(), None, skips)
    return found, [skip.line for skip in skips]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(PIECES, min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), min_size=8, max_size=8),
    st.binary(max_size=40),
)
def test_no_bytes_break_a_reader(lines, cuts, noise):
    data = b"\n".join([*rebroken(lines, cuts), noise])
    found, told = read_bytes(data)
    for one in found:
        assert ops.parse(one.call.problem.key) == one.call.problem
        assert one.count >= 0
    assert told == sorted(told)
    assert all(1 <= line <= data.count(b"\n") + 2 for line in told)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(GOOD), st.integers(1, 10_000))
def test_a_line_that_was_cut_is_skipped_or_means_the_same(line, at):
    """A log that ends in the middle of a line, of which there is one more."""
    cut = line[: at % len(line)]
    found, told = read_bytes(f"{line}\n{cut}".encode())
    assert told in ([], [2])
    if told or not cut:
        assert len({one.call.problem for one in found if one.count}) == 1


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30)), st.integers(1, 50))
def test_lines_are_the_same_however_they_come(parts, size):
    data = b"\n".join(parts)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    found = [line for some in opening.lines(pieces) for line in some]
    assert found == data.removesuffix(b"\n").split(b"\n") or not data


def test_a_line_without_an_end_is_cut(monkeypatch):
    monkeypatch.setattr(opening, "_LONGEST_LINE", 10)
    chunks = [b"a" * 8, b"a" * 8, b"a" * 8, b"\nb\n", b"c"]
    assert [x for some in opening.lines(chunks) for x in some] == [b"a" * 16, b"b", b"c"]


def test_skips_are_ordered_and_grouped_the_rarest_first():
    skips = Skips()
    for line in range(1, 6):
        skips.add("a", line, "one" if line == 3 else "many")
    skips.add("b", 2, "many")
    assert [(skip.file, skip.line) for skip in skips] == [
        *(("a", line) for line in range(1, 6)),
        ("b", 2),
    ]
    groups = skips.groups()
    assert [(group.reason, group.count) for group in groups] == [("one", 1), ("many", 5)]
    assert [skip.line for skip in groups[1].first] == [1, 2, 4]
