"""Refuses capture, then computes on another stream that the timed one never waits for.

The other stream waits for the gate, so its inputs are right; the end of timing does not wait for
it. Whoever waits for the whole device finds the right answer, whoever looks by the timed stream
finds none.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _work as work

op = work.OPS
devices = ("cuda", "hip")


def prepare(problem, config, sets):
    import torch

    aside = torch.cuda.Stream()

    def launch(index):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("this cannot be captured")
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            work.compute(problem, sets[index])

    return launch
