import sqlite3
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rosbags.rosbag2 import Reader
from scipy.spatial.transform import Rotation
from trajectories import disturb, sensor_log, walk

from trace_ros.bags import (
    Topics,
    convert,
    read_bag,
    read_bag_with_report,
    read_log,
    read_odometry,
    write_bag,
    write_log,
)
from trace_ros.bags.storage import create_bag
from trace_ros.errors import TraceError
from trace_ros.logs import SensorLog, Trajectory

TRUTH = walk(1.0)
LOG = sensor_log(TRUTH)
ARRAYS = ("stamp_ns", "angular_velocity", "linear_acceleration", "joint_position", "joint_velocity", "joint_torque")


def assert_same(first: SensorLog, second: SensorLog, *more: str) -> None:
    for name in (*ARRAYS, *more):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
    assert (first.torque_source, first.robot) == (second.torque_source, second.robot)
    a, b = first.reference, second.reference
    for name in ("stamp_ns", "position", "velocity"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    # Quaternions are normalised whenever a trajectory is made.
    np.testing.assert_allclose(a.orientation, b.orientation, atol=1e-15)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_bag_returns_the_log_bit_for_bit(tmp_path, go2, storage):
    write_bag(tmp_path / "bag", LOG, go2, storage)
    log, report = read_bag_with_report(tmp_path / "bag", go2)
    assert_same(LOG, log)
    assert log.reference.angular_velocity is None  # the reference does not know it, and the bag does not invent it
    assert report.exact_pairs == len(LOG)
    assert report.notes == []


@settings(max_examples=10, deadline=None)
@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=12, max_size=12),
    stamp=st.integers(0, 2**31 * 10**9 - 1),
)
def test_any_reading_and_stamp_survive(tmp_path_factory, go2, values, stamp):
    stamps = (
        np.array([stamp, stamp + 1, stamp + 7])
        if stamp < 2**31 * 10**9 - 8
        else np.array([stamp - 7, stamp - 1, stamp])
    )
    joint = np.tile(values, (3, 1))
    log = SensorLog(stamps, joint[:, :3], joint[:, 3:6], joint, None, None, "none", "go2")
    path = tmp_path_factory.mktemp("any") / "bag"
    write_bag(path, log, go2)
    again = read_bag(path, go2)
    for name in ("stamp_ns", "angular_velocity", "linear_acceleration", "joint_position"):
        np.testing.assert_array_equal(getattr(log, name), getattr(again, name))
    assert again.joint_velocity is None
    assert again.joint_torque is None
    assert again.torque_source == "none"


def test_covariance_and_angular_velocity_of_the_reference_survive(tmp_path, go2):
    n = len(TRUTH)
    covariance = np.random.default_rng(0).normal(size=(n, 6, 6))
    full = Trajectory(TRUTH.stamp_ns, TRUTH.position, TRUTH.orientation, TRUTH.velocity, np.ones((n, 3)), covariance)
    write_bag(tmp_path / "bag", LOG, go2, odometry={"odom": full})
    again = read_odometry(tmp_path / "bag", "odom")
    np.testing.assert_array_equal(again.covariance, covariance)
    np.testing.assert_array_equal(again.angular_velocity, np.ones((n, 3)))


def test_imu_is_written_in_its_own_frame_and_read_in_the_bodys(tmp_path, go2):
    tilted = go2.model_copy(update={"imu": go2.imu.model_copy(update={"rpy": (np.pi, 0.0, np.pi / 2)})})
    write_bag(tmp_path / "bag", LOG, tilted)
    raw = read_bag(tmp_path / "bag", go2)  # a robot whose IMU is not rotated sees the messages as they are
    expected = Rotation.from_euler("xyz", tilted.imu.rpy).inv().apply(LOG.linear_acceleration)
    np.testing.assert_allclose(raw.linear_acceleration, expected, atol=1e-12)
    # Upside down: the message's z axis reads -g where the body's reads +g.
    assert raw.linear_acceleration[:, 2].mean() < -9
    np.testing.assert_allclose(
        read_bag(tmp_path / "bag", tilted).linear_acceleration, LOG.linear_acceleration, atol=1e-12
    )
    np.testing.assert_allclose(read_bag(tmp_path / "bag", tilted).angular_velocity, LOG.angular_velocity, atol=1e-12)


def test_topics_may_be_named_and_namespaced(tmp_path, go2):
    names = Topics(imu="go2_7/imu/data", joint_states="go2_7/joint_states", reference="vicon/go2")
    write_bag(tmp_path / "bag", LOG, go2, topics=names)
    with Reader(tmp_path / "bag") as reader:
        assert set(reader.topics) == {"/go2_7/imu/data", "/go2_7/joint_states", "/vicon/go2"}
    assert read_bag(tmp_path / "bag", go2).reference is None  # an unknown odometry is not taken for the truth
    assert_same(LOG, read_bag(tmp_path / "bag", go2, names))


@pytest.mark.parametrize("path", [["a.mcap", "b.npz", "c", "d.csv", "e.npz"], ["a", "b.csv", "c.npz"]])
def test_conversions_lose_nothing(tmp_path, go2, path):
    write_log(tmp_path / "first", LOG, go2)
    current = tmp_path / "first"
    for name in path:
        if name.endswith(".mcap"):
            continue
        convert(current, tmp_path / name, go2)
        current = tmp_path / name
    assert_same(LOG, read_log(current, go2)[0])


@pytest.mark.parametrize("name", ["log.npz", "log.csv"])
def test_simulated_contacts_survive_in_files_but_not_in_bags(tmp_path, go2, name):
    simulated = sensor_log(TRUTH, simulated=True)
    write_log(tmp_path / name, simulated, go2)
    assert_same(simulated, read_log(tmp_path / name, go2)[0], "contact", "contact_normal", "foot_force")
    conversion = convert(tmp_path / name, tmp_path / "bag", go2)
    assert any("contacts" in note for note in conversion.notes)
    assert read_bag(tmp_path / "bag", go2).contact is None


def test_converting_storages_keeps_every_topic_and_note(tmp_path, go2):
    write_bag(tmp_path / "first", LOG, go2, "mcap", odometry={"odom": disturb(TRUTH)})
    conversion = convert(tmp_path / "first", tmp_path / "second", go2, "sqlite3")
    assert conversion.messages == dict.fromkeys(("/imu/data", "/joint_states", "/reference/odom", "/odom"), len(LOG))
    assert (tmp_path / "second" / "second.db3").is_file()
    with Reader(tmp_path / "first") as first, Reader(tmp_path / "second") as second:
        one = [(c.topic, t, bytes(d)) for c, t, d in first.messages()]
        two = [(c.topic, t, bytes(d)) for c, t, d in second.messages()]
    assert sorted(one) == sorted(two)
    assert_same(LOG, read_bag(tmp_path / "second", go2))


def test_nothing_is_overwritten(tmp_path, go2):
    write_bag(tmp_path / "bag", LOG, go2)
    with pytest.raises(TraceError, match="exists already"):
        write_bag(tmp_path / "bag", LOG, go2)
    (tmp_path / "log.npz").write_bytes(b"")
    with pytest.raises(TraceError, match="exists already"):
        write_log(tmp_path / "log.npz", LOG, go2)


def test_another_robots_log_is_refused(tmp_path, go2):
    other = SensorLog(LOG.stamp_ns, LOG.angular_velocity, LOG.linear_acceleration, LOG.joint_position, robot="spot")
    with pytest.raises(TraceError, match="'spot', not 'go2'"):
        write_bag(tmp_path / "bag", other, go2)
    other.save(tmp_path / "other.npz")
    with pytest.raises(TraceError, match="--robot spot"):
        read_log(tmp_path / "other.npz", go2)


def test_stamps_that_no_message_can_hold_are_refused(tmp_path, go2):
    late = replace(LOG, stamp_ns=LOG.stamp_ns - LOG.stamp_ns[-1] + 2**31 * 10**9, reference=None)
    with pytest.raises(TraceError, match="2147483648 s do not fit into messages"):
        write_bag(tmp_path / "bag", late, go2)
    assert not (tmp_path / "bag").exists()
    write_bag(tmp_path / "bag", late.select(slice(0, -1)), go2)
    assert read_bag(tmp_path / "bag", go2).stamp_ns[-1] == late.stamp_ns[-2]


def test_a_minute_loads_in_two_seconds(tmp_path, go2):
    truth = walk(60.0)
    write_bag(tmp_path / "bag", sensor_log(truth), go2)
    begin = time.process_time()
    assert len(read_bag(tmp_path / "bag", go2)) == 30000
    # 1.2 s on a 2 GHz core; the limit leaves room for a slow machine.
    assert time.process_time() - begin < 4.0


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(28, "No space left on device"), TraceError),
        (sqlite3.OperationalError("database or disk is full"), TraceError),
    ],
)
def test_a_fault_while_writing_leaves_no_half_bag(tmp_path, storage, fault, raised):
    with pytest.raises(raised) as caught, create_bag(tmp_path / "bag", storage):
        raise fault
    assert not (tmp_path / "bag").exists()
    if raised is TraceError:
        assert str(caught.value).startswith(f"{tmp_path / 'bag'}: cannot be written (")
