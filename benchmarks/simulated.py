"""Simulated noise: a machine that gives processes, and one benchmark measured on it.

A process measures SAMPLES samples; processes differ from each other, and the machine from hour to
hour, as the three kinds of noise say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAMPLES = 40
NIGHTS = 64
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Logarithmic standard deviations. `drift` wanders with `memory` from one process to the next;
    `mode` of a share of processes is a second level; `wild` samples are far too long."""

    process: float
    sample: float
    drift: float = 0.0
    memory: float = 0.97
    mode: float = 0.0
    share: float = 0.25
    wild: float = 0.0


NOISES = {
    "quiet": Noise(process=0.002, sample=0.004),
    "drifting": Noise(process=0.004, sample=0.006, drift=0.012, wild=0.02),
    "bimodal": Noise(process=0.003, sample=0.005, mode=0.03),
}


class Machine:
    """Gives processes one after another; the time between them moves the drift."""

    def __init__(self, noise: Noise, random: np.random.Generator) -> None:
        self.noise = noise
        self.random = random
        self.level = random.normal(0, noise.drift)

    def processes(self, effects: Sequence[float]) -> Values:
        """Times of processes in a row, one line each, in units of the undisturbed one."""
        n, count = self.noise, len(effects)
        fresh = self.random.normal(0, n.drift * math.sqrt(1 - n.memory**2), count)
        drift = np.empty(count)
        for i in range(count):
            self.level = n.memory * self.level + fresh[i]
            drift[i] = self.level
        return self._times(drift + np.log1p(effects))

    def nights(self, effects: Sequence[float]) -> Values:
        """One process a night: the drift has forgotten the night before."""
        return self._times(
            self.random.normal(0, self.noise.drift, len(effects)) + np.log1p(effects)
        )

    def _times(self, centres: Values) -> Values:
        n, count = self.noise, len(centres)
        centres = centres + self.random.normal(0, n.process, count)
        centres = centres + n.mode * (self.random.random(count) < n.share)
        logs = centres[:, None] + self.random.normal(0, n.sample, (count, SAMPLES))
        if n.wild:
            logs += 0.1 * (self.random.random(logs.shape) < n.wild)
        times: Values = np.exp(logs)
        return times


@dataclass
class Trial:
    """What rules may look at: head is slower by `effect`."""

    machine: Machine
    effect: float

    def rounds(self, count: int) -> tuple[Values, Values]:
        """Medians of pairs of fresh processes; which side is first is drawn for every other round
        and turned in the next (ABBA)."""
        first = np.repeat(self.machine.random.random((count + 1) // 2) < 0.5, 2)[:count]
        first[1::2] = ~first[1::2]
        order = np.stack([first, ~first], axis=1)  # whether head runs at each place of a round
        medians = np.median(self.machine.processes(self.effect * order.ravel()), axis=1)
        pairs = medians.reshape(count, 2)
        return np.where(first, pairs[:, 1], pairs[:, 0]), np.where(first, pairs[:, 0], pairs[:, 1])

    def blocked(self, count: int) -> tuple[Values, Values]:
        """Medians: all of base, then all of head."""
        times = self.machine.processes([0.0] * count + [self.effect] * count)
        medians = np.median(times, axis=1)
        return medians[:count], medians[count:]

    def interleaved(self, count: int) -> tuple[Values, Values]:
        """Samples of `count` processes a side, one after the other in turn."""
        times = self.machine.processes([0.0, self.effect] * count)
        return times[::2].ravel(), times[1::2].ravel()

    def past_and_newest(self) -> tuple[Values, Values]:
        """The nights before, and one that head ran in."""
        times = self.machine.nights([0.0] * NIGHTS + [self.effect])
        return times[:-1], times[-1]
