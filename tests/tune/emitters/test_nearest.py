"""Configs of vLLM and SGLang: names, the nearest M, and what a new entry takes from others."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.errors import UsageError
from kernelmark.core.frozen import FrozenDict
from kernelmark.tune import apply as applying
from kernelmark.tune import nearest_config as configs
from kernelmark.tune.emitters import sglang, vllm

NAME = "N=512,K=1024,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
OURS = {"block_m": 32, "block_n": 64, "block_k": 128, "num_warps": 4, "num_stages": 3}
OLD = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "num_warps": 8}


@pytest.mark.parametrize(
    ("name", "style"),
    [
        (NAME, "vllm"),
        (NAME.replace(",128]", ", 128]"), "sglang"),
        ("E=16,N=1024,device_name=AMD_Instinct_MI300X.json", "vllm"),
        ("E=16,N=1024,device_name=NVIDIA_H100,dtype=int8_w8a16.json", "sglang"),
        (
            "E=8,N=7168,device_name=NVIDIA_A100-SXM4-80GB,dtype=fp8_w8a8,block_shape=[64, 32].json",
            "sglang",
        ),
        ("E=8,N=7168,device_name=X,dtype=fp8_w8a8,per_channel_quant=True_down.json", "sglang"),
        ("N=5,K=6,device_name=NVIDIA_H200,dtype=fp8_w8a8_channelwise.json", "sglang"),
    ],
)
def test_a_name_is_what_it_is_made_of(name, style):
    shape = configs.parse_name(name)
    assert shape is not None
    assert shape.file_name(style) == name


def test_every_h200_is_one_in_vllm_s_moe_files_alone():
    moe = configs.Shape(experts=8, n=64, device="NVIDIA_H200_NVL")
    assert "device_name=NVIDIA_H200.json" in moe.file_name("vllm")
    assert "device_name=NVIDIA_H200_NVL.json" in moe.file_name("sglang")
    gemm = configs.Shape(n=5, k=6, device="NVIDIA_H200_NVL")
    assert "device_name=NVIDIA_H200_NVL" in gemm.file_name("vllm")


MOE = "E=8,N=512,device_name=NVIDIA_H200.json"


@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        (MOE, '{"triton_version": "3.4.0", "1": {"BLOCK_SIZE_M": 16}, "64": {"tile_m": 16}}', []),
        (NAME, '{"1": {"num_warps": 4}}', []),
        (MOE, '{"1": {"BLOCK_SIZE_M": 48}, "2": {"num_warps": 3, "num_stages": 0}}', [*"122"]),
        (MOE, '{"1": {}, "1": {}}', [""]),
        (MOE, '{"1": null}', [""]),
        (MOE, '{"any": {}}', [""]),
        (MOE, "{", [""]),
        (MOE, "{}", [""]),
        (MOE, '{"-5": {}, "1": {}}', ["-5"]),
        (MOE.replace("NVIDIA_", "NVIDIA "), '{"1": {}}', [""]),
        ("triton_3_4_0/" + MOE, '{"triton_version": "3.4.0", "1": {}}', [""]),
        (NAME.replace(",128]", ", 128]"), '{"1": {"kpack": 3}}', ["1"]),
    ],
)
def test_lint_finds_what_no_lookup_or_kernel_takes(tmp_path, name, text, places):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    (tmp_path / "headdim=64,dstate=128,device_name=NVIDIA_H200.json").write_text("[]")
    found = configs.lint(tmp_path)
    assert found.files == 1
    assert [one.place for one in found.findings] == places


@pytest.mark.parametrize(
    "name", ["x.json", "N=1.json", "K=1,N=2,device_name=x.json", "E=1,K=2,device_name=x.json"]
)
def test_other_names_are_none(name):
    assert configs.parse_name(name) is None


def test_the_nearest_and_of_two_the_first_in_the_file():
    entries = configs.parse('{"4": {}, "1": {}, "8": {}}', "x", "vllm")
    found = {m: configs.nearest(entries, m) for m in (1, 2, 3, 5, 6, 7, 100)}
    assert found == {1: 1, 2: 1, 3: 4, 5: 4, 6: 4, 7: 8, 100: 8}
    assert configs.nearest({}, 5) is None


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True))
def test_what_an_entry_serves(keys):
    entries = {key: {} for key in keys}
    for key in keys:
        first, last = configs.served(entries, key)
        asked = [m for m in range(1, 130) if configs.nearest(entries, m) == key]
        assert asked == list(range(first, (last or 129) + 1))


def test_the_version_beside_the_entries_is_vllm_s_alone():
    text = '{"triton_version": "3.5.1", "8": {}}'
    assert list(configs.parse(text, "x", "vllm")) == [8]
    for style, bad in (("sglang", text), ("vllm", "[]"), ("vllm", '{"8": 1}'), ("vllm", "{")):
        with pytest.raises(UsageError):
            configs.parse(bad, "x", style)


def test_sglang_s_folders_by_triton_version(tmp_path):
    shape = configs.Shape(experts=8, n=64, device="NVIDIA_H200")
    for version in ("3_1_0", "3_10_0", "3_5_1"):
        (tmp_path / f"triton_{version}").mkdir()
    name = shape.file_name("sglang")
    assert configs.find_file(tmp_path, shape, "sglang", "3.5.1") is None
    for version in ("3_1_0", "3_10_0"):
        (tmp_path / f"triton_{version}" / name).write_text("{}")
    own = configs.find_file(tmp_path, shape, "sglang", "3.1.0")
    other = configs.find_file(tmp_path, shape, "sglang", "3.5.1")
    assert (own.parent.name, other.parent.name) == ("triton_3_1_0", "triton_3_10_0")
    down = configs.Shape(experts=8, n=64, device="NVIDIA_H200", down=True)
    assert configs.find_file(tmp_path, down, "sglang", "3.1.0") == own


@pytest.mark.parametrize(
    ("device", "given_k", "used"),
    [
        ("NVIDIA_H200", 64, 64),
        ("NVIDIA_H200", 48, 128),
        ("AMD_Instinct_MI300X", 64, 128),
        ("AMD_Instinct_MI300X", 256, 256),
    ],
)
def test_sglang_raises_a_block_below_the_scale_s(device, given_k, used):
    shape = configs.Shape(n=1, k=1, device=device, dtype="fp8_w8a8", block=(128, 128))
    text = json.dumps({"8": {"BLOCK_SIZE_K": given_k}})
    assert configs.lookup(text, "x", shape, "sglang", 9) == {"BLOCK_SIZE_K": used}
    assert configs.lookup(text, "x", shape, "vllm", 9) == {"BLOCK_SIZE_K": given_k}


def prepared(w, folder, outcomes, **options):
    folder.mkdir(exist_ok=True)
    given_ = FrozenDict({"device_name": "NVIDIA_H200"} | options)
    return applying.prepare(vllm.emitter, outcomes, folder, given_)


def test_a_problem_that_did_not_gain_keeps_its_answer(w, tmp_path):
    """Its own entry repeats what it found before."""
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / NAME).write_text(json.dumps({"1": OLD, "64": OLD | {"num_warps": 4}}))
    gained = w.outcome("A", w.product(m=16, dtype="f8e4m3"), config=OURS)
    others = [
        w.outcome(f"B{m}", w.product(m=m, dtype="f8e4m3"), config=OURS, kept=False)
        for m in (18, 30, 40)
    ]
    change = prepared(w, folder, [gained, *others])
    now = configs.parse(change.edits[0].after, "x", "vllm")
    assert now[16]["BLOCK_SIZE_M"] == 32
    assert {m: now[configs.nearest(now, m)]["num_warps"] for m in (18, 30, 40)} == {
        18: 8,
        30: 8,
        40: 4,
    }
    assert list(now) == sorted(now)


def test_a_new_file_takes_no_problem_from_the_library_s_default(w, tmp_path):
    gained = w.outcome("A", w.product(m=16, dtype="f8e4m3"), config=OURS)
    other = w.outcome("B", w.product(m=999, dtype="f8e4m3"), config=OURS, kept=False)
    assert prepared(w, tmp_path / "c", [gained]).edits
    change = prepared(w, tmp_path / "c", [gained, other])
    assert not change.edits
    assert [held.name for held in change.held] == ["A"]


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        ({"dtype": "bf16"}, OURS),
        ({"dtype": "f8e4m3", "tb": "n"}, OURS),
        ({"dtype": "f8e4m3", "batch": 2}, OURS),
        ({"dtype": "f8e4m3"}, OURS | {"split_k": 2}),
        ({"dtype": "f8e4m3"}, OURS | {"block_k": 256}),
        ({"dtype": "f8e4m3"}, OURS | {"mystery": 2}),
        ({"dtype": "f8e4m3"}, {"block_m": 16}),
    ],
)
def test_what_their_kernel_cannot_do_is_held_back(w, tmp_path, problem, config):
    change = prepared(w, tmp_path / "c", [w.outcome("A", w.product(**problem), config=config)])
    assert not change.edits
    assert [held.name for held in change.held] == ["A"]


def test_the_gpu_s_name_must_be_given(w, tmp_path):
    with pytest.raises(UsageError):
        applying.prepare(
            sglang.emitter, [w.outcome("A", w.product(dtype="f8e4m3"))], tmp_path, FrozenDict()
        )
    with pytest.raises(UsageError):
        prepared(w, tmp_path, [w.outcome("A", w.product(dtype="f8e4m3"))], block_shape="128")
