"""Legolas over whole logs: it feeds nothing back, so its network runs over many samples at a time.

The same poses as `LegolasEstimator.step` gives them, in a small part of the time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation
from torch import Tensor

from trace_ros.baselines.attitude import reported_tilt
from trace_ros.baselines.cards import LegolasCard
from trace_ros.baselines.learned import LearnedModel
from trace_ros.baselines.legolas_network import ROTATION, TRANSLATION, LegolasNetwork, rotation_vector
from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.estimator.differentiation import differentiate
from trace_ros.estimator.estimator import initial_tilt
from trace_ros.estimator.joint_delay import with_joints_at_their_time
from trace_ros.estimator.observation import MAX_GAP_S, WINDOW
from trace_ros.logs import SensorLog, Trajectory

_CHUNK = 5000
"""Samples at a time."""


def network_of(model: LearnedModel[LegolasCard]) -> LegolasNetwork:
    """The network that a model was made from."""
    network = LegolasNetwork(model.card.network)
    network.load_state_dict(model.weights)
    return network


def log_intervals(log: SensorLog, card: LegolasCard) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Time since the sample before, and what the network is told of it, as the estimator has them. ``(N,), (N,)`` s."""
    nominal = 1.0 / card.rate_hz
    elapsed = np.concatenate(([nominal], np.diff(log.stamp_ns) * 1e-9))
    shortest, longest = card.trained_intervals_s
    return elapsed, np.where((elapsed >= shortest) & (elapsed <= longest), elapsed, nominal)


def log_observations(log: SensorLog, card: LegolasCard) -> Tensor:
    """(N, 47) observations as the estimator gives them to the network, with the IMU's own roll and pitch."""
    elapsed, told = log_intervals(log, card)
    velocity = log.joint_velocity
    if velocity is None:
        velocity = differentiate(log.stamp_ns, log.joint_position)
    torque = np.full_like(log.joint_position, np.nan) if log.joint_torque is None else log.joint_torque
    tilt = reported_tilt(log.angular_velocity, log.linear_acceleration, elapsed)
    columns = (
        log.angular_velocity, log.linear_acceleration, log.joint_position, velocity, torque, tilt,
        np.zeros((len(log), 2)), told[:, None],
    )  # fmt: skip
    return torch.from_numpy(np.concatenate(columns, axis=1).astype(np.float32))


@torch.no_grad()
def log_features(
    network: LegolasNetwork, observations: Tensor, progress: Callable[[int], None] | None = None
) -> Tensor:
    """What the heads are given for each of N observations: (N, trunk). Before the first one stands that one again."""
    history = network.config.history
    rows = torch.cat((observations[:1].expand(history, -1), observations))
    parts = []
    for first in range(0, len(observations), _CHUNK):
        parts.append(network.features(rows[None, first : first + history + _CHUNK])[0])
        if progress is not None:
            progress(min(first + _CHUNK, len(observations)))
    return torch.cat(parts)


@torch.no_grad()
def run_legolas(
    model: LearnedModel[LegolasCard], log: SensorLog, progress: Callable[[int], None] | None = None
) -> Trajectory:
    """The trajectory that the estimator gives of a log, from gravity, at the origin.

    Args:
        model: of Legolas.
        log: at least 30 samples, without gaps.
        progress: hears how many samples are done.

    Raises:
        TraceError: too few samples, or a gap, after which the estimator would start anew.
    """
    log = with_joints_at_their_time(log, model.card.joint_delay)
    elapsed, told = log_intervals(log, model.card)
    if len(log) < WINDOW or elapsed.max() > MAX_GAP_S:
        raise TraceError(f"log: needs {WINDOW} samples without a gap of {MAX_GAP_S:g} s to be run at once")
    network = network_of(model)
    observations = log_observations(log, model.card)
    output = network.answer(log_features(network, observations, progress), observations)
    moves = (output.moving > 0).double().numpy()[:, None]
    columns = output.increment[..., ROTATION] * observations[:, obs.DT] + torch.eye(3)[:2].flatten()
    stretch = (elapsed / told)[:, None]
    velocity = output.increment[..., TRANSLATION].double().numpy() * moves
    moved = velocity * told[:, None] * stretch
    turns = Rotation.from_rotvec(rotation_vector(columns).double().numpy() * stretch * moves).as_matrix()
    roll, pitch = initial_tilt(log.linear_acceleration[:WINDOW]).tolist()
    rotations = np.empty((len(log) - WINDOW + 1, 3, 3))
    rotations[0] = Rotation.from_euler("xyz", (roll, pitch, 0.0)).as_matrix()
    for index, turn in enumerate(turns[WINDOW:]):
        turned = rotations[index] @ turn
        rotations[index + 1] = turned @ (1.5 * np.eye(3) - 0.5 * turned.T @ turned)
    steps = np.einsum("nij,nj->ni", rotations[:-1], moved[WINDOW:])
    position = np.concatenate((np.zeros((1, 3)), np.cumsum(steps, axis=0)))
    orientation = Rotation.from_matrix(rotations).as_quat()
    return Trajectory(log.stamp_ns[WINDOW - 1 :], position, orientation, velocity[WINDOW - 1 :])
