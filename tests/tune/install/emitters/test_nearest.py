"""Configs of vLLM and SGLang: names, the nearest M, and what a new entry takes from others."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.backends.triton import gemm
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.gpu.architectures import absent
from kernelmark.runners.local import LocalRunner
from kernelmark.tune.driver import Driver
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.emitters import nearest as configs
from kernelmark.tune.install.emitters import registry
from kernelmark.tune.plans import Acceptance, Budget, TunePlan

VLLM, SGLANG = registry.get("vllm"), registry.get("sglang")
VLLM_MOE, SGLANG_MOE = registry.get("vllm_moe"), registry.get("sglang_moe")
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
        ("N=5,K=6,device_name=X,dtype=fp8_w8a8_channelwise.json", "sglang"),
    ],
)
def test_a_name_is_what_it_is_made_of(name, style):
    shape = configs.parse_name(name)
    assert shape.file_name(style) == name


@pytest.mark.parametrize(
    ("shape", "style", "name"),
    [
        ({"experts": 8, "n": 64}, "vllm", "device_name=NVIDIA_H200.json"),
        ({"experts": 8, "n": 64}, "sglang", "device_name=NVIDIA_H200_NVL.json"),
        ({"n": 5, "k": 6}, "vllm", "device_name=NVIDIA_H200_NVL"),
    ],
)
def test_every_h200_is_one_in_vllm_s_moe_files_alone(shape, style, name):
    assert name in configs.ConfigShape(device="NVIDIA_H200_NVL", **shape).file_name(style)


MOE = "E=8,N=512,device_name=NVIDIA_H200.json"
CHANNELWISE = "N=5,K=6,device_name=NVIDIA_H200,dtype=fp8_w8a8_channelwise.json"


@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        (MOE, '{"triton_version": "3.4.0", "1": {"BLOCK_SIZE_M": 16}, "64": {"tile_m": 16}}', []),
        (NAME, '{"1": {"num_warps": 4}}', []),
        (NAME, '{"triton_version": "3.4.0", "1": {"num_warps": 4}}', [""]),
        (MOE.replace("H200", "H200_NVL"), '{"1": {}}', [""]),
        ("triton_3_4_0/" + MOE.replace("H200", "H200_NVL"), '{"1": {}}', []),
        (MOE.replace(".json", ",block_shape=[128, 128].json"), '{"1": {}}', [""]),
        ("triton_3_4_0/" + MOE.replace(".json", ",block_shape=[64,64].json"), '{"1": {}}', [""]),
        (MOE, '{"1": {"BLOCK_SIZE_M": 48}, "2": {"num_warps": 3, "num_stages": 0}}', [*"122"]),
        (MOE, '{"1": {}, "1": {}}', [""]),
        (MOE, '{"1": null}', [""]),
        (MOE, '{"any": {}}', [""]),
        (MOE, "{", [""]),
        (MOE, "{}", [""]),
        (MOE, '{"-5": {}, "1": {}}', ["-5"]),
        (MOE.replace("NVIDIA_", "NVIDIA "), '{"1": {}}', [""]),
        ("triton_3_4_0/" + MOE, '{"triton_version": "3.4.0", "1": {}}', [""]),
        (NAME.replace(",128]", ", 128]"), '{"1": {"kpack": 3, "BLOCK_SIZE_K": 64}}', ["1"]),
        (NAME.replace(",128]", ", 128]"), '{"1": {"kpack": 2}}', [""]),
        (CHANNELWISE, '{"1": {"num_warps": 4}, "64": null}', []),
        (CHANNELWISE, '{"1": {"num_warps": 3}, "64": 5}', [""]),
    ],
)
def test_lint_finds_what_no_lookup_or_kernel_takes(tmp_path, name, text, places):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    (tmp_path / "headdim=64,dstate=128,device_name=NVIDIA_H200.json").write_text("[]")
    found = configs.lint(tmp_path)
    assert found.files == 1
    assert [finding.entry for finding in found.findings] == places


def test_the_folder_of_a_triton_version_is_known_from_inside(tmp_path, monkeypatch):
    (tmp_path / "triton_3_4_0").mkdir()
    (tmp_path / "triton_3_4_0" / MOE).write_text('{"triton_version": "3.4.0", "1": {}}')
    monkeypatch.chdir(tmp_path / "triton_3_4_0")
    assert len(configs.lint(Path()).findings) == 1


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


def test_a_null_of_channel_wise_gemms_leaves_the_m_near_it_to_cutlass():
    shape = configs.parse_name(CHANNELWISE)
    text = '{"8": {"num_warps": 4}, "64": null}'
    found = [configs.lookup(text, CHANNELWISE, shape, "sglang", m) for m in (8, 64, 9)]
    assert found == [{"num_warps": 4}, None, {"num_warps": 4}]


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
    shape = configs.ConfigShape(experts=8, n=64, device="NVIDIA_H200")
    for version in ("3_1_0", "3_10_0", "3_5_1"):
        (tmp_path / f"triton_{version}").mkdir()
    name = shape.file_name("sglang")
    assert configs.find_file(tmp_path, shape, "sglang", "3.5.1") is None
    for version in ("3_1_0", "3_10_0"):
        (tmp_path / f"triton_{version}" / name).write_text("{}")
    own = configs.find_file(tmp_path, shape, "sglang", "3.1.0")
    other = configs.find_file(tmp_path, shape, "sglang", "3.5.1")
    assert (own.parent.name, other.parent.name) == ("triton_3_1_0", "triton_3_10_0")
    down = configs.ConfigShape(experts=8, n=64, device="NVIDIA_H200", down=True)
    assert configs.find_file(tmp_path, down, "sglang", "3.1.0") == own


@pytest.mark.parametrize(
    ("device", "dtype", "block_k", "used"),
    [
        ("NVIDIA_H200", "fp8_w8a8", 64, 64),
        ("NVIDIA_H200", "fp8_w8a8", 48, 128),
        ("AMD_Instinct_MI300X", "fp8_w8a8", 64, 128),
        ("AMD_Instinct_MI300X", "fp8_w8a8", 256, 256),
        ("AMD_Instinct_MI300X", "int8_w8a8", 64, 64),
    ],
)
def test_sglang_raises_a_block_below_the_scale_s(device, dtype, block_k, used):
    shape = configs.ConfigShape(n=1, k=1, device=device, dtype=dtype, block=(128, 128))
    text = json.dumps({"8": {"BLOCK_SIZE_K": block_k}})
    assert configs.lookup(text, "x", shape, "sglang", 9) == {"BLOCK_SIZE_K": used}
    assert configs.lookup(text, "x", shape, "vllm", 9) == {"BLOCK_SIZE_K": block_k}


def prepared(w, folder, outcomes, emitter=VLLM, *, arch="sm_90", **options):
    folder.mkdir(exist_ok=True)
    outcomes = [dataclasses.replace(outcome, arch=arch) for outcome in outcomes]
    given_ = FrozenDict({"device_name": "NVIDIA_H200"} | options)
    return applying.prepare(emitter, outcomes, folder, given_)


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


def test_a_new_file_keeps_the_library_s_default_for_every_other_m(w, tmp_path):
    """Eleven of twelve m gained: they are written, and the twelfth and all others keep what the
    library launches without a file."""
    sizes = (1, 8, 16, 24, 40, 64, 80, 256, 700, 1024, 2048)
    gained = [w.outcome(f"A{m}", w.product(m=m, dtype="f8e4m3"), config=OURS) for m in sizes]
    other = w.outcome("B", w.product(m=999, dtype="f8e4m3"), config=OURS, kept=False)
    for emitter, stages in ((VLLM, 2), (SGLANG, 3)):
        change = prepared(w, tmp_path / emitter.name, [*gained, other], emitter)
        assert change.winners == {outcome.name for outcome in gained}
        assert not change.skipped
        now = configs.parse(change.edits[0].after, "x", emitter.style)
        assert {m for m, entry in now.items() if entry["BLOCK_SIZE_M"] == 32} == set(sizes)
        default = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128}
        default |= {"GROUP_SIZE_M": 32, "num_warps": 4, "num_stages": stages}
        for m in (999, 4096, 8192, 100_000):
            assert now[configs.nearest(now, m)] == default
        assert list(now) == sorted(now)


@pytest.mark.parametrize("emitter", [VLLM_MOE, SGLANG_MOE])
@pytest.mark.parametrize("m", [1, 33, 512, 3000, 20000])
def test_a_new_moe_file_keeps_each_step_of_the_default(w, tmp_path, emitter, m):
    (tmp_path / "triton_3_6_0").mkdir()
    folder = tmp_path / ("triton_3_6_0" if emitter is SGLANG_MOE else "c")
    [edit] = prepared(w, folder, moe_outcomes(w, m), emitter).edits
    now, shape = configs.parse(edit.after, "x", emitter.style), configs.parse_name(edit.path.name)
    served = [x for x in range(1, 40_000) if configs.nearest(now, x) == m]
    assert served[0] <= m <= served[-1] < 2 * m + 1
    for x in (*range(1, 1100), 8192, *range(129 * 8 - 2, 129 * 8 + 2), 1 << 20):
        if x not in served:
            expected = configs.default_settings(shape, emitter.style, x)
            assert now[configs.nearest(now, x)] == expected


@pytest.mark.parametrize(
    ("device_name", "arch", "written"),
    [
        ("NVIDIA H200", "sm_90", True),
        ("NVIDIA A100-SXM4-80GB", "sm_90", False),
        ("NVIDIA B200", "sm_90", False),
        ("AMD Instinct MI300X", "sm_90", False),
        ("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", True),
        ("AMD Instinct MI355X", "gfx942", False),
        ("NVIDIA Thing", "gfx942", False),
        ("NVIDIA Thing", "sm_90", True),
    ],
)
def test_another_gpu_s_winner_gets_no_file(w, tmp_path, device_name, arch, written):
    winner = w.outcome("A", w.product(m=16, dtype="f8e4m3"), config=OURS)
    change = prepared(w, tmp_path, [winner], arch=arch, device_name=device_name)
    assert bool(change.edits) == written
    assert [skipped.name for skipped in change.skipped] == ["A"] * (not written)


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_a_config_of_our_kernel_s_space_is_written(w, tmp_path, arch):
    problem = w.product(m=16, dtype="f8e4m3")
    space = gemm.space(problem, absent(arch))
    config = {**space.default, "split_k": 1, "block_k": 128}
    device_name = {"sm_90": "NVIDIA H200", "gfx942": "AMD Instinct MI300X"}[arch]
    winner = w.outcome("A", problem, config=config)
    assert prepared(w, tmp_path, [winner], arch=arch, device_name=device_name).edits


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
    assert [held.name for held in change.skipped] == ["A"]


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA / H200"])
def test_the_gpu_s_name_is_spelled_as_the_library_spells_it(w, tmp_path, name):
    outcomes = [w.outcome("A", w.product(m=16, dtype="f8e4m3"), config=OURS)]
    [edit] = prepared(w, tmp_path, outcomes, device_name=name).edits
    assert str(edit.path) == NAME


@pytest.mark.parametrize(
    ("emitter", "options", "told"),
    [
        (SGLANG, {"device_name": ""}, "sglang"),
        (SGLANG, {"device_name": "NVIDIA/H200"}, "NVIDIA/H200"),
        (VLLM, {"device_name": "NVIDIA,H200"}, "NVIDIA,H200"),
        (VLLM, {"block_shape": "128"}, "block_shape=128"),
    ],
)
def test_options_that_make_no_file_s_name_are_refused(w, tmp_path, emitter, options, told):
    outcomes = [w.outcome("A", w.product(m=16, dtype="f8e4m3"), config=OURS)]
    with pytest.raises(UsageError, match=told):
        prepared(w, tmp_path, outcomes, emitter, **options)


def moe_outcomes(w, /, *sizes, kept=True, **more):
    config = OURS | {"block_k": 64, "group_m": 16}
    return [
        w.outcome(f"MOE_{m}_{kept}", w.experts(m=m, **more), config=config, kept=kept)
        for m in sizes
    ]


@pytest.mark.parametrize(
    ("emitter", "weights", "suffix"),
    [
        (VLLM_MOE, {"w": "f8e4m3", "scale": "tensor"}, ",dtype=fp8_w8a8"),
        (VLLM_MOE, {"w": "f8e4m3", "scale": "block"}, ",dtype=fp8_w8a8,block_shape=[128,128]"),
        (VLLM_MOE, {"w": "i8", "scale": "row"}, ",dtype=int8_w8a8"),
        (SGLANG_MOE, {"w": "f8e4m3", "scale": "block"}, ",dtype=fp8_w8a8,block_shape=[128, 128]"),
        (SGLANG_MOE, {"w": "i8", "scale": "row"}, ",dtype=int8_w8a8,per_channel_quant=True"),
    ],
)
def test_winners_with_quantised_weights_go_into_the_file_of_their_scales(
    w, tmp_path, emitter, weights, suffix
):
    folder = tmp_path / ("triton_3_6_0" if emitter is SGLANG_MOE else "configs")
    folder.mkdir()
    outcomes = moe_outcomes(w, 16, **weights)
    change = prepared(w, folder, outcomes, emitter)
    assert not change.edits  # what the library launches without the file is not known
    assert [skipped.name for skipped in change.skipped] == [outcomes[0].name]
    name = f"E=8,N=512,device_name=NVIDIA_H200{suffix}.json"
    (folder / name).write_text(json.dumps({"1": OLD, "64": OLD}))
    [edit] = prepared(w, folder, outcomes, emitter).edits
    assert edit.path.name == name
    now = configs.parse(edit.after, name, emitter.style)
    assert now[16]["BLOCK_SIZE_M"] == 32
    assert now[1] == now[64] == OLD


def test_a_block_scaled_gemm_is_written_to_the_file_of_its_shape(w, tmp_path):
    problem = ops.parse("gemm_epilogue m=16 n=512 k=1024 dtype=f8e4m3 scale=block")
    row = ops.parse("gemm_epilogue m=16 n=512 k=1024 dtype=f8e4m3 tb=t scale=row")
    winners = [w.outcome(f"A{i}", p, config=OURS) for i, p in enumerate((problem, row))]
    change = prepared(w, tmp_path, winners, VLLM)
    assert [edit.path.name for edit in change.edits] == [NAME]
    assert [skipped.name for skipped in change.skipped] == ["A1"]


def test_winners_of_several_m_are_entries_of_one_moe_file(w, tmp_path):
    outcomes = moe_outcomes(w, 1024, 1, 16, n=192, e=128, top_k=8)
    [edit] = prepared(w, tmp_path, outcomes, VLLM_MOE, device_name="NVIDIA_H200_NVL").edits
    # N is what one rank has of the intermediate size; vLLM takes every H200 for one.
    assert str(edit.path) == "E=128,N=192,device_name=NVIDIA_H200.json"
    found = configs.parse(edit.after, "x", "vllm")
    assert {1, 16, 1024} < set(found)
    blocks = {f"BLOCK_SIZE_{x}": n for x, n in zip("MNK", (32, 64, 64), strict=True)}
    assert found[16] == {**blocks, "GROUP_SIZE_M": 16, "num_warps": 4, "num_stages": 3}
    (tmp_path / edit.path).write_text(edit.after)
    assert not configs.lint(tmp_path).findings


def test_entries_that_were_not_tuned_stay_in_a_moe_file(w, tmp_path):
    old = {"triton_version": "3.4.0", "8": OLD, "64": OLD | {"num_warps": 2}, "512": OLD}
    (tmp_path / MOE).write_text(json.dumps(old, indent=4))
    change = prepared(w, tmp_path, moe_outcomes(w, 64, 100), VLLM_MOE)
    document = json.loads(change.edits[0].after)
    assert document["triton_version"] == "3.4.0"
    assert {key: document[key] for key in ("8", "512")} == {key: old[key] for key in ("8", "512")}
    assert document["64"]["num_warps"] == 4
    assert document["100"] == document["64"]


def test_a_hidden_size_that_did_not_gain_holds_back_one_that_did(w, tmp_path):
    """Both look up the same entry: a file's name has no hidden size and no top_k."""
    outcomes = [*moe_outcomes(w, 16, k=1024), *moe_outcomes(w, 16, k=2048, kept=False)]
    change = prepared(w, tmp_path, outcomes, VLLM_MOE)
    assert not change.edits
    assert [held.name for held in change.skipped] == ["MOE_16_True"]


def test_other_ops_are_not_written_into_moe_files(w, tmp_path):
    product = w.outcome("A", w.product(dtype="f8e4m3"), config=OURS)
    for outcome, emitter in ((product, VLLM_MOE), (moe_outcomes(w, 16)[0], VLLM)):
        change = prepared(w, tmp_path, [outcome], emitter)
        assert [held.name for held in change.skipped] == [outcome.name]


def test_sglang_s_file_of_another_triton_is_the_base_of_a_new_one(w, tmp_path):
    for version, warps in (("3_4_0", 1), ("3_5_1", 8)):
        (tmp_path / f"triton_{version}").mkdir()
        entries = {"1": OLD | {"num_warps": warps}, "4096": OLD}
        (tmp_path / f"triton_{version}" / MOE).write_text(json.dumps(entries))
    change = prepared(w, tmp_path / "triton_3_6_0", moe_outcomes(w, 64), SGLANG_MOE)
    document = json.loads(change.edits[0].after)
    assert list(document) == ["1", "64", "4096"]
    assert document["1"]["num_warps"] == 8  # of the newest
    assert change.edits[0].before is None
    with pytest.raises(UsageError, match=tmp_path.name):
        prepared(w, tmp_path, moe_outcomes(w, 64), SGLANG_MOE)


# Our Triton kernel's names of what the fake backend's tiles are.
_AS_TRITON = {
    "tile_m": "block_m",
    "tile_n": "block_n",
    "depth": "block_k",
    "swizzle": "group_m",
    "warps": "num_warps",
    "stages": "num_stages",
}


@pytest.mark.slow
def test_a_tuning_run_over_several_m_becomes_one_moe_file(w, tmp_path, monkeypatch):
    """Real workers and finals on the fake device; only the winners' names are Triton's."""
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    plans = [
        TunePlan(
            name=f"MOE_{m}",
            problem=w.experts(m=m, n=16, k=32, e=4, dtype="f32"),
            backend="fake",
            reference_backend="fake",
            arch="fake",
            strategy="random",
            budget=Budget(evaluations=12),
            acceptance=Acceptance(rounds=6, finalists=2, neighbours=1),
        )
        for m in (1, 4, 16)
    ]
    driver = Driver(plans, LocalRunner(["fake"], timeout_s=120, jobs=1), tmp_path / "trials")
    driver.run()
    tuned = {}
    for plan in plans:
        found = driver.outcomes[plan.name]
        assert found.tuned.verified
        config = FrozenDict({_AS_TRITON[name]: v for name, v in found.tuned.config.items()})
        choice = dataclasses.replace(found.tuned, backend="triton", config=config, version="")
        tuned[plan.problem.dims["m"]] = dataclasses.replace(found, tuned=choice)
    kept = {m: one for m, one in tuned.items() if one.kept and one.tuned.config}
    assert kept, [one.reason for one in tuned.values()]
    (tmp_path / "configs").mkdir()
    written = [*kept.values()]
    given_ = FrozenDict({"device_name": "NVIDIA_H200"})
    change = applying.prepare(VLLM_MOE, written, tmp_path / "configs", given_)
    applying.write(VLLM_MOE, change, tmp_path / "configs")
    [file] = (tmp_path / "configs").iterdir()
    assert file.name == "E=4,N=16,device_name=NVIDIA_H200.json"
    assert not configs.lint(tmp_path / "configs").findings
    shape = configs.parse_name(file.name)
    for m, outcome in kept.items():
        settings = configs.lookup(file.read_text(), file.name, shape, "vllm", m)
        assert settings["BLOCK_SIZE_M"] == outcome.tuned.config["block_m"]
        assert settings["num_stages"] == outcome.tuned.config["num_stages"]


@pytest.mark.parametrize("name", ["H200", "MI300X", "X", ""])
@pytest.mark.parametrize("emitter", ["vllm", "sglang_moe"])
def test_a_name_that_no_driver_gives_is_refused(w, tmp_path, emitter, name):
    with pytest.raises(UsageError):
        registry.get(emitter).emit([w.outcome()], tmp_path, FrozenDict({"device_name": name}))
