"""What is worked out before and after the network, against the code that goes sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_ros.estimator.batch_plan import Rate, _all_plain, recurrence, stationary
from trace_ros.estimator.batch_pose import Motions, follow, turned
from trace_ros.estimator.error_model import ErrorModel, LinearVelocityError
from trace_ros.estimator.odometry import PoseIntegrator
from trace_ros.estimator.stationary import StationaryDetector
from trace_ros.geometry import GRAVITY
from trace_ros.robot import RobotDescription, StationaryThresholds
from trace_ros.streams.intervals import IntervalPlanner

RATE = Rate(0.002, (0.0016, 0.0024), (0.001, 0.003), 0.1)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([1.0, 1.9, 2.0, 2.1, 2.4, 3.0, 3.2, 5.0, 0.4, 50.0, 200.0]), max_size=8),
    st.sampled_from([1.0, 1.7, 2.0, 2.35, 2.45, 4.0]),
    st.integers(0, 90),
    st.integers(0, 2**32 - 1),
)
def test_what_is_taken_to_be_plain_is_plain_to_the_planner(odd, usual, count, seed):
    rng = np.random.default_rng(seed)
    elapsed = usual * rng.uniform(0.97, 1.03, count)
    elapsed = np.insert(elapsed, rng.integers(0, count + 1, len(odd)), odd) * 1e-3
    planner = IntervalPlanner(RATE.known_s, RATE.nominal_s, RATE.max_gap_s)
    plans = [planner.plan(dt) for dt in (RATE.nominal_s, *elapsed.tolist())]
    plain = all(plan.kind == "gap" or (plan.kind == "step" and plan.steps == 1) for plan in plans)
    if _all_plain(elapsed[elapsed <= RATE.max_gap_s], RATE):
        assert plain
    elif not odd:
        assert not 1.7 <= usual <= 2.3


@given(st.integers(0, 60), st.integers(0, 2**32 - 1), st.sampled_from([(), (3,)]))
def test_recurrence(rows, seed, shape):
    rng = np.random.default_rng(seed)
    keep, add = rng.uniform(-0.2, 1.1, rows), rng.normal(size=(rows, *shape))
    keep[rng.random(rows) < 0.1] = 0.0
    x, expected = np.full(shape, 0.7), []
    for a, b in zip(keep, add, strict=True):
        x = a * x + b
        expected.append(x)
    np.testing.assert_allclose(recurrence(keep, add, 0.7), np.array(expected).reshape(rows, *shape), atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.02])
def test_the_stationary_clamp(smoothing):
    thresholds = RobotDescription.load("go2").stationary.model_copy(update={"smoothing": smoothing})
    assert isinstance(thresholds, StationaryThresholds)
    rng = np.random.default_rng(3)
    rows = 2000
    stamp_ns = np.cumsum(rng.integers(1_000_000, 3_000_000, rows))
    scale = np.repeat(rng.choice([0.0, 0.0, 0.05, 1.0], rows // 200), 200)[:, None]
    readings = rng.normal(size=(rows, 30)) * scale * 0.5
    readings[:, 5] += GRAVITY
    begins = [0, 150, 152, 700, 1555]
    detector, expected = StationaryDetector(thresholds), []
    for row in range(rows):
        if row in begins:
            detector.reset()
        expected.append(detector.update(int(stamp_ns[row]), readings[row, :3], readings[row, 3:6], readings[row, 18:]))
    np.testing.assert_array_equal(stationary(thresholds, stamp_ns, readings, begins), expected)
    assert 0.03 < np.mean(expected) < 0.9


def test_poses_and_covariance_are_those_of_the_integrator():
    rng = np.random.default_rng(5)
    rows = 1500
    displacement, rotation = rng.normal(scale=3e-3, size=(rows, 3)), rng.normal(scale=2e-2, size=(rows, 3))
    dt, doubt = rng.uniform(0.001, 0.02, rows), rng.uniform(0.2, 0.9, rows)
    held = np.repeat(rng.random(rows // 50) < 0.3, 50)
    first = np.isin(np.arange(rows), (0, 400, 444, 1000))
    displacement[held], rotation[held] = 0.0, 0.0
    jump, wider, turnings = np.zeros((rows, 3)), np.zeros(rows), np.zeros(rows)
    jump[400], jump[1000] = (0.3, -0.2, 0.1), (0.0, 0.1, 0.0)
    wider[[30, 400, 700, 1000]], turnings[[30, 400, 1000]] = (1e-6, 0.04, 1e-5, 0.3), (1e-8, 0.02, 0.1)
    # These made up motions shake the body by about 5 000 rad/s^2, and heave it by 1 m/s.
    yields = {"per_yield": (0.02, 0.01, 0.3), "heave_per_shock": 1e-4, "yield_time": 0.2}
    model = ErrorModel(linear_velocity=LinearVelocityError.model_validate(yields))
    pose = PoseIntegrator(model)
    pose.set_pose((1.0, 2.0, 3.0), (0.1, -0.2, 0.3, 0.9))
    rate, climbing = rng.normal(scale=0.1, size=rows), np.zeros((rows, 3))
    position, orientation, covariance = [], [], []
    for row in range(rows):
        if jump[row].any():
            x, y, z = (np.array(pose.position) + jump[row]).tolist()
            pose._x, pose._y, pose._z = x, y, z
        if wider[row]:
            pose.widen(np.sqrt(wider[row]), np.sqrt(turnings[row]))
        if held[row]:
            pose.hold()
        else:
            move = pose.stay if first[row] else pose.advance
            move(tuple(displacement[row]), tuple(rotation[row]), dt[row], doubt[row])
            if not first[row]:
                pose.rise(rate[row] * dt[row])
                climbing[row] = rate[row] * np.array(pose.upward)
        position.append(pose.position)
        orientation.append(pose.orientation)
        covariance.append(pose.covariance)
    motions = Motions(
        displacement, rotation, dt, doubt, ~held & ~first, held, np.array(orientation), jump, wider, turnings, climbing
    )
    poses = follow(motions, np.array([1.0, 2.0, 3.0]), model)
    np.testing.assert_allclose(poses.position, position, atol=1e-12)
    np.testing.assert_allclose(poses.covariance, covariance, rtol=1e-9, atol=1e-15)
    assert held.mean() > 0.1


def test_turning_is_that_of_the_integrator():
    pose = PoseIntegrator()
    for rotation in ((0.3, -0.2, 0.1), (0.0, 0.0, 0.0), (1e-7, 2e-7, 0.0)):
        before = np.array(pose.orientation)
        pose.advance((0.0, 0.0, 0.0), rotation, 0.002)
        np.testing.assert_allclose(turned(before[None], np.array([rotation]))[0], pose.orientation, atol=1e-14)
