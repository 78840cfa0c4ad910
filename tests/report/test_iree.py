"""Tables on IREE modules."""

from __future__ import annotations

import pytest

from kernelmark.iree.ab import Plan, Report
from kernelmark.iree.modules import Variant, resolve_target
from kernelmark.report.iree import tables


@pytest.mark.parametrize(
    ("asked", "named"),
    [("sm_80", {"sm_80"}), ("sm_90", {"sm_89", "sm_90"}), ("gfx942", {"gfx942"})],
)
def test_the_title_names_what_was_asked_for_and_what_it_is_compiled_for(tmp_path, asked, named):
    module = tmp_path / "m.mlir"
    module.write_text("")
    goal = resolve_target(asked)
    report = Report(
        plan=Plan(module=module, variants=(Variant(name="base"),), target=asked, run=False),
        target=goal.name,
        driver=goal.driver,
        function="",
        module_sha256="",
        outcomes=(),
        not_run="compiled only",
    )
    words = tables(report)[0].title.replace(")", "").split()
    assert {word for word in words if word.startswith(("sm_", "gfx"))} == named
