"""A fit that finds known errors again, and covers others."""

import numpy as np
import pytest
from walks import QUICK, TRUTH, drawn_walk

from trace_ros.errors import TraceError
from trace_ros.estimator.error_model import ErrorModel
from trace_ros.evaluation import error_fit
from trace_ros.evaluation.calibration import SIGMAS, coverage, judge, nominal
from trace_ros.evaluation.error_fit import balanced, fit_error_model, fit_variances


@pytest.fixture(scope="module")
def fit(walks):
    return fit_error_model(walks, QUICK)


def test_nobody_is_judged_by_a_fit_that_has_seen_its_seed(walks, monkeypatch):
    seen, heard = [], []

    def fit(kept, settings):
        assert settings is QUICK
        seen.append({walk.name for walk in kept})
        return ErrorModel(tilt=len(seen))

    monkeypatch.setattr(error_fit, "fit_error_model", fit)
    models = error_fit.fit_in_turn(walks[:8], [7, 5, 9, 7, 5, 9, 1, 1], 2, QUICK, heard.append)
    assert heard == [1, 2]
    # Dealt out in order: 1 and 7 against 5 and 9.
    assert [model.tilt for model in models] == [1, 2, 2, 1, 2, 2, 1, 1]
    for walk, model in zip(walks[:8], models, strict=True):
        assert walk.name not in seen[int(model.tilt) - 1]
    assert sum(map(len, seen)) == 8


def test_fit_finds_the_model_that_the_errors_were_drawn_from(fit):
    linear, angular = fit.linear_velocity, fit.angular_velocity
    for name in ("base", "per_speed", "per_rate", "per_doubt"):
        np.testing.assert_allclose(getattr(linear, name), getattr(TRUTH.linear_velocity, name), rtol=0.15, atol=0.006)
    np.testing.assert_allclose(angular.base, TRUTH.angular_velocity.base, rtol=0.1)
    np.testing.assert_allclose(angular.per_acceleration, TRUTH.angular_velocity.per_acceleration, rtol=0.1, atol=3e-4)
    np.testing.assert_allclose(fit.standing_linear_velocity, TRUTH.standing_linear_velocity, rtol=0.05)
    np.testing.assert_allclose(fit.standing_angular_velocity, TRUTH.standing_angular_velocity, rtol=0.05)
    assert linear.heave_per_shock == pytest.approx(TRUTH.linear_velocity.heave_per_shock, rel=0.1)
    np.testing.assert_allclose(linear.per_yield, TRUTH.linear_velocity.per_yield, rtol=0.2, atol=0.015)
    assert fit.tilt == pytest.approx(TRUTH.tilt, rel=0.2)


def test_fit_covers_other_walks(fit):
    judgement = judge(fit, [drawn_walk(seed) for seed in range(100, 140)], QUICK)
    for row in judgement.rows():
        limit = 0.02 if row["of"] == "twist" else 0.12
        for sigma, share in zip(SIGMAS, row["coverage"], strict=True):
            assert share == pytest.approx(nominal(sigma), abs=limit), row
        if row["axis"] == "all":
            assert row["coverage"][0] == pytest.approx(nominal(1), abs=0.06)


def test_variances_are_fitted_despite_outliers():
    rng = np.random.default_rng(0)
    basis = np.column_stack((np.ones(20_000), rng.uniform(0, 4, 20_000)))
    error = rng.normal(size=20_000) * np.sqrt(1.0 + basis @ [0.5, 2.0])
    error[::200] *= 30
    weights, _ = fit_variances(error, basis, 4.0, 1.0)
    factor = weights[1] / 2.0
    assert 0.5 < factor < 1.2
    assert weights[0] == pytest.approx(0.5, abs=0.5)
    none, _ = fit_variances(error, np.column_stack((basis[:, 1], np.zeros(20_000))), 4.0, 1.0)
    assert none[1] == 0.0


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e4])
def test_scale_brings_the_coverage_to_nominal(unit):
    rng = np.random.default_rng(0)
    assert balanced(unit * rng.normal(size=50_000)) == pytest.approx(unit, rel=0.02)
    heavy = unit * rng.standard_t(3, size=50_000)
    shares = coverage(heavy / balanced(heavy))
    assert max(abs(share - nominal(sigma)) for share, sigma in zip(shares, SIGMAS, strict=True)) < 0.04
    assert balanced(np.zeros(5)) == 1.0


def test_standing_alone_tells_nothing():
    standing = drawn_walk(0)
    standing.twist_still[:] = True
    with pytest.raises(TraceError, match="does not move in any walk"):
        fit_error_model([standing], QUICK)
