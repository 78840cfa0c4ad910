"""Column-major calls as row-major problems: the same bytes, the same numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.workloads import blas
from kernelmark_dev.raising import raises

PLAIN = {
    "transA": "T",
    "transB": "N",
    "m": "48",
    "n": "5",
    "k": "32",
    "a_type": "bf16_r",
    "compute_type": "f32_r",
}


@given(
    st.sampled_from("NT"),
    st.sampled_from("NT"),
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(1, 7),
)
def test_the_problem_multiplies_what_blas_multiplies(trans_a, trans_b, m, n, k):
    call = blas.call(
        PLAIN | {"transA": trans_a, "transB": trans_b, "m": str(m), "n": str(n), "k": str(k)}
    )
    rng = np.random.default_rng(m * 49 + n * 7 + k)
    stored_a, stored_b = rng.random(m * k), rng.random(k * n)

    def by_columns(data, letter, rows, columns):
        shape = (rows, columns) if letter == "N" else (columns, rows)
        matrix = data.reshape(shape, order="F")
        return matrix if letter == "N" else matrix.T

    d = by_columns(stored_a, trans_a, m, k) @ by_columns(stored_b, trans_b, k, n)
    specs = {spec.name: spec for spec in ops.registry.get("gemm").tensors(call.problem)}
    # Our A is stored where BLAS has B, and the other way round.
    ours = {"a": stored_b.reshape(specs["a"].shape), "b": stored_a.reshape(specs["b"].shape)}
    left = ours["a"].T if call.problem.options["ta"] == "t" else ours["a"]
    right = ours["b"].T if call.problem.options["tb"] == "t" else ours["b"]
    assert np.allclose((left @ right).ravel(), d.ravel(order="F"))
    assert not call.lost


def test_what_is_left_out_is_as_for_matrices_without_gaps():
    found = blas.call(PLAIN).blas
    assert (found["lda"], found["ldb"], found["ldc"], found["ldd"]) == ("32", "32", "48", "48")
    assert (found["b_type"], found["c_type"], found["d_type"]) == ("bf16_r",) * 3
    assert (found["alpha"], found["beta"], found["batch_count"]) == ("1", "0", "1")


def test_generations_of_a_call_are_equal():
    old = blas.call(PLAIN | {"alpha": "1.000000", "stride_a": "1536", "bias_type": "f32_r"})
    new = blas.call(
        {"M": "48", "N": "5", "K": "32", "transA": "OP_T", "transB": "n", "a_type": "bf16_r"}
        | {"compute_type": "c_f32_r", "bias_vector": "false", "activation": "None", "scaleA": "0"}
    )
    assert old == new


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({"lda": "64"}, ("lda",)),
        ({"ldc": "64"}, ()),
        ({"ldc": "64", "beta": "1"}, ("ldc",)),
        ({"ldb": "64", "n": "1"}, ()),
        ({"stride_a": "0"}, ()),
        ({"stride_a": "0", "batch_count": "4"}, ("stride_a",)),
        ({"stride_a": "1536", "batch_count": "4"}, ()),
        ({"lda": "64", "stride_a": "3072", "batch_count": "4"}, ("lda",)),
        ({"activation_type": "gelu"}, ("activation_type",)),
        ({"scaleA": "2", "scaleB": "1"}, ("scaleA", "scaleB")),
        ({"scaleA": "v"}, ("scaleA",)),
        ({"scaleA": "f32_r"}, ("scaleA",)),
        ({"scaleC": "true", "swizzleA": "1", "swizzle_b": "0"}, ("scaleC", "swizzleA")),
        ({"use_e": "1", "gradient": "true"}, ("gradient", "use_e")),
        ({"bias_vector": "1", "bias_type": "bf16_r"}, ()),
        ({"bias_vector": "1", "bias_type": "f32_r"}, ("bias_type",)),
        ({"bias_vector": "1", "bias_source": "a"}, ("bias_source",)),
        ({"alpha": "0"}, ("alpha",)),
        ({"beta": "2", "c_type": "f32_r", "d_type": "bf16_r"}, ("c_type",)),
        ({"a_type": "f32_r", "compute_type": "xf32_r"}, ("compute_type",)),
        ({"a_type": "i8_r", "d_type": "bf16_r", "compute_type": "i32_r"}, ("d_type",)),
        (
            {"a_type": "i8_r", "d_type": "i32_r", "alpha": "0.5", "compute_type": "i32_r"},
            ("alpha",),
        ),
    ],
)
def test_what_is_no_plain_product_is_kept_as_one_and_told(fields, lost):
    call = blas.call(PLAIN | fields)
    assert call.lost == lost
    assert call.problem.dims["k"] == 32


ROWS = PLAIN | {
    "a_type": "f8_r",
    "b_type": "f8_r",
    "d_type": "bf16_r",
    "scaleA": "2",
    "scaleB": "v",
}


@pytest.mark.parametrize("bias", [{}, {"bias_vector": "1", "bias_type": "f32_r"}])
def test_factors_of_rows_are_part_of_the_problem(bias):
    call = blas.call(ROWS | bias, "gfx942")
    kind = "f8e4m3fnuz"
    expected = f"gemm_epilogue m=5 n=48 k=32 dtype={kind} c=bf16 tb=t scale=row"
    assert call.problem == ops.parse(expected + (" bias=yes bias_type=f32" if bias else ""))
    assert call.lost == ()
    again = {**blas.fields_of(call.problem), **call.blas}
    assert again == {**blas.fields_of(call.problem), "a_type": "f8_r", "b_type": "f8_r"}


@pytest.mark.parametrize(
    "fields",
    [
        *({"batch_count": "4"}, {"alpha": "0.5"}, {"beta": "1"}, {"scaleB": "0"}, {"scaleA": "1"}),
        *({"activation_type": "relu"}, {"d_type": "f8_r", "c_type": "f8_r"}),
    ],
)
def test_other_calls_with_factors_are_read_without_them(fields):
    call = blas.call(ROWS | fields, "gfx942")
    assert call.problem.op in ("gemm", "batched_gemm")
    assert "scaleA" in call.lost


def test_a_bias_is_added_to_columns_of_blas_which_are_our_rows():
    problem = blas.call(PLAIN | {"bias_vector": "1"}).problem
    assert problem.options["bias"]
    assert next(s for s in ops.registry.get("gemm").tensors(problem) if s.name == "bias").shape == (
        48,
    )


@pytest.mark.parametrize(
    ("arch", "token", "name"),
    [
        ("", "f8_r", "f8e4m3"),
        ("gfx950", "f8_r", "f8e4m3"),
        ("gfx942", "f8_r", "f8e4m3fnuz"),
        ("gfx940", "bf8_r", "f8e5m2fnuz"),
        ("gfx942:sramecc+", "bf8_r", "f8e5m2fnuz"),
        ("gfx950", "f8_fnuz_r", "f8e4m3fnuz"),
    ],
)
def test_letters_of_8_bit_floats_go_by_the_architecture(arch, token, name):
    fields = PLAIN | {"a_type": token, "d_type": "bf16_r"}
    assert blas.call(fields, arch).problem.dtypes["b"] == name


@pytest.mark.parametrize(
    "fields",
    [
        *({"m": text} for text in ("0", "-4", "-x", "4e2", "9" * 23, "9" * 5000)),
        *({"k": ""}, {"transA": "X"}, {"a_type": "f6_r"}, {"a_type": "f32_c"}),
        *({"compute_type": "f9_r"}, {"alpha": "nan"}, {"bias_vector": "maybe"}),
    ],
)
def test_what_cannot_be_read_is_told(fields):
    ((name, text),) = fields.items()
    with raises(ProblemError, name, text[:24]) as refused:
        blas.call(PLAIN | fields)
    assert len(refused.value.message) < 100


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({"b": "4"}, ("b",)),
        ({"compute_input_typeA": "f8_r"}, ("compute_input_typeA",)),
        ({"compute_input_typeA": "bf16_r", "scaleABlockRowSize": "32"}, ()),
        ({"scaleA": "3", "scaleABlockRowSize": "32"}, ("scaleA", "scaleABlockRowSize")),
        ({"rotating": "512"}, ()),
        ({"later": "0"}, ()),
    ],
)
def test_an_unknown_field_that_is_set_is_lost(fields, lost):
    assert blas.call(PLAIN | fields, harmless={"rotating"}).lost == lost


def test_types_that_no_gemm_has_together_are_refused():
    with raises(ProblemError):
        blas.call(PLAIN | {"b_type": "f16_r"})


@given(
    st.sampled_from(["gemm", "batched_gemm"]),
    st.sampled_from(["f64", "f32", "f16", "bf16", "i8", "f8e4m3", "f8e5m2fnuz"]),
    st.sampled_from("nt"),
    st.sampled_from("nt"),
    st.booleans(),
)
def test_problems_go_to_blas_and_back(op, dtype, ta, tb, bias):
    batch = {"batch": 3} if op == "batched_gemm" else {}
    problem = ops.registry.get(op).problem(
        **batch, m=5, n=48, k=32, dtype=dtype, ta=ta, tb=tb, bias=bias
    )
    call = blas.call(blas.fields_of(problem))
    assert call.problem == problem
    assert call.blas == blas.fields_of(problem)
    assert not call.lost


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((text, "f8e5m2") for text in ("e5m2", "fp8_e5m2", "float8_e5m2", "torch.float8_e5m2")),
        *((text, "f8e4m3") for text in ("e4m3", "e4m3fn", "fp8_e4m3fn", "f8_e4m3")),
        *((text, "f8e4m3fnuz") for text in ("fp8_e4m3fnuz", "e4m3fnuz", "f8e4m3fnuz")),
        *((text, "f8e5m2fnuz") for text in ("fp8_e5m2fnuz", "float8_e5m2fnuz")),
        *((text, "f4e2m1") for text in ("fp4", "e2m1", "float4_e2m1fn_x2")),
    ],
)
def test_names_of_dtypes(text, name):
    assert blas.dtype_named(text) == name


@pytest.mark.parametrize("text", ["e5m2fn", "fp8_e4m2", "fp16_e5m2", "e4m3fnu"])
def test_other_names_are_of_no_dtype(text):
    with pytest.raises(UsageError):
        blas.dtype_named(text)
