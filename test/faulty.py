# ruff: noqa: E501 (a case is a row of a table)
"""What goes wrong with the sensors of a robot that walks: cases, each with what is to come of it.

The same cases go through the streams offline, through a bag, and through a live node.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation
from wire import imu_message, in_order, joint_message, messages_of, stamp_of

from trace_ros.estimator.estimator import Estimate, TraceEstimator
from trace_ros.geometry import roll_pitch_yaw
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, Phase, simulate_course
from trace_ros.streams import SensorStreams, TimeJump

MS = 1_000_000
NAN, INF = float("nan"), float("inf")
Messages = list[tuple[str, Any]]


@dataclass
class Clean:
    """The messages of a robot that walks, all well: ``imu`` and ``joints``, N each, of equal stamps 2 ms apart."""

    robot: RobotDescription
    imu: list[Any]
    joints: list[Any]

    @classmethod
    def of(cls, log: SensorLog, robot: RobotDescription) -> Clean:
        return cls(robot, *messages_of(log, robot))

    def copy(self) -> Clean:
        return Clean(self.robot, copy.deepcopy(self.imu), copy.deepcopy(self.joints))

    def messages(self) -> Messages:
        return in_order(self.imu, self.joints)


@dataclass(frozen=True)
class Case:
    """One way to go wrong.

    Attributes:
        name: for the test's name.
        spoil: makes the messages of the clean ones, which it may change.
        kinds: how often each kind of fault is counted; None for any number but zero. Others: none.
        position, heading: how far from the clean run the pose may be at any common stamp, m and rad. Zero: bit for bit.
        odometry: the least part of the clean run's odometry that comes.
        error: a part of the ERROR in the diagnostics, where there is one.
        lines: time lines; 1 but for jumps.
        by_arrival: whether stamps are those of arrival, which no other run has.
    """

    name: str
    spoil: Callable[[Clean], Messages]
    kinds: dict[str, int | None] = field(default_factory=dict)
    position: float = 0.005
    heading: float = 0.005
    odometry: float = 1.0
    error: str = ""
    lines: int = 1
    by_arrival: bool = False


def estimate(estimator: TraceEstimator, streams: SensorStreams, messages: Messages) -> list[list[Estimate]]:
    """All messages through streams and estimator, as the node does it; the estimates of each time line."""
    estimator.reset()
    lines: list[list[Estimate]] = [[]]
    for number, (stream, message) in enumerate(messages):
        add = streams.add_imu if stream == "imu" else streams.add_joints
        for event in add(message, 1_700_000_000_000 * MS + number * MS):
            if isinstance(event, TimeJump):
                estimator.reset()
                lines.append([])
            elif (made := estimator.step(event)) is not None:
                lines[-1].append(made)
    return lines


STARTING_S, STARTING = 0.2, 0.07
"""A walk begins in the middle of a stride at 0.7 m/s: for so long (s), and by so much (m), it matters which samples came."""


def compare(case: Case, clean: list[Estimate], lines: list[list[Estimate]]) -> None:
    """Finite, in order, continuous, and as near to the clean run as the case says."""
    assert len(lines) == case.lines
    assert sum(map(len, lines)) >= case.odometry * len(clean)
    truth = {estimate.stamp_ns: estimate for estimate in clean}
    clean_stamps = np.array([estimate.stamp_ns for estimate in clean])
    shared = 0
    for line in lines:
        if len(line) < 2:
            continue
        stamps = np.array([item.stamp_ns for item in line])
        position = np.array([item.position for item in line])
        assert np.isfinite(position).all()
        assert (np.diff(stamps) > 0).all()
        assert np.linalg.eigvalsh([item.pose_covariance for item in line]).min() > 0
        start, origin = None, np.zeros(3)
        speed = np.linalg.norm(np.diff(position, axis=0), axis=1) / (np.diff(stamps) * 1e-9)
        assert speed.max() < 3.0 or (np.linalg.norm(np.diff(position, axis=0), axis=1) < 0.005).all()
        if case.by_arrival:
            continue
        for item in line:
            other = truth.get(item.stamp_ns)
            if other is None and case.position > 0:
                nearest = int(np.abs(clean_stamps - item.stamp_ns).argmin())
                other = clean[nearest] if abs(clean[nearest].stamp_ns - item.stamp_ns) <= MS else None
            if other is None:
                continue
            shared += 1
            if case.position == 0:
                assert np.array_equal(item.position, other.position)
                assert np.array_equal(item.orientation, other.orientation)
                continue
            # The first pose is the origin, wherever the robot has got to while the window filled. How fast it walks
            # is found within the next few steps, from what samples there are.
            apart = item.position - other.position
            start = apart if start is None else start
            if (item.stamp_ns - line[0].stamp_ns) * 1e-9 < STARTING_S:
                assert np.linalg.norm(apart - start) <= max(case.position, STARTING)
                origin = apart
            assert np.linalg.norm(apart - origin) <= case.position
            turned = Rotation.from_quat(item.orientation).inv() * Rotation.from_quat(other.orientation)
            assert abs(roll_pitch_yaw(turned.as_quat())[2]) <= case.heading
    assert shared > 50 or case.by_arrival


def check_counts(case: Case, counts: dict[str, int]) -> None:
    """Just the kinds that the case has, as often as it says."""
    assert set(counts) == set(case.kinds), counts
    for name, expected in case.kinds.items():
        assert counts[name] == expected or (expected is None and counts[name] > 0), (name, counts)


def walk_log(robot: RobotDescription) -> SensorLog:
    """600 samples of a robot that walks ahead, with the noise of its sensors."""
    course = Course.load("demo").model_copy(
        update={"duration": 4.0, "phases": (Phase(walk_to=(8.0, 0.0)),), "patches": ()}
    )
    return simulate_course(course, robot, 0).measured.select(slice(1200, 1800))


# -- what may be done to messages --


def each(stream: str, numbers: range | list[int], change: Callable[[Any], None]) -> Callable[[Clean], Messages]:
    """Change some messages of a stream in place."""

    def spoil(clean: Clean) -> Messages:
        messages = clean.messages()  # they come in the order in which they would have come
        for number in numbers:
            change(getattr(clean, stream)[number])
        return messages

    return spoil


def without(imu: Callable[[int], bool] = lambda _k: False, joints: Callable[[int], bool] = lambda _k: False):
    """Leave out some messages of either stream."""

    def spoil(clean: Clean) -> Messages:
        clean.imu = [message for k, message in enumerate(clean.imu) if not imu(k)]
        clean.joints = [message for k, message in enumerate(clean.joints) if not joints(k)]
        return clean.messages()

    return spoil


def inserted(stream: str, at: list[int], make: Callable[[Any], Any]) -> Callable[[Clean], Messages]:
    """After some messages of a stream, another one, made of that one."""

    def spoil(clean: Clean) -> Messages:
        out: Messages = []
        numbers = {id(getattr(clean, stream)[k]) for k in at}
        for what, message in clean.messages():
            out.append((what, message))
            if id(message) in numbers:
                out.append((what, make(copy.deepcopy(message))))
        return out

    return spoil


def stamp(message: Any, stamp_ns: int) -> Any:
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)
    return message


def shifted(message: Any, by_ns: int) -> Any:
    return stamp(message, stamp_of(message) + by_ns)


def put(field_name: str, index: int, value: float) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        getattr(message, field_name)[index] = value

    return change


def vector(name: str, axis: str, value: float) -> Callable[[Any], None]:
    return lambda message: setattr(getattr(message, name), axis, value)


def emptied(name: str) -> Callable[[Any], None]:
    return lambda message: setattr(message, name, [])


def shortened(name: str) -> Callable[[Any], None]:
    return lambda message: setattr(message, name, getattr(message, name)[:-1])


def delayed(stream: str, by: int) -> Callable[[Clean], Messages]:
    """A stream arrives some messages late."""

    def spoil(clean: Clean) -> Messages:
        order = [(stamp_of(message) + (2 * by * MS if what == stream else 0), n, what, message)
                 for n, (what, message) in enumerate(clean.messages())]  # fmt: skip
        return [(what, message) for _, _, what, message in sorted(order, key=lambda item: item[:2])]

    return spoil


def reordered(clean: Clean, order: list[int], extra: tuple[str, ...] = ()) -> None:
    """Other orders of names, with other joints before them."""
    for message in clean.joints:
        message.name = [*extra, *(message.name[i] for i in order)]
        for name in ("position", "velocity", "effort"):
            values = getattr(message, name)
            setattr(message, name, [0.1] * len(extra) + [values[i] for i in order])


def part(message: Any, slots: list[int]) -> Any:
    """The joints of some slots only."""
    names, values = message.name, (message.position, message.velocity, message.effort)
    return joint_message(stamp_of(message), [names[i] for i in slots], *([row[i] for i in slots] for row in values))


def in_parts(parts: list[list[int]]) -> Callable[[Clean], Messages]:
    def spoil(clean: Clean) -> Messages:
        clean.joints = [part(message, slots) for message in clean.joints for slots in parts]
        return clean.messages()

    return spoil


def at_times(clean: Clean, times: np.ndarray) -> list[Any]:
    """Joint states at other stamps, on straight lines between the clean ones."""
    stamps = np.array([stamp_of(message) for message in clean.joints], dtype=float)
    columns = []
    for name in ("position", "velocity", "effort"):
        table = np.array([getattr(message, name) for message in clean.joints])
        columns.append(np.stack([np.interp(times.astype(float), stamps, column) for column in table.T], axis=1))
    names = clean.joints[0].name
    return [joint_message(int(t), names, *(c[k].tolist() for c in columns)) for k, t in enumerate(times.tolist())]


def joints_at(period_ns: int, phase_ns: int) -> Callable[[Clean], Messages]:
    def spoil(clean: Clean) -> Messages:
        first, last = stamp_of(clean.joints[0]), stamp_of(clean.joints[-1])
        clean.joints = at_times(clean, np.arange(first + phase_ns, last, period_ns))
        return clean.messages()

    return spoil


def imu_at(period_ns: int) -> Callable[[Clean], Messages]:
    """IMU readings at other stamps, on straight lines between the clean ones."""

    def spoil(clean: Clean) -> Messages:
        stamps = np.array([stamp_of(message) for message in clean.imu], dtype=float)
        times = np.arange(stamp_of(clean.imu[0]), stamp_of(clean.imu[-1]), period_ns)
        rows = np.array(
            [[getattr(getattr(m, v), a) for v in ("angular_velocity", "linear_acceleration") for a in "xyz"]
             for m in clean.imu]
        )  # fmt: skip
        at = np.stack([np.interp(times.astype(float), stamps, column) for column in rows.T], axis=1)
        clean.imu = [imu_message(int(t), row[:3], row[3:]) for t, row in zip(times.tolist(), at.tolist(), strict=True)]
        return clean.messages()

    return spoil


def in_packets(size: int) -> Callable[[Clean], Messages]:
    """IMU messages stamped on the arrival of a packet of them."""

    def spoil(clean: Clean) -> Messages:
        for k, message in enumerate(clean.imu):
            last = stamp_of(clean.joints[min(k - k % size + size - 1, len(clean.imu) - 1)])
            stamp(message, last + 50_000 * (k % size) - 50_000 * (size - 1))
        return clean.messages()

    return spoil


def swapped(stream: str, at: list[int], apart: int = 1) -> Callable[[Clean], Messages]:
    """Some messages of a stream arrive after those that follow."""

    def spoil(clean: Clean) -> Messages:
        rows = getattr(clean, stream)
        late = {id(rows[k]): stamp_of(rows[k + apart]) + MS for k in at}
        order = [(late.get(id(message), stamp_of(message)), n, what, message)
                 for n, (what, message) in enumerate(clean.messages())]  # fmt: skip
        return [(what, message) for _, _, what, message in sorted(order, key=lambda item: item[:2])]

    return spoil


def later(clean: Clean, start: int, by_ns: int) -> None:
    """Both streams are stamped later from a message on."""
    for message in (*clean.imu[start:], *clean.joints[start:]):
        shifted(message, by_ns)


def time_jump(by_ns: int) -> Callable[[Clean], Messages]:
    """The same walk again, at other stamps."""

    def spoil(clean: Clean) -> Messages:
        again = clean.copy()
        later(again, 0, by_ns)
        return [*again.messages(), *clean.messages()]

    return spoil


def imu_of_another_clock(clean: Clean) -> Messages:
    """For a while; then it is set right, which is a jump back."""
    for message in clean.imu[:200]:
        shifted(message, 100_000 * MS)
    return _by_number(clean)


def _by_number(clean: Clean) -> Messages:
    return [pair for k in range(len(clean.imu)) for pair in (("imu", clean.imu[k]), ("joints", clean.joints[k]))]


def alternating(clean: Clean) -> Messages:
    """The names stand in another order in each message."""
    for k, message in enumerate(clean.joints):
        order = np.random.default_rng(k % 7).permutation(12).tolist()
        reordered(Clean(clean.robot, [], [message]), order, ("gripper",) * (k % 2))
    return clean.messages()


def permuted(seed: int, extra: tuple[str, ...] = ()) -> Callable[[Clean], Messages]:
    def spoil(clean: Clean) -> Messages:
        reordered(clean, np.random.default_rng(seed).permutation(12).tolist(), extra)
        return clean.messages()

    return spoil


def two_wild_stamps(clean: Clean) -> Messages:
    messages = clean.messages()
    stamp(clean.imu[300], 5 * MS)
    shifted(clean.imu[301], 10**7 * MS)
    return messages


def another_publisher(clean: Clean) -> Messages:
    """Someone else publishes the joints of a leg, all zero, between the others."""
    others = [joint_message(stamp_of(message) + MS, message.name[3:6], [0.0] * 3) for message in clean.joints[5:]]
    return in_order(clean.imu, [*clean.joints, *others])


def an_arm(clean: Clean) -> Messages:
    arm = [joint_message(stamp_of(message), ["arm_1", "arm_2"], [NAN, INF]) for message in clean.joints]
    return in_order(clean.imu, [*clean.joints, *arm])


def unstamped(*streams: str) -> Callable[[Clean], Messages]:
    def spoil(clean: Clean) -> Messages:
        for message in (message for stream in streams for message in getattr(clean, stream)):
            stamp(message, 0)
        return _by_number(clean)

    return spoil


def random_loss(part_lost: float, *streams: str) -> Callable[[Clean], Messages]:
    rng = np.random.default_rng(11)
    lost = {stream: set(np.flatnonzero(rng.random(5000) < part_lost).tolist()) - {0, 1} for stream in ("imu", "joints")}
    return without(
        (lambda k: k in lost["imu"]) if "imu" in streams else (lambda _k: False),
        (lambda k: k in lost["joints"]) if "joints" in streams else (lambda _k: False),
    )


def jittery(clean: Clean) -> Messages:
    shift = np.random.default_rng(5).integers(-400_000, 400_000, len(clean.imu)).tolist()
    for k, by in enumerate(shift):
        shifted(clean.imu[k], by)
        shifted(clean.joints[k], by)
    return clean.messages()


def nobody_knows_covariance(message: Any) -> None:
    message.linear_acceleration_covariance[0] = -1.0


def twice_named(message: Any) -> None:
    message.name[3] = message.name[0]


def among_hundreds(message: Any) -> None:
    """Joints of a machine that is no robot stand before and after the robot's own."""
    others = [f"valve_{k}" for k in range(300)]
    message.name = [*others, *message.name, "last"]
    for name in ("position", "velocity", "effort"):
        setattr(message, name, [1.0] * len(others) + list(getattr(message, name)) + [0.0])


def pause(milliseconds: int, at: int = 300) -> Callable[[Clean], Messages]:
    """Nothing from either stream for a while; the robot goes on meanwhile."""
    lost = milliseconds // 2
    return without(lambda k: at <= k < at + lost, lambda k: at <= k < at + lost)


def silence(seconds: float) -> Callable[[Clean], Messages]:
    """A long pause in the stamps, after which the walk goes on as if it had not been."""

    def spoil(clean: Clean) -> Messages:
        later(clean, 300, round(seconds * 1e9))
        return clean.messages()

    return spoil


SOME = list(range(40, 590, 50))
"""Numbers of 11 of the 600 messages."""

LEGS = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]

CASES = [
    # IMU: what it says
    Case("imu_nan", each("imu", SOME, vector("angular_velocity", "y", NAN)), {"imu_not_finite": 11, "imu_gap": 11}, odometry=0.97),
    Case("imu_infinite", each("imu", SOME, vector("linear_acceleration", "z", -INF)), {"imu_not_finite": 11, "imu_gap": 11}, odometry=0.97),
    Case("imu_absurd", each("imu", SOME, vector("linear_acceleration", "x", 1e300)), {"imu_absurd": 11, "imu_gap": 11}, odometry=0.97),
    Case("imu_nan_for_40_ms", each("imu", range(300, 320), vector("angular_velocity", "z", NAN)), {"imu_not_finite": 20, "imu_gap": 1}, 0.08, 0.05, 0.96),
    Case("imu_not_reported", each("imu", SOME, nobody_knows_covariance), {"imu_not_reported": 11, "imu_gap": 11}, odometry=0.97),
    # IMU: its stamps
    Case("imu_sent_twice", inserted("imu", SOME, lambda m: m), {"imu_repeated": 11}, 0),
    Case("imu_stamp_reused", inserted("imu", SOME, lambda m: (vector("angular_velocity", "x", 9.0)(m), m)[1]), {"imu_repeated": 11}, 0),
    Case("imu_swapped", swapped("imu", SOME), {"imu_disordered": 11, "imu_gap": 11}, odometry=0.97),
    Case("imu_late_by_five", swapped("imu", SOME, 5), {"imu_disordered": 11, "imu_gap": 11}, odometry=0.97),
    Case("imu_zero_stamps_between", each("imu", SOME, lambda m: stamp(m, 0)), {"imu_unstamped": 11, "imu_gap": 11}, odometry=0.97),
    Case("imu_negative_stamps", each("imu", SOME, lambda m: stamp(m, -5_000 * MS)), {"imu_unstamped": 11, "imu_gap": 11}, odometry=0.97),
    Case("imu_stamps_in_the_far_future", each("imu", SOME, lambda m: shifted(m, 10**9 * MS)), {"imu_stray": 11, "imu_gap": 11}, odometry=0.97),
    Case("imu_stamps_of_an_hour_ago", each("imu", SOME, lambda m: stamp(m, 5 * MS)), {"imu_stray": 11, "imu_gap": 11}, odometry=0.97),
    Case("imu_stamps_at_the_end_of_time", each("imu", SOME, lambda m: stamp(m, (2**31 - 1) * 10**9 + 999_999_999)), {"imu_stray": 11, "imu_gap": 11}, odometry=0.97),
    Case("imu_nanoseconds_that_overflow", each("imu", SOME, lambda m: setattr(m.header.stamp, "nanosec", 2**32 - 1)), {"imu_unstamped": 11, "imu_gap": 11}, odometry=0.97),
    Case("imu_two_wild_stamps_in_a_row", two_wild_stamps, {"imu_stray": 2, "imu_gap": 1}, odometry=0.97),
    Case("imu_stamps_in_packets", in_packets(4), {"imu_burst": 438}, 0.05, 0.05, 0.9),
    Case("stamps_that_jitter", jittery, {}, 0.03, 0.03),
    Case("imu_without_stamps", unstamped("imu", "joints"), {"imu_restamped": 600, "joints_restamped": 600, "imu_before_joints": 1}, by_arrival=True, odometry=0.1),
    Case("imu_of_another_clock", imu_of_another_clock, {"imu_other_clock": 200, "imu_before_joints": 1}, 1.0, 1.0, 0.6, "two clocks", 2),
    # IMU: how many
    Case("imu_lost_for_20_ms", without(lambda k: 300 <= k < 310), {"imu_gap": 1}, 0.01, 0.02, 0.98),
    Case("imu_lost_for_80_ms", without(lambda k: 300 <= k < 340), {"imu_gap": 1}, 0.05, 0.1, 0.9),
    Case("imu_lost_every_second", without(lambda k: k % 2 == 1), {}, 0.03, 0.03, 0.45),
    Case("imu_lost_a_tenth", random_loss(0.1, "imu"), {"imu_gap": None}, 0.01, 0.02, 0.85),
    Case("imu_at_2000_hz", imu_at(500_000), {}, 0.03, 0.03, 0.95),
    Case("imu_at_1000_hz", imu_at(1 * MS), {}, 0.03, 0.03, 0.95),
    Case("imu_at_400_hz", imu_at(2_500_000), {}, 0.03, 0.03, 0.7),
    Case("imu_at_100_hz", imu_at(10 * MS), {}, 0.08, 0.08, 0.15),
    # joints: their names
    Case("joints_in_another_order", permuted(1), {}, 0),
    Case("joints_among_others", permuted(2, ("arm", "gripper")), {}, 0),
    Case("joints_among_hundreds", each("joints", SOME, among_hundreds), {}, 0),
    Case("joints_in_an_order_that_changes", alternating, {}, 0),
    Case("joints_leg_by_leg", in_parts(LEGS), {}, 0),
    Case("joints_front_and_rear", in_parts([LEGS[2] + LEGS[3], LEGS[1] + LEGS[0]]), {}, 0),
    Case("joints_beside_an_arm", an_arm, {"joints_foreign": 600}, 0),
    Case("joints_twice_by_another_publisher", another_publisher, {"joints_overlap": 595}, 0),
    Case("joints_named_twice", each("joints", SOME, twice_named), {"joints_repeated_joints": 11, "joints_gap": 11}),
    Case("joints_one_missing_at_times", each("joints", SOME, lambda m: vars(m).update(vars(part(m, list(range(11)))))), {"joints_overlap": 11, "joints_gap": 11}),
    Case("joints_without_names", each("joints", SOME, emptied("name")), {"joints_foreign": 11, "joints_gap": 11}),
    # joints: what they say
    Case("joints_nan_position", each("joints", SOME, put("position", 4, NAN)), {"joints_not_finite": 11, "joints_gap": 11}),
    Case("joints_infinite_position", each("joints", SOME, put("position", 0, INF)), {"joints_not_finite": 11, "joints_gap": 11}),
    Case("joints_absurd_position", each("joints", SOME, put("position", 11, -1e30)), {"joints_absurd": 11, "joints_gap": 11}),
    Case("joints_too_few_positions", each("joints", SOME, shortened("position")), {"joints_wrong_length": 11, "joints_gap": 11}),
    Case("joints_no_positions", each("joints", SOME, emptied("position")), {"joints_wrong_length": 11, "joints_gap": 11}),
    Case("joints_velocity_empty_at_times", each("joints", SOME, emptied("velocity")), {"joints_velocity_missing": 11}),
    Case("joints_velocity_of_wrong_length", each("joints", SOME, shortened("velocity")), {"joints_velocity_missing": 11}),
    Case("joints_velocity_nan", each("joints", SOME, put("velocity", 7, NAN)), {"joints_velocity_missing": 11}),
    Case("joints_effort_nan_at_times", each("joints", SOME, put("effort", 3, NAN)), {"joints_effort_missing": 11}),
    Case("joints_effort_absurd", each("joints", SOME, put("effort", 3, 1e12)), {"joints_effort_missing": 11}),
    Case("joints_velocity_never", each("joints", range(600), emptied("velocity")), {}, 0.3, 0.3),
    Case("joints_effort_never", each("joints", range(600), emptied("effort")), {}, 0.5, 0.5),
    Case("joints_velocity_ends", each("joints", range(300, 600), emptied("velocity")), {"joints_velocity_missing": 5}, 0.3, 0.3),
    # joints: their stamps
    Case("joints_sent_twice", inserted("joints", SOME, lambda m: m), {"joints_repeated": 11}, 0),
    Case("joints_swapped", swapped("joints", SOME), {"joints_disordered": 11, "joints_gap": 11}),
    Case("joints_zero_stamps_between", each("joints", SOME, lambda m: stamp(m, 0)), {"joints_unstamped": 11, "joints_gap": 11}),
    Case("joints_nanoseconds_that_overflow", each("joints", SOME, lambda m: setattr(m.header.stamp, "nanosec", 10**9)), {"joints_unstamped": 11, "joints_gap": 11}),
    Case("joints_stamps_of_an_hour_ago", each("joints", SOME, lambda m: stamp(m, 5 * MS)), {"joints_stray": 11, "joints_gap": 11}),
    Case("joints_stamps_in_the_future", each("joints", SOME, lambda m: shifted(m, 60_000 * MS)), {"joints_stray": 11, "joints_gap": 11}),
    # joints: how many, and when
    Case("joints_lost_for_20_ms", without(joints=lambda k: 300 <= k < 310), {"joints_gap": 1}),
    Case("joints_lost_for_40_ms", without(joints=lambda k: 300 <= k < 320), {"joints_gap": 1}, 0.05, 0.05),
    Case("joints_lost_for_80_ms", without(joints=lambda k: 300 <= k < 340), {"joints_gap": 1, "imu_without_joints": 15}, 0.1, 0.1, 0.97),
    Case("joints_lost_for_400_ms", without(joints=lambda k: 300 <= k < 500), {"joints_gap": 1, "imu_without_joints": 175}, 0.5, 0.5, 0.6),
    Case("joints_lost_a_tenth", random_loss(0.1, "joints"), {"joints_gap": None}),
    Case("joints_at_200_hz_out_of_phase", joints_at(5 * MS, 700_000), {"imu_before_joints": 1}, 0.02, 0.02, 0.98),
    Case("joints_at_50_hz", joints_at(20 * MS, 0), {}, 0.1, 0.1, 0.98),
    Case("joints_at_1000_hz", joints_at(MS, 300_000), {"imu_before_joints": 1}, 0.02, 0.02, 0.98),
    Case("joints_arrive_late", delayed("joints", 8), {}, 0, odometry=0.98),
    Case("imu_arrives_late", delayed("imu", 8), {}, 0, odometry=0.98),
    # both
    Case("a_tenth_of_all_lost", random_loss(0.1, "imu", "joints"), {"imu_gap": None, "joints_gap": None}, 0.01, 0.02, 0.85),
    Case("nothing_for_60_ms", pause(60), {"imu_gap": 1, "joints_gap": 1}, 0.03, 0.06, 0.94),
    Case("nothing_for_300_ms", pause(300), {"imu_gap": 1, "joints_gap": 1}, 0.3, 0.4, 0.65),
    Case("nothing_for_5_s", silence(5.0), {"imu_gap": 1, "joints_gap": 1}, 1.0, 1.0, 0.9),
    Case("time_jumps_back", time_jump(60_000 * MS), {}, 0, odometry=1.9, lines=2),
    Case("time_jumps_back_by_a_day", time_jump(86_400_000 * MS), {}, 0, odometry=1.9, lines=2),
]  # fmt: skip
