"""From the physics to logs: what perfect and what real sensors of one robot say, and which samples arrive."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace
from trace_ros.sim.contacts import ContactLabelConfig
from trace_ros.sim.sampling import SamplingConfig, clean_log, draw_schedule
from trace_ros.sim.sensors import LARGEST_DELAY_S, SLOWEST_UPDATE_HZ, SensorConfig, SensorSet
from trace_ros.sim.signals import Signals

FloatArray = NDArray[np.float64]

# Physics before the first sample that its readings may need (s): they are late, and averaged over an update.
_LEAD_S = LARGEST_DELAY_S + 2.0 / SLOWEST_UPDATE_HZ


class Recording(NamedTuple):
    """One robot's sensors over some time.

    Attributes:
        measured: what they said.
        clean: what perfect ones would have said, at the same stamps. Both have the reference, contacts, contact normals
            and foot forces.
        info: what was drawn, by name.
    """

    measured: SensorLog
    clean: SensorLog
    info: dict[str, float]


def record(
    trace: PhysicsTrace,
    robot_index: int,
    span: tuple[int, int],
    joint_target: FloatArray,
    gains: tuple[float, float],
    robot: RobotDescription,
    physics: PhysicsConfig,
    sampling: SamplingConfig,
    sensors: SensorConfig,
    labels: ContactLabelConfig,
    rng: np.random.Generator,
) -> Recording:
    """Draw when the sensors are read and what kind they are, and read them.

    Args:
        trace: the physics.
        robot_index: which robot of the batch.
        span: physics step that opens the first sample's interval, and the one before which the last sample lies; see
            `trace_ros.sim.sampling.draw_schedule`.
        joint_target: (T, 12) rad, targets of each control step.
        gains: kp (N m/rad) and kd (N m s/rad) of the joint controllers.
        robot: names, limits, IMU mounting.
        physics, sampling, sensors, labels: see there.
        rng: of all draws.

    Raises:
        TraceError: a sample rate does not divide the physics rate.
    """
    first, end = span
    schedule = draw_schedule(first, end, physics, sampling, rng)
    window = slice(max(0, first - round(_LEAD_S * physics.rate_hz)), int(schedule.steps[-1]) + 1)
    signals = Signals.of_trace(trace, robot_index, window, joint_target, gains, robot, physics, sampling.start_ns)
    clean = clean_log(trace, robot_index, schedule.steps, schedule.rate_hz, signals, robot, physics, labels)
    drawn = SensorSet.draw(sensors, rng)
    measured = drawn.read(clean, signals, rng)
    arrives = schedule.arrives
    info = drawn.describe() | {"rate_hz": float(schedule.rate_hz), "lost": float(1 - arrives.mean())}
    return Recording(_received(measured, arrives), _received(clean, arrives), info)


def _received(log: SensorLog, arrives: NDArray[np.bool_]) -> SensorLog:
    """The samples that arrive, and their reference."""
    if arrives.all():
        return log
    assert log.reference is not None
    return replace(log.select(arrives), reference=log.reference.select(arrives))
