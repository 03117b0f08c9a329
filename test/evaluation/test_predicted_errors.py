"""Predicted variances: the same numbers as the robot's own code."""

import numpy as np
import pytest
from walks import drawn_walk, simulated

from trace_ros.errors import TraceError
from trace_ros.estimator.error_model import ErrorModel
from trace_ros.estimator.odometry import PoseIntegrator
from trace_ros.evaluation.calibration_walks import CalibrationSettings, walk_of
from trace_ros.evaluation.predicted_errors import predicted, relative_poses, twist_variances


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


def test_a_horizon_that_no_walk_has_is_refused():
    with pytest.raises(TraceError, match="no walk is longer than 100 s"):
        relative_poses([drawn_walk(0)], 100.0, 1.0)
