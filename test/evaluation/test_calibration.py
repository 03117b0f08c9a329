"""Coverage of the covariance: the same numbers as the robot's own code, and a fit that finds known errors again."""

import numpy as np
import pytest
from scipy.stats import norm
from walks import TRUTH, drawn_walk

from trace_ros.errors import TraceError
from trace_ros.estimator.error_model import ErrorModel
from trace_ros.estimator.odometry import PoseIntegrator
from trace_ros.estimator.run import EstimatedRun
from trace_ros.evaluation import error_fit
from trace_ros.evaluation.calibration import (
    SIGMAS,
    CalibrationSettings,
    coverage,
    judge,
    nominal,
    predicted,
    relative_poses,
    together,
    twist_variances,
    walk_of,
)
from trace_ros.evaluation.calibration_plot import plot_calibration
from trace_ros.evaluation.error_fit import balanced, fit_error_model, fit_variances
from trace_ros.logs import SensorLog, Trajectory

QUICK = CalibrationSettings(
    fit_horizons_s=(2.0, 10.0),
    shown_horizons_s=(2.0, 10.0),
    slow_times_s=(3.0,),
    yaw_rate_time_s=3.0,
    tilt_time_s=2.0,
    stride_s=1.0,
    fit_stride_s=2.0,
)


@pytest.fixture(scope="module")
def walks():
    return [drawn_walk(seed) for seed in range(40)]


@pytest.fixture(scope="module")
def fit(walks):
    return fit_error_model(walks, QUICK)


def simulated(steps=3000, dt=0.002, still=slice(900, 1400)):
    """A run of an estimator with every kind of motion, and the log it belongs to; made up of smooth curves."""
    rng = np.random.default_rng(0)
    time = np.arange(steps) * dt
    rotation = 0.002 * np.stack([np.sin(time * f) for f in (5.0, 7.0, 1.0)], axis=1)
    displacement = 0.001 * np.stack([1 + np.sin(time * f) for f in (3.0, 11.0, 17.0)], axis=1)
    held = np.zeros(steps, dtype=bool)
    held[still] = True
    rotation[held], displacement[held] = 0.0, 0.0
    attention = rng.dirichlet(np.ones(6), steps)
    pose = PoseIntegrator()
    twist, positions, orientations = [], [], []
    for step in range(steps):
        if held[step]:
            pose.hold()
        else:
            pose.advance(tuple(displacement[step]), tuple(rotation[step]), dt, float(attention[step, :2].sum()))
        twist.append(np.diag(pose.twist_covariance))
        positions.append(pose.position)
        orientations.append(pose.orientation)
    stamps = (1e9 * time).round().astype(np.int64)
    positions, orientations = np.array(positions), np.array(orientations)
    trajectory = Trajectory(stamps, positions, orientations, displacement / dt, rotation / dt)
    run = EstimatedRun(trajectory, attention, held, np.zeros(steps))
    zeros = np.zeros((steps, 3))
    log = SensorLog(stamps, zeros, zeros, np.zeros((steps, 12)), reference=trajectory)
    return run, log, np.array(twist)


def test_twist_variances_are_those_of_the_robot():
    run, log, twist = simulated()
    settings = CalibrationSettings(horizon_s=2.0, fit_horizons_s=(1.0,), warm_up_s=0.5, twist_stride=3)
    walk = walk_of("w", run, log, settings)
    np.testing.assert_allclose(twist_variances(ErrorModel(), walk), twist[251::3], rtol=1e-6)
    assert not walk.twist_error.any()
    assert walk.twist_still.any()


def test_predicted_variances_are_those_of_the_robot():
    """Of a pose that was set where the pieces begin; one step of the calibration is ten of the robot's."""
    run, log, _ = simulated()
    walk = walk_of("w", run, log, CalibrationSettings(horizon_s=5.0, fit_horizons_s=(1.0,), warm_up_s=0.0))
    pieces = relative_poses([walk], 5.0, 0.5)
    assert np.abs(pieces.error).max() < 1e-9
    # Again on the robot, from the first piece's start on: the second sample, number 1 after the first.
    trajectory, dt = run.trajectory, 0.002
    pose = PoseIntegrator()
    body = [np.diff(trajectory.position, axis=0), trajectory.velocity[1:] * dt, trajectory.angular_velocity[1:] * dt]
    pose.set_pose(tuple(trajectory.position[0]), tuple(trajectory.orientation[0]))
    for step in range(2500):
        if run.stationary[step + 1]:
            pose.hold()
        else:
            doubt = float(run.attention[step + 1, :2].sum())
            pose.advance(tuple(body[1][step]), tuple(body[2][step]), dt, doubt)
    np.testing.assert_allclose(predicted(ErrorModel(), pieces)[0], np.diag(pose.covariance), rtol=0.02)


def test_relative_errors_are_those_after_the_start_was_made_equal():
    walk = drawn_walk(0)
    pieces = relative_poses([walk], 10.0, 1.0)
    length, start = 500, 3 * 50

    def yaw(quaternion):
        x, y, z, w = quaternion
        return np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))

    offset = yaw(walk.orientation[start]) - yaw(walk.true_orientation[start])
    c, s = np.cos(offset), np.sin(offset)
    moved = walk.true_position[start + length] - walk.true_position[start]
    expected = np.array([c * moved[0] - s * moved[1], s * moved[0] + c * moved[1], moved[2]])
    error = walk.position[start + length] - walk.position[start] - expected
    np.testing.assert_allclose(pieces.error[3, :3], error, atol=1e-12)
    turned = yaw(walk.orientation[start + length]) - yaw(walk.true_orientation[start + length]) - offset
    assert pieces.error[3, 5] == pytest.approx(turned, abs=2e-4)


def test_true_model_covers_what_it_should(walks):
    """Errors drawn from a model, judged with it: the whole chain, from the process to the coverage."""
    judgement = judge(TRUTH, walks, QUICK)
    for row in judgement.rows():
        limit = 0.01 if row["of"] == "twist" else 0.06
        for sigma, share in zip(SIGMAS, row["coverage"], strict=True):
            assert share == pytest.approx(nominal(sigma), abs=limit), row
    assert judgement.joint()[0] == pytest.approx(nominal(1), abs=0.08)
    for measured, sigma in judgement.growth.values():
        np.testing.assert_allclose(measured, sigma, rtol=0.35)


def test_settings_are_read(tmp_path):
    (tmp_path / "s.yaml").write_text("usual_heave: 1.0\nslow_times_s: [3.0]\n")
    found = CalibrationSettings.load(tmp_path / "s.yaml")
    assert found == CalibrationSettings(usual_heave=1.0, slow_times_s=(3.0,))
    (tmp_path / "s.yaml").write_text("")
    assert CalibrationSettings.load(tmp_path / "s.yaml") == CalibrationSettings()
    (tmp_path / "s.yaml").write_text("usual_heave: 1.5\n")
    with pytest.raises(TraceError, match="usual_heave"):
        CalibrationSettings.load(tmp_path / "s.yaml")


def test_judgements_are_put_together(walks):
    whole, parts = judge(TRUTH, walks[:3], QUICK), [judge(TRUTH, [walk], QUICK) for walk in walks[:3]]
    assert together(parts).rows() == whole.rows()
    assert together(parts).joint() == whole.joint()
    assert not together(parts).growth


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


def test_a_model_that_is_too_sure_is_found_out(walks):
    sure = TRUTH.model_copy(update={"slow_share": (0.1, 0.1, 0.1), "fast_time": (0.01,) * 3, "yaw_rate": 0.0})
    judgement = judge(sure, walks, QUICK)
    row, _, off = judgement.worst()
    assert row["axis"] in "xyz"
    assert off < -0.3


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


def test_nominal_coverage():
    assert [nominal(sigma) for sigma in SIGMAS] == pytest.approx([norm.cdf(s) - norm.cdf(-s) for s in SIGMAS])


def test_what_cannot_be_calibrated_on_is_refused():
    run, log, _ = simulated()
    short = CalibrationSettings()
    with pytest.raises(TraceError, match=r"^w: 6\.0 s are too short to be calibrated on: 20\.4 s are needed$"):
        walk_of("w", run, log, short)
    plain = Trajectory(log.stamp_ns, run.trajectory.position, run.trajectory.orientation, run.trajectory.velocity)
    zeros = np.zeros((len(log), 3))
    without = SensorLog(log.stamp_ns, zeros, zeros, np.zeros((len(log), 12)), reference=plain)
    with pytest.raises(TraceError, match="needs a reference with angular velocity"):
        walk_of("w", run, without, short)
    with pytest.raises(TraceError, match="no walk is longer than 100 s"):
        relative_poses([drawn_walk(0)], 100.0, 1.0)
    standing = drawn_walk(0)
    standing.twist_still[:] = True
    with pytest.raises(TraceError, match="does not move in any walk"):
        fit_error_model([standing], QUICK)


def test_picture_is_drawn(walks, tmp_path):
    plot_calibration(tmp_path / "sub" / "c.png", judge(TRUTH, walks[:4], QUICK), "title")
    assert (tmp_path / "sub" / "c.png").read_bytes().startswith(b"\x89PNG")
