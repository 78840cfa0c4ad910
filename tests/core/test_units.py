"""Numbers as people read them."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernelmark.core import units
from kernelmark.core.units import about_text, bytes_text, duration_text, rate_text, time_text
from kernelmark.report.tables import NONE

SCALE = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.5, "1.500 s"), (0.0123456, "12.35 ms"), (123.4e-6, "123.4 µs"), (5e-9, "5.000 ns"),
     (5e-11, "0.050 ns"), (0.0, "0.000 ns"), (0.99999, "1.000 s"), (9.9999e-6, "10.00 µs"),
     (999.99e-6, "1.000 ms"), (12345.0, "12340 s")],
)  # fmt: skip
def test_times(seconds, text):
    assert time_text(seconds) == text


@given(st.floats(1e-9, 999))
@example(1e-8)
@example(1e-5)
@example(9.9999e-8)
def test_times_keep_four_digits(seconds):
    number, unit = time_text(seconds).split()
    assert len(number.replace(".", "")) == 4
    assert float(number) * SCALE[unit] == pytest.approx(seconds, rel=6e-4)


@pytest.mark.parametrize(
    ("function", "values", "text"),
    [
        (rate_text, (1.234e12, "FLOP/s"), "1.234 TFLOP/s"),
        (rate_text, (56.7e9, "FLOP/s"), "56.70 GFLOP/s"),
        (rate_text, (999.99e9, "FLOP/s"), "1.000 TFLOP/s"),
        (rate_text, (12.0, "FLOP/s"), "12.00 FLOP/s"),
        (rate_text, (2e15, "FLOP/s"), "2.000 PFLOP/s"),
        (rate_text, (0.0, "FLOP/s"), "0.000 FLOP/s"),
        (bytes_text, (0,), "0 B"),
        (bytes_text, (1023,), "1023 B"),
        (bytes_text, (1024,), "1.0 KiB"),
        (bytes_text, (96 * 2**20,), "96.0 MiB"),
        (bytes_text, (1.5 * 2**30,), "1.5 GiB"),
        (bytes_text, (2**40,), "1.0 TiB"),
        (duration_text, (0.02,), "0 s"),
        (duration_text, (1.44,), "1.4 s"),
        (duration_text, (2.97,), "3 s"),
        (duration_text, (45,), "45 s"),
        (duration_text, (59.7,), "1 min 00 s"),
        (duration_text, (200,), "3 min 20 s"),
        (duration_text, (7500,), "2 h 05 min"),
        # An expected duration is one figure or a range.
        (about_text, (10.0, 10.0), "about 10 s"),
        (about_text, (60.0, 70.0), "about 1 min 05 s"),
        (about_text, (2.14, 4.2), "about 2.1 s to 4 s"),
        (about_text, (0.0, 0.0), "about 0 s"),
        # The width of an interval.
        (units.width_text, (0.0041,), "0.4 %"),
        (units.width_text, (0.9994,), "99.9 %"),
        (units.width_text, (0.9996,), "100 %"),
        (units.width_text, (5.471,), "547 %"),
        (units.width_text, (10.0,), "too noisy"),
        (units.width_text, (math.inf,), NONE),
        (units.width_text, (math.nan,), NONE),
    ],
)
def test_rates_sizes_durations_and_widths(function, values, text):
    assert function(*values) == text


@pytest.mark.parametrize(
    ("low", "high", "noise"),
    [
        (1.0, 1.9, False),
        (1.0, 2.1, True),
        (0.0, 4.5e7, True),
        (145.0, 301.0, True),
        (1.0, math.inf, True),
    ],
)
def test_an_interval_that_says_nothing(low, high, noise):
    assert units.is_noise(low, high) is noise
