"""Numbers as people read them."""

from __future__ import annotations

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
    ("value", "text"),
    [(1.234e12, "1.234 TFLOP/s"), (56.7e9, "56.70 GFLOP/s"), (999.99e9, "1.000 TFLOP/s"),
     (12.0, "12.00 FLOP/s"), (2e15, "2.000 PFLOP/s"), (0.0, "0.000 FLOP/s")],
)  # fmt: skip
def test_rates(value, text):
    assert rate_text(value, "FLOP/s") == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (96 * 2**20, "96.0 MiB"),
     (1.5 * 2**30, "1.5 GiB"), (2**40, "1.0 TiB")],
)  # fmt: skip
def test_sizes(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.02, "0 s"),
        (1.44, "1.4 s"),
        (2.97, "3 s"),
        (45, "45 s"),
        (59.7, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_spans(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("low_s", "high_s", "text"),
    [
        (10.0, 10.0, "about 10 s"),
        (60.0, 70.0, "about 1 min 05 s"),
        (2.14, 4.2, "about 2.1 s to 4 s"),
        (0.0, 0.0, "about 0 s"),
    ],
)
def test_an_expected_duration_is_one_figure_or_a_range(low_s, high_s, text):
    assert about_text(low_s, high_s) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.0041, "0.4 %"),
        (0.9994, "99.9 %"),
        (0.9996, "100 %"),
        (5.471, "547 %"),
        (10.0, "> 999 %"),
        (math.inf, NONE),
        (math.nan, NONE),
    ],
)
def test_the_width_of_an_interval(fraction, text):
    assert units.width_text(fraction) == text
