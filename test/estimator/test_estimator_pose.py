"""Where the pose begins, where it is put, which frame the motion is in: motions made by hand, with known answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from untrained import export_untrained

from trace_ros.errors import TraceError
from trace_ros.estimator.estimator import Estimate, TraceEstimator
from trace_ros.geometry import roll_pitch_yaw
from trace_ros.logs import Sample
from trace_ros.robot import RobotDescription

DT = 0.002


@pytest.fixture(scope="module")
def robot() -> RobotDescription:
    return RobotDescription.load("go2")


@pytest.fixture
def estimator(robot: RobotDescription, tmp_path: Path) -> TraceEstimator:
    return TraceEstimator.load(export_untrained(tmp_path / "trace.pt", robot), robot)


def samples(count: int, start: int = 0, seed: int = 0, tilt: Rotation | None = None) -> list[Sample]:
    """A robot in motion (by its joints), whose specific force is gravity as a body with this tilt feels it."""
    rng = np.random.default_rng(seed)
    force = (tilt or Rotation.identity()).inv().apply([0.0, 0.0, 9.81])
    return [
        Sample(
            round((start + k) * DT * 1e9) + 10**9,
            rng.normal(0, 0.3, 3),
            force,
            rng.normal(0, 0.2, 12),
            rng.normal(0, 3, 12),
            rng.normal(0, 5, 12),
        )
        for k in range(count)
    ]


def run(estimator: TraceEstimator, inputs: list[Sample]) -> list[Estimate]:
    return [estimate for sample in inputs if (estimate := estimator.step(sample)) is not None]


def assert_equal(ours: list[Estimate], theirs: list[Estimate]) -> None:
    """Bit for bit."""
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        for name in (
            *("stamp_ns", "position", "orientation", "velocity", "angular_velocity", "attention"),
            *("pose_covariance", "twist_covariance", "stationary"),
        ):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def test_a_reset_run_equals_a_fresh_one_bit_for_bit(robot: RobotDescription, tmp_path: Path) -> None:
    model = export_untrained(tmp_path / "trace.pt", robot)
    fresh = run(TraceEstimator.load(model, robot), samples(120))
    used = TraceEstimator.load(model, robot)
    bare = [replace(sample, joint_velocity=None, joint_torque=None) for sample in samples(90, 3, seed=5)]
    run(used, bare)
    used.set_pose(np.array([4.0, 5.0, 6.0]), np.array([0.0, 0.0, 1.0, 0.0]), 0.5, 0.2)
    run(used, samples(50, 2000, seed=6))  # after a gap
    used.reset()
    assert_equal(run(used, samples(120)), fresh)  # earlier stamps are no matter


def test_the_initial_pose_is_where_runs_begin(estimator: TraceEstimator) -> None:
    tilt = Rotation.from_euler("xyz", [0.1, -0.2, 0.0])
    estimator.set_initial_pose(np.array([1.0, -2.0, 0.5]), 0.7)
    for _ in range(2):
        first = run(estimator, samples(30, tilt=tilt))[0]
        np.testing.assert_array_equal(first.position, [1.0, -2.0, 0.5])
        np.testing.assert_allclose(roll_pitch_yaw(first.orientation), [0.1, -0.2, 0.7], atol=1e-6)
        estimator.reset()
    for position, heading in (([0.0, 0.0], 0.0), ([0.0, 0.0, np.nan], 0.0), ([0.0, 0.0, 0.0], np.inf)):
        with pytest.raises(TraceError, match="not a position and a heading"):
            estimator.set_initial_pose(np.array(position), heading)


def test_a_set_pose_keeps_the_networks_state(robot: RobotDescription, tmp_path: Path) -> None:
    """With roll and pitch as they were, what the network says does not change: only the frame does."""
    model = export_untrained(tmp_path / "trace.pt", robot)
    one, other = (TraceEstimator.load(model, robot) for _ in range(2))
    before = run(one, samples(60))[-1]
    run(other, samples(60))
    turn = Rotation.from_euler("z", 1.2)
    moved = turn * Rotation.from_quat(before.orientation)
    other.set_pose(np.array([10.0, -4.0, 2.0]), moved.as_quat())
    straight, displaced = run(one, samples(100, 60, seed=1)), run(other, samples(100, 60, seed=1))
    assert len(displaced) == 100  # without a pause
    for a, b in zip(straight, displaced, strict=True):
        np.testing.assert_allclose(b.velocity, a.velocity, atol=1e-6)
        np.testing.assert_allclose(b.attention, a.attention, atol=1e-6)
        expected = np.array([10.0, -4.0, 2.0]) + turn.apply(a.position - before.position)
        np.testing.assert_allclose(b.position, expected, atol=1e-6)


def test_the_uncertainty_of_a_set_pose_is_taken_over(estimator: TraceEstimator) -> None:
    run(estimator, samples(60))
    estimator.set_pose(np.zeros(3), np.array([0.0, 0.0, 0.0, 1.0]), 0.3, 0.1)
    covariance = run(estimator, samples(1, 60))[0].pose_covariance
    assert np.sqrt(np.diag(covariance)[:3]) == pytest.approx([0.3] * 3, rel=0.02)
    assert np.sqrt(covariance[5, 5]) == pytest.approx(0.1, rel=0.02)
    with pytest.raises(TraceError, match="covariance is not finite"):
        estimator.set_pose(np.zeros(3), np.array([0.0, 0.0, 0.0, 1.0]), float("nan"))


class Scripted:
    """In the network's place: says the same motion at every step."""

    def __init__(self, velocity: tuple[float, ...], turning: tuple[float, ...]) -> None:
        self.observation = np.zeros(47, dtype=np.float32)
        self._motion = [rate * DT for rate in (*velocity, *turning)] + list(velocity)

    def prime(self, window: np.ndarray) -> None:
        assert window.shape == (29, 47)

    def step(self) -> tuple[list[float], np.ndarray]:
        return self._motion, np.full(6, 1 / 6, dtype=np.float32)


@pytest.fixture
def script(estimator: TraceEstimator, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Estimate]:
    """The estimate after one second of a motion that begins at a heading."""

    def after_a_second(velocity: tuple, turning: tuple = (0.0, 0.0, 0.0), heading: float = 0.0) -> Estimate:
        monkeypatch.setattr(estimator, "_engine", Scripted(velocity, turning))
        estimator.set_initial_pose(np.zeros(3), heading)
        estimator.reset()
        return run(estimator, samples(30 + 500))[-1]

    return after_a_second


def test_forward_is_forward_whatever_the_heading(script: Callable[..., Estimate]) -> None:
    for heading, position in ((0.0, [1, 0, 0]), (np.pi / 2, [0, 1, 0]), (np.pi, [-1, 0, 0])):
        end = script((1.0, 0.0, 0.0), heading=heading)
        np.testing.assert_allclose(end.velocity, [1, 0, 0], atol=1e-6)
        np.testing.assert_allclose(end.position, position, atol=1e-5)


def test_sideways_is_left(script: Callable[..., Estimate]) -> None:
    end = script((0.0, 0.4, 0.0))
    np.testing.assert_allclose(end.velocity, [0, 0.4, 0], atol=1e-6)
    np.testing.assert_allclose(end.position, [0, 0.4, 0], atol=1e-5)
    end = script((0.0, 0.4, 0.0), heading=np.pi / 2)
    np.testing.assert_allclose(end.velocity, [0, 0.4, 0], atol=1e-6)
    np.testing.assert_allclose(end.position, [-0.4, 0, 0], atol=1e-5)


def test_turning_on_the_spot_is_to_the_left(script: Callable[..., Estimate]) -> None:
    end = script((0.0, 0.0, 0.0), (0.0, 0.0, np.pi / 2))
    np.testing.assert_allclose(end.angular_velocity, [0, 0, np.pi / 2], atol=1e-5)
    np.testing.assert_allclose(roll_pitch_yaw(end.orientation), [0, 0, np.pi / 2], atol=1e-5)
    np.testing.assert_allclose(end.position, 0, atol=1e-9)


def test_a_curve_is_a_circle_and_the_twist_stays_forward(script: Callable[..., Estimate]) -> None:
    """1 m/s and a quarter turn a second: radius 2 / pi, after one second at (r, r) looking along +y."""
    end = script((1.0, 0.0, 0.0), (0.0, 0.0, np.pi / 2))
    radius = 2 / np.pi
    np.testing.assert_allclose(end.velocity, [1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(end.position, [radius, radius, 0], atol=3e-3)


def test_climbing_is_up(script: Callable[..., Estimate]) -> None:
    end = script((0.0, 0.0, 0.2), heading=1.0)
    np.testing.assert_allclose(end.velocity, [0, 0, 0.2], atol=1e-6)
    np.testing.assert_allclose(end.position, [0, 0, 0.2], atol=1e-5)
