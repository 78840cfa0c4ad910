"""Registry: names without imports, helpful refusals, plugins that fail in one sentence."""

import subprocess
import sys

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.core.registry import Registry
from kernelmark_dev.raising import raises


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `shelf` with two things, a base, a helper, and a module that cannot be imported."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "base.py").write_text("")
    (folder / "_helper.py").write_text("")
    (folder / "apple.py").write_text("thing = 'an apple'\n")
    (folder / "pear").mkdir()
    (folder / "pear" / "__init__.py").write_text("thing = 'a pear'\n")
    (folder / "broken.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [n for n in sys.modules if n.split(".")[0] in ("shelf", "stall")]:
        del sys.modules[name]


def plugin(folder, name, value):
    """A distribution that offers `name` from `value`, as pip would leave it."""
    info = folder / f"stall_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: stall-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[shelf]\n{name} = {value}\n")


def test_a_file_without_its_thing_is_told(package):
    (package / "shelf" / "stray.py").write_text("helper = 1\n")
    with raises(UsageError, name="thing") as found:
        Registry("shelf", "thing").get("stray")
    assert "stray.py" in found.value.message
    assert "underscore" in (found.value.hint or "")


def test_names_come_from_files_and_get_imports_that_one(package):
    registry = Registry("shelf", "thing")
    assert registry.names() == list(registry) == ["apple", "broken", "pear"]
    assert "apple" in registry
    assert "base" not in registry
    assert "_helper" not in registry
    assert registry.get("pear") == "a pear"
    assert registry.get("pear") is registry.get("pear")
    assert "shelf.apple" not in sys.modules


@pytest.mark.parametrize(("name", "hint"), [("appel", "did you mean apple?"), ("zzz", "known: ")])
def test_an_unknown_name_lists_the_known_ones(package, name, hint):
    with raises(UsageError, what="thing", name=name) as caught:
        Registry("shelf", "thing").get(name)
    assert caught.value.hint.startswith(hint)
    assert "apple, broken, pear" in caught.value.hint


def test_an_entry_point_is_a_thing(package):
    (package / "stall.py").write_text("plum = 'a plum'\n")
    plugin(package, "plum", "stall:plum")
    registry = Registry("shelf", "thing")
    assert registry.names() == ["apple", "broken", "pear", "plum"]
    assert "stall" not in sys.modules
    assert registry.get("plum") == "a plum"


@pytest.mark.parametrize(
    ("text", "value", "values"),
    [
        ("plum = 'a plum'\n", "stall_that_is_missing:plum", {"what": "thing", "name": "plum"}),
        ("plum = 'a plum'\n", "stall:nothing_there", {"what": "thing", "name": "plum"}),
        ("1 / 0\n", "stall:plum", {"error": "division by zero"}),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_one_sentence(package, text, value, values):
    (package / "stall.py").write_text(text)
    plugin(package, "plum", value)
    with raises(UsageError, **values) as caught:
        Registry("shelf", "thing").get("plum")
    assert "error" in values or value in caught.value.hint


def test_a_file_wins_over_a_plugin_of_its_name(package):
    plugin(package, "apple", "stall:plum")
    registry = Registry("shelf", "thing")
    assert registry.names().count("apple") == 1
    assert registry.get("apple") == "an apple"


def test_add_makes_a_thing_known_in_this_process(package):
    registry = Registry("shelf", "thing")
    registry.add("fig", "a fig")
    registry.add("apple", "another apple")
    assert registry.get("fig") == "a fig"
    assert registry.get("apple") == "another apple"
    assert registry.names() == ["apple", "broken", "fig", "pear"]
    assert "fig" in registry


def test_the_real_registries_list_without_importing():
    code = (
        "import sys\n"
        "from kernelmark import ops, backends, devices\n"
        "names = ops.registry.names() + backends.registry.names() + devices.registry.names()\n"
        "assert 'gemm' in names and 'cpu' in names\n"
        "bad = [m for m in sys.modules if m.startswith(('torch', 'kernelmark.ops.gemm'))]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
