"""The choices in files of other tuners: what is measured, what is not, and what is written back."""

import hashlib
import json

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.recorded import format_of, formats
from kernelmark.tune.recorded.base import Applied, AuditFacts, Contender, own_config
from kernelmark.workloads.importers import ResultFile

COMMON = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None}
CACHE = {
    "key": [512, 1024, 256, "torch.float16"],
    "configs_timings": [
        [COMMON | {"kwargs": {"BLOCK_M": 16}}, [0.02, 0.019, 0.021]],
        [COMMON | {"kwargs": {"BLOCK_M": 32}}, [0.01, 0.009, 0.012]],
        [COMMON | {"kwargs": {"BLOCK_M": 64}}, [0.01, 0.009, 0.012]],
        [COMMON | {"kwargs": {"BLOCK_M": 128}}, [float("inf")] * 3],
    ],
}
MOE = "E=8,N=256,device_name=NVIDIA_H200.json"
SETTINGS = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 64,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 3,
}
MOE_FACTS = AuditFacts(values={"k": "512", "top_k": "2"})
INDUCTOR = """AUTOTUNE mm(512x1024, 1024x2048)
strides: [1024, 1], [1, 1024]
dtypes: torch.bfloat16, torch.bfloat16
  triton_mm_12 0.0512 ms 100.0% ACC_TYPE='tl.float32', ALLOW_TF32=False, BLOCK_K=64, BLOCK_M=128, \
BLOCK_N=64, EVEN_K=True, GROUP_M=8, num_stages=3, num_warps=4
  mm 0.0530 ms 96.6%
  triton_mm_3 0.0612 ms 83.7% ACC_TYPE='tl.float32', BLOCK_K=32, BLOCK_M=64, BLOCK_N=64, \
GROUP_M=8, num_stages=2, num_warps=4
AUTOTUNE mm(512x1024, 1024x2048)
strides: [1024, 1], [1, 1024]
dtypes: torch.bfloat16, torch.bfloat16
  mm 0.0510 ms 100.0%
  triton_mm_4 0.0512 ms 99.6% BLOCK_K=64, BLOCK_M=128, BLOCK_N=64, GROUP_M=8, num_stages=3, \
num_warps=4
"""
ALGORITHM = (
    "Gemm_Cublaslt_id_66_tile_20_stages_15_splitk_1_red_0_swizzle_0_custom_0_inner_0_cluster_0"
)
TUNABLEOP = f"""Validator,PT_VERSION,2.14.0
GemmTunableOp_Half_TN,tn_64_32_16_ld_16_16_64,{ALGORITHM},0.30
GemmTunableOp_Half_NN,nn_64_32_16_ld_64_16_64,Gemm_Hipblaslt_7,0.20
GemmTunableOp_Half_NT,nt_64_32_16_ld_64_32_64,Default,0.20
"""
KEY = "('fp4_gemm', 'CutlassFp4', ((16, 1024), (1024, 4096)))"
HELION = """run_id,timestamp_s,config_index,generation,status,perf_ms,compile_time_s,config
r1,0.10,1,0,started,,,"Config(block_sizes=[16], num_warps=4)"
r1,0.12,2,0,ok,0.500000,1.00,"Config(block_sizes=[16], num_warps=4)"
r1,0.22,3,0,ok,0.400000,1.00,"Config(block_sizes=[32], num_warps=8)"
r2,0.10,1,0,error,,,"Config(block_sizes=[16], num_warps=4)"
"""
PRINTED = """Triton autotuning for function matmul,
with key as (512, 1024, 256, 'torch.float16'),
finished after 1.25s,
best config selected: BLOCK_M: 64, num_warps: 4, num_ctas: 1, num_stages: 3, maxnreg: None;
"""


@pytest.fixture
def rows(tmp_path):
    """Read the rows of a file with this name and text."""

    def read(name, text, facts=AuditFacts()):  # noqa: B008
        path = tmp_path / name
        path.write_text(text)
        found = format_of(path)
        file = ResultFile(path)
        return found, file, list(found.rows(file, facts))

    return read


def test_a_triton_cache_needs_kernel_and_key(rows):
    text = json.dumps(CACHE)
    (row,) = rows("matmul.autotune.json", text)[2]
    assert row.problem is None
    assert "--kernel" in row.reason
    (row,) = rows("matmul.autotune.json", text, AuditFacts(kernel="triton"))[2]
    assert row.problem is None
    assert "--key" in row.reason
    (row,) = rows("matmul.autotune.json", text, AuditFacts(kernel="triton", key="gemm m,n,k"))[2]
    assert row.problem.dims == {"m": 512, "n": 1024, "k": 256}
    assert row.problem.dtypes["a"] == "f16"
    # the first of two equal times, as min() takes; the default is the first of the list
    assert row.choice.config == {"block_m": 32, "num_warps": 4, "num_stages": 3}
    assert row.default.config["block_m"] == 16
    assert [other.config["block_m"] for other in row.others] == [64, 16]
    assert row.closed
    assert row.stand_in


def test_a_rewritten_triton_cache_chooses_the_stable_config(rows):
    facts = AuditFacts(kernel="./mine.py", key="gemm m,n,k")
    found, file, (row,) = rows("matmul.autotune.json", json.dumps(CACHE), facts)
    slow = next(other for other in row.others if other.config["BLOCK_M"] == 16)
    document = json.loads(found.rewritten(file, {row.where: slow}))
    (first, *others) = document["configs_timings"]
    assert first == CACHE["configs_timings"][0]
    assert [pair[0] for pair in others] == [pair[0] for pair in CACHE["configs_timings"][1:]]
    times = [pair[1][0] for pair in document["configs_timings"]]
    assert times.index(min(times)) == 0
    (again,) = rows("matmul.autotune.json", json.dumps(document), facts)[2]
    assert again.choice == slow


def test_a_key_that_triton_tuned_again_was_not_read_from_the_cache(rows):
    found, file, (row,) = rows("matmul.autotune.json", json.dumps(CACHE))
    assert found.applied(file, row, PRINTED) is Applied.NO
    assert found.applied(file, row, PRINTED.replace("512, ", "513, ")) is Applied.UNKNOWN
    assert found.applied(file, row, PRINTED.replace("matmul", "softmax")) is Applied.UNKNOWN


@pytest.mark.parametrize(
    "text", [PRINTED, PRINTED.replace("with key as (512, 1024, 256, 'torch.float16'),\n", "")]
)
def test_what_triton_prints(rows, text):
    facts = AuditFacts(kernel="triton", key="gemm m,n,k")
    (row,) = rows("run.log", f"loading\n{text}", facts)[2]
    assert (row.where, row.choice.config) == (
        "line 2",
        {"block_m": 64, "num_warps": 4, "num_stages": 3},
    )
    assert (row.problem is None) == ("with key" not in text)


def test_each_block_of_inductor_is_a_row(rows):
    _, _, (first, second) = rows("inductor.log", INDUCTOR)
    assert first.problem == second.problem
    assert first.choice.backend == "triton"
    assert first.stand_in
    assert first.choice.config["block_m"] == 128
    assert first.choice.config["group_m"] == 8
    assert first.default == Contender(backend="torch")
    assert [other.backend for other in first.others] == ["torch", "triton"]
    assert second.choice == Contender(backend="torch")
    assert not second.stand_in


def test_tunableop_measures_what_names_a_solution(rows):
    found, file, (algorithm, index, default) = rows("tunableop_results0.csv", TUNABLEOP)
    assert algorithm.choice.config["algo"].startswith("id=66 tile=20 stages=15 split_k=1")
    assert index.problem is None
    assert "index" in index.reason
    assert default.choice == Contender(backend="torch")
    other = Contender(
        backend="cublaslt",
        config=FrozenDict({"algo": algorithm.choice.config["algo"].replace("tile=20", "tile=5")}),
    )
    text = found.rewritten(file, {algorithm.where: other, default.where: algorithm.choice})
    lines = text.splitlines()
    assert lines[1] == TUNABLEOP.splitlines()[1].replace("tile_20", "tile_5")
    assert lines[2] == TUNABLEOP.splitlines()[2]
    assert lines[3].split(",")[2] == ALGORITHM


def test_tunableop_logs_each_lookup(rows):
    found, file, (row, *_) = rows("tunableop_results0.csv", TUNABLEOP)
    key = row.label.replace(" ", ",")
    assert found.applied(file, row, f"ResultEntry found for {key}\n") is Applied.YES
    longer = f"ResultEntry found for {key}4\n"
    assert found.applied(file, row, longer) is Applied.UNKNOWN
    missing = f"missing params_signature, returning null ResultEntry for {key}\n"
    assert found.applied(file, row, missing) is Applied.NO


def test_entries_of_vllm_at_their_m(rows):
    text = json.dumps({"1": SETTINGS, "64": SETTINGS | {"BLOCK_SIZE_M": 64}}, indent=4)
    assert all("k and top_k" in row.reason for row in rows(MOE, text)[2])
    found, file, (one, many) = rows(MOE, text, MOE_FACTS)
    assert many.problem.key.startswith("moe m=64 n=256 k=512 e=8 top_k=2 x=bf16")
    assert many.choice.config["block_m"] == 64
    assert (one.default.config["block_m"], many.default.config["block_m"]) == (16, 32)
    written = json.loads(found.rewritten(file, {"64": many.default}))
    assert written["1"] == SETTINGS
    assert written["64"]["BLOCK_SIZE_M"] == 32


@pytest.mark.parametrize(
    ("line", "applied"),
    [
        (f"INFO Using configuration from /a/b/{MOE} for MoE layer.", Applied.YES),
        (f"Using MoE kernel config from /a/{MOE}.", Applied.YES),
        (f"Performance might be sub-optimal! Config file not found at /a/{MOE}", Applied.NO),
        (f"Using configuration from /a/{MOE.replace('E=8', 'E=16')} for MoE layer.", "unknown"),
        ("", Applied.UNKNOWN),
    ],
)
def test_serving_engines_log_the_file_they_use(rows, line, applied):
    found, file, (row,) = rows(MOE, json.dumps({"1": SETTINGS}))
    assert found.applied(file, row, line) == applied


def test_block_scaled_files_are_not_measured(rows):
    name = "N=512,K=512,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    (row,) = rows(name, json.dumps({"1": SETTINGS}), MOE_FACTS)[2]
    assert row.problem is None
    assert "fp8_w8a8" in row.reason


def test_buckets_of_aiter(rows):
    text = json.dumps({"M_LEQ_16": SETTINGS, "any": SETTINGS})
    found, file, (bucket, rest) = rows("gfx942-GEMM-A16W16-N=512-K=256.json", text)
    assert bucket.problem.key.startswith("gemm m=16 n=512 k=256")
    assert rest.problem is None
    assert rest.reason
    changed = Contender(
        backend="triton", config=FrozenDict({**bucket.choice.config, "block_m": 32})
    )
    written = json.loads(found.rewritten(file, {"M_LEQ_16": changed}))
    assert written["M_LEQ_16"] == SETTINGS | {"BLOCK_SIZE_M": 32}
    assert written["any"] == SETTINGS


def test_flashinfer_v1_and_v2(rows):
    v1 = json.dumps({"_metadata": {"gpu": "NVIDIA H200"}, KEY: ["CutlassFp4", [128, 3]]})
    found, file, (row,) = rows("autotune_configs.json", v1)
    assert row.problem is None
    assert "--kernel" in row.reason
    assert row.choice.config == {"runner": "CutlassFp4", "tactic": "[128, 3]"}
    assert json.loads(found.rewritten(file, {KEY: row.default}))[KEY] == ["CutlassFp4", -1]
    hit = "[Autotuner]: Config cache hit for fp4_gemm (runner=CutlassFp4, source=config file)"
    assert found.applied(file, row, hit) is Applied.YES
    facts = AuditFacts(kernel="./fp4.py", key="gemm m,k", values={"n": "4096", "dtype": "bf16"})
    (row,) = rows("autotune_configs.json", v1, facts)[2]
    assert row.problem.dims == {"m": 16, "n": 4096, "k": 1024}
    v2 = json.dumps({"key": KEY, "runner": "CutlassFp4", "tactic": 7})
    with pytest.raises(UsageError):
        rows("0.json", v2)
    name = hashlib.sha256(KEY.encode()).hexdigest()[:24]
    found, file, (row,) = rows(f"{name}.json", v2)
    assert row.choice.config["tactic"] == "7"
    written = json.loads(found.rewritten(file, {KEY: row.default}))
    assert written == {"key": KEY, "runner": "CutlassFp4", "tactic": -1}


def test_helion_logs(rows):
    facts = AuditFacts(kernel="./mine.py", key="gemm m=8 n=8 k=8 dtype=f32")
    _, _, (first, second) = rows("helion.csv", HELION, facts)
    assert first.choice.config == {"block_sizes": "[32]", "num_warps": 8}
    assert [other.config["num_warps"] for other in first.others] == [4]
    assert first.problem.dims["m"] == 8
    assert second.problem is None
    assert second.reason


def test_neutral_settings_are_left_out_and_others_kept():
    settings = {"BLOCK_SIZE_M": 16, "GROUP_M": 8, "SPLIT_K": 2, "num_ctas": 2, "maxnreg": "None"}
    assert own_config(settings, "triton") == {
        "block_m": 16,
        "group_m": 8,
        "split_k": 2,
        "num_ctas": 2,
    }
    assert own_config(settings, "./mine.py")["BLOCK_SIZE_M"] == 16


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("empty.json", ""),
        ("other.json", "{}"),
        ("matmul.autotune.json", json.dumps(CACHE)[:-20]),
        ("autotune_configs.json", json.dumps({"_metadata": {}, "what": ["a", 1]})),
        (MOE, json.dumps({"1": 3})),
    ],
)
def test_damaged_files_are_refused(rows, name, text):
    with pytest.raises(UsageError):
        rows(name, text)


def test_every_format_says_what_it_reads():
    for name, found in formats().items():
        assert found.name == name
        assert found.summary
        assert found.facts.exactness


AITER = """gfx,cu_num,M,N,K,q_dtype_w,kernelId,splitK,us,kernelName,tflops,bw,errRatio
gfx942,80,1,1280,8192,torch.int8,34,0,20.5,a8w8_rowwise_256x16x64,1.02,510.5,0.0
gfx942,80,16,1280,8192,torch.int8,35,1,21.5,a8w8_rowwise_256x32x64,1.02,510.5,0.0
gfx942,80,32,1280,8192,torch.int8,35,0,22.5,a8w8_rowwise_256x32x64,1.02,510.5,0.0
"""


def test_aiter_tables_and_what_proves_their_use(rows):
    found, file, (first, second, third) = rows("a8w8_tuned_gemm.csv", AITER)
    assert first.choice.config == {"kernel": "ck", "kernel_id": 34, "split_k": 0}
    hit = "shape is M:1, N:1280, K:8192, found padded_M: 1, N:1280, K:8192 is tuned on cu_num = 80"
    missed = "shape is M:1, N:1280, K:8192, not found tuned config in a.csv, will use default"
    assert found.applied(file, first, hit) is Applied.YES
    assert found.applied(file, second, hit) is Applied.UNKNOWN
    assert found.applied(file, first, missed) is Applied.NO
    # a kernel that two rows have proves neither
    assert found.applied(file, first, "a8w8_rowwise_256x16x64") is Applied.YES
    assert found.applied(file, third, "a8w8_rowwise_256x32x64") is Applied.UNKNOWN
