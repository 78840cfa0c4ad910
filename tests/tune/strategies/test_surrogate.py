"""The Gaussian process behind the default strategy, against the textbook's formulas."""

import math

import numpy as np
import pytest

from kernelmark.core.result import Space
from kernelmark.tune.strategies.base import Points
from kernelmark.tune.strategies.kmark import Surrogate, features

POINTS = Points.of(
    Space(
        parameters={
            "block": (16, 32, 48, 64, 80, 96),
            "tile": (1, 2, 3, 4),
            "order": ("row", "column", "tiled"),
            "pad": (False, True),
        }
    )
)
ALL = np.arange(len(POINTS))


def scores(points):
    codes = POINTS.codes[points].astype(float)
    raw = np.sin(codes[:, 0]) + 0.3 * codes[:, 1] + (codes[:, 2] == 1) - 0.2 * codes[:, 3]
    return (raw - 0.6) / 0.8


def textbook(model, points, observed):
    """Mean and deviation at every point by the plain formulas."""
    table = features(POINTS).table.astype(float)
    weights = np.exp(model._theta[:-2])[features(POINTS).groups]
    signal, noise = math.exp(model._theta[-2]), math.exp(model._theta[-1]) + 1e-5
    square = (((table[:, None] - table) ** 2) * weights).sum(axis=2)
    far = np.sqrt(5 * square)
    covariance = signal * (1 + far + far**2 / 3) * np.exp(-far)
    inverse = np.linalg.inv(covariance[np.ix_(points, points)] + noise * np.eye(len(points)))
    across = covariance[:, points]
    mean = across @ inverse @ observed
    variance = signal - np.einsum("ij,jk,ik->i", across, inverse, across)
    return mean, np.sqrt(np.maximum(variance, 0))


@pytest.fixture
def chosen():
    return np.random.default_rng(3).choice(len(POINTS), 40, replace=False).tolist()


def test_predictions_are_the_textbooks(chosen):
    model = Surrogate(features(POINTS))
    observed = scores(np.array(chosen))
    model.fit(chosen, observed, ALL)
    mean, deviation = textbook(model, chosen, observed)
    np.testing.assert_allclose(model.predict(observed[:, None])[0], mean, atol=2e-3)
    np.testing.assert_allclose(model.deviation(), deviation, atol=2e-2)


def test_a_point_added_later_counts_as_one_that_was_there(chosen):
    model = Surrogate(features(POINTS))
    model.fit(chosen[:20], scores(np.array(chosen[:20])), ALL)
    for point in chosen[20:]:
        model.add(point)
    observed = scores(np.array(chosen))
    mean, deviation = textbook(model, chosen, observed)
    np.testing.assert_allclose(model.predict(observed[:, None])[0], mean, atol=5e-3)
    np.testing.assert_allclose(model.deviation(), deviation, atol=3e-2)


def test_room_is_made_for_more_points_than_expected():
    model = Surrogate(features(POINTS))
    first = list(range(10))
    model.fit(first, scores(np.array(first)), ALL)
    for point in range(10, 140):
        model.add(point)
    observed = scores(np.arange(140))
    np.testing.assert_allclose(model.predict(observed[:, None])[0][:140], observed, atol=0.2)


def test_a_believed_point_changes_uncertainty_only_and_can_be_forgotten(chosen):
    model = Surrogate(features(POINTS))
    observed = scores(np.array(chosen))
    model.fit(chosen, observed, ALL)
    mean, deviation = model.predict(observed[:, None]), model.deviation()
    pending = next(p for p in range(len(POINTS)) if p not in chosen)
    model.believe(pending)
    assert np.array_equal(model.predict(observed[:, None]), mean)
    assert model.deviation()[pending] < 0.5 * deviation[pending]
    assert (model.deviation() <= deviation).all()
    model.forget()
    assert np.array_equal(model.deviation(), deviation)


def test_the_gradient_is_that_of_the_value(chosen):
    model = Surrogate(features(POINTS))
    observed = scores(np.array(chosen))
    rows = features(POINTS).table[chosen].astype(float)
    apart = np.zeros((len(chosen) ** 2, features(POINTS).count))
    for column, group in enumerate(features(POINTS).groups.tolist()):
        values = rows[:, column]
        apart[:, group] += ((values[:, None] - values) ** 2).ravel()
    theta = model._prior + 0.3
    _, gradient = model._neg_log_posterior(theta, apart, observed)
    for at in range(len(theta)):
        step = np.zeros(len(theta))
        step[at] = 1e-5
        up, _ = model._neg_log_posterior(theta + step, apart, observed)
        down, _ = model._neg_log_posterior(theta - step, apart, observed)
        assert gradient[at] == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-4)


def test_length_scales_are_learned():
    """What does not matter gets a longer scale than what does."""
    points = Points.of(
        Space(parameters={"matters": tuple("abcdefghij"), "idle": tuple("abcdefghij")})
    )
    random = np.random.default_rng(0)
    chosen = random.choice(len(points), 40, replace=False).tolist()
    observed = np.sin(points.codes[chosen, 0].astype(float))
    model = Surrogate(features(points))
    model.fit(chosen, observed, np.arange(len(points)))
    matters, idle = -model._theta[:2] / 2
    assert idle > matters + 1


def test_columns_of_powers_of_two():
    table = features(Points.of(Space(parameters={"block": (32, 48, 64, 96, 128)}))).table
    assert table[:, 0].tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    share = table[:, 1]
    assert share[0] == share[2] == share[4] == 1.0
    assert share[1] < share[3] < 1.0


@pytest.mark.parametrize(
    ("values", "columns", "groups"),
    [
        ((16, 32, 64), 1, 1),  # powers of two only: nothing to add
        ((0, 1), 1, 1),
        ((False, True), 1, 1),
        ((3, 5, 7), 1, 1),
        ((1, 2, 3), 2, 2),
        (("a", "b"), 1, 1),
        (("a", "b", "c"), 3, 1),  # unordered: a column each, one length scale
        (tuple("abcdefghij"), 1, 1),  # a long list of names is a list of solutions
        ((0.5, 1.5, 2.5), 1, 1),
        ((7,), 0, 0),
    ],
)
def test_columns_of_a_parameter(values, columns, groups):
    made = features(Points.of(Space(parameters={"p": values})))
    assert made.table.shape == (len(values), columns)
    assert made.count == groups


def test_unordered_names_are_equally_far_from_each_other():
    table = features(Points.of(Space(parameters={"p": ("x", "y", "z")}))).table
    far = [float(np.square(table[i] - table[j]).sum()) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert far == pytest.approx([1.0, 1.0, 1.0])
