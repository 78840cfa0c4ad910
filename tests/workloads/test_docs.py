"""docs/suites.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelmark.workloads import models, suites

PAGE = Path(__file__).parents[2] / "docs" / "suites.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)


def section(name: str) -> str:
    found = re.search(rf"<!-- {name}: .*? -->\n(.*?)<!-- end -->", TEXT, flags=re.DOTALL)
    assert found, f"docs/suites.md has no {name} table"
    return found[1]


def table(head: list[str], rows: list[list[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def suites_table() -> str:
    rows: list[list[object]] = [
        [f"`{i.name}`", i.count, ", ".join(i.ops), i.why] for i in suites.describe()
    ]
    return table(["suite", "problems", "ops", "why it exists"], rows)


def models_table() -> str:
    head = ["model", "hidden", "heads", "kv heads", "head dim", "mlp", "experts", "vocabulary"]
    rows: list[list[object]] = []
    for m in models.MODELS.values():
        experts = f"{m.experts} × {m.expert_mlp}, top {m.top_k}" if m.experts else "–"
        if m.shared_experts:
            experts += f", {m.shared_experts} shared"
        kv = f"rank {m.kv_rank}" if m.latent else m.kv_heads
        dims = f"{m.head_dim} / {m.value_dim}" if m.latent else m.head_dim
        row = [f"`{m.name}`", m.hidden, m.heads, kv, dims, m.mlp or "–", experts, m.vocab]
        rows.append(row)
    return table(head, rows)


def test_the_table_of_suites_is_true():
    assert section("suites") == suites_table(), f"put this table there:\n{suites_table()}"


def test_the_table_of_models_is_true():
    assert section("models") == models_table(), f"put this table there:\n{models_table()}"


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_examples_load(number, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(BLOCKS[number], encoding="utf-8")
    assert suites.load(str(path)).problems


def test_there_are_examples_of_each_kind():
    assert len(BLOCKS) == 3


def test_every_suite_named_in_the_text_exists():
    named = set(re.findall(r"`((?:gemm|attention|conv|batched-gemm)-[a-z0-9-]+)`", TEXT))
    assert named <= set(suites.names())
