"""Lookup of aiter-style configs and what `lint` finds in them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.errors import UsageError
from kernelmark.tune.install.aiter_config import FAMILIES, STANDARD, bounds, bucket_of, lint, lookup

GOOD = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "num_warps": 4}


@pytest.fixture
def root(tmp_path):
    def put(path, document):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(document if isinstance(document, str) else json.dumps(document))

    put("gemm/gfx950-BATCHED_GEMM-A8W8.json", {"any": GOOD, "M_LEQ_16": {**GOOD, "num_warps": 2}})
    put.root = tmp_path
    return put


def found(root, family="BATCHED_GEMM-A8W8", **shape):
    return lookup(root.root, family, "gfx950", **{"m": 8, "n": 512, "k": 128, **shape})


def texts(root):
    return [(f.entry, f.text) for f in lint(root.root).findings]


def test_the_default_file_by_buckets(root):
    assert found(root).bucket == "M_LEQ_16"
    assert found(root, m=16).config["num_warps"] == 2
    assert found(root, m=17).bucket == "any"
    assert not found(root).tuned
    root("gemm/gfx950-X.json", {"any": GOOD, "M_LEQ_64": GOOD, "M_GEQ_4096": GOOD})
    buckets = [found(root, "X", m=m).bucket for m in (64, 100, 5000)]
    assert buckets == ["M_LEQ_64", "any", "M_GEQ_4096"]


def test_a_specialised_file_replaces_the_default_altogether(root):
    root("gemm/gfx950-BATCHED_GEMM-A8W8-N=512-K=128.json", {"any": GOOD, "M_LEQ_64": GOOD})
    one = found(root, m=8)
    assert (one.bucket, one.tuned) == ("M_LEQ_64", True)
    assert not found(root, m=65).tuned
    assert found(root, n=128, k=512).bucket == "M_LEQ_16"


def test_a_file_for_the_batch_comes_first(root):
    root("gemm/gfx950-BATCHED_GEMM-A8W8-N=512-K=128.json", {"any": {**GOOD, "num_warps": 1}})
    root("gemm/gfx950-BATCHED_GEMM-A8W8-B=16-N=512-K=128.json", {"any": {**GOOD, "num_warps": 8}})
    assert found(root, batch=16).config["num_warps"] == 8
    assert found(root, batch=8).config["num_warps"] == 1
    assert found(root).config["num_warps"] == 1


def test_a_nested_folder_wins_only_with_its_default(root):
    nested = "gfx950/triton/gemm/batched_gemm_a8w8"
    root(f"{nested}/BATCHED_GEMM-A8W8-N=512-K=128.json", {"any": {**GOOD, "num_warps": 8}})
    assert found(root).config["num_warps"] == 2
    root(f"{nested}/DEFAULT.json", {"any": {**GOOD, "num_warps": 1}})
    assert found(root).config["num_warps"] == 8
    assert found(root, n=7).config["num_warps"] == 1


def test_a_backend_of_its_own(root):
    root("gemm/gluon/gfx950-BATCHED_GEMM-A8W8.json", {"any": {**GOOD, "num_warps": 8}})
    assert found(root, backend="gluon").config["num_warps"] == 8
    assert found(root, backend="other").config["num_warps"] == 2


def test_what_is_missing_is_told(root):
    with pytest.raises(UsageError, match="GEMM-NO for gfx950"):
        found(root, "GEMM-NO")
    root("gemm/gfx950-Y.json", {"M_LEQ_4": GOOD})
    with pytest.raises(UsageError, match="m=5"):
        found(root, "Y", m=5)


def test_bounds_of_the_families():
    assert 320 in bounds(FAMILIES["afp4wfp4"])
    assert 1 not in bounds(FAMILIES["afp4wfp4"])
    assert bounds(FAMILIES["a8w8"]) == bounds("FUSED-GEMM-AFP4WFP4-MUL_ADD") == STANDARD


@given(
    st.sets(st.sampled_from([f"M_LEQ_{x}" for x in STANDARD]), min_size=1), st.integers(1, 20000)
)
def test_the_bucket_is_the_tightest_that_holds_m(names, m):
    buckets = dict.fromkeys([*names, "any"], GOOD)
    limits = sorted(x for x in STANDARD if f"M_LEQ_{x}" in names and m <= x)
    assert bucket_of(buckets, m, STANDARD) == (f"M_LEQ_{limits[0]}" if limits else "any")


def test_dead_buckets(root):
    root("gemm/gfx950-GEMM-A16W16-gated.json", {"any": GOOD, "M_LEQ_8": GOOD, "M_LEQ_64": GOOD})
    assert [place for place, _ in texts(root)] == ["M_LEQ_8"]
    assert "dead" in texts(root)[0][1]
    nested = "gfx950/triton/gemm/gemm_afp4wfp4_preshuffled"
    root(f"{nested}/DEFAULT.json", {"any": GOOD, "M_LEQ_31": GOOD, "M_LEQ_2": GOOD})
    assert [place for place, _ in texts(root)] == ["M_LEQ_8", "M_LEQ_2"] or [
        place for place, _ in texts(root)
    ] == ["M_LEQ_2", "M_LEQ_8"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"BLOCK_SIZE_M": 48}, "BLOCK_SIZE_M=48 is not a power of two"),
        ({"BLOCK_SIZE_M": 0}, "BLOCK_SIZE_M=0"),
        ({"BLOCK_SIZE_M": True}, "BLOCK_SIZE_M=True"),
        ({"num_warps": 3}, "num_warps=3 is not one of"),
        ({"num_stages": 0}, "num_stages=0"),
        ({"waves_per_eu": -1}, "waves_per_eu=-1"),
        ({"matrix_instr_nonkdim": 8}, "matrix_instr_nonkdim=8"),
        ({"cache_modifier": ".xx"}, "cache_modifier='.xx'"),
        ({"kpack": 3}, "kpack=3"),
        ({"BLOCK_SIZE_Q": 3}, "BLOCK_SIZE_Q is not a key"),
    ],
)
def test_illegal_values(root, change, told):
    root("gemm/gfx950-GEMM-A8W8.json", {"any": {**GOOD, **change}})
    assert len(texts(root)) == 1
    assert told in texts(root)[0][1]


TWICE = '{"any": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_M": 32}}'


@pytest.mark.parametrize(
    ("path", "document", "told"),
    [
        ("gemm/gfx950-GEMM-A8W8.json", TWICE, "BLOCK_SIZE_M is given twice"),
        ("gemm/gfx950-BATCHED_GEMM-A8W8-K=128-N=131.json", {"any": GOOD}, "is not N=…-K=…"),
        ("gemm/gfx950-BATCHED_GEMM-A8W8-N=5_K=5.json", {"any": GOOD}, "a family of its own"),
        ("gemm/gxf950-BATCHED_GEMM-A8W8.json", {"any": GOOD}, "is never read: names are"),
        ("gfx950/triton/gemm/deep/er/DEFAULT.json", {"any": GOOD}, "is never read: names are"),
    ],
)
def test_keys_and_names_that_nobody_looks_for(root, path, document, told):
    root(path, document)
    assert told in " | ".join(text for _, text in texts(root))


def test_other_findings(root):
    group = FAMILIES["a8w8_group"]
    root(f"gemm/gfx950-{group}.json", {"any": GOOD})
    root("gemm/gfx950-GEMM-A8W8-N=1-K=2.json", {"any": GOOD})
    root("gemm/gfx942-GEMM-A8W8.json", {"M_LEQ_16": GOOD, "M_EQ_3": GOOD})
    root("gemm/gfx1250-GEMM-A8W8.json", "{")
    root("gemm/gfx1201-GEMM-A8W8.json", {"any": {"BLOCK_SIZE_M": 16}})
    root("gemm/gfx1100-GEMM-A8W8.json", {"any": 3, "M_LEQ_16": GOOD})
    told = " | ".join(text for _, text in texts(root))
    for part in (
        "sets BLOCK_SIZE_K",
        "there is no gfx950-GEMM-A8W8.json beside it",
        "no 'any' bucket",
        "never looked for",
        "is not JSON",
        "has no BLOCK_SIZE_N",
        "any is 3 and not an object of settings",
    ):
        assert part in told


def test_blocks_of_the_batched_family(root):
    root("gemm/gfx950-BATCHED_GEMM-A16W16.json", {"any": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16}})
    root("gemm/gfx950-GEMM-A16W16.json", {"any": {"BLOCK_SIZE_M": 65536, "BLOCK_SIZE_N": 16}})
    told = [text for _, text in texts(root)]
    assert told == [
        "has no BLOCK_SIZE_K",
        "BLOCK_SIZE_M=65536 is more than any kernel's tile (4096)",
    ]


@pytest.mark.parametrize(
    ("family", "suffix", "is_read"),
    [
        ("FUSED-GEMM-A8W8_BLOCKSCALE-A16W16", "N8=512-N16=256-K=7168", True),
        ("FUSED-GEMM-A8W8_BLOCKSCALE-A16W16", "N4=512-N16=256-K=7168", False),
        ("FUSED-GEMM-A8W8_BLOCKSCALE-A16W16", "N=512-K=7168", False),
        ("FUSED-GEMM-AFP4WFP4-A16W16", "N4=512-N16=256-K=7168", True),
        ("FUSED-GEMM-AFP4WFP4_PRESHUFFLED-A16W16", "N4=512-N16=256-K=7168", True),
        ("FUSED-GEMM-AFP4WFP4-MUL_ADD", "N=512-K=7168", True),
        ("GEMM-A16W16", "N8=512-N16=256-K=7168", False),
    ],
)
def test_what_a_family_s_kernels_ask_for(root, family, suffix, is_read):
    root(f"gemm/gfx950-{family}.json", {"any": GOOD})
    root(f"gemm/gfx950-{family}-{suffix}.json", {"any": GOOD})
    assert (texts(root) == []) is is_read


def test_a_folder_without_configs_has_no_files(tmp_path):
    assert lint(tmp_path).files == 0
