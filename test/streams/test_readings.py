"""Messages to numbers: whatever is in a message, it is used as it should be or refused by name."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire import imu_message, joint_message

from trace_ros.robot import JointMessages, RobotDescription
from trace_ros.streams.kinds import KINDS, Tally
from trace_ros.streams.readings import BadMessageError, JointFinder, header_stamp_ns, imu_reading, shown

ROBOT = RobotDescription.load("go2")
NAMES = list(ROBOT.joint_names)
ANY = st.floats(width=64)


def find(message, finder: JointFinder | None = None, tally: Tally | None = None):
    return (finder or JointFinder(ROBOT)).read(message, tally or Tally())


@settings(max_examples=200, deadline=None)
@given(st.lists(ANY, min_size=6, max_size=6))
def test_imu(values: list[float]) -> None:
    message = imu_message(0, values[:3], values[3:])
    if all(abs(value) <= 1e6 for value in values):  # false for NaN
        reading = imu_reading(message)
        assert [*reading.angular_velocity, *reading.linear_acceleration] == values
    else:
        with pytest.raises(BadMessageError) as caught:
            imu_reading(message)
        assert caught.value.kind in ("imu_not_finite", "imu_absurd")


@pytest.mark.parametrize(
    ("value", "kind"), [(1.001e6, "imu_absurd"), (-1e300, "imu_absurd"), (math.inf, "imu_not_finite")]
)
def test_numbers_that_overflow_single_precision_are_refused(value: float, kind: str) -> None:
    with pytest.raises(BadMessageError) as caught:
        imu_reading(imu_message(0, accel=(0.0, 0.0, value)))
    assert caught.value.kind == kind


@pytest.mark.parametrize("field", ["angular_velocity_covariance", "linear_acceleration_covariance"])
def test_an_imu_that_does_not_report_is_refused(field: str) -> None:
    message = imu_message(0)
    getattr(message, field)[0] = -1.0
    with pytest.raises(BadMessageError, match="not reported") as caught:
        imu_reading(message)
    assert caught.value.kind == "imu_not_reported"


@settings(max_examples=50, deadline=None)
@given(st.permutations([*NAMES, "arm_1", "arm_2"]), st.integers(0, 2**32 - 1))
def test_joints_are_found_by_name(names: list[str], seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(3, len(names)))
    reading = find(joint_message(0, names, *values.tolist()))
    assert reading.slots == tuple(range(12))
    for found, row in ((reading.position, values[0]), (reading.velocity, values[1]), (reading.torque, values[2])):
        assert found.tolist() == [row[names.index(name)] for name in NAMES]


def test_every_permutation_of_a_legs_joints_and_of_the_legs() -> None:
    values = {name: float(slot) for slot, name in enumerate(NAMES)}
    legs = [NAMES[3 * leg : 3 * leg + 3] for leg in range(4)]
    finder = JointFinder(ROBOT)
    orders = [[name for leg in order for name in leg] for order in itertools.permutations(legs)]
    orders += [[leg[i] for leg in legs for i in order] for order in itertools.permutations(range(3))]
    for names in orders:
        reading = find(joint_message(0, names, [values[name] for name in names]), finder)
        assert reading.position.tolist() == list(range(12))


def test_a_part_of_the_joints_fills_its_slots() -> None:
    reading = find(joint_message(0, ["gripper", NAMES[7], NAMES[2]], [9.0, 7.0, 2.0], [90.0, 70.0, 20.0]))
    assert reading.slots == (2, 7)
    assert reading.position.tolist() == [2.0, 7.0]
    assert reading.velocity.tolist() == [20.0, 70.0]
    assert reading.torque is None


def test_messages_with_none_of_the_joints_are_not_looked_at() -> None:
    assert find(joint_message(0, ["arm_1"], [])) is None


def test_unwanted_effort_is_none() -> None:
    reading = JointFinder(ROBOT, use_effort=False).read(joint_message(0, NAMES, effort=[1.0] * 12), Tally())
    assert reading.velocity is None
    assert reading.torque is None


def test_names_signs_and_offsets_of_the_robot_file() -> None:
    robot = ROBOT.model_copy(
        update={
            "joint_messages": JointMessages(
                names={NAMES[0]: "fl_hx"}, sign={NAMES[2]: -1, NAMES[5]: 1}, offset={NAMES[2]: 0.25, NAMES[4]: -0.5}
            )
        }
    )
    names = ["fl_hx", *NAMES[1:]]
    finder = JointFinder(robot)
    reading = finder.read(joint_message(0, names, range(12), range(12), range(12)), Tally())
    expected = np.arange(12.0)
    expected[2], expected[4] = -2.0 + 0.25, 4.0 - 0.5
    assert reading.position.tolist() == expected.tolist()
    signed = np.arange(12.0) * [1, 1, -1, *[1] * 9]
    assert reading.velocity.tolist() == signed.tolist()
    assert reading.torque.tolist() == signed.tolist()
    assert finder.read(joint_message(0, NAMES[:1]), Tally()) is None  # the URDF's name is not the robot's
    table = finder.describe()
    assert "FL   fl_hx, FL_thigh_joint, -FL_calf_joint +0.25 rad" in table
    assert "FR   FR_hip_joint, FR_thigh_joint -0.5 rad, FR_calf_joint" in table


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (
            {"names": [*NAMES, "FL_hip_joint"]},
            "joints_repeated_joints",
            "more than once in the joint state: FL_hip_joint",
        ),
        ({"position": []}, "joints_wrong_length", "12 names but 0 values of position"),
        ({"position": [0.0] * 11}, "joints_wrong_length", "12 names but 11 values of position"),
        ({"position": [*[0.0] * 11, math.nan]}, "joints_not_finite", "the position of RR_calf_joint"),
        ({"position": [*[0.0] * 10, -1e30, 0.0]}, "joints_absurd", "beyond 1e\\+06 in the position of RR_thigh_joint"),
    ],
)
def test_bad_joint_states_are_refused_by_name(change: dict, kind: str, text: str) -> None:
    finder = JointFinder(ROBOT)
    for _ in range(2):  # the second message of a kind is refused like the first
        with pytest.raises(BadMessageError, match=text) as caught:
            find(joint_message(0, **({"names": NAMES} | change)), finder)
        assert caught.value.kind == kind
        assert KINDS[kind].action == "dropped"
    assert find(joint_message(0, NAMES), finder).position.tolist() == [0.0] * 12


@pytest.mark.parametrize("field", ["velocity", "effort"])
@pytest.mark.parametrize("bad", [[], [1.0] * 11, [math.nan] * 12, [*[1.0] * 11, math.inf], [1e30] * 12])
def test_a_velocity_or_effort_that_is_missing_once_is_held(field: str, bad: list[float]) -> None:
    finder, tally = JointFinder(ROBOT), Tally()
    for value in ([2.0] * 12, bad, [3.0] * 12):
        reading = finder.read(joint_message(0, NAMES, **{field: value}), tally)
        found = reading.velocity if field == "velocity" else reading.torque
        expected = [2.0] * 12 if value is bad else value
        assert found.tolist() == expected
    assert tally.counts == {f"joints_{field}_missing": 1}


def test_what_is_missing_for_long_is_not_reported_and_may_come_back() -> None:
    finder, tally = JointFinder(ROBOT), Tally()
    given_values = [[1.0] * 12] * 3 + [[]] * 10 + [[2.0] * 12] * 10
    found = [find(joint_message(0, NAMES, velocity=value), finder, tally).velocity for value in given_values]
    assert [None if value is None else value[0] for value in found] == [1.0] * 7 + [None] * 10 + [2.0] * 6
    assert tally.counts == {"joints_velocity_missing": 5}


def test_what_was_never_reported_is_no_fault() -> None:
    finder, tally = JointFinder(ROBOT), Tally()
    for _ in range(10):
        reading = find(joint_message(0, NAMES, effort=[math.nan] * 12), finder, tally)
        assert reading.velocity is None
        assert reading.torque is None
    assert not tally.counts


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*NAMES, "", "x"]), max_size=14),
    st.tuples(*[st.lists(ANY, max_size=14)] * 3),
)
def test_any_joint_state_is_finite_or_refused(names: list[str], arrays: tuple[list[float], ...]) -> None:
    try:
        reading = find(joint_message(0, names, *arrays))
    except BadMessageError as error:
        assert "\n" not in error.text
        assert error.kind in KINDS
    else:
        assert (reading is None) == (not set(names) & set(NAMES))
        for found in () if reading is None else (reading.position, reading.velocity, reading.torque):
            assert found is None or (found.shape == (len(reading.slots),) and np.isfinite(found).all())


@pytest.mark.parametrize(
    ("seconds", "nanoseconds", "stamp_ns"),
    [
        (5, 0, 5_000_000_000),
        (5, 999_999_999, 5_999_999_999),
        (5, 1_000_000_000, 0),
        (2**31 - 1, 2**32 - 1, 0),
        (2**31 - 1, 999_999_999, (2**31 - 1) * 1_000_000_000 + 999_999_999),
        (-(2**31), 0, -(2**31) * 1_000_000_000),
    ],
)
def test_nanoseconds_of_a_second_or_more_are_no_stamp(seconds: int, nanoseconds: int, stamp_ns: int) -> None:
    message = imu_message(0)
    message.header.stamp.sec, message.header.stamp.nanosec = seconds, nanoseconds
    assert header_stamp_ns(message) == stamp_ns


def test_a_message_of_a_million_joints_costs_no_memory_and_finds_the_robots_own() -> None:
    finder, tally = JointFinder(ROBOT), Tally()
    for turn in range(3):
        others = [f"joint_{turn}_{number}" for number in range(1_000_000)]
        reading = find(joint_message(0, [*others, *NAMES], [1.0] * 1_000_000 + [0.5] * 12), finder, tally)
        np.testing.assert_array_equal(reading.position, 0.5)
    assert finder.missing == []
    assert len(finder.seen) == 200
    assert not finder._orders
    assert not tally.counts


def test_names_that_are_invented_for_each_message_are_not_kept() -> None:
    finder = JointFinder(ROBOT)
    for turn in range(1000):
        find(joint_message(0, [f"wheel_{turn}", *NAMES]), finder)
    assert len(finder.seen) == 200
    assert len(finder._orders) <= 64


def test_names_in_the_log_are_short_and_of_one_line() -> None:
    assert shown("FL_hip_joint") == "FL_hip_joint"
    assert shown("a" * 1000) == "a" * 64 + "..."
    assert shown("\x1b[31mred\n[ERROR] fire") == r"\x1b[31mred\n[ERROR] fire"
