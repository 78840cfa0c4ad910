"""The JSON form: exact round trips for every kind of document, strict reading."""

import contextlib
import dataclasses
import json
import math
import typing
from unittest import mock

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import CodecError
from kernelmark.core.immutable import flag
from kernelmark.core.metric import Roof
from kernelmark.core.problem import parse_key
from kernelmark.core.reason import Reason
from kernelmark.core.result import (
    Block,
    Case,
    KernelInfo,
    Measurement,
    Mode,
    Result,
    ResultSet,
    Run,
    Status,
    Telemetry,
)
from kernelmark.core.timing import Timing
from kernelmark.core.verdict import Verdict
from kernelmark.testing.stores import reasons
from kernelmark_dev.raising import raises
from kernelmark_dev.results import make_check, make_measurement, make_result

st.register_type_strategy(Reason, reasons())
SAMPLE = ("measurement", "blocks", 0, "samples_s", 1)
BLOCK = "measurement.blocks[0]"
finite = st.floats(allow_nan=False, allow_infinity=False)
config = st.dictionaries(
    st.text(max_size=4), st.text(max_size=4) | st.integers() | finite | st.booleans(), max_size=3
)
timings = st.builds(
    Timing,
    cache=st.sampled_from(["cold", "hot", "flush"]),
    threads=st.integers(0, 9),
    allocations=st.integers(1, 5),
    max_allocations=st.integers(5, 9),
    max_s=st.floats(1e-6, 1e6, exclude_max=True),
)
problems = st.sampled_from(["gemm m=4 a=f32 x=yes", "conv n=1 y=-1.5e-30 z=word", "attention"])


def drawn(kind, **special):
    """Every field of `kind` by its type, so that a field added later is drawn too."""
    hints = typing.get_type_hints(kind)
    fields = {f.name: st.from_type(hints[f.name]) for f in dataclasses.fields(kind)}
    return st.builds(kind, **(fields | special))


cases = drawn(Case, problem=problems.map(parse_key), timing=timings, config=config)
times = st.lists(st.floats(5e-324, 1e300), min_size=1, max_size=3).map(tuple)
blocks = st.lists(drawn(Block, samples_s=times), min_size=1, max_size=2).map(tuple)
modes = drawn(Mode, value_s=st.floats(5e-324, 1e300), share=st.floats(0, 1, exclude_min=True))
measurements = drawn(Measurement, blocks=blocks, modes=st.lists(modes, max_size=3).map(tuple))
values_in_rows = st.text(max_size=4) | st.integers() | finite | st.booleans() | st.none()
rows = st.dictionaries(st.text(max_size=4), values_in_rows, max_size=3)
results = drawn(
    Result, case=cases, measurement=st.none() | measurements, metrics=st.just(()), rows=st.just(())
)
micros = drawn(
    Result,
    case=cases,
    measurement=st.none(),
    status=st.sampled_from([status for status in Status if status is not Status.OK]),
    rows=st.lists(rows, max_size=3).map(tuple),
)
environments = drawn(Environment, devices=st.lists(drawn(DeviceInfo), max_size=2).map(tuple))
runs = drawn(Run, environment=environments)
KINDS = {
    "case": cases,
    "environment": environments,
    "result": results | micros,
    "results": drawn(ResultSet, run=runs, results=st.lists(results, max_size=2).map(tuple)),
    "roof": drawn(Roof),
    "run": runs,
    "verdict": drawn(Verdict),
}
values = st.one_of(*KINDS.values())
patient = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)


def same(one, other):
    """Equal to the last bit: a nan is the same as a nan, and -0.0 is not 0.0."""
    with mock.patch.object(Result, "__repr__", _every_field):  # its own repr is a summary
        return type(one) is type(other) and repr(one) == repr(other)


def _every_field(value):
    return repr([getattr(value, field.name) for field in dataclasses.fields(value)])


def test_every_kind_is_drawn():
    assert KINDS.keys() == codec.KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
@patient
@given(data=st.data())
def test_round_trip_is_exact(kind, data):
    value = data.draw(KINDS[kind])
    text = codec.dumps(value)
    assert "\n" not in text
    assert same(codec.loads(text, type(value)), value)
    assert same(codec.loads(text.encode(), type(value)), value)
    assert codec.dumps(codec.loads(text, type(value))) == text


@pytest.mark.parametrize("kind", KINDS)
@patient
@given(data=st.data())
def test_documents_meet_their_json_schema(kind, data):
    validator = jsonschema.Draft202012Validator(codec.json_schema(codec.KINDS[kind]))
    document = json.loads(codec.dumps(data.draw(KINDS[kind])))
    validator.validate(document)
    name = data.draw(st.sampled_from(validator.schema["required"]))
    without = {key: value for key, value in document.items() if key != name}
    assert not validator.is_valid(without)
    assert not validator.is_valid({**document, "unknown": 1})
    assert not validator.is_valid({**document, name: [{}]})


def result():
    """One result with everything in it."""
    block = Block(
        process=0,
        allocation=1,
        samples_s=(1.5, 2.0),
        clocks_mhz=(),
        telemetry=Telemetry(clock_mhz=1000.0, throttle=("hot",)),
    )
    return make_result(
        Case(problem=parse_key("gemm m=4 a=f32"), backend="numpy", config={"tile": 3}),
        measurement=make_measurement(block, low_s=1.0, high_s=2.0, also={"host_s": 1.0}),
        check=make_check(worst=math.inf, max_abs=math.nan),
        kernel=KernelInfo(name="k", resources={"spills": 0}),
        cost={"total": 1.0},
    )


def document():
    return json.loads(codec.dumps(result()))


def test_text_is_proper_json():
    def refuse(name):
        raise AssertionError(name)

    json.loads(codec.dumps(result()), parse_constant=refuse)
    assert document()["check"]["worst"] == "inf"
    assert document()["check"]["max_abs"] == "nan"


def places(node, path=()):
    """Every (path, value) inside a document, the envelope excepted."""
    if isinstance(node, dict):
        for name, value in node.items():
            if path or name not in ("kernelmark", "version"):
                yield (*path, name), value
                yield from places(value, (*path, name))
    if isinstance(node, list):
        for index, value in enumerate(node):
            yield from places(value, (*path, index))


def changed(path, change):
    whole = document()
    node = whole
    for part in path[:-1]:
        node = node[part]
    change(node, path[-1])
    return whole


# Names in these are data, not fields.
OPEN = ("config", "also", "resources", "cost")
FIELDS = [p for p, _ in places(document()) if isinstance(p[-1], str) and p[-2:-1] not in
          [(name,) for name in OPEN]]  # fmt: skip


@pytest.mark.parametrize("path", FIELDS, ids=lambda p: ".".join(map(str, p)))
def test_a_missing_field_is_named(path):
    broken = changed(path, lambda node, name: node.pop(name))
    with raises(CodecError, name=path[-1]):
        codec.from_document(broken, Result)


@pytest.mark.parametrize("path", FIELDS, ids=lambda p: ".".join(map(str, p)))
def test_a_wrong_type_is_refused_with_its_place(path):
    broken = changed(path, lambda node, name: node.__setitem__(name, [{"no": "such"}]))
    with pytest.raises(CodecError) as caught:
        codec.from_document(broken, Result)
    assert "result." in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "path",
    [p for p, v in places(document()) if isinstance(v, dict) and p[-1] not in OPEN] + [()],
    ids=lambda p: ".".join(map(str, p)) or "top",
)
def test_an_unknown_field_is_named(path):
    whole = document()
    node = whole
    for part in path:
        node = node[part]
    node["surprise"] = 1
    with raises(CodecError, name="surprise") as caught:
        codec.from_document(whole, Result)
    assert "newer" in caught.value.hint


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.0, True])
def test_unknown_versions_are_refused(version):
    with raises(CodecError, version=version) as caught:
        codec.from_document(document() | {"version": version}, Result)
    assert caught.value.hint


@pytest.mark.parametrize("whole", [None, [], 3, "x", {}, {"version": 1}])
def test_what_is_no_document_is_refused(whole):
    with raises(CodecError, wanted="result"):
        codec.from_document(whole, Result)


@settings(max_examples=80)
@given(cut=st.floats(0.1, 0.999))
def test_truncated_text_is_refused(cut):
    text = codec.dumps(result())
    with pytest.raises(CodecError) as caught:
        codec.loads(text[: int(len(text) * cut)], Result)
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [b"\xff\xfe{", "", "[" * 100_000, '{"a": NaN}', '{"a": Infinity}', "9" * 5000, "\ufeff{}"],
)
def test_odd_texts_are_refused(text):
    with pytest.raises(CodecError):
        codec.loads(text, Result)


@pytest.mark.parametrize(
    ("path", "value", "where", "fields"),
    [
        (("case", "problem"), "gemm m=", "case.problem", {"word": "m="}),
        (("case", "problem"), f"gemm m={9:9<5000}", "case.problem", {}),
        (("case", "timing", "max_s"), -1, "case.timing", {}),
        (("case", "timing", "max_s"), 10**400, "case.timing.max_s", {}),
        (("case", "timing", "threads"), 1.0, "case.timing.threads", {"found": "1.0"}),
        (
            ("case", "timing", "cache"),
            "warm",
            "case.timing.cache",
            {"given": "'warm'", "known": ("cold", "flush", "hot")},
        ),
        (("case", "config", "tile"), None, "case.config.tile", {"given": "None"}),
        (("status",), "fine", "status", {"given": "'fine'"}),
        (("check", "guards_intact"), 1, "check.guards_intact", {"found": "1"}),
        (SAMPLE, "2.0", f"{BLOCK}.samples_s[1]", {"found": "'2.0'"}),
        (SAMPLE, 0.0, BLOCK, {"value": 0.0}),
        (SAMPLE, -2.0, BLOCK, {"value": -2.0}),
        (SAMPLE, "nan", BLOCK, {}),
        (SAMPLE, "inf", BLOCK, {"value": math.inf}),
        (SAMPLE[:-1], [], BLOCK, {}),
        (("measurement", "blocks"), [], "measurement", {}),
    ],
)
def test_illegal_values_are_refused(path, value, where, fields):
    broken = changed(path, lambda node, name: node.__setitem__(name, value))
    with raises(CodecError, **fields) as caught:
        codec.from_document(broken, Result)
    assert f"result.{where}" in caught.value.message


@patient
@given(value=values, data=st.data())
def test_a_document_changed_at_any_place_is_read_or_refused(value, data):
    whole = json.loads(codec.dumps(value))
    found = list(places(whole))
    path, _ = data.draw(st.sampled_from(found))
    node = whole
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = data.draw(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([])
    )
    with contextlib.suppress(CodecError):
        codec.from_document(whole, type(value))


def test_integers_are_read_as_floats_where_floats_are_meant():
    again = codec.from_document(
        changed(("measurement", "low_s"), lambda node, name: node.__setitem__(name, 1)), Result
    )
    assert type(again.measurement.low_s) is float


def test_modes_are_written_only_where_there_are_several():
    assert "modes" not in document()["measurement"]
    value = result()
    modes = (Mode(value_s=1.5, share=0.5), Mode(value_s=2.0, share=0.5))
    measured = dataclasses.replace(value.measurement, modes=modes)
    value = dataclasses.replace(value, measurement=measured)
    plain = json.loads(codec.dumps(value))["measurement"]["modes"]
    assert plain == [{"value_s": 1.5, "share": 0.5}, {"value_s": 2.0, "share": 0.5}]
    assert codec.loads(codec.dumps(value), Result).measurement.modes == modes


def test_an_option_that_was_added_later_may_be_missing():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Settings:
        old: int = flag(1, "--old N", "Old.")
        new: int = flag(2, "--new N", "New.", optional=True)

    assert codec.plain(Settings()) == {"old": 1}
    assert codec.read({"old": 3}, Settings, "settings") == Settings(old=3, new=2)
