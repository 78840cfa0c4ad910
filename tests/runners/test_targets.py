from __future__ import annotations

import dataclasses

import pytest

from kernelmark import devices
from kernelmark.core.errors import UsageError
from kernelmark.runners.targets import find, parse_devices
from kernelmark_dev.raising import raises


@pytest.fixture(autouse=True)
def _four_fakes(monkeypatch):
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "4")


def names(*given: str) -> list[str]:
    return [info.name for info in parse_devices(given)]


def test_one_device_by_name_and_number():
    assert find("cpu")[1].kind == "cpu"
    assert find("fake:2")[1].index == 2
    assert find("fake")[1] == find("fake:0")[1]


def test_ranges_and_lists_without_repeats():
    assert names("fake:1-3") == ["fake:1", "fake:2", "fake:3"]
    assert names("fake:2", "fake:1-2", "fake:2") == ["fake:2", "fake:1"]


def test_all_is_something_real():
    assert "fake" not in {info.kind for info in parse_devices(["all"])}


def test_a_device_that_does_not_answer_is_left_out(monkeypatch):
    kind, good = find("fake:0")
    sick = dataclasses.replace(good, name="fake:1", index=1, attributes={"unusable": "it fell off"})
    monkeypatch.setattr(type(kind), "infos", lambda self: [good, sick])
    monkeypatch.setattr(type(devices.registry), "names", lambda self: ["cpu", "gpu"])
    monkeypatch.setattr(type(devices.registry), "get", lambda self, name: kind)
    assert parse_devices(["all"]) == [good]
    with raises(UsageError, device="fake:1", cause="it fell off"):
        parse_devices(["fake:1"])


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        (["fake:4"], {"device": "fake:4"}),
        (["fake:2-5"], {"device": "fake:4"}),
        (["fake:3-1"], {"device": "fake:3-1"}),
        (["FAKE"], {"device": "FAKE"}),
        (["fake:"], {"device": "fake:"}),
        ([], {}),
        (["cpu", "fake"], {"device": "cpu", "other": "fake"}),
    ],
)
def test_what_does_not_exist_is_refused(given, fields):
    with raises(UsageError, **fields):
        parse_devices(given)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *(("nonsense", ""), ("cdua:0", "cuda"), ("gpu", "cuda:0 or hip:0"), ("fkae", "fake")),
        *(("rocm:0", "hip:0"), ("gfx942", "hip:0"), ("sm_90", "cuda:0")),
    ],
)
def test_an_unknown_kind_suggests_what_was_meant(given, meant):
    with raises(UsageError, given=given, meant=meant, kinds=devices.registry.names()):
        parse_devices([given])


@pytest.mark.parametrize("given", ["fake:0-3", "fake:1"])
def test_how_to_get_more_fakes_is_told(monkeypatch, given):
    monkeypatch.delenv("KERNELMARK_FAKE_DEVICES")
    with raises(UsageError, device="fake:1") as refused:
        parse_devices([given])
    assert "there are: fake; set $KERNELMARK_FAKE_DEVICES" in (refused.value.hint or "")


def test_other_kinds_are_not_made_up():
    with pytest.raises(UsageError) as refused:
        find("cpu:7")
    assert refused.value.hint == "there are: cpu"
