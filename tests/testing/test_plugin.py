"""The pytest plugin: a fixture, a property of each test, a summary."""

import pytest

pytest_plugins = ("pytester",)
TESTS = """
import numpy as np
import pytest

@pytest.mark.parametrize("share", [0, 1e-3])
def test_doubled(assert_close, share):
    x = np.linspace(1, 2, 16, dtype="f4")
    y = (2 * x * (1 + share)).astype("f4")
    assert_close(y, reference=lambda x: 2 * x, inputs=[x], rtol=4e-3)

def test_wrong(assert_close):
    x = np.ones(4, "f4")
    assert_close(x + 1, op="copy", inputs=[x])

def test_without():
    pass
"""


OPTIONS = ("-p", "no:cacheprovider", "-q")


def test_the_fixture_checks_and_tells_how_close_tests_were(pytester, capsys):
    pytester.makepyfile(TESTS)
    ran = pytester.inline_run(*OPTIONS)
    ran.assertoutcome(passed=3, failed=1)
    properties = {
        report.nodeid.partition("::")[2]: dict(report.user_properties)
        for report in ran.getreports("pytest_runtest_logreport")
        if report.when == "call"
    }
    assert properties["test_doubled[0.001]"]["kernelmark_worst"] == pytest.approx(0.25, rel=0.01)
    assert properties["test_doubled[0]"] == {"kernelmark_worst": 0.0}
    assert properties["test_without"] == {}
    printed = capsys.readouterr().out
    assert printed.index(" 25.0%  ") < printed.index("  0.0%  ")


def test_without_the_fixture_nothing_is_printed(pytester, capsys):
    pytester.makepyfile("def test_one(): pass")
    pytester.inline_run(*OPTIONS)
    assert "kernelmark" not in capsys.readouterr().out
