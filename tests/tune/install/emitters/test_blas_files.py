"""Override files of hipBLASLt, rocBLAS and TunableOp: written, and read as the libraries do."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.emitters import registry, tunableop

HIPBLASLT, ROCBLAS = registry.get("hipblaslt"), registry.get("rocblas")
TUNABLEOP = registry.get("tunableop")

# A file as the library writes it: a header before every row, more columns than are read.
TUNED = """Git Version: 5b515cf1bc
    transA,transB,grouped_gemm,batch_count,m,n,k,alpha,lda,stride_a,beta,ldb,stride_b,ldc,stride_c,ldd,stride_d,a_type,b_type,c_type,d_type,compute_type,scaleA,rotating_buffer,hipblaslt-Gflops,us,solution_index,gcnArchName,CUs
    T,N,0,1,512,16,1024,1,1024,524288,0,1024,16384,512,8192,512,8192,bf16_r,bf16_r,bf16_r,bf16_r,f32_r,0,512,150538,99.8,5223,gfx950:sramecc+:xnack-,72
    transA,transB,batch_count,m,n,k,a_type,b_type,c_type,compute_type,solution_index
    N,N,1,128,128,64,f16_r,f16_r,f16_r,f32_r,77
"""
RESULTS = """Validator,PT_VERSION,2.9.1
Validator,HIPBLASLT_VERSION,100201-5b515cf1bc
Validator,GCN_ARCH_NAME,gfx950:sramecc+:xnack-
GemmTunableOp_Half_TN,tn_512_2048_1280_ld_1280_1280_512,Gemm_Rocblas_-476662,0.301475
GemmTunableOp_Half_TN,tn_512_16_1280_ld_1280_1280_512,Gemm_Hipblaslt_479,0.0301
GemmTunableOp_Half_TN,tn_512_8_1280_ld_1280_1280_512,Default,0.02
"""
OVERRIDES = """\
transA,transB,M,N,batch_count,K,alpha,beta,lda,ldb,ldc,input_type,output_type,compute_type,solution_index
N,N,320,588,1,4096,1,0,320,6144,320,f32_r,f32_r,f32_r,3788
# kernel: Cijk_slow
T,N,512,16,4,1024,1,0,1024,1024,512,600000,20000,9000,f16_r,f16_r,f32_r,12
N,N,1,2
N,N,320,588,1,4096,1,0,320,6144,320,f32_r,f32_r,f32_r,-5
"""
# A row of HIPBLASLT_TUNING_MODE=tune: columns are found by name, and the key has many more.
CACHED = """Git Version: 5b515cf1bc
    schema_version,git_version,transA,transB,m,n,k,batch_count,a_type,b_type,c_type,d_type,compute_type,epilogue,gcnArchName,CUs,solution_index,kernel_name,required_workspace,us
1,5b515cf1bc,T,N,512,16,1024,1,bf16_r,bf16_r,bf16_r,bf16_r,f32_r,1,gfx950:sramecc+:xnack-,256,5223,Cijk_one,0,12.5
"""


def entries(emitter, text, tmp_path):
    path = tmp_path / "file"
    path.write_text(text)
    return emitter.read(path)


def after(emitter, outcomes, tmp_path, before=None, **options):
    path = tmp_path / "file"
    if before is not None:
        path.write_text(before)
    return applying.prepare(emitter, outcomes, path, FrozenDict(options))


def indexed(w, index=9, backend="hipblaslt", version="1-cafe", **more):
    """A winner that is this solution of its library."""
    return w.outcome(backend=backend, config={"solution_index": index}, version=version, **more)


# -- hipBLASLt


def test_hipblaslt_s_own_file(tmp_path):
    one, two = entries(HIPBLASLT, TUNED, tmp_path)
    assert one.config == {"solution_index": 5223}
    assert (one.key["m"], one.key["n"], one.key["transA"]) == ("512", "16", "T")
    assert two.config == {"solution_index": 77}


@pytest.mark.parametrize(
    "change",
    [
        ("compute_type", "compute_kind"),  # a needed column is missing
        ("m,n,k", "n,m,k"),  # columns are taken in their order only
        (",5223,", ",0,"),
        (",5223,", ",five,"),
    ],
)
def test_hipblaslt_s_reader_skips_what_it_cannot_use(change, tmp_path):
    broken = "".join(TUNED.splitlines(keepends=True)[:3]).replace(*change)
    assert entries(HIPBLASLT, broken, tmp_path) == []


def test_hipblaslt_replaces_the_same_problem_and_keeps_the_rest(w, tmp_path):
    change = after(HIPBLASLT, [indexed(w, version="1-5b515cf1bc")], tmp_path, TUNED)
    text = change.edits[0].after
    assert text.splitlines()[0] == "Git Version: 5b515cf1bc"
    assert "5223" not in text
    assert text.splitlines()[-2:] == TUNED.splitlines()[-2:]
    assert "Cijk_Alik_Bljk_BBS_BH_MT64x64x64" in text


def test_the_index_of_a_named_solution_is_that_of_the_final(w, tmp_path):
    named = w.outcome(backend="hipblaslt", config={"solution": "Cijk"}, version="1-5b515cf1bc")
    kernel = dataclasses.replace(named.tuned.kernel, resources={"solution_index": 9})
    found = dataclasses.replace(named, tuned=dataclasses.replace(named.tuned, kernel=kernel))
    change = after(HIPBLASLT, [found], tmp_path)
    (entry,) = entries(HIPBLASLT, change.edits[0].after, tmp_path)
    assert entry.config == {"solution_index": 9}
    assert entry.kernel == found.tuned.kernel.name
    assert ",solution_index,solution_name," in change.edits[0].after, "the order that is read"


@pytest.mark.parametrize("emitter", [HIPBLASLT, TUNABLEOP])
def test_a_split_of_k_at_run_time_is_in_no_file(w, tmp_path, emitter):
    options = w.VALIDATORS if emitter is TUNABLEOP else {}
    for values, written in (({"splitk": 0}, True), ({"splitk": 4}, False), ({"wgm": 8}, False)):
        config = {"solution_index": 9, **values}
        winner = w.outcome(backend="hipblaslt", config=config, version="1-cafe")
        assert bool(after(emitter, [winner], tmp_path, **options).edits) == written


@pytest.mark.parametrize(
    ("emitter", "index", "before"),
    [
        *((HIPBLASLT, 9, before) for before in ("notes of mine\n", OVERRIDES, RESULTS)),
        *((ROCBLAS, -300, before) for before in ("notes of mine\n", TUNED, RESULTS)),
        # Rows of a cache differ in the epilogue and strides, which an entry of ours does not have.
        (HIPBLASLT, 9, CACHED),
    ],
)
def test_winners_are_not_merged_into_a_file_of_another_format(w, emitter, index, before, tmp_path):
    outcome = indexed(w, index, emitter.name, "1-5b515cf1bc")
    with pytest.raises(UsageError):
        after(emitter, [outcome], tmp_path, before)


@pytest.mark.parametrize("before", ["", "\n", "Git Version: 5b515cf1bc\n"])
def test_a_file_of_hipblaslt_may_have_no_rows(w, before, tmp_path):
    change = after(HIPBLASLT, [indexed(w, version="1-5b515cf1bc")], tmp_path, before)
    lines = change.edits[0].after.splitlines()
    assert next(line for line in lines if line.strip()) == "Git Version: 5b515cf1bc"
    assert len(change.winners) == 1


@pytest.mark.parametrize("before", ["", "\n", "# of mine\n", OVERRIDES.splitlines()[0] + "\n"])
def test_a_file_of_rocblas_may_have_no_rows(w, before, tmp_path):
    change = after(ROCBLAS, [indexed(w, -300, "rocblas", "5.0.0")], tmp_path, before)
    assert change.edits[0].after.count("transA") == 1
    assert len(change.winners) == 1


# A row of HIPBLASLT_TUNING_MODE=tune: columns are found by name, and the key has many more.


def test_hipblaslt_s_tuning_cache_is_read_by_the_names_of_its_columns(tmp_path):
    (one,) = entries(HIPBLASLT, CACHED, tmp_path)
    assert (one.config["solution_index"], one.kernel) == (5223, "Cijk_one")
    sizes = [one.key[name] for name in ("m", "n", "k", "batch_count")]
    assert sizes == ["512", "16", "1024", "1"]


def test_hipblaslt_s_bias_has_its_type(w, tmp_path):
    product = w.product(bias=True)
    biased = w.outcome("A_1", product, "hipblaslt", {"solution_index": 4}, version="1-cafe")
    lines = after(HIPBLASLT, [biased], tmp_path).edits[0].after.splitlines()
    cells = dict(zip(*(line.strip().split(",") for line in lines[1:3]), strict=True))
    assert (cells["bias_vector"], cells["bias_type"]) == ("1", cells["d_type"])


def test_hipblaslt_refuses_another_build(w, tmp_path):
    with pytest.raises(UsageError, match="5b515cf1bc, aaaa"):
        after(HIPBLASLT, [indexed(w, version="1-aaaa")], tmp_path, TUNED)
    unknown = indexed(w, version="1.2.3")
    with pytest.raises(UsageError):
        after(HIPBLASLT, [unknown], tmp_path / "new")
    made = after(HIPBLASLT, [unknown], tmp_path / "new", git_version="cafe")
    assert made.edits[0].after.startswith("Git Version: cafe\n")


def test_an_index_that_the_file_calls_otherwise_is_refused(w, tmp_path):
    text = after(HIPBLASLT, [indexed(w)], tmp_path).edits[0].after
    other = indexed(w, name="A_1", problem=w.product(m=99), kernel="Cijk_another")
    change = after(HIPBLASLT, [other], tmp_path, text)
    assert not change.edits
    assert "Cijk_another" in change.skipped[0].reason


@pytest.mark.parametrize(
    ("emitter", "more", "shown"),
    [
        (HIPBLASLT, {"kernel": ""}, ""),  # an index without its kernel's name
        (ROCBLAS, {"kernel": ""}, ""),
        (ROCBLAS, {"index": -3}, "-3"),  # reserved
        # There is no word for inputs that are rounded so.
        (ROCBLAS, {"index": -19, "dtype": "f32", "blas": {"compute_type": "xf32_r"}}, ""),
        (TUNABLEOP, {"dtype": "f32", "blas": {"compute_type": "f32_bf16_r"}}, ""),
    ],
)
def test_what_a_file_has_no_word_for_is_refused(w, tmp_path, emitter, more, shown):
    given = {"index": 9, "dtype": "bf16"} | more
    problem, index = w.product(dtype=given.pop("dtype")), given.pop("index")
    backend = "rocblas" if emitter is ROCBLAS else "hipblaslt"
    outcome = indexed(w, index, backend, problem=problem, **given)
    options = w.VALIDATORS if emitter is TUNABLEOP else {}
    change = after(emitter, [outcome], tmp_path, **options)
    assert not change.edits
    assert [skipped.name for skipped in change.skipped] == ["BBS_TN_0"]
    assert shown in change.skipped[0].reason


def test_calls_that_differ_in_what_is_not_asked_share_an_entry(w, tmp_path):
    """hipBLASLt's key has no bias: a winner without one would change the call with one."""
    biased = indexed(w, 4, name="A_1", problem=w.product(bias=True), kept=False)
    change = after(HIPBLASLT, [indexed(w), biased], tmp_path)
    assert "A_1" in change.skipped[0].reason


def test_a_call_s_own_fields_are_used_and_checked(w, tmp_path):
    padded = indexed(w, -19, "rocblas", "", blas={"lda": "2048", "alpha": "2"})
    text = after(ROCBLAS, [padded], tmp_path).edits[0].after
    assert "T,N,512,16,1,1024,2,0,2048,1024,512,bf16_r,bf16_r,f32_r,9" in text
    odd = indexed(w, 9, "rocblas", "", blas={"m": "7"})
    reason = after(ROCBLAS, [odd], tmp_path).skipped[0].reason
    assert "m=7" in reason
    assert "512" in reason


@pytest.mark.parametrize(("kind", "word"), [("f8e4m3", "f8_r"), ("f8e5m2", "bf8_r")])
def test_the_fp8_of_gfx942_has_its_own_name_whatever_its_log_said(w, tmp_path, kind, word):
    logged = {"a_type": word, "b_type": word, "compute_type": "f32_r"}

    def cells(dtype):
        problem = w.product(dtype=dtype, c="bf16")
        outcome = indexed(w, problem=problem, arch="gfx942", blas=logged)
        return after(HIPBLASLT, [outcome], tmp_path).edits[0].after.splitlines()[-1].split(",")

    own = word.replace("_r", "_fnuz_r")
    assert own in cells(f"{kind}fnuz")
    assert word not in cells(f"{kind}fnuz")
    assert word in cells(kind)


# -- rocBLAS


def test_rocblas_s_own_file(tmp_path):
    one, two = entries(ROCBLAS, OVERRIDES, tmp_path)
    assert one.config == {"solution_index": 3788}
    assert one.key["ldb"] == "6144"
    assert (two.key["stride_a"], two.config["solution_index"]) == ("600000", 12)
    assert two.kernel == "Cijk_slow"


def test_rocblas_s_reader_takes_a_blank_before_a_letter_for_a_transpose(tmp_path):
    spaced = OVERRIDES.splitlines()[1].replace("N,N", "N, N")
    assert entries(ROCBLAS, spaced + "\n", tmp_path)[0].key["transB"] == "T"


def with_tensile_index(outcome, index):
    """The outcome as the backend makes it of a solution that Tensile named."""
    resources = {**outcome.tuned.kernel.resources, "tensile_index": index}
    kernel = dataclasses.replace(outcome.tuned.kernel, resources=resources)
    return dataclasses.replace(outcome, tuned=dataclasses.replace(outcome.tuned, kernel=kernel))


@pytest.mark.parametrize(
    ("api", "version", "named", "file"),
    [
        # rocBLAS 4.3 and 4.4 count Tensile's solutions from 1 unless hipBLASLt is in use.
        *((3788, version, 3787, 3788) for version in ("4.2.1", "4.3.0", "4.4.1")),
        (-3798, "5.2.0", 3787, 3788),
        # A negative number is always Tensile's.
        *((-3798, "", None, 3788), (-11, "", None, 1)),
    ],
)
def test_a_solution_of_tensile_has_its_index_in_the_file(w, tmp_path, api, version, named, file):
    outcome = indexed(w, api, "rocblas", version)
    if named is not None:
        outcome = with_tensile_index(outcome, named)
    change = after(ROCBLAS, [outcome], tmp_path)
    assert change.edits[0].after.rstrip().endswith(f",f32_r,{file}")


@pytest.mark.parametrize("version", ["", "4.2.1", "4.3.0", "5.2.0.5b515cf1bc", "develop"])
def test_a_positive_number_that_tensile_did_not_name_is_refused(w, tmp_path, version):
    """It may be hipBLASLt's; rocBLAS's file holds indices of Tensile alone."""
    change = after(ROCBLAS, [indexed(w, 3788, "rocblas", version)], tmp_path)
    assert (change.edits, len(change.skipped)) == ((), 1)
    kept = w.VALIDATORS | {"HIPBLASLT_VERSION": "1-cafe"}
    kept |= {"ROCBLAS_VERSION": version} if version else {}
    for index in (3788, -3798):  # PyTorch hands either to rocblas_gemm_ex
        outcome = indexed(w, index, "rocblas", version)
        made = after(TUNABLEOP, [outcome], tmp_path / f"{index}", **kept)
        assert f"Gemm_Rocblas_{index}," in made.edits[0].after


def test_rocblas_batches_have_strides(w, tmp_path):
    outcome = indexed(w, -18, "rocblas", problem=w.product(batch=4))
    row = after(ROCBLAS, [outcome], tmp_path).edits[0].after.splitlines()[-1].split(",")
    assert len(row) == 18
    assert row[11:14] == [str(512 * 1024), str(16 * 1024), str(512 * 16)]


def test_rocblas_s_beta_is_written_with_all_its_digits(w, tmp_path):
    beta = "0.3333333333333"
    outcome = indexed(w, -18, "rocblas", blas={"beta": beta})
    change = after(ROCBLAS, [outcome], tmp_path)
    assert len(change.winners) == 1
    (entry,) = entries(ROCBLAS, change.edits[0].after, tmp_path)
    assert entry.key["beta"] == beta
    assert not after(ROCBLAS, [outcome], tmp_path).edits


# -- TunableOp


def test_pytorch_s_own_file(tmp_path):
    found = entries(TUNABLEOP, RESULTS, tmp_path)
    assert [(e.config["library"], e.config["solution_index"]) for e in found] == [
        ("rocblas", -476662),
        ("hipblaslt", 479),
        ("default", 0),
    ]


ROUNDED = {"compute_type": "xf32_r"}  # inputs of f32 are rounded to tf32


@pytest.mark.parametrize(
    ("problem", "blas", "op", "params"),
    [
        ({}, {}, "GemmTunableOp_BFloat16_TN", "tn_512_16_1024_ld_1024_1024_512"),
        ({"tb": "n"}, {}, "GemmTunableOp_BFloat16_NN", "nn_512_16_1024_ld_512_1024_512"),
        ({"bias": True}, {}, "GemmAndBiasTunableOp_BFloat16_TN", "tn_512_16_1024_ld_1024_1024_512"),
        (
            {"batch": 4, "dtype": "f32"},
            {},
            "GemmStridedBatchedTunableOp_float_TN",
            "tn_512_16_1024_B_4_ld_1024_1024_512",
        ),
        (
            {"dtype": "f8e4m3", "c": "bf16"},
            {},
            "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN",
            "tn_512_16_1024_ld_1024_1024_512_rw_0_bias_None",
        ),
        ({"dtype": "f32"}, ROUNDED, "GemmTunableOp_tf32_TN", "tn_512"),
        ({"dtype": "f32", "bias": True}, ROUNDED, "GemmAndBiasTunableOp_tf32_TN", "tn_512"),
        ({"dtype": "f32", "batch": 4}, ROUNDED, "GemmStridedBatchedTunableOp_tf32_TN", "tn_512"),
    ],
)
def test_pytorch_s_words(w, problem, blas, op, params):
    outcome = w.outcome(problem=w.product(**problem), backend="hipblaslt", blas=blas)
    key = TUNABLEOP.lookup_key(outcome, FrozenDict())
    assert key["op"] == op
    assert key["params"] == params or (blas and key["params"].startswith(params))


def test_the_older_parameters_go_with_an_older_file(w, tmp_path):
    old = RESULTS.replace("_ld_1280_1280_512", "").replace("2.9.1", "2.6.0")
    old = old.replace("Hipblaslt_479", "Hipblaslt_TN_479")
    row = "GemmTunableOp_BFloat16_TN,tn_512_16_1024,Gemm_Hipblaslt_{},0.01"
    winner = indexed(w, version="100201-5b515cf1bc")
    change = after(TUNABLEOP, [winner], tmp_path, old)
    assert change.edits[0].after.splitlines()[-1] == row.format("TN_9")
    # PyTorch 2.6 raises for a solution without letters, and 2.7 for one with them.
    wrong = after(TUNABLEOP, [winner], tmp_path, f"{old}{row.format(9)}\n")
    assert wrong.edits[0].after.splitlines()[-1] == row.format("TN_9")
    path = tmp_path / "file"
    path.write_text(f"{old}{row.format(9)}\n")
    assert not TUNABLEOP.has_winner(winner, path)
    assert [entry.config.get("library") for entry in TUNABLEOP.read(path)] == [
        *("rocblas", "hipblaslt", "default", None)
    ]


@pytest.mark.parametrize(
    ("emitter", "backend", "problem", "blas"),
    [
        (TUNABLEOP, "rocblas", {"dtype": "f16"}, {"compute_type": "f16_r"}),
        (TUNABLEOP, "hipblaslt", {"dtype": "f16"}, {"compute_type": "f16_r"}),
        (TUNABLEOP, "hipblaslt", {"dtype": "f8e4m3", "c": "bf16", "tb": "n"}, {}),
        (TUNABLEOP, "rocblas", {"dtype": "f8e4m3", "c": "bf16"}, {}),
        (HIPBLASLT, "hipblaslt", {"dtype": "f16"}, {"compute_type": "f16_r"}),
        (ROCBLAS, "rocblas", {"dtype": "f8e4m3", "c": "bf16"}, {}),
    ],
)
def test_what_the_library_does_not_read_is_not_written(
    w, tmp_path, emitter, backend, problem, blas
):
    winner = w.outcome(
        problem=w.product(**problem), backend=backend, config={"solution_index": 9}, blas=blas
    )
    made = after(emitter, [winner], tmp_path, **(w.VALIDATORS if emitter is TUNABLEOP else {}))
    assert not made.edits
    assert [skipped.name for skipped in made.skipped] == [winner.name]


ALGO = "id=66 tile=20 split_k=2 reduction=1 swizzle=0 custom=3 stages=35 inner=0 cluster=4"


def test_cublaslt_s_algorithms_are_named_by_their_attributes(w, tmp_path, monkeypatch):
    winner = w.outcome(backend="cublaslt", config={"algo": ALGO}, arch="sm_90", version="13.1.0")
    with pytest.raises(UsageError):  # PyTorch's validators on CUDA are not known
        after(TUNABLEOP, [winner], tmp_path, PT_VERSION="2.14.0")
    own = {"PT_VERSION": "2.14.0", "SOME_VERSION": "13"}
    monkeypatch.setattr(tunableop, "_installed_validators", lambda: own)
    made = after(TUNABLEOP, [winner], tmp_path)
    assert made.edits[0].after.splitlines() == [
        "Validator,PT_VERSION,2.14.0",
        "Validator,SOME_VERSION,13",
        "GemmTunableOp_BFloat16_TN,tn_512_16_1024_ld_1024_1024_512,Gemm_Cublaslt_id_66_tile_20_"
        "stages_35_splitk_2_red_1_swizzle_0_custom_3_inner_0_cluster_4,0.01",
    ]
    path = tmp_path / "file"
    path.write_text(made.edits[0].after)
    assert TUNABLEOP.has_winner(winner, path)
    assert not after(TUNABLEOP, [winner], tmp_path).edits
    path.unlink()
    own["PT_VERSION"] = "2.13.0"  # does not tune cuBLASLt
    assert not after(TUNABLEOP, [winner], tmp_path).edits
    own["PT_VERSION"] = "2.14.0"
    lacking = dataclasses.replace(
        winner, tuned=dataclasses.replace(winner.tuned, config=FrozenDict({"algo": "id=66"}))
    )
    assert not after(TUNABLEOP, [lacking], tmp_path).edits


def test_pytorch_s_validators_are_all_needed(w, tmp_path):
    missing = ("PT_VERSION", "HIP_VERSION", "GCN_ARCH_NAME", "ROCBLAS_VERSION")
    with pytest.raises(UsageError, match=", ".join(missing)):
        after(TUNABLEOP, [indexed(w)], tmp_path)
    given = {name: "x" for name in w.VALIDATORS if name != "HIP_VERSION"}
    given["GCN_ARCH_NAME"] = "gfx950:sramecc+:xnack-"
    made = after(TUNABLEOP, [indexed(w)], tmp_path, ROCM_VERSION="7", **given)
    heads = [line for line in made.edits[0].after.splitlines() if line.startswith("Validator")]
    assert len(heads) == 5
    assert "Validator,HIPBLASLT_VERSION,1-cafe" in heads


def test_a_pytorch_with_another_library_than_the_tuned_one_gets_no_file(w, tmp_path, monkeypatch):
    """PyTorch compares every validator with its own and ignores a file in which one differs."""
    outcome = w.outcome(backend="hipblaslt", config={"solution_index": 9}, version="1-cafe")
    own = {**w.VALIDATORS, "HIPBLASLT_VERSION": "2-cafe"}
    monkeypatch.setattr(tunableop, "_installed_validators", lambda: own)
    with pytest.raises(UsageError, match="HIPBLASLT_VERSION"):
        after(TUNABLEOP, [outcome], tmp_path)
    own["HIPBLASLT_VERSION"] = "1-cafe"
    made = after(TUNABLEOP, [outcome], tmp_path)
    heads = [line for line in made.edits[0].after.splitlines() if line.startswith("Validator")]
    assert set(heads) == {f"Validator,{name},{value}" for name, value in own.items()}


@pytest.mark.parametrize("emitter", [HIPBLASLT, TUNABLEOP])
@pytest.mark.parametrize(("kind", "written"), [("SABV", True), ("SAB", False)])
def test_a_gemm_whose_rows_have_factors_is_written(w, tmp_path, emitter, kind, written):
    problem = ops.parse("gemm_epilogue m=64 n=48 k=32 dtype=f8e4m3 c=bf16 tb=t scale=row")
    kernel = f"Cijk_Alik_Bljk_F8BS_BH_Bias_HA_S_{kind}_SAV_UserArgs_MT128x128x32"
    outcome = w.outcome(
        problem=problem,
        backend="hipblaslt",
        config={"solution_index": 9},
        version="1-cafe",
        kernel=kernel,
    )
    given = w.VALIDATORS if emitter is TUNABLEOP else {}
    made = after(emitter, [outcome], tmp_path, **given)
    assert bool(made.edits) == written
    if written and emitter is TUNABLEOP:
        key = emitter.lookup_key(outcome, FrozenDict())
        assert key["params"] == "tn_48_64_32_ld_32_32_48_rw_1_bias_None"


@pytest.mark.parametrize("emitter", [HIPBLASLT, TUNABLEOP])
@pytest.mark.parametrize(
    ("scales", "kind", "written"),
    [
        ("00", "SAB", True),
        ("00", "SABV", True),
        ("11", "SAB", True),
        ("11", "SABV", False),
        ("22", "SABV", True),  # a factor for each row
        ("22", "SAB", False),
        ("12", "SABV", False),
        ("22", "HA_S", False),  # a kernel without scales
        ("33", "SABV", False),  # a factor for each block of 32
    ],
)
def test_a_call_with_scales_gets_a_kernel_that_applies_them(
    w, tmp_path, emitter, scales, kind, written
):
    """The tuned problem has no scales: TensileLite's solutions for factors of one kind all run it,
    but not a call with factors of another kind."""
    outcome = w.outcome(
        problem=w.product(dtype="f8e4m3", c="bf16"),
        backend="hipblaslt",
        config={"solution_index": 9},
        version="1-cafe",
        kernel=f"Cijk_Alik_Bljk_F8BS_BH_Bias_HA_S_{kind}_SAV_UserArgs_MT128x128x32",
        blas=dict(zip(("scaleA", "scaleB"), scales, strict=True)),
    )
    given = w.VALIDATORS if emitter is TUNABLEOP else {}
    made = after(emitter, [outcome], tmp_path, **given)
    assert ["scaleA" in skipped.reason for skipped in made.skipped] == [True] * (not written)
    assert bool(made.edits) == written
    if written and emitter is TUNABLEOP:
        rowwise = int(scales == "22")
        fields = emitter.lookup_key(outcome, FrozenDict())
        assert fields["params"] == f"tn_512_16_1024_ld_1024_1024_512_rw_{rowwise}_bias_None"


@pytest.mark.parametrize(
    ("problem", "types", "written"),
    [
        ({"dtype": "i8"}, {"c_type": "bf16_r", "d_type": "bf16_r"}, False),  # read as i32
        ({"dtype": "i8"}, {"c_type": "i32_r", "d_type": "i32_r"}, True),
        # Which of the two formats f8_r is, only the GPU says.
        ({"dtype": "f8e4m3fnuz", "c": "f8e4m3fnuz"}, {"c_type": "f8_r", "d_type": "f8_r"}, True),
        # C, of another type, is not read.
        ({"dtype": "f8e4m3", "c": "bf16"}, {"c_type": "f32_r", "d_type": "bf16_r"}, True),
    ],
)
def test_a_call_with_another_output_gets_no_kernel(w, tmp_path, problem, types, written):
    made = after(HIPBLASLT, [indexed(w, problem=w.product(**problem), blas=types)], tmp_path)
    assert ["d_type" in skipped.reason for skipped in made.skipped] == [True] * (not written)


def test_results_of_another_library_or_architecture_are_not_mixed_in(w, tmp_path):
    with pytest.raises(UsageError, match=r"HIPBLASLT_VERSION .*100201-5b515cf1bc and 2-cafe"):
        after(TUNABLEOP, [indexed(w, version="2-cafe")], tmp_path, RESULTS)
    outcome = indexed(w, version="100201-5b515cf1bc")
    assert outcome.arch == "gfx950"
    with pytest.raises(UsageError, match=r"gfx942:.*gfx950"):
        after(TUNABLEOP, [outcome], tmp_path, RESULTS.replace("gfx950", "gfx942"))
    given = {name: "x" for name in w.VALIDATORS if name != "HIPBLASLT_VERSION"}
    with pytest.raises(UsageError, match=r"is x, .*gfx950"):
        after(TUNABLEOP, [outcome], tmp_path / "new", **given)
    with pytest.raises(UsageError, match="gfx938 and gfx950"):
        after(HIPBLASLT, [outcome], tmp_path, TUNED.replace("gfx950", "gfx938"))


@pytest.mark.parametrize(
    ("problem", "shown"),
    [
        ({"dtype": "i8"}, "gemm of i8"),
        ({"dtype": "bf16", "c": "f32"}, "bf16, bf16, f32"),
        ({"batch": 2, "bias": True}, "batched_gemm with a bias of bf16"),
    ],
)
def test_what_pytorch_does_not_tune(w, tmp_path, problem, shown):
    outcome = indexed(w, version="", problem=w.product(**problem))
    assert shown in after(TUNABLEOP, [outcome], tmp_path).skipped[0].reason


# -- all three: what is written is what is read

problems = st.builds(
    lambda m, n, k, dtype, ta, tb, batch: ops.registry.get(
        "batched_gemm" if batch > 1 else "gemm"
    ).problem(m=m, n=n, k=k, dtype=dtype, ta=ta, tb=tb, **({"batch": batch} if batch > 1 else {})),
    *(st.integers(1, 70000) for _ in range(3)),
    st.sampled_from(["f32", "f16", "bf16"]),
    *(st.sampled_from("nt") for _ in range(2)),
    st.integers(1, 3),
)
EMITTERS = {"hipblaslt": HIPBLASLT, "rocblas": ROCBLAS}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(problems, st.integers(1, 10**6)), min_size=1, max_size=6, unique=True))
def test_what_is_written_is_read_back(tmp_path_factory, w_module, pairs):
    folder = tmp_path_factory.mktemp("round")
    unique = {problem.key: (problem, index) for problem, index in pairs}
    for backend, emitter in (*EMITTERS.items(), ("hipblaslt", TUNABLEOP)):
        outcomes = [
            with_tensile_index(
                w_module.outcome(
                    f"X_{i}", problem, backend, {"solution_index": index}, version="1-cafe"
                ),
                index - 1,
            )
            for i, (problem, index) in enumerate(unique.values())
        ]
        given_ = w_module.VALIDATORS if emitter is TUNABLEOP else {}
        path = folder / f"{emitter.name}.txt"
        change = applying.prepare(emitter, outcomes, path, FrozenDict(given_))
        applying.write(emitter, change, path)
        indices = [entry.config["solution_index"] for entry in emitter.read(path)]
        assert sorted(indices) == sorted(index for _, index in unique.values())
        more = [dataclasses.replace(outcomes[0], kept=False)]
        assert not emitter.emit(more, path, FrozenDict(given_)).edits
