"""Whole logs through the estimator, several at once: the same poses as `TraceEstimator.step` gives sample by sample.

The estimator's output is its own input, so a log is run through in order of time, whatever is done. What does not feed
back is worked out for all of its samples before (`batch_plan`) and after (`batch_pose`); in between the network steps
through many logs side by side (`batch_network`), each at its own pace. Starts and gaps are seen to one by one, by the
estimator's own code. Tests hold the poses to those of `TraceEstimator.step` within 1e-6.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.estimator.batch_network import BatchNetwork, LoopState
from trace_ros.estimator.batch_plan import Rate, Steps, plan_steps
from trace_ros.estimator.batch_pose import Motions, follow, rotate, turned
from trace_ros.estimator.coasting import Coasting
from trace_ros.estimator.engines import DEFAULT_ENGINE, Engine, make_engine
from trace_ros.estimator.estimator import TraceEstimator, initial_tilt, known_intervals, upright
from trace_ros.estimator.height import NOTHING_OWED, HeightSettings, Walked, climb_rates
from trace_ros.estimator.joint_delay import with_joints_at_their_time
from trace_ros.estimator.network import LEG_TOKENS, OUTPUT_SIZE, TOKEN_NAMES
from trace_ros.estimator.odometry import PoseIntegrator
from trace_ros.estimator.run import EstimatedRun, too_short
from trace_ros.logs import LEGS, FloatArray, SensorLog, Trajectory

_CHUNK = 2048
"""Steps, of all logs side by side, between two looks at what else is to be done, such as Ctrl-C."""

_CHUNK_LEAST = 256
"""Steps of each of them."""

_POLL_S = 0.1
"""Between two looks at what the threads do."""

MOST_AT_ONCE = 32
"""Logs side by side: with more, what is worked out beforehand leaves the processor's caches."""

_REMEMBERED_S = 10.0
"""What was before this is forgotten when a gap begins: 40 time constants of the usual motion."""

InitialPose = tuple[FloatArray, FloatArray]

_Made = TypeVar("_Made")


def run_logs(
    estimator: TraceEstimator,
    logs: Sequence[SensorLog],
    names: Sequence[str] | None = None,
    initial_poses: Sequence[InitialPose | None] | None = None,
    progress: Callable[[int], None] | None = None,
    threads: int = 1,
    joint_delay: float | None = None,
) -> list[EstimatedRun]:
    """What `trace_ros.estimator.run.run_estimator` makes of each log; no times of single steps.

    Args:
        estimator: says how; it is not stepped itself. Its network runs in TorchScript for several logs at once; in
            another engine, for one after another.
        logs: of any length, rate and gaps.
        names: of the logs, for errors.
        initial_poses: for each log as of `run_estimator`.
        progress: called now and then with the number of samples done, over all logs.
        threads: that share several logs among them; the script's loop needs no Python, NumPy's loops little.
        joint_delay: as of `run_estimator`.

    Raises:
        TraceError: a log is too short, or too full of gaps, to fill the window once.
    """
    poses = [None] * len(logs) if initial_poses is None else initial_poses
    delay = estimator.joint_delay_s if joint_delay is None else joint_delay
    given, logs = logs, [with_joints_at_their_time(log, delay) for log in logs]

    def refuse(index: int, fault: str) -> None:
        raise TraceError(fault if names is None else f"{names[index]}: {fault}")

    for index, log in enumerate(logs):
        if fault := too_short(log, given[index]):
            refuse(index, fault)
    runs = in_threads(threads, partial(_Run, estimator), logs, poses)
    for index, run in enumerate(runs):
        if fault := run.fault():
            refuse(index, fault)
    stepper = _stepper(estimator)
    if isinstance(stepper, _SideBySide) and min(threads, len(runs)) > 1:
        _share(stepper, runs, min(threads, len(runs)), progress)
    else:
        for done in stepper.through(runs):
            if progress is not None:
                progress(done)
    return in_threads(threads, _Run.result, runs)


def in_threads(threads: int, work: Callable[..., _Made], *arguments: Sequence[Any]) -> list[_Made]:
    """What ``work`` makes of each set of arguments, in order; for work of NumPy, which shares processors well."""
    if min(threads, len(arguments[0])) <= 1:
        return list(map(work, *arguments))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, *arguments))


def _share(stepper: _SideBySide, runs: Sequence[_Run], threads: int, progress: Callable[[int], None] | None) -> None:
    """All steps of all runs, in threads; the calling one watches, so that Ctrl-C ends all of them."""
    parts = [sorted(runs, key=lambda run: -len(run.steps.dt))[first::threads] for first in range(threads)]
    done, stop = [0] * threads, threading.Event()

    def work(index: int) -> None:
        torch.set_num_threads(1)  # a setting of each thread
        for count in stepper.through(parts[index]):
            done[index] = count
            if stop.is_set():
                return

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work, index) for index in range(threads)]
        try:
            while wait(futures, _POLL_S, FIRST_EXCEPTION).not_done and not any(
                future.done() and future.exception() for future in futures
            ):
                if progress is not None:
                    progress(sum(done))
        finally:
            stop.set()
        for future in futures:
            future.result()
    if progress is not None:
        progress(sum(done))


_steppers: WeakKeyDictionary[TraceEstimator, _SideBySide | _OneByOne] = WeakKeyDictionary()


def prepare(estimator: TraceEstimator) -> None:
    """Compile what `run_logs` needs for an estimator, as a part of loading it; else its first call does."""
    _stepper(estimator)


def _stepper(estimator: TraceEstimator) -> _SideBySide | _OneByOne:
    """What steps the estimator's network; made once, since a script takes a second."""
    stepper = _steppers.get(estimator)
    if stepper is None:
        kind = _SideBySide if estimator.engine == DEFAULT_ENGINE else _OneByOne
        stepper = _steppers[estimator] = kind(estimator)
    return stepper


@dataclass
class _Window:
    """Steps from one start of the window to the next gap: rows [first, stop)."""

    first: int
    stop: int
    primed: NDArray[np.float32]
    orientation: tuple[float, float, float, float]
    velocity: tuple[float, float, float]


class _Pose(PoseIntegrator):
    """The pose between windows, with a note of what is added to its variances."""

    def __init__(self) -> None:
        super().__init__()
        self.widened = [0.0, 0.0]

    def widen(self, position_sigma: float, yaw_sigma: float = 0.0) -> None:
        """See `PoseIntegrator.widen`."""
        self.widened[0] += position_sigma**2
        self.widened[1] += yaw_sigma**2


class _Run:
    """One log on its way through the network."""

    def __init__(self, estimator: TraceEstimator, log: SensorLog, initial: InitialPose | None) -> None:
        model, gaps = estimator.model, estimator.gaps
        self._log = log
        nominal = 1.0 / model.card.rate_hz
        rate = Rate(nominal, known_intervals(model.card), model.card.trained_intervals_s, gaps.max_gap)
        self._height, self._height_state = estimator.height, NOTHING_OWED
        self._error_model = estimator.error_model
        legs = None if self._height is None else estimator.legs
        self.steps: Steps = plan_steps(log, rate, estimator.robot, model.absent_torque, estimator.feet, legs)
        if estimator.limits is not None:
            estimator.limits.apply(self.steps.observation)
        self._pose, self._velocity = _Pose(), (0.0, 0.0, 0.0)
        self._coasting = Coasting(self._pose, gaps)
        self._initial, self._begin_at = initial, estimator.initial_pose
        if initial is not None:
            _place(self._pose, *initial)
        self._start: FloatArray | None = None
        rows = len(self.steps.dt)
        self.motion = np.zeros((rows, OUTPUT_SIZE), dtype=np.float32)
        self.attention = np.zeros((rows, len(TOKEN_NAMES)), dtype=np.float32)
        self.orientation = np.zeros((rows, 4))
        self.stepped = np.zeros(rows, dtype=bool)
        self.starting = np.zeros(rows, dtype=bool)
        for _, first, stop in self.steps.runs:
            self.stepped[first:stop] = True
            self.starting[first : min(first + 1, stop)] = True
        self.stretch = self.steps.dt / self.steps.told_dt
        self.turns = np.where(self.steps.still | self.starting, 0.0, self.stretch)
        self._jump = np.zeros((rows, 3))
        self._climbing = np.zeros((rows, 3))
        self._widened = np.zeros((rows, 2))

    def fault(self) -> str:
        """Why no estimate can be made; empty where one can."""
        if not self._wanted().size:
            return "the log has gaps so often that the window never filled: no estimate was made"
        return ""

    def _wanted(self) -> NDArray[np.int_]:
        """Rows that give an estimate."""
        return np.flatnonzero(self.stepped & (self.steps.sample >= 0))

    def windows(self) -> Iterator[_Window]:
        """The windows that fill, in order; the steps of each must be done when the next is asked for."""
        steps, running = self.steps, False
        for begin, first, stop in steps.runs:
            if begin > 0:
                self._coasting.begin(float(steps.dt[begin]), running)
                running = False
            velocities = np.zeros((obs.WINDOW, 2))
            last = min(first + 1, stop)
            for row in range(begin, last):
                left = self._coasting.wait(float(steps.dt[row]), steps.gyro[row])
                vx, vy, vz = self._velocity
                self._velocity = (vx * left, vy * left, vz * left)
                velocities[row - begin] = self._velocity[:2]
            if first >= stop:
                continue
            window = steps.observation[begin : first + 1].copy()
            window[:, obs.VELOCITY_XY] = velocities
            self._begin(window, first)
            window[:, obs.ROLL_PITCH] = self._pose.roll_pitch
            yield _Window(first, stop, window[:-1], self._pose.orientation, self._velocity)
            running = True
            self._end(first, stop)

    def _begin(self, window: NDArray[np.float32], first: int) -> None:
        """The window is full: settle where the body is."""
        accel = window[:, obs.ACCEL].astype(np.float64)
        if self._start is None and self._initial is None:
            roll, pitch = initial_tilt(accel).tolist()
            position, heading = self._begin_at
            self._pose.set_pose(position, upright(roll, pitch, heading))
        elif self._coasting.active:
            if self._coasting.level_anew:
                self._pose.level(*initial_tilt(accel).tolist())
            self._coasting.end()
        if self._start is None:
            self._start = np.array(self._pose.position)
            self._before = self._start
        self._jump[first] = np.array(self._pose.position) - self._before
        self._widened[first] = self._pose.widened
        self._pose.widened = [0.0, 0.0]

    def _end(self, first: int, stop: int) -> None:
        """The steps of a window are done: remember what a gap after them needs."""
        steps = self.steps
        for row, seconds in steps.bridged.items():
            if first < row < stop:
                self._coasting.bridge(seconds)
                self._widened[row] += self._pose.widened
                self._pose.widened = [0.0, 0.0]
        moved = np.where(steps.still[first:stop, None], 0.0, self.motion[first:stop]).astype(np.float64)
        vx, vy, vz = moved[-1, 6:].tolist()
        self._velocity = (vx, vy, vz)
        if self._height is not None:
            self._climb(self._height, first, stop, moved[:, :3])
        if stop < len(steps.dt):
            dt = steps.dt[first:stop]
            recent = min(int(np.searchsorted(np.cumsum(dt[::-1]), _REMEMBERED_S)) + 1, len(dt))
            turn_rate = self.stretch[first:stop] * moved[:, 5] / dt
            velocities = moved[:, 6:] + self._climbing[first:stop]
            for velocity, turning, interval in zip(
                velocities[-recent:].tolist(), turn_rate[-recent:].tolist(), dt[-recent:].tolist(), strict=True
            ):
                self._coasting.remember(tuple(velocity), turning, interval)
        x, y, z, w = self.orientation[stop - 1].tolist()
        self._pose.set_pose(self._pose.position, (x, y, z, w))
        self._before = np.array(self._pose.position)

    def _climb(self, settings: HeightSettings, first: int, stop: int, displacement: FloatArray) -> None:
        """Work out the height by the feet for a window whose steps are done."""
        steps = self.steps
        assert steps.foot_position is not None
        rows = first + 1 + np.flatnonzero(~steps.still[first + 1 : stop])
        turned_by = Rotation.from_quat(self.orientation[rows]).as_matrix() if len(rows) else np.zeros((0, 3, 3))
        walked = Walked(
            steps.foot_position[rows].reshape(-1, LEGS, 3),
            self.attention[rows][:, LEG_TOKENS].astype(np.float64),
            turned_by,
            rotate(self.orientation[rows - 1], self.stretch[rows, None] * displacement[rows - first]),
            steps.dt[rows],
        )
        rate, self._height_state = climb_rates(settings, walked, self._height_state)
        self._climbing[rows] = rate[:, None] * turned_by[:, 2]

    def result(self) -> EstimatedRun:
        """The estimates of all steps, at the stamps of the log's samples."""
        steps, rows = self.steps, self.stepped
        assert self._start is not None
        still = steps.still[rows]
        motion = np.where(still[:, None], 0.0, self.motion[rows]).astype(np.float64)
        stretch = self.stretch[rows, None]
        rotation = stretch * motion[:, 3:6]
        attention = self.attention[rows].astype(np.float64)
        poses = follow(
            Motions(
                stretch * motion[:, :3],
                rotation,
                steps.dt[rows],
                attention[:, 0] + attention[:, 1],
                ~still & ~self.starting[rows],
                still,
                self.orientation[rows],
                self._jump[rows],
                self._widened[rows, 0],
                self._widened[rows, 1],
                self._climbing[rows],
            ),
            self._start,
            self._error_model,
        )
        wanted = steps.sample[rows] >= 0
        velocity, turning = motion[:, 6:] + self._climbing[rows], rotation / steps.dt[rows, None]
        velocity, turning = velocity[wanted], turning[wanted]
        position, orientation = poses.position[wanted], self.orientation[rows][wanted]
        stamp_ns = self._log.stamp_ns[steps.sample[rows][wanted]]
        # A sample that comes less than a step after the network's last one.
        ahead = ((stamp_ns - steps.stamp_ns[rows][wanted]) * 1e-9)[:, None]
        if ahead.any():
            late = np.flatnonzero(ahead)
            step = ahead[late]
            position[late] += rotate(orientation[late], velocity[late] * step)
            orientation[late] = turned(orientation[late], turning[late] * step)
        trajectory = Trajectory(stamp_ns, position, orientation, velocity, turning, poses.covariance[wanted])
        return EstimatedRun(trajectory, attention[wanted], still[wanted], np.empty(0))


class _SideBySide:
    """Steps many runs at once."""

    def __init__(self, estimator: TraceEstimator) -> None:
        self._network = BatchNetwork(estimator.model.network().eval())

    def through(self, runs: Sequence[_Run]) -> Iterator[int]:
        """All steps of all runs; yields the number of samples done so far."""
        waiting = [(run, run.windows()) for run in sorted(runs, key=lambda run: -len(run.steps.dt))]
        active: list[_Active] = []
        done = 0
        while True:
            active = [item for item in active if item.row < item.window.stop or item.go_on(self._network)]
            while waiting and len(active) < MOST_AT_ONCE:
                fresh = _Active(*waiting.pop(0))
                if fresh.go_on(self._network):
                    active.append(fresh)
            if not active:
                return
            most = max(_CHUNK // len(active), _CHUNK_LEAST)
            count = min(most, *(item.window.stop - item.row for item in active))
            self._step(active, count)
            done += count * len(active)
            yield done

    def _step(self, active: list[_Active], count: int) -> None:
        parts = [slice(item.row, item.row + count) for item in active]
        pairs = list(zip(active, parts, strict=True))
        outputs, states = self._network.steps(
            [item.state for item in active],
            np.stack([item.run.steps.observation[part] for item, part in pairs]),
            np.stack([item.run.turns[part] for item, part in pairs]),
            np.stack([~item.run.steps.still[part] for item, part in pairs]),
        )
        motion, attention, orientation = (value.numpy() for value in outputs)
        for place, (item, part) in enumerate(pairs):
            item.run.motion[part] = motion[:, place]
            item.run.attention[part] = attention[:, place]
            item.run.orientation[part] = orientation[:, place]
            item.row += count
            item.state = states[place]


class _Active:
    """A run among those that are stepped at present."""

    def __init__(self, run: _Run, windows: Iterator[_Window]) -> None:
        self.run, self._windows = run, windows
        self.window: _Window
        self.state: LoopState
        self.row = 0

    def go_on(self, network: BatchNetwork) -> bool:
        """Begin the next window; whether there is one."""
        window = next(self._windows, None)
        if window is None:
            return False
        self.window, self.row = window, window.first
        self.state = network.start(window.primed, window.orientation, window.velocity)
        return True


class _OneByOne:
    """Steps one run after another in the engine that the robot uses."""

    def __init__(self, estimator: TraceEstimator) -> None:
        self._engine: Engine = make_engine(estimator.engine, estimator.model)

    def through(self, runs: Sequence[_Run]) -> Iterator[int]:
        """See `_SideBySide.through`."""
        done = 0
        for run in runs:
            for window in run.windows():
                for _ in self._steps(run, window):
                    done += 1
                    if done % _CHUNK == 0:
                        yield done

    def _steps(self, run: _Run, window: _Window) -> Iterator[None]:
        engine, steps, pose, nowhere = self._engine, run.steps, PoseIntegrator(), (0.0, 0.0, 0.0)
        pose.set_pose(nowhere, window.orientation)
        engine.prime(window.primed)
        observation, velocity = engine.observation, window.velocity[:2]
        rows = range(window.first, window.stop)
        for row, turn, still in zip(rows, run.turns[rows].tolist(), steps.still[rows].tolist(), strict=True):
            observation[:] = steps.observation[row]
            observation[obs.ROLL_PITCH] = pose.roll_pitch
            observation[obs.VELOCITY_XY] = velocity
            motion, run.attention[row] = engine.step()
            run.motion[row] = motion
            _, _, _, rx, ry, rz, vx, vy, _ = motion
            pose.shift(nowhere, (turn * rx, turn * ry, turn * rz))
            run.orientation[row] = pose.orientation
            velocity = (0.0, 0.0) if still else (vx, vy)
            yield


def _place(pose: PoseIntegrator, position: FloatArray, orientation: FloatArray) -> None:
    x, y, z = (float(value) for value in position)
    qx, qy, qz, qw = (float(value) for value in orientation)
    try:
        pose.set_pose((x, y, z), (qx, qy, qz, qw))
    except ValueError as error:
        raise TraceError(f"set_pose: {error}") from error
