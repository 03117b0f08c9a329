"""TraceEstimator: the only code that turns samples into poses; the node, the evaluator and the demo all call it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.estimator.checkpoint import LoadedModel, ModelCard, load_model
from trace_ros.estimator.coasting import Coasting
from trace_ros.estimator.differentiation import JointDifferentiator
from trace_ros.estimator.engines import DEFAULT_ENGINE, make_engine
from trace_ros.estimator.feet import FOOT_POSITION, FootChannels, foot_channels
from trace_ros.estimator.gyro_bias import GyroBias
from trace_ros.estimator.height import HeightByFeet
from trace_ros.estimator.input_limits import input_limits
from trace_ros.estimator.interface import Output
from trace_ros.estimator.network import LEG_TOKENS
from trace_ros.estimator.odometry import PoseIntegrator
from trace_ros.estimator.stationary import StationaryDetector
from trace_ros.geometry import GRAVITY, tilt_from_gravity
from trace_ros.logs import Sample
from trace_ros.robot import RobotDescription
from trace_ros.streams.intervals import GapSettings, GridResampler, IntervalPlanner, between

FloatArray = NDArray[np.float64]

_STEADY_FORCE = 1.0
"""Change of the specific force (m/s^2) within a window at which it is worth no more than the guess of a level body."""

_OTHER_RATE = 0.2
"""How far a stream's interval may be from the one that the network was trained with, as a part of it."""

_OWN_SLOW_SHARE, _OWN_SLOW_S = 0.57, 30.0
"""Share of a network's vertical velocity error that lasts, and for how long (s): what ``trace calibrate`` found of the
Go2's network when its height was its own."""

_NO_MOTION = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


@dataclass(frozen=True)
class Estimate:
    """Where the body is after one sample.

    Attributes:
        stamp_ns: the sample's stamp, ns.
        position: (3,) m, odometry frame.
        orientation: (4,) quaternion x, y, z, w, body to odometry frame.
        velocity: (3,) m/s, body frame.
        angular_velocity: (3,) rad/s, body frame.
        attention: (6,) head-mean attention over the tokens accel, gyro, FL, FR, RL, RR; sums to 1. None from an
            estimator without attention.
        stationary: whether the stationary clamp holds the pose.
        pose_covariance: (6, 6), x, y, z, rotation about X, Y, Z, fixed axes of the odometry frame.
        twist_covariance: (6, 6), linear x, y, z, angular x, y, z, body frame.
        contact: (4,) which feet the estimator takes to stand (FL, FR, RL, RR), or None.
    """

    stamp_ns: int
    position: FloatArray
    orientation: FloatArray
    velocity: FloatArray
    angular_velocity: FloatArray
    attention: NDArray[np.float32] | None
    stationary: bool
    pose_covariance: FloatArray
    twist_covariance: FloatArray
    contact: NDArray[np.bool_] | None = None


class TraceEstimator:
    """Feeds samples to the network, feeds its output back, and integrates the pose.

    The first 29 samples fill the window and give no estimate. The 30th gives the first one, at the initial pose: the
    one that was set, else position zero, heading zero, and roll and pitch from the specific force of the window, as far
    as that is steady (see `initial_tilt`).

    Samples may come at any rate. Where some were lost, the time between is bridged by interpolated ones. At a rate that
    the network does not know they are resampled to its own; of a faster stream, those between two steps then give no
    estimate. After a pause longer than ``max_gap`` the window fills anew; meanwhile the body is taken to go on as
    before, ever less so.
    """

    name = "trace"
    outputs: frozenset[Output] = frozenset({"velocity", "attention", "stationary"})

    def __init__(
        self,
        model: LoadedModel,
        robot: RobotDescription,
        gaps: GapSettings | None = None,
        engine: str = DEFAULT_ENGINE,
    ) -> None:
        """Use a loaded model on a robot.

        Args:
            model: as exported.
            robot: that it was trained for.
            gaps: what to do about pauses in the samples.
            engine: what computes the network: ``torchscript`` or ``onnxruntime`` (see `engines`).

        Raises:
            TraceError: the model was trained for another robot, or no such engine is installed.
        """
        model.check_robot(robot)
        self.model = model
        self.robot = robot
        self._engine = make_engine(engine, model)
        self._nominal_dt = 1.0 / model.card.rate_hz
        self._trained_intervals = model.card.trained_intervals_s
        self._window = obs.ObservationWindow()
        self._stationary = StationaryDetector(robot.stationary)
        self._gyro_bias = GyroBias(robot.stationary.gyro_bias_memory, robot.kinematics)
        settings = self._settings(model.card)
        self.error_model = settings.error_model
        self._pose = PoseIntegrator(self.error_model)
        self._absent_torque = model.absent_torque
        self.feet = foot_channels(model.card.network, robot)
        """What the network is told of the legs by, if not as they are."""
        self.height = settings.height
        """How the feet tell the height, if they do."""
        self.limits = input_limits(model.weights, model.card.network, settings.input_limit)
        """Of what the network is told."""
        self.legs = FootChannels(robot) if self.feet is None and self.height is not None else self.feet
        """What tells where the feet are, if anything asks."""
        self._height = None if self.height is None else HeightByFeet(self.height)
        self._foot_position: list[float] = []
        self._differentiator = JointDifferentiator()
        self.engine, self.gaps = engine, gaps or GapSettings()
        self._coasting = Coasting(self._pose, self.gaps)
        self._planner = IntervalPlanner(known_intervals(model.card), self._nominal_dt, self.gaps.max_gap)
        self._grid = GridResampler(self._nominal_dt)
        self._initial_position, self._initial_heading = (0.0, 0.0, 0.0), 0.0
        self.reset()

    @property
    def source(self) -> str:
        """The model's file."""
        return str(self.model.path)

    @property
    def rate_hz(self) -> float:
        """Of the samples that the model was trained with, Hz."""
        return self.model.card.rate_hz

    @property
    def max_gap_s(self) -> float:
        """The longest pause that is bridged, s."""
        return self.gaps.max_gap

    @property
    def joint_delay_s(self) -> float:
        """How much older joint readings are than IMU readings of the same stamp, s; whoever pairs them sees to it."""
        return self.model.card.joint_delay

    @classmethod
    def load(
        cls, model: Path, robot: RobotDescription, gaps: GapSettings | None = None, engine: str = DEFAULT_ENGINE
    ) -> Self:
        """Load a TorchScript checkpoint for a robot; see `__init__`.

        Raises:
            TraceError: no such file, not a checkpoint of this package, trained for another robot, or no such engine.
        """
        return cls(load_model(model), robot, gaps, engine)

    @staticmethod
    def _settings(card: ModelCard) -> ModelCard:
        return card

    def reset(self) -> None:
        """Forget everything: window, network state, pose, covariance. A reset run equals a fresh one."""
        self._pose.set_pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))
        self._pose_is_set = False
        self._last_stamp_ns: int | None = None
        self._differentiator.reset()
        self._velocity = (0.0, 0.0, 0.0)
        self._planner.reset()
        self._grid.reset()
        self._before: Sample | None = None
        """The last sample; a copy."""
        self._stepped_ns = 0
        """Stamp of the network's last step."""
        self._coasting.reset()
        self._gyro_bias.reset()
        if self._height is not None:
            self._height.reset()
        self._restart()

    def _restart(self) -> None:
        self._window.clear()
        self._stationary.reset()
        if self._height is not None:
            self._height.restart()
        self._running = False
        """Whether the network has a state: from when the window was full."""

    @property
    def gyro_bias(self) -> FloatArray:
        """(3,) rad/s, body frame: what the gyro showed while the robot stood still."""
        return self._gyro_bias.value

    @property
    def initial_pose(self) -> tuple[tuple[float, float, float], float]:
        """Position (m) and heading (rad) where runs begin."""
        return self._initial_position, self._initial_heading

    def set_initial_pose(self, position: FloatArray, heading: float) -> None:
        """Where runs begin, this one (where it has not begun) and those after a `reset`.

        Args:
            position: (3,) m.
            heading: rad. Roll and pitch are gravity's to say.

        Raises:
            TraceError: not finite, or wrong length.
        """
        values = [float(value) for value in (*position, heading)]
        if len(values) != 4 or not all(map(math.isfinite, values)):
            raise TraceError(f"initial pose: {values} is not a position and a heading")
        x, y, z, self._initial_heading = values
        self._initial_position = (x, y, z)

    def set_pose(
        self, position: FloatArray, orientation: FloatArray, position_sigma: float = 0.0, heading_sigma: float = 0.0
    ) -> None:
        """Put the body elsewhere; the network's state is kept.

        Args:
            position: (3,) m.
            orientation: (4,) quaternion x, y, z, w.
            position_sigma: m; how uncertain each axis of the position is, beyond the least that is assumed.
            heading_sigma: rad; the same for the heading.

        Raises:
            TraceError: not finite, wrong length, or a zero quaternion.
        """
        try:
            x, y, z = (float(value) for value in position)
            qx, qy, qz, qw = (float(value) for value in orientation)
            self._pose.set_pose((x, y, z), (qx, qy, qz, qw))
        except ValueError as error:
            raise TraceError(f"set_pose: {error}") from error
        if not (math.isfinite(position_sigma) and math.isfinite(heading_sigma)):
            raise TraceError("set_pose: its covariance is not finite")
        self._pose.widen(position_sigma, heading_sigma)
        if self._height is not None:
            self._height.reset()
        self._pose_is_set = True
        self._coasting.active = False

    def step(self, sample: Sample) -> Estimate | None:
        """Take in one sample.

        Returns:
            The estimate at the sample's stamp, or None while the window fills (after a start, a reset or a gap).

        Raises:
            ValueError: the stamp does not come after the previous one.
        """
        dt = self._elapsed(sample.stamp_ns)
        plan = self._planner.plan(dt)
        sample = _copied(sample)
        before, self._before = self._before, sample
        if plan.kind != "resample":
            self._grid.reset()
        if before is None:
            return self._advance(sample, dt)
        if plan.kind == "gap":
            self._coasting.begin(dt, self._running)
            self._restart()
            return self._advance(sample, dt)
        if plan.kind == "resample":
            estimate = None
            for made in self._grid.push(before, sample, self._planner.usual_s):
                estimate = self._advance(made, (made.stamp_ns - self._stepped_ns) * 1e-9)
            return None if estimate is None else self._carry_on(estimate, sample.stamp_ns)
        dt = (sample.stamp_ns - self._stepped_ns) * 1e-9
        if plan.steps > 1 and self._running:
            self._coasting.bridge(dt)
        for step in range(1, plan.steps):
            self._advance(between(before, sample, step / plan.steps), dt / plan.steps)
        return self._advance(sample, dt / plan.steps)

    def _carry_on(self, estimate: Estimate, stamp_ns: int) -> Estimate:
        """The estimate of the network's last step at the stamp of a sample that comes less than one step after it."""
        ahead = (stamp_ns - estimate.stamp_ns) * 1e-9
        vx, vy, vz = estimate.velocity.tolist()
        wx, wy, wz = estimate.angular_velocity.tolist()
        position, orientation = self._pose.ahead(
            (vx * ahead, vy * ahead, vz * ahead), (wx * ahead, wy * ahead, wz * ahead)
        )
        return replace(estimate, stamp_ns=stamp_ns, position=np.array(position), orientation=np.array(orientation))

    def _advance(self, sample: Sample, dt: float) -> Estimate | None:
        """Take in a sample that comes ``dt`` (s) after the one before, at about the rate that the network knows."""
        self._stepped_ns = sample.stamp_ns
        joint_velocity = self._joint_velocity(sample, dt)
        still = self._stationary.update(
            sample.stamp_ns, sample.angular_velocity, sample.linear_acceleration, joint_velocity
        )
        gyro = self._gyro_bias.update(sample.stamp_ns, sample.angular_velocity, sample.joint_position, still, dt)
        if not self._running:
            left = self._coasting.wait(dt, gyro)
            self._velocity = (self._velocity[0] * left, self._velocity[1] * left, self._velocity[2] * left)
        # An interval unknown to training (samples were lost, or stamped in bursts) is not told to the network: its
        # motion, a rate times dt, is stretched to the true one instead.
        shortest, longest = self._trained_intervals
        told_dt = dt if shortest <= dt <= longest else self._nominal_dt
        self._observe(sample, gyro, joint_velocity, told_dt)
        if not self._window.full:
            return None
        starting = not self._running
        if starting:
            self._start()
        (dx, dy, dz, rx, ry, rz, vx, vy, vz), attended = self._engine.step()
        stretch = dt / told_dt
        displacement = (stretch * dx, stretch * dy, stretch * dz)
        rotation = (stretch * rx, stretch * ry, stretch * rz)
        self._velocity = velocity = (vx, vy, vz)
        if still:
            displacement, rotation, self._velocity = _NO_MOTION
            velocity = self._velocity
            self._pose.hold()
        else:
            doubt = float(attended[0]) + float(attended[1])
            if starting:
                self._pose.stay(displacement, rotation, dt, doubt)
            else:
                moved = self._pose.advance(displacement, rotation, dt, doubt)
                velocity = self._correct_height(attended, moved, dt)
        self._coasting.remember(velocity, rotation[2] / dt, dt)
        return Estimate(
            sample.stamp_ns,
            np.array(self._pose.position),
            np.array(self._pose.orientation),
            np.array(velocity),
            np.zeros(3) if still else np.array(rotation) / dt,
            attended,
            still,
            self._pose.covariance,
            self._pose.twist_covariance,
        )

    def _correct_height(
        self, attended: NDArray[np.float32], moved: tuple[float, float, float], dt: float
    ) -> tuple[float, float, float]:
        """Let the feet tell the height of the pose, which has ``moved`` (m, fixed frame); the body velocity with that.

        The network goes on with its own velocity: training knows no other.
        """
        if self._height is None:
            return self._velocity
        legs = attended[LEG_TOKENS].tolist()
        rate = self._height.climb_rate(self._foot_position, legs, self._pose.orientation, moved, dt)
        self._pose.rise(rate * dt)
        (vx, vy, vz), (ux, uy, uz) = self._velocity, self._pose.upward
        return vx + rate * ux, vy + rate * uy, vz + rate * uz

    def _elapsed(self, stamp_ns: int) -> float:
        """Seconds since the previous sample; the trained interval for the first."""
        if self._last_stamp_ns is None:
            self._last_stamp_ns = stamp_ns
            return self._nominal_dt
        if stamp_ns <= self._last_stamp_ns:
            raise ValueError(f"stamp {stamp_ns} ns does not come after {self._last_stamp_ns} ns")
        dt = (stamp_ns - self._last_stamp_ns) * 1e-9
        self._last_stamp_ns = stamp_ns
        return dt

    def _joint_velocity(self, sample: Sample, dt: float) -> FloatArray:
        """The reported joint velocity, else positions differentiated and low-passed. (12,) rad/s."""
        if sample.joint_velocity is not None:
            # Positions that are not followed sample by sample are too old to be differentiated later.
            self._differentiator.reset()
            return sample.joint_velocity
        return self._differentiator.update(sample.joint_position, dt)

    def _observe(self, sample: Sample, gyro: FloatArray, joint_velocity: FloatArray, dt: float) -> None:
        observation = self._engine.observation
        observation[obs.GYRO] = gyro
        observation[obs.ACCEL] = sample.linear_acceleration
        torque = self._absent_torque if sample.joint_torque is None else sample.joint_torque
        joints: FloatArray = np.concatenate((sample.joint_position, joint_velocity, torque))
        told = joints if self.legs is None else self.legs.at(joints, gyro)
        observation[obs.JOINTS] = joints if self.feet is None else told
        if self._height is not None:
            self._foot_position = told[FOOT_POSITION].tolist()
        if self.limits is not None:
            self.limits.apply(observation)
        observation[obs.ROLL_PITCH] = self._pose.roll_pitch
        observation[obs.VELOCITY_XY] = self._velocity[:2]
        observation[obs.DT] = dt
        self._window.append(observation)

    def _start(self) -> None:
        """Prime the network with the window before the sample that filled it; settles the initial roll and pitch."""
        window = self._window.view().copy()
        if not self._pose_is_set:
            roll, pitch = initial_tilt(window[:, obs.ACCEL].astype(np.float64)).tolist()
            self._pose.set_pose(self._initial_position, upright(roll, pitch, self._initial_heading))
            self._pose_is_set = True
        elif self._coasting.active:
            if self._coasting.level_anew:
                self._pose.level(*initial_tilt(window[:, obs.ACCEL].astype(np.float64)).tolist())
            self._coasting.end()
        # Gravity just told the attitude, or a pose was set while the window filled.
        window[:, obs.ROLL_PITCH] = self._pose.roll_pitch
        self._engine.observation[obs.ROLL_PITCH] = self._pose.roll_pitch
        self._engine.prime(window[:-1])
        self._running = True


class NetworkAlone(TraceEstimator):
    """`TraceEstimator` as the paper has it, whatever a model's card says: all of the pose is the network's own.

    Where the card's covariance was calibrated with the feet's height, that of the height is widened: a network's own
    drifts for as long as the robot walks.
    """

    name = "trace_network"

    @staticmethod
    def _settings(card: ModelCard) -> ModelCard:
        model = card.error_model
        if card.height is not None:
            forward, left, up = model.slow_share
            slow = {
                "slow_share": (forward, left, max(up, _OWN_SLOW_SHARE)),
                "slow_time": max(model.slow_time, _OWN_SLOW_S),
            }
            model = model.model_copy(update=slow)
        return card.model_copy(update={"height": None, "input_limit": None, "error_model": model})


def initial_tilt(specific_force: FloatArray) -> FloatArray:
    """Roll and pitch (rad) to start with, from the specific force of a window (N, 3), m/s^2. ``-> (2,)``.

    A body at rest reads gravity. In a trot the mean over 60 ms is off by the body's own acceleration, a tilt of 0.15
    rad and more, while robots seldom lean by so much: the less steady the force, the nearer to level.
    """
    half = len(specific_force) // 2
    change = np.linalg.norm(specific_force[half:].mean(axis=0) - specific_force[:half].mean(axis=0))
    mean = specific_force.mean(axis=0)
    excess = np.linalg.norm(mean) - GRAVITY
    trust = 1.0 / (1.0 + (change**2 + excess**2) / _STEADY_FORCE**2)
    return np.asarray(trust * tilt_from_gravity(mean))


def upright(roll: float, pitch: float, heading: float) -> tuple[float, float, float, float]:
    """Quaternion x, y, z, w of roll, pitch and heading (rad, fixed axes)."""
    cr, sr = np.cos(roll / 2), np.sin(roll / 2)
    cp, sp = np.cos(pitch / 2), np.sin(pitch / 2)
    level = float(sr * cp), float(cr * sp), float(-sr * sp), float(cr * cp)
    if heading == 0.0:
        return level
    x, y, z, w = level
    c, s = math.cos(heading / 2), math.sin(heading / 2)
    return c * x - s * y, c * y + s * x, c * z + s * w, c * w - s * z


def known_intervals(card: ModelCard) -> tuple[float, float]:
    """The shortest and longest interval (s) of a stream that the network can follow sample by sample.

    Those of the rates that it was trained at. Single intervals may differ by more (``trained_intervals_s``): training
    shows jitter and lost samples, but no stream of them.
    """
    rates = [card.rate_hz]
    sampling = card.simulation.get("sampling")
    if isinstance(sampling, dict) and isinstance(sampling.get("rates"), dict):
        rates += [float(rate) for rate, share in sampling["rates"].items() if share]
    return (1.0 - _OTHER_RATE) / max(rates), (1.0 + _OTHER_RATE) / min(rates)


def _copied(sample: Sample) -> Sample:
    """A sample of arrays of its own: the caller may change those that it gave."""
    velocity, torque = sample.joint_velocity, sample.joint_torque
    return Sample(
        sample.stamp_ns,
        np.array(sample.angular_velocity),
        np.array(sample.linear_acceleration),
        np.array(sample.joint_position),
        None if velocity is None else np.array(velocity),
        None if torque is None else np.array(torque),
    )
