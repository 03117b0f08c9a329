"""From a log to an evaluation: run the estimator over it, or take an odometry that was recorded, and compare."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trace_ros.checks.footing import doubts
from trace_ros.errors import TraceError
from trace_ros.estimator.batch import in_threads, prepare, run_logs
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.interface import Estimator
from trace_ros.estimator.joint_delay import joint_delay_of, with_joints_at_their_time
from trace_ros.estimator.observation import WINDOW
from trace_ros.estimator.run import EstimatedRun, run_estimator
from trace_ros.evaluation.metrics import Comparison, Metrics, MetricSettings, compare, metrics_of
from trace_ros.geometry import FloatArray, roll_pitch_yaw
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.robot import RobotDescription
from trace_ros.streams.pairing import LARGEST_JOINT_DELAY
from trace_ros.whole_files import whole_file

InitialPose = Literal["gravity", "reference"]


@dataclass(frozen=True)
class Evaluation:
    """An estimated trajectory with everything known about it.

    Attributes:
        name: of the log.
        source: what estimated it: the estimator's name, or the topic it was recorded on.
        log: the sensors, or None.
        reference: the truth at its own stamps, or None.
        trajectory: M poses, as estimated.
        metrics, comparison: against the reference; None without one.
        attention: (M, 6) over `trace_ros.estimator.network.TOKEN_NAMES`, or None.
        stationary: (M,) whether the pose was held, or None.
        step_time_s: (M,) wall time of each step, s, or None where it was not run step by step.
        real_time_factor: duration of the log over the time the whole run took, or None. Of logs that ran side by side,
            that of all together.
        joint_delay_s: by how much joint readings were put back, s; None of what was recorded.
        notes: one line each.
        doubts: those of them that are of a velocity that no foot bore out.
    """

    name: str
    source: str
    log: SensorLog | None
    reference: Trajectory | None
    trajectory: Trajectory
    metrics: Metrics | None = None
    comparison: Comparison | None = None
    attention: FloatArray | None = None
    stationary: NDArray[np.bool_] | None = None
    step_time_s: FloatArray | None = None
    real_time_factor: float | None = None
    joint_delay_s: float | None = None
    notes: tuple[str, ...] = field(default=())
    doubts: tuple[str, ...] = field(default=())

    @property
    def aligned(self) -> Trajectory:
        """The estimate in the reference's frame, all poses; as estimated without a reference."""
        return self.trajectory if self.comparison is None else self.comparison.alignment.apply(self.trajectory)

    @property
    def stationary_share(self) -> float | None:
        """Share of the poses that were held."""
        return None if self.stationary is None else float(self.stationary.mean())

    def summary(self) -> dict[str, float]:
        """What can be said without a reference: duration, path, where it ended, how fast it was."""
        trajectory = self.trajectory
        first, last = trajectory.position[0], trajectory.position[-1]
        turn = roll_pitch_yaw(trajectory.orientation[[0, -1]])[:, 2]
        return {
            "poses": len(trajectory),
            "duration_s": trajectory.duration_s,
            "path_length_m": trajectory.path_length_m,
            "displacement_m": float(np.linalg.norm(last - first)),
            "height_change_m": float(last[2] - first[2]),
            "heading_change_rad": float(np.angle(np.exp(1j * (turn[1] - turn[0])))),
            "greatest_speed_mps": float(np.linalg.norm(trajectory.velocity, axis=1).max()),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: what was estimated, and the metrics where there are any."""
        return {
            "name": self.name,
            "source": self.source,
            "estimate": self.summary(),
            "metrics": None if self.metrics is None else self.metrics.to_dict(),
            "real_time_factor": self.real_time_factor,
            "stationary_share": self.stationary_share,
            "step_time_ms": None if self.step_time_s is None else step_percentiles(self.step_time_s),
            "joint_delay_s": self.joint_delay_s,
            "notes": list(self.notes),
        }


def file_names(names: Sequence[str]) -> list[str]:
    """Names fit for files, distinct: whatever is unusual becomes ``_``, repetitions are numbered."""
    found: list[str] = []
    for wanted in names:
        name = base = re.sub(r"[^A-Za-z0-9._-]+", "_", wanted).strip("._") or "log"
        count = 1
        while name in found:
            count += 1
            name = f"{base}_{count}"
        found.append(name)
    return found


def step_percentiles(step_time_s: FloatArray) -> dict[str, float]:
    """Median and 99th percentile of the time of a step (ms)."""
    p50, p99 = np.percentile(step_time_s * 1e3, (50, 99))
    return {"p50": float(p50), "p99": float(p99)}


def evaluate_run(
    name: str,
    log: SensorLog,
    estimator: Estimator,
    settings: MetricSettings | None = None,
    initial: InitialPose = "gravity",
    progress: Callable[[int], None] | None = None,
    stepwise: bool = False,
    joint_delay: float | None = None,
) -> Evaluation:
    """Run an estimator over a log and compare with the log's reference, if it has one.

    Args:
        name: of the log.
        log: N samples.
        estimator: of another method than TRACE, or with ``stepwise``, it is reset and stepped.
        settings: how to compare.
        initial: start level by gravity at the origin, or at the reference's pose.
        progress: called now and then with the number of samples done.
        stepwise, joint_delay: see `evaluate_runs`.

    Raises:
        TraceError: the log is too short, or ``initial`` asks for a reference that is not there.
    """
    return evaluate_runs([name], [log], estimator, settings, initial, progress, stepwise, joint_delay=joint_delay)[0]


def evaluate_runs(
    names: Sequence[str],
    logs: Sequence[SensorLog],
    estimator: Estimator,
    settings: MetricSettings | None = None,
    initial: InitialPose = "gravity",
    progress: Callable[[int], None] | None = None,
    stepwise: bool = False,
    threads: int = 1,
    robot: RobotDescription | None = None,
    joint_delay: float | None = None,
) -> list[Evaluation]:
    """Run an estimator over logs and compare each with its reference, if it has one.

    TRACE runs through all logs side by side (`trace_ros.estimator.batch`), which gives the poses of its steps to 1e-6;
    another method goes through one after another.

    Args:
        names: of the logs.
        logs: of any length.
        estimator: of another method than TRACE, or with ``stepwise``, it is reset and stepped for each log.
        settings: how to compare.
        initial: start level by gravity at the origin, or at the reference's pose.
        progress: called now and then with the number of samples done, over all logs.
        stepwise: call `step` for each sample, as the node does, and take its time.
        threads: that share the logs among them, where they run side by side.
        robot: whose feet are asked whether they bear out the velocities (`trace_ros.checks.footing`); None: not asked.
        joint_delay: s; how late joint readings are taken to be; None: as late as the estimator knows them to be.

    Raises:
        TraceError: a log is too short, or ``initial`` asks for a reference that is not there (names the log); or the
            delay is beyond `LARGEST_JOINT_DELAY`.
    """
    delay = joint_delay_of(estimator) if joint_delay is None else joint_delay
    if not abs(delay) <= LARGEST_JOINT_DELAY:
        raise TraceError(f"joint_delay {delay:g} s: not from {-LARGEST_JOINT_DELAY:g} to {LARGEST_JOINT_DELAY:g} s")
    in_time = [with_joints_at_their_time(log, delay) for log in logs]
    poses = [
        _reference_pose(name, log) if initial == "reference" else None for name, log in zip(names, in_time, strict=True)
    ]
    if isinstance(estimator, TraceEstimator) and not stepwise:
        prepare(estimator)
        begin = time.perf_counter()
        runs = run_logs(estimator, in_time, names, poses, progress, threads, joint_delay=0.0)
        factors = [sum(log.duration_s for log in logs) / (time.perf_counter() - begin)] * len(logs)
    else:
        runs, factors, done = [], [], 0
        for name, log, pose in zip(names, in_time, poses, strict=True):

            def advance(samples: int, before: int = done) -> None:
                if progress is not None:
                    progress(before + samples)

            begin = time.perf_counter()
            try:
                runs.append(run_estimator(estimator, log, pose, advance, joint_delay=0.0))
            except TraceError as error:
                raise TraceError(f"{name}: {error}") from error
            factors.append(log.duration_s / (time.perf_counter() - begin))
            done += len(log)

    def judged(name: str, log: SensorLog, heard: SensorLog, run: EstimatedRun, factor: float) -> Evaluation:
        evaluation = _evaluation(
            name,
            estimator.name,
            run.trajectory,
            log,
            log.reference,
            settings,
            attention=run.attention,
            stationary=run.stationary,
            step_time_s=run.step_time_s if run.step_time_s.size else None,
            real_time_factor=factor,
        )
        doubted = tuple(map(str, doubts(heard, run.trajectory, robot))) if robot else ()
        notes = (*evaluation.notes, *doubted)
        return replace(evaluation, notes=notes, doubts=doubted, joint_delay_s=delay)

    return in_threads(threads, judged, names, logs, in_time, runs, factors)


def evaluate_odometry(
    name: str,
    topic: str,
    trajectory: Trajectory,
    log: SensorLog | None = None,
    settings: MetricSettings | None = None,
    reference: Trajectory | None = None,
) -> Evaluation:
    """Compare an odometry that some node published with a reference, by default the log's, if there is one.

    Raises:
        TraceError: estimate and reference share no time.
    """
    if reference is None and log is not None:
        reference = log.reference
    return _evaluation(name, topic, trajectory, log, reference, settings)


def _evaluation(
    name: str,
    source: str,
    trajectory: Trajectory,
    log: SensorLog | None,
    reference: Trajectory | None,
    settings: MetricSettings | None,
    **more: Any,
) -> Evaluation:
    if reference is None:
        note = "no reference in the log (topic reference/odom, or --reference-topic): no errors can be computed"
        return Evaluation(name, source, log, None, trajectory, notes=(note,), **more)
    if len(reference) < 2:
        raise TraceError(
            f"{name}: the reference has one pose only, and errors need two and more at the estimate's times: "
            "record it along with the sensors, or name another topic (--reference-topic)"
        )
    settings = settings or MetricSettings()
    try:
        comparison = compare(trajectory, reference, settings)
        metrics = metrics_of(comparison, settings)
    except TraceError as error:
        raise TraceError(f"{name}: {error}") from error
    return Evaluation(name, source, log, reference, trajectory, metrics, comparison, notes=metrics.notes, **more)


def _reference_pose(name: str, log: SensorLog) -> tuple[FloatArray, FloatArray]:
    """The reference's pose when the window is first full."""
    if log.reference is None:
        raise TraceError(f"{name}: has no reference to start from; use --initial gravity")
    if len(log) < WINDOW:
        raise TraceError(f"{name}: has {len(log)} samples; the estimator needs at least {WINDOW}")
    at_first, _ = log.reference.resample(log.stamp_ns[WINDOW - 1 : WINDOW])
    if not len(at_first):
        raise TraceError(f"{name}: the reference does not cover the start of the log; use --initial gravity")
    return at_first.position[0], at_first.orientation[0]


def write_estimate(path: Path, evaluation: Evaluation) -> None:
    """Write an estimated trajectory: ``.npz`` with everything, or a text file in the TUM format.

    TUM: one pose a line, ``stamp x y z qx qy qz qw``, stamp in seconds; what evo and the usual plotting tools read.

    Raises:
        TraceError: another suffix, or a file that cannot be written.
    """
    trajectory = evaluation.trajectory
    try:
        if path.suffix == ".npz":
            arrays = {name: value for name, value in vars(trajectory).items() if value is not None}
            extra = {name: getattr(evaluation, name) for name in ("attention", "stationary", "step_time_s")}
            with whole_file(path) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, **arrays, **{name: v for name, v in extra.items() if v is not None})
        elif path.suffix in (".tum", ".txt"):
            rows = np.column_stack((trajectory.position, trajectory.orientation)).tolist()
            with whole_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
                for stamp, row in zip(trajectory.stamp_ns.tolist(), rows, strict=True):
                    # Integer arithmetic: nanoseconds since 1970 do not fit in a double.
                    seconds, nanoseconds = divmod(stamp, 1_000_000_000)
                    file.write(f"{seconds}.{nanoseconds:09d} {' '.join(f'{value:.9f}' for value in row)}\n")
        else:
            raise TraceError(f"{path}: an estimate is written as .npz, or as .tum or .txt in the TUM format")
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror})") from error
