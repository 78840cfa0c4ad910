import pytest

from kernelmark import ops
from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.workloads import models, suites
from kernelmark.workloads.models import MODELS, Sweep, calls, model
from kernelmark_dev.raising import raises

FULL = Sweep(tokens=[1, 64, 4096], prefill=[1024], decode_batch=[8], context=[4096])


def gemms(name, tp, tokens):
    found = calls(model(name), tp, Sweep(tokens=[tokens]))
    return {c.layer: (c.parameters["n"], c.parameters["k"]) for c in found if c.op == "gemm"}


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_every_model_makes_valid_problems(name, tp):
    made = list(calls(model(name), tp, FULL))
    assert {c.op for c in made} >= {"gemm", "attention"}
    for call in made:
        ops.registry.get(call.op).problem(**call.parameters, dtype="bf16")


def test_llama_2_weights_are_those_of_the_published_tables():
    listed = {(p.dims["m"], p.dims["k"]) for p in suites.load("gemm-llama-matvec").problems}
    derived = {
        shape
        for name in ("llama-2-13b", "llama-2-70b")
        for tp in (1, 2, 4, 8)
        for shape in gemms(name, tp, 1).values()
    }
    assert derived == listed


def test_deepseek_on_eight_ranks_is_what_servers_tune_for():
    # shapes that a serving stack publishes as its list to tune for this model with tp=8
    found = {*gemms("deepseek-v3", 8, 1).values()}
    assert {(256, 7168), (2112, 7168), (3072, 1536), (7168, 2048), (16160, 7168)} <= found


def test_parallel_ranks_share_the_work():
    def flops(tp):
        found = calls(model("llama-3-70b"), tp, Sweep(tokens=[64], prefill=[512]))
        made = [(c.op, ops.registry.get(c.op).problem(**c.parameters, dtype="bf16")) for c in found]
        return sum(ops.registry.get(op).flops(problem) for op, problem in made)

    assert flops(1) == 2 * flops(2) == 8 * flops(8)


def test_the_parameters_of_a_layer_add_up_to_the_model():
    # 70.6 billion weights in 80 layers, two vocabularies of 128256
    shapes = gemms("llama-3-70b", 1, 1)
    n, k = shapes.pop("lm_head")
    layer = sum(n * k for n, k in shapes.values())
    assert abs(80 * layer + 2 * n * k - 70.6e9) < 0.1e9


def test_the_experts_of_deepseek_add_up_to_the_model():
    found = list(calls(model("deepseek-v3"), 1, Sweep(tokens=[4096])))
    weights = {
        c.layer: int(c.parameters.get("batch", 1)) * int(c.parameters["n"]) * int(c.parameters["k"])
        for c in found
    }
    attention = sum(weights[name] for name in ("qkv_a", "q_b", "kv_b", "o"))
    sparse = sum(
        weights[name]
        for name in ("router", "shared_gate_up", "shared_down", "expert_gate_up", "expert_down")
    )
    dense = weights["gate_up"] + weights["down"]
    total = 61 * attention + 58 * sparse + 3 * dense + 2 * 129280 * 7168
    assert abs(total - 671e9) < 1e9


@pytest.mark.parametrize(("tokens", "batch", "rows"), [(1, 8, 1), (16, 128, 1), (64, 128, 4)])
def test_experts_get_equal_shares(tokens, batch, rows):
    found = {
        c.layer: c.parameters for c in calls(model("qwen3-30b-a3b"), 1, Sweep(tokens=[tokens]))
    }
    for layer in ("expert_gate_up", "expert_down"):
        assert (found[layer]["batch"], found[layer]["m"]) == (batch, rows)


def test_key_value_heads_are_repeated_when_ranks_outnumber_them():
    (call,) = calls(model("qwen3-235b-a22b"), 8, Sweep(prefill=[128]))
    assert (call.parameters["heads_q"], call.parameters["heads_kv"]) == (8, 1)


def test_latent_attention_decodes_absorbed_and_prefills_plain():
    few = {c.layer for c in calls(model("deepseek-v3"), 1, Sweep(tokens=[1]))}
    many = {c.layer for c in calls(model("deepseek-v3"), 1, Sweep(tokens=[4096]))}
    assert {"k_absorb", "v_absorb", "lm_head"} <= few - many
    assert "kv_b" in many - few
    decode = Sweep(decode_batch=[4], context=[1000])
    (latent,) = calls(model("deepseek-v3"), 8, decode)
    wanted = {"heads_q": 16, "heads_kv": 1, "dim_qk": 576, "dim_v": 512, "seq_q": 1}
    assert wanted.items() <= latent.parameters.items()
    assert latent.parameters["scale"] == pytest.approx(192**-0.5)


def test_a_window_limits_the_keys_of_decoding():
    def lengths(context):
        found = calls(model("gpt-oss-20b"), 1, Sweep(decode_batch=[1], context=[context]))
        return [c.parameters["seq_kv"] for c in found]

    assert lengths(4096) == [4096, 128]
    assert lengths(100) == [100]


@pytest.mark.parametrize(
    ("name", "tp", "sweep", "fields"),
    [
        ("llama-3-8b", 3, FULL, {"model": "llama-3-8b", "tp": 3}),  # ranks must divide
        ("gpt-oss-20b", 7, FULL, {"model": "gpt-oss-20b", "tp": 7}),
        ("llama-3-8b", 0, FULL, {"name": "tp", "value": 0}),
        ("llama-3-8b", 1, Sweep(tokens=[0]), {"name": "m", "value": 0}),
    ],
)
def test_senseless_sweeps_are_refused(name, tp, sweep, fields):
    with raises(ProblemError, **fields):
        list(calls(model(name), tp, sweep))
    assert list(calls(model("llama-3-70b"), 16, FULL))  # 64 heads and 8 key/value heads divide


def test_an_unknown_model_is_told_with_what_was_meant():
    with pytest.raises(UsageError) as caught:
        models.model("llama-3-7b")
    assert "did you mean llama-3-" in (caught.value.hint or "")
