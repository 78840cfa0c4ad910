"""Refuses capture, then computes on another stream while the gate of the timed one is closed.

The timed stream only copies. Inputs that are written by the timed stream itself, behind the gate,
give it away: the other stream has not seen them.
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
    answers = [work.like(work.output(problem, one)) for one in sets]
    with torch.cuda.stream(aside):  # the library allocates for a stream that it has not seen
        work.compute(problem, sets[0], answers[0])
    aside.synchronize()

    def launch(index):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("this cannot be captured")
        with torch.cuda.stream(aside):
            torch.cuda._sleep(100_000)  # cycles, until inputs that are being rewritten are there
            work.compute(problem, sets[index], answers[index])
        aside.synchronize()
        work.output(problem, sets[index])[...] = answers[index]

    return launch
