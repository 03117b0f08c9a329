"""Walks whose errors are drawn from a known error model: what the calibration must find again."""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter
from scipy.spatial.transform import Rotation

from trace_ros.estimator.error_model import AngularVelocityError, ErrorModel, LinearVelocityError
from trace_ros.estimator.odometry import PoseIntegrator
from trace_ros.estimator.run import EstimatedRun
from trace_ros.evaluation.calibration_walks import CalibrationSettings, Walk
from trace_ros.evaluation.predicted_errors import linear_variances
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

TRUTH = ErrorModel(
    linear_velocity=LinearVelocityError(
        base=(0.02, 0.01, 0.015),
        per_speed=(0.03, 0.0, 0.02),
        per_rate=(0.0, 0.02, 0.0),
        per_doubt=(0.2, 0.3, 0.0),
        usual_doubt=0.5,
        per_yield=(0.0, 0.0, 0.08),
        heave_per_shock=0.003,
    ),
    angular_velocity=AngularVelocityError(base=(0.02, 0.01, 0.03), per_acceleration=(0.002, 0.001, 0.0)),
    standing_linear_velocity=(0.002, 0.001, 0.003),
    standing_angular_velocity=(0.001, 0.004, 0.002),
    slow_share=(0.8, 0.5, 0.6),
    slow_time=3.0,
    fast_time=(0.2, 0.3, 0.5),
    yaw_per_sqrt_second=0.004,
    yaw_rate=0.002,
    yaw_rate_time=3.0,
    tilt=0.02,
    tilt_time=2.0,
)


def drawn_walk(seed: int, duration_s: float = 60.0, model: ErrorModel = TRUTH) -> Walk:
    """A walk with turns and stops, with errors of the pose step by step as the model has them."""
    rng = np.random.default_rng(seed)
    dt = 0.02
    steps = round(duration_s / dt)

    def process(time: float, size: int) -> np.ndarray:
        keep = time / (time + dt)
        noise = rng.normal(size=(steps, size))
        noise[1:] *= np.sqrt(1 - keep**2)
        return np.asarray(lfilter([1.0], [1.0, -keep], noise, axis=0))

    moving = (np.arange(steps) * dt % 15 > 1.5).astype(float)
    speed = rng.uniform(0.2, 1.0) * moving
    turn_rate = 0.5 * np.sin(np.arange(steps) * dt / rng.uniform(2, 6) + rng.uniform(0, 6)) * moving
    doubt = 0.5 + 0.2 * np.sin(np.arange(steps) * dt / 3 + rng.uniform(0, 6))
    # Every other robot walks on firm ground.
    ground = np.random.default_rng((seed, 1)).uniform(*((1.0, 3.0) if seed % 2 else (0.5, 1.0)))
    heave = np.full(steps, (ground * model.linear_velocity.heave_per_shock) ** 2)
    conditions = np.column_stack((np.ones(steps), speed**2, turn_rate**2, doubt, heave))
    sigma = np.sqrt(linear_variances(model, conditions))
    velocity_error = sigma * (
        model.slow_share * process(model.slow_time, 3)
        + np.sqrt(2 * np.array(model.fast_time) / dt) * rng.normal(size=(steps, 3))
    )
    true_heading = rng.uniform(-3, 3) + np.append(0, np.cumsum(turn_rate * dt))
    rate_error = model.yaw_rate * process(model.yaw_rate_time, 1)[:, 0]
    rate_error += model.yaw_per_sqrt_second / np.sqrt(dt) * rng.normal(size=steps)
    heading = true_heading + np.append(0, np.cumsum(rate_error * dt * moving))
    tilt = model.tilt * process(model.tilt_time, 2)
    # The walker moves ahead; a pitch error (nose down) takes it down.
    true = np.column_stack((speed, np.zeros((steps, 2))))
    seen = true + moving[:, None] * velocity_error
    seen[:, 2] -= tilt[:, 1] * speed
    true_position = np.vstack((np.zeros(3), np.cumsum(dt * about_z(true_heading[:-1]).apply(true), axis=0)))
    position = np.vstack((np.zeros(3), np.cumsum(dt * about_z(heading[:-1]).apply(seen), axis=0)))
    acceleration = rng.uniform(0, 400, (steps, 3))
    angular = model.angular_velocity
    angular_sigma = np.sqrt(np.square(angular.base) + np.square(angular.per_acceleration) * acceleration)
    twist_sigma = np.where(
        moving[:, None] > 0,
        np.hstack((sigma, angular_sigma)),
        (*model.standing_linear_velocity, *model.standing_angular_velocity),
    )
    return Walk(
        f"drawn_{seed}",
        twist_sigma * rng.normal(size=(steps, 6)),
        conditions,
        acceleration,
        moving == 0,
        dt * moving,
        conditions,
        position,
        true_position,
        quaternions(heading, np.vstack((tilt, tilt[-1:]))),
        quaternions(true_heading, np.zeros((steps + 1, 2))),
        np.arange(steps + 1) * dt,
    )


def about_z(angle: np.ndarray) -> Rotation:
    return Rotation.from_rotvec(np.column_stack((np.zeros((len(angle), 2)), angle)))


def quaternions(heading: np.ndarray, tilt: np.ndarray) -> np.ndarray:
    """Roll and pitch about the body's own level axes, then the heading."""
    level = Rotation.from_rotvec(np.column_stack((tilt, np.zeros(len(tilt)))))
    return np.asarray((about_z(heading) * level).as_quat())


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
