"""From the physics to what perfect sensors would say: sampling instants, IMU, joints, contacts.

The IMU averages over the interval between two samples, as the anti-alias filters of real IMUs do, so that integrating
the gyroscope gives the change of orientation and integrating the specific force gives the change of velocity.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from scipy.spatial.transform import Rotation

from trace_ros.geometry import GRAVITY
from trace_ros.logs import JOINTS, LEGS, SensorLog, Trajectory
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace
from trace_ros.sim.contacts import ContactLabelConfig, contact_labels, contact_normals

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class SamplingConfig(BaseModel):
    """When the sensors are read.

    Attributes:
        jitter_probability: that a sample comes one physics step early or late. The stamps tell the true instants.
        start_ns: stamp of the first physics step (ns).
    """

    model_config = {"extra": "forbid", "frozen": True}
    jitter_probability: Annotated[float, Field(ge=0, le=1)] = 0.1
    start_ns: Annotated[int, Field(ge=0)] = 0


def sample_steps(
    first: int, count: int, physics: PhysicsConfig, config: SamplingConfig, rng: np.random.Generator
) -> IntArray:
    """Physics steps at which ``count + 1`` samples are taken: a regular grid from ``first`` on, with jitter.

    The first only opens the first interval. With fewer than three steps a sample there is no room for jitter.
    """
    nominal = first + physics.steps_per_sample * np.arange(count + 1, dtype=np.int64)
    if physics.steps_per_sample < 3 or not config.jitter_probability:
        return nominal
    moved = rng.random(count + 1) < config.jitter_probability
    # The outermost stay, so that all rollouts cover the same time.
    moved[[0, -1]] = False
    return nominal + np.where(moved, rng.choice(np.array([-1, 1]), count + 1), 0)


def clean_log(
    trace: PhysicsTrace,
    robot_index: int,
    steps: IntArray,
    joint_target: FloatArray,
    gains: tuple[float, float],
    robot: RobotDescription,
    physics: PhysicsConfig,
    labels: ContactLabelConfig,
    start_ns: int = 0,
) -> SensorLog:
    """What perfect sensors of one robot would have said.

    The gyroscope and the specific force (at the IMU's place, in body axes) are means over the physics steps since the
    previous sample; foot forces likewise; joints and the reference are of the instant itself. The target torque is
    ``kp (q_des - q) - kd dq`` with the controller's nominal gains, clipped to the robot's torque limits: what a robot's
    controller would report as its command.

    Args:
        trace: the physics.
        robot_index: which robot of the batch.
        steps: (N + 1,) physics steps of the samples; the first only opens the first interval and must be at least 1.
        joint_target: (T, 12) rad, targets of each control step.
        gains: kp (N m/rad) and kd (N m s/rad) of the joint controllers.
        robot: names, limits, IMU mounting.
        physics: rates.
        labels: thresholds of the contact labels.
        start_ns: stamp of the trace's beginning (ns).

    Returns:
        A log of N samples with reference and contact labels. Body frame: base link.
    """
    b = robot_index
    window = slice(int(steps[0]), int(steps[-1]) + 1)
    at = steps[1:]
    # Row 0 is the state at the first instant; row i is the state i physics steps later.
    local = steps - steps[0]
    orientation = trace.orientation[b, window]
    rotation = Rotation.from_quat(orientation)
    rate = trace.angular_velocity[b, window]
    force = _specific_force(trace.velocity[b, window], orientation, rate, rotation, robot, physics)

    q = trace.joint_position[b, at].astype(float)
    dq = trace.joint_velocity[b, at].astype(float)
    # Targets of the control step in which the sampled physics step lies.
    target = joint_target[at // physics.steps_per_control]
    kp, kd = gains
    torque = np.clip(kp * (target - q) - kd * dq, -robot.torque_limits, robot.torque_limits)

    world_body = rotation[local[1:]]
    to_body = world_body.inv().as_matrix()
    foot_force = _interval_mean(trace.foot_force[b, window].reshape(-1, 3 * LEGS).astype(float), local)
    foot_force = np.einsum("nij,nlj->nli", to_body, foot_force.reshape(-1, LEGS, 3))
    contact = contact_labels(np.linalg.norm(foot_force, axis=-1), labels, 1.0 / physics.sample_rate_hz)
    normal = np.einsum("nij,nlj->nli", to_body, trace.foot_normal[b, at].astype(float))

    # The state after step i is that of the instant (i + 1) steps after the start.
    stamps = start_ns + np.rint((at + 1) * (1e9 / physics.rate_hz)).astype(np.int64)
    reference = Trajectory(
        stamps,
        trace.position[b, at],
        orientation[local[1:]],
        np.einsum("nij,nj->ni", to_body, trace.velocity[b, at]),
        rate[local[1:]],
    )
    return SensorLog(
        stamps,
        _interval_mean(rate, local),
        _interval_mean(force, local),
        q.reshape(-1, JOINTS),
        dq.reshape(-1, JOINTS),
        torque,
        torque_source="pd_target",
        robot=robot.name,
        reference=reference,
        contact=contact,
        contact_normal=contact_normals(normal, contact),
        foot_force=foot_force,
    )


def _specific_force(
    velocity: FloatArray,
    orientation: FloatArray,
    rate: FloatArray,
    rotation: Rotation,
    robot: RobotDescription,
    physics: PhysicsConfig,
) -> FloatArray:
    """Specific force at the IMU during each physics step, body axes: (S, 3) m/s^2; the first row is not defined (zero).

    Taken from the increments of the IMU's velocity, not from an engine's accelerometer: implicit integrators move the
    body by other accelerations than those they report, and an estimator would see the difference as a bias.
    """
    at_imu = velocity + rotation.apply(np.cross(rate, robot.imu.position))
    acceleration = np.diff(at_imu, axis=0) * physics.rate_hz
    acceleration[:, 2] += GRAVITY
    # Half-way orientation of each step; neighbouring quaternions are on the same side for any step of a simulation.
    sign = np.sign(np.sum(orientation[1:] * orientation[:-1], axis=1, keepdims=True))
    middle = Rotation.from_quat(orientation[1:] + np.where(sign < 0, -1.0, 1.0) * orientation[:-1])
    result = np.zeros_like(velocity)
    result[1:] = middle.inv().apply(acceleration)
    return result


def _interval_mean(values: FloatArray, at: IntArray) -> FloatArray:
    """Means of the rows ``at[k] + 1 .. at[k + 1]``: (S, D), (N + 1,) -> (N, D)."""
    return np.add.reduceat(values[1:], at[:-1], axis=0)[: len(at) - 1] / np.diff(at)[:, None]
