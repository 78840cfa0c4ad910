"""JSON edited as text says what it should and keeps what it can."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.tune.install.emitters.base import members, with_object

scalars = st.one_of(st.integers(-9, 99), st.none(), st.text(max_size=4), st.booleans())
flat = st.dictionaries(st.text(max_size=4), scalars, max_size=4)
documents = st.dictionaries(st.text(max_size=3), st.one_of(flat, scalars), max_size=5)
layouts = st.sampled_from([None, 0, 2, 4, "\t"])


@given(documents, st.text(max_size=3), flat, layouts, st.booleans())
def test_the_result_is_the_document_with_that_member(document, name, new, indent, crlf):
    text = json.dumps(document, indent=indent) + "\n"
    text = text.replace("\n", "\r\n") if crlf else text
    if not isinstance(document.get(name, {}), dict):
        return
    after = next((key for key in document if key != name), None)
    edited = with_object(text, name, new, after=after)
    assert json.loads(edited) == {**document, name: new}


@given(documents, layouts)
def test_the_same_again_is_the_same_text(document, indent):
    text = json.dumps(document, indent=indent)
    for name, value in document.items():
        if isinstance(value, dict) and value:
            assert with_object(text, name, value, after=None) == text


@given(documents, layouts)
def test_members_are_where_they_are(document, indent):
    text = json.dumps(document, indent=indent)
    found = members(text)
    assert [(m.name, json.loads(text[m.value : m.end])) for m in found] == list(document.items())


@pytest.mark.parametrize("indent", [2, 4, "\t"])
def test_a_new_member_looks_like_its_neighbours(indent):
    text = json.dumps({"M_LEQ_8": {"a": 1, "b": 2}, "any": {"a": 3, "b": 4}}, indent=indent)
    wanted = {"M_LEQ_8": {"a": 1, "b": 2}, "M_LEQ_16": {"a": 5, "b": 6}, "any": {"a": 3, "b": 4}}
    edited = with_object(text, "M_LEQ_16", {"a": 5, "b": 6}, after="M_LEQ_8")
    assert edited == json.dumps(wanted, indent=indent)
