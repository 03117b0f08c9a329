"""Errors of twists and of relative poses on walks, and the variances that an error model predicts of them.

The increments of a walk go through the same `PoseCovariance` as on the robot, from many starts at once, as if the pose
had been set at each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.estimator.error_model import ErrorModel, LinearVelocityError, PoseCovariance, unexplained
from trace_ros.evaluation.calibration_walks import Walk
from trace_ros.geometry import FloatArray


@dataclass(frozen=True)
class RelativePoses:
    """W pieces of walks of one length, H steps each; what `predicted` needs, step by step.

    Attributes:
        error: (W, 6) of the relative pose: x, y, z, rotation about X, Y, Z in the odometry frame, after position and
            heading were made equal at the start. m, rad.
        cosine, sine: (H, W) of the heading.
        displacement: (H, W, 3) m, odometry frame.
        conditions: (H, W, 5) as of `Walk`.
        dt: (H, W) s.
    """

    error: FloatArray
    cosine: FloatArray
    sine: FloatArray
    displacement: FloatArray
    conditions: FloatArray
    dt: FloatArray

    def __len__(self) -> int:
        return len(self.error)


def relative_poses(walks: Sequence[Walk], horizon_s: float, stride_s: float) -> RelativePoses:
    """All pieces of this length of the walks, each starting so much (s) after the one before.

    Raises:
        TraceError: no walk is so long.
    """
    parts = []
    for walk in walks:
        step = float(np.median(np.diff(walk.time)))
        length, stride = max(1, round(horizon_s / step)), max(1, round(stride_s / step))
        start = np.arange(0, len(walk.time) - length, stride)
        if start.size:
            parts.append(_pieces(walk, start, length))
    shortest = min((part[1].shape[0] for part in parts), default=0)
    if not shortest:
        raise TraceError(f"no walk is longer than {horizon_s:g} s")
    error, *rest = zip(*parts, strict=True)
    return RelativePoses(
        np.concatenate(error), *(np.concatenate([p[:shortest] for p in part], axis=1) for part in rest)
    )


def _pieces(walk: Walk, start: NDArray[np.intp], length: int) -> tuple[FloatArray, ...]:
    estimated, true = Rotation.from_quat(walk.orientation), Rotation.from_quat(walk.true_orientation)
    heading = _heading(estimated)
    offset = (heading - _heading(true))[start]
    turn = Rotation.from_rotvec(np.column_stack((0 * offset, 0 * offset, offset)))
    end = start + length
    position = (walk.position[end] - walk.position[start]) - turn.apply(
        walk.true_position[end] - walk.true_position[start]
    )
    rotation = (estimated[end] * (turn * true[end]).inv()).as_rotvec()
    index = start + np.arange(length)[:, None]
    return (
        np.hstack((position, rotation)),
        np.cos(heading)[index],
        np.sin(heading)[index],
        np.diff(walk.position, axis=0)[index],
        walk.conditions[index],
        walk.dt[index],
    )


def _heading(rotation: Rotation) -> FloatArray:
    matrix = rotation.as_matrix()
    return np.asarray(np.arctan2(matrix[:, 1, 0], matrix[:, 0, 0]))


def predicted(model: ErrorModel, pieces: RelativePoses, *, exact: bool = False) -> FloatArray:
    """Variances (W, 6) of the relative poses that the model predicts, by the code that runs on the robot.

    Args:
        model: of the errors.
        pieces: W relative poses.
        exact: without what keeps the published variances from shrinking; linear in the variances of the sources.
    """
    sigma = np.sqrt(linear_variances(model, pieces.conditions))
    covariance = PoseCovariance(model, np.maximum)
    steps = zip(pieces.cosine, pieces.sine, pieces.displacement, sigma, pieces.dt, strict=True)
    for cosine, sine, displacement, deviation, dt in steps:
        covariance.propagate(cosine, sine, tuple(displacement.T), tuple(deviation.T), dt)
    variances = covariance.variances()
    if exact:
        variances = (covariance.xx, covariance.yy, covariance.zz, *variances[3:])
    return np.column_stack([np.broadcast_to(variance, len(pieces)) for variance in variances])


def linear_variances(model: ErrorModel, conditions: FloatArray) -> FloatArray:
    """Variances (..., 3) of the linear velocity while moving, of conditions (..., 5) as of `Walk`."""
    error = model.linear_velocity
    squares = np.square((error.base, error.per_speed, error.per_rate, error.per_doubt, error.per_yield))
    return np.asarray(linear_terms(error, conditions) @ squares)


def linear_terms(error: LinearVelocityError, conditions: FloatArray) -> FloatArray:
    """What the variances are sums of, (..., 5), of conditions (..., 5) as of `Walk`."""
    doubt = np.maximum(conditions[..., 3] - error.usual_doubt, 0.0)
    soft = np.maximum(unexplained(conditions[..., 4], error.heave_per_shock**2), 0.0)
    return np.concatenate((conditions[..., :3], np.stack((doubt, soft), axis=-1) ** 2), axis=-1)


def twist_variances(model: ErrorModel, walk: Walk) -> FloatArray:
    """Variances (K, 6) of the twists that the model predicts."""
    linear = linear_variances(model, walk.twist_conditions)
    angular = model.angular_velocity
    moving = np.square(angular.base) + np.square(angular.per_acceleration) * walk.twist_acceleration
    standing = np.square((*model.standing_linear_velocity, *model.standing_angular_velocity))
    return np.where(walk.twist_still[:, None], standing, np.hstack((linear, moving)))
