"""The run that a run is compared with by default."""

from __future__ import annotations

from kernelmark.core.environment import Environment
from kernelmark.core.result import Run, RunState
from kernelmark.stores import open_store


def test_the_run_before_has_the_label_and_suite(tmp_path):
    def a_run(name: str, started: float, label: str = "nightly", suite: str = "demo") -> Run:
        return Run(
            id=name,
            started=started,
            environment=Environment(host="here"),
            label=label,
            suite=suite,
            state=RunState.DONE,
        )

    made = [
        a_run("first", 1.0),
        a_run("second", 2.0),
        a_run("other-label", 3.0, label=""),
        a_run("other-suite", 4.0, suite="micro"),
        a_run("third", 5.0),
        a_run("later", 6.0),
    ]
    with open_store(tmp_path / "results.sqlite") as store:
        for run in made:
            store.add_run(run)
        before = {run.id: store.run_before(run) for run in made}
    assert {name: found.id if found else None for name, found in before.items()} == {
        "first": None,
        "second": "first",
        "other-label": None,
        "other-suite": None,
        "third": "second",
        "later": "third",
    }
