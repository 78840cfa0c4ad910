"""Roofs."""

import dataclasses

import pytest

from kernelmark.core import codec
from kernelmark.core.metric import Roof

ROOF = Roof(
    device="cpu", arch="x86_64", kind="flops", name="f32", value=1e11, how="fma", measured=1.0
)


def test_fields_that_came_later_are_written_only_where_they_differ():
    old = codec.to_document(ROOF)
    assert not {"model", "steady", "limit"} & old.keys()
    assert codec.from_document(old, Roof) == ROOF
    for change in ({"model": "M"}, {"steady": False}, {"limit": False}):
        changed = dataclasses.replace(ROOF, **change)
        document = codec.to_document(changed)
        assert document.items() >= change.items()
        assert codec.from_document(document, Roof) == changed


@pytest.mark.parametrize(
    ("ending", "steady", "limit"),
    [
        (", not steady: other work ran", False, True),
        (" (no C compiler: the limit may be higher)", True, False),
        ("", True, True),
    ],
)
def test_doubts_that_old_documents_have_in_their_text(ending, steady, limit):
    document = codec.to_document(ROOF) | {"how": f"fma{ending}"}
    found = codec.from_document(document, Roof)
    assert (found.steady, found.limit, found.how) == (steady, limit, "fma")


def test_the_text_for_readers_tells_the_doubts():
    texts = {
        dataclasses.replace(ROOF, steady=steady, limit=limit).how_text
        for steady in (True, False)
        for limit in (True, False)
    }
    assert len(texts) == 4
    assert ROOF.how_text == "fma"
