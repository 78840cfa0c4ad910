"""A plugin of pytest: the fixture `assert_close`, and which tests came closest to their limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kernelmark.testing.close import Closeness

_SHOWN = 5
_CLOSENESS = pytest.StashKey[list[tuple[float, str]]]()


@pytest.fixture
def assert_close(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[..., Closeness]:
    """`kernelmark.testing.assert_close`. The worst error of a test, as a fraction of the error
    allowed, is the property `kernelmark_worst` in JUnit's XML and part of the summary."""
    from kernelmark.testing.close import assert_close as check

    seen = request.config.stash.setdefault(_CLOSENESS, [])

    def checked(out: Any, **about: Any) -> Closeness:
        __tracebackhide__ = True
        result = check(out, **about)
        seen.append((result.worst, request.node.nodeid))
        record_property("kernelmark_worst", result.worst)
        return result

    return checked


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not (seen := config.stash.get(_CLOSENESS, [])):
        return
    worst: dict[str, float] = {}
    for ratio, test in seen:
        worst[test] = max(ratio, worst.get(test, 0.0))
    closest = sorted(worst.items(), key=lambda item: -item[1])[:_SHOWN]
    terminalreporter.section("kernelmark: errors closest to those allowed")
    for test, ratio in closest:
        terminalreporter.line(f"{ratio:6.1%}  {test}")
