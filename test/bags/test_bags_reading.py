"""What robots and drivers really put into bags."""

from dataclasses import replace

import numpy as np
import pytest
from bagmaking import IMU, JOINTS, MS, START, imu, joints, make_bag, normal, odometry, text
from rosbags.rosbag2 import StoragePlugin

from trace_ros.bags import ReadSettings, Topics, read_bag, read_bag_with_report, read_log, read_odometry, write_log
from trace_ros.errors import TraceError


def read(tmp_path, go2, messages, **keywords):
    return read_bag_with_report(make_bag(tmp_path / "bag", messages), go2, **keywords)


def notes(report) -> str:
    return "\n".join(report.notes)


def test_joints_are_mapped_by_name_even_when_the_order_changes(tmp_path, go2):
    names = list(go2.joint_names)
    value = {name: 0.1 * index for index, name in enumerate(names)}

    def messages():
        for index, order in enumerate((names, names[::-1], ["gripper", *names[5:], "tail", *names[:5]])):
            stamp = START + index * 2 * MS
            yield "/imu/data", stamp, imu(stamp)
            position = [value.get(name, 99.0) for name in order]
            yield (
                "/joint_states",
                stamp,
                joints(stamp, order, position, np.multiply(position, 2), np.multiply(position, 3)),
            )

    log, _ = read(tmp_path, go2, messages())
    expected = np.tile(list(value.values()), (3, 1))
    np.testing.assert_array_equal(log.joint_position, expected)
    np.testing.assert_array_equal(log.joint_velocity, expected * 2)
    np.testing.assert_array_equal(log.joint_torque, expected * 3)
    assert log.torque_source == "measured_effort"


def test_missing_joints_are_listed(tmp_path, go2):
    names = [name for name in go2.joint_names if not name.startswith("RL")]
    with pytest.raises(
        TraceError, match=r"names missing .*: RL_hip_joint, RL_thigh_joint, RL_calf_joint; they have: FL_hip_joint"
    ):
        read(tmp_path, go2, normal(names))


def test_messages_of_wrong_sizes_are_dropped_or_repaired_and_named(tmp_path, go2):
    def messages():
        yield from normal(go2.joint_names, 5)
        stamps = [START + ms * MS for ms in (10, 12, 14)]
        for stamp in stamps:
            yield "/imu/data", stamp, imu(stamp)
        yield "/joint_states", stamps[0], joints(stamps[0], go2.joint_names, effort=np.ones(11), velocity=np.ones(12))
        yield "/joint_states", stamps[1], joints(stamps[1], go2.joint_names, np.ones(11), np.ones(12), np.ones(12))
        yield "/joint_states", stamps[2], joints(stamps[2], go2.joint_names, None, np.ones(12), np.full(12, 2.0))

    log, report = read(tmp_path, go2, messages())
    assert len(log) == 8
    assert (log.joint_torque == 2.0).all()
    assert report.faults == {"joints_effort_missing": 1, "joints_wrong_length": 1}
    assert "/joint_states: repaired 1 of 8 messages: no usable effort" in notes(report)
    assert "/joint_states: dropped 1 of 8 messages: fewer or more positions than names" in notes(report)


def test_a_bag_of_wrong_sizes_says_so(tmp_path, go2):
    def messages():
        for index in range(5):
            stamp = START + index * 2 * MS
            yield "/imu/data", stamp, imu(stamp)
            yield "/joint_states", stamp, joints(stamp, go2.joint_names, np.ones(11))

    with pytest.raises(TraceError, match=r"/joint_states: no usable message: fewer or more positions .*, 5 of 5"):
        read(tmp_path, go2, messages())


def test_legs_from_two_topics_in_one_and_an_arm_between(tmp_path, go2):
    names = list(go2.joint_names)

    def messages():
        for index in range(20):
            stamp = START + index * 2 * MS
            yield "/imu/data", stamp, imu(stamp)
            for part in (names[:6], names[6:]):
                yield "/joint_states", stamp, joints(stamp, part, [0.1 * names.index(name) for name in part])
            yield "/joint_states", stamp, joints(stamp, ["arm_1", "arm_2"])

    log, report = read(tmp_path, go2, messages())
    np.testing.assert_allclose(log.joint_position, np.tile(0.1 * np.arange(12), (20, 1)))
    assert report.exact_pairs == 20
    assert report.faults == {"joints_foreign": 20}


def test_velocity_that_ends_is_absent_from_there_on(tmp_path, go2):
    def messages():
        for index in range(40):
            stamp = START + index * 2 * MS
            yield "/imu/data", stamp, imu(stamp)
            yield "/joint_states", stamp, joints(stamp, go2.joint_names, velocity=np.ones(12) if index < 20 else ())

    log, report = read(tmp_path, go2, messages())
    assert [log.sample(index).joint_velocity is None for index in range(40)] == [False] * 24 + [True] * 16
    assert "does not report joint velocity for 16 of 40 samples" in notes(report)
    again = tmp_path / "again.npz"
    log.save(again)
    np.testing.assert_array_equal(read_log(again, go2)[0].joint_velocity, log.joint_velocity)


def test_of_several_time_lines_the_longest_is_read(tmp_path, go2):
    def messages():
        for begin, count in ((START, 30), (START - 60_000 * MS, 50), (START - 200_000 * MS, 10)):
            for index in range(count):
                stamp = begin + index * 2 * MS
                yield "/imu/data", stamp, imu(stamp)
                yield "/joint_states", stamp, joints(stamp, go2.joint_names)

    # Not in the order of the stamps, but in that of the recording.
    recorded = [(topic, START + number, message) for number, (topic, _, message) in enumerate(messages())]
    log, report = read(tmp_path, go2, recorded)
    np.testing.assert_array_equal(log.stamp_ns, START - 60_000 * MS + 2 * MS * np.arange(50))
    assert report.time_lines == 3
    assert "stamps jumped back 2 times: the longest of 3 time lines was read, 50 of 90 samples" in notes(report)


def test_empty_velocity_and_effort_are_not_reported(tmp_path, go2):
    def messages():
        for index in range(4):
            stamp = START + index * 2 * MS
            yield "/imu/data", stamp, imu(stamp)
            yield "/joint_states", stamp, joints(stamp, go2.joint_names)

    log, report = read(tmp_path, go2, messages())
    assert log.joint_velocity is None
    assert log.joint_torque is None
    assert log.torque_source == "none"
    assert "does not report joint velocity" in notes(report)
    assert "does not report joint effort" in notes(report)


def test_nan_effort_as_ros2_control_sends_it_is_not_reported(tmp_path, go2):
    def messages():
        for index in range(4):
            stamp = START + index * 2 * MS
            yield "/imu/data", stamp, imu(stamp)
            yield (
                "/joint_states",
                stamp,
                joints(stamp, go2.joint_names, velocity=np.ones(12), effort=np.full(12, np.nan)),
            )

    log, _ = read(tmp_path, go2, messages())
    assert log.joint_torque is None
    assert log.joint_velocity is not None


def test_zero_effort_throughout_is_pointed_out(tmp_path, go2):
    def messages():
        for index in range(4):
            stamp = START + index * 2 * MS
            yield "/imu/data", stamp, imu(stamp)
            yield "/joint_states", stamp, joints(stamp, go2.joint_names, velocity=np.ones(12), effort=np.zeros(12))

    assert "effort is exactly zero throughout" in notes(read(tmp_path, go2, messages())[1])


def test_rows_that_are_not_finite_are_dropped_and_counted(tmp_path, go2):
    def messages():
        for index in range(10):
            stamp = START + index * 2 * MS
            yield "/imu/data", stamp, imu(stamp, gyro=(np.nan if index == 3 else 0.0, 0.0, 0.0))
            velocity = np.full(12, np.inf if index == 5 else 1e30 if index == 7 else 1.0)
            yield "/joint_states", stamp, joints(stamp, go2.joint_names, velocity=velocity)

    log, report = read(tmp_path, go2, messages())
    assert len(log) == 9
    assert START + 3 * 2 * MS not in log.stamp_ns
    assert np.isfinite(log.joint_velocity).all()
    assert (log.joint_velocity == 1.0).all()
    assert report.exact_pairs == 9  # the velocities of samples 5 and 7 are those of the messages before
    assert "/imu/data: dropped 1 of 10" in notes(report)
    assert report.faults["joints_velocity_missing"] == 2


def test_joints_at_other_stamps_are_interpolated(tmp_path, go2):
    def messages():
        for index in range(50):
            stamp = START + index * 2 * MS
            yield "/imu/data", stamp, imu(stamp)
            if index % 5 == 0:
                stamp += 300_000
                yield "/joint_states", stamp, joints(stamp, go2.joint_names, np.full(12, 0.01 * index), np.ones(12))

    log, report = read(tmp_path, go2, messages())
    # The first IMU sample comes before the first joint state; after the last one it is held for 20 ms.
    assert report.unpaired == 1
    assert report.exact_pairs == 0
    np.testing.assert_allclose(log.joint_position[:40, 0], 0.01 * (np.arange(1, 41) - 0.15), atol=1e-12)
    np.testing.assert_allclose(log.joint_position[-4:, 0], 0.45, atol=1e-12)
    assert "interpolated or held for 49 of 49" in notes(report)


def test_no_interpolation_across_a_long_gap_and_no_endless_hold(tmp_path, go2):
    def messages():
        for index in range(200):
            stamp = START + index * 2 * MS
            yield "/imu/data", stamp, imu(stamp)
            if index < 50 or 100 <= index < 150:
                yield "/joint_states", stamp, joints(stamp, go2.joint_names)

    log, report = read(tmp_path, go2, messages())
    kept = (log.stamp_ns - START) // (2 * MS)
    # Held 50 ms after the last.
    np.testing.assert_array_equal(kept, [*range(75), *range(100, 175)])
    assert report.unpaired == 50
    assert report.gaps == 1
    assert report.longest_gap_s == pytest.approx(0.052)
    wide = read_bag(tmp_path / "bag", go2, settings=ReadSettings(joint_interval=0.2, joint_timeout=0.0))
    assert len(wide) == 150


def test_repeated_and_disordered_stamps_are_dropped_as_few_as_possible(tmp_path, go2):
    order = [0, 1, 2, 2, 3, 5000, 4, 5, 6, 5, 7, 8]  # one repeated, one wild stamp ahead, one late

    def messages():
        for recorded, index in enumerate(order):
            stamp = START + index * 2 * MS
            yield "/imu/data", START + recorded, imu(stamp)
        for index in range(600):
            stamp = START + index * 2 * MS
            yield "/joint_states", START + 100 + index, joints(stamp, go2.joint_names)

    log, report = read(tmp_path, go2, messages())
    np.testing.assert_array_equal((log.stamp_ns - START) // (2 * MS), range(9))
    assert report.repeated == 1
    assert report.disordered == 2
    assert report.faults == {"imu_repeated": 1, "imu_disordered": 1, "imu_stray": 1}
    assert "/imu/data: dropped 1 of 12 messages: the same stamp again" in notes(report)


def test_without_header_stamps_the_times_of_recording_are_used(tmp_path, go2):
    def messages():
        for index in range(5):
            yield "/imu/data", START + index * 2 * MS, imu(0)
            yield "/joint_states", START + index * 2 * MS, joints(0, go2.joint_names)

    log, report = read(tmp_path, go2, messages())
    np.testing.assert_array_equal(log.stamp_ns, START + np.arange(5) * 2 * MS)
    assert "/imu/data: repaired 5 of 5 messages: no stamps (zero) throughout" in notes(report)


def test_streams_that_never_meet_say_when_they_were(tmp_path, go2):
    def messages():
        for index in range(5):
            yield "/imu/data", START + index, imu(START + index * 2 * MS)
            yield "/joint_states", START + index, joints(10**9 * 5 + index, go2.joint_names)

    with pytest.raises(TraceError, match=r"no IMU sample has a joint state .* 1700000000.000 .* 5.000"):
        read(tmp_path, go2, messages())


def test_single_topics_of_the_right_type_are_taken_whatever_their_name(tmp_path, go2):
    messages = [
        (topic.replace("/imu/data", "/livox/imu").replace("/joint_states", "/low"), t, m)
        for topic, t, m in normal(go2.joint_names)
    ]
    log, report = read(tmp_path, go2, messages)
    assert (report.imu_topic, report.joint_topic) == ("/livox/imu", "/low")
    assert len(log) == 20
    with pytest.raises(TraceError, match=r"no topic 'imu/data' \[sensor_msgs/msg/Imu\]; the bag has: /livox/imu"):
        read_bag(tmp_path / "bag", go2, Topics(imu="imu/data"))


def test_a_choice_between_topics_is_the_users(tmp_path, go2):
    messages = [*normal(go2.joint_names), ("/b/imu", START, imu(START)), ("/a/imu", START, imu(START))]
    renamed = [(topic.replace("/imu/data", "/c/imu"), t, m) for topic, t, m in messages]
    with pytest.raises(TraceError, match="several of type sensor_msgs/msg/Imu: /a/imu, /b/imu, /c/imu"):
        read(tmp_path, go2, renamed)
    assert len(read_bag(tmp_path / "bag", go2, Topics(imu="c/imu"))) == 20
    with pytest.raises(TraceError, match="fits several topics: /a/imu, /b/imu, /c/imu"):
        read_bag(tmp_path / "bag", go2, Topics(imu="imu"))


def test_a_bag_without_the_topics_lists_what_it_has(tmp_path, go2):
    messages = [("/chatter", START, text("hello")), ("/imu/data", START, imu(START))]
    with pytest.raises(
        TraceError, match=r"no topic 'joint_states' .*; the bag has: /chatter \[std_msgs/msg/String\], /imu/data"
    ):
        read(tmp_path, go2, messages)
    swapped = [("/imu/data", START, text("hello")), ("/joint_states", START, joints(START, go2.joint_names))]
    with pytest.raises(TraceError, match="topic /imu/data is std_msgs/msg/String, expected sensor_msgs/msg/Imu"):
        read_bag(make_bag(tmp_path / "swapped", swapped), go2)


def test_an_explicit_reference_must_be_there(tmp_path, go2):
    read(tmp_path, go2, normal(go2.joint_names))
    with pytest.raises(TraceError, match="no topic 'vicon'"):
        read_bag(tmp_path / "bag", go2, Topics(reference="vicon"))
    with pytest.raises(TraceError, match="no topic 'odom'"):
        read_odometry(tmp_path / "bag", "odom")


def test_imu_that_declares_a_field_unknown_is_refused(tmp_path, go2):
    messages = [
        ("/imu/data", START, imu(START, covariance=[-1.0] + [0.0] * 8)),
        ("/joint_states", START, joints(START, go2.joint_names)),
    ]
    with pytest.raises(
        TraceError, match=r"no usable message: marked as not reported \(covariance -1, REP-145\), 1 of 1"
    ):
        read(tmp_path, go2, messages)


def test_reference_without_twist_is_differentiated(tmp_path, go2):
    def messages():
        yield from normal(go2.joint_names, 500)
        for index in range(11):
            stamp = START + index * 100 * MS
            yield "/reference/odom", stamp, odometry(stamp, (0.0, 0.05 * index, 0.3), yaw=np.pi / 2)

    log, report = read(tmp_path, go2, messages())
    # Along world y at 0.5 m/s with the body turned left: forward in the body frame.
    np.testing.assert_allclose(log.reference.velocity, np.tile([0.5, 0.0, 0.0], (11, 1)), atol=1e-9)
    assert "differences of its positions" in notes(report)


def test_garbage_bytes_are_named(tmp_path, go2):
    from bagmaking import STORE
    from rosbags.rosbag2 import Writer

    with Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        first = writer.add_connection("/imu/data", IMU, typestore=STORE)
        second = writer.add_connection("/joint_states", JOINTS, typestore=STORE)
        writer.write(first, START, b"\x00\x01\x00\x00abc")
        writer.write(second, START, b"\x00\x01\x00\x00abc")
    with pytest.raises(TraceError, match="topic /imu/data, message 0: not a sensor_msgs/msg/Imu"):
        read_bag(tmp_path / "bag", go2)


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("storage", list(StoragePlugin))
def test_empty_bags(tmp_path, go2, storage):
    with pytest.raises(TraceError, match="empty: it has no topics") as error:
        read_bag(make_bag(tmp_path / "none", [], storage), go2)
    assert str(tmp_path / "none") in one_line(error)
    declared = make_bag(tmp_path / "bag", [], storage, {"/imu/data": IMU, "/joint_states": JOINTS})
    with pytest.raises(TraceError, match="empty: no messages on /imu/data"):
        read_bag(declared, go2)


def test_things_that_are_no_bag(tmp_path, go2):
    with pytest.raises(TraceError, match="no such file or directory"):
        read_bag(tmp_path / "missing", go2)
    (tmp_path / "folder").mkdir()
    with pytest.raises(TraceError, match="not a bag: the directory holds neither"):
        read_bag(tmp_path / "folder", go2)
    (tmp_path / "notes.txt").write_text("hello")
    for call in (read_bag, read_log):
        with pytest.raises(TraceError, match=r"not a (bag|log): expected"):
            call(tmp_path / "notes.txt", go2)
    (tmp_path / "old.bag").write_text("#ROSBAG V2.0")
    with pytest.raises(TraceError, match="rosbags-convert"):
        read_bag(tmp_path / "old.bag", go2)
    (tmp_path / "empty.mcap").write_bytes(b"")
    with pytest.raises(TraceError, match=r"truncated or damaged"):
        read_bag(tmp_path / "empty.mcap", go2)


@pytest.mark.parametrize("storage", list(StoragePlugin))
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95, 0.999])
def test_truncated_storage_is_one_line(tmp_path, go2, storage, share):
    path = make_bag(tmp_path / "bag", normal(go2.joint_names, 400), storage)
    file = next(file for file in path.iterdir() if file.suffix in (".mcap", ".db3"))
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    with pytest.raises(TraceError, match=r"truncated or damaged .*trace bag recover") as error:
        read_bag(path, go2)
    one_line(error)


def test_missing_metadata_points_to_recover(tmp_path, go2):
    path = make_bag(tmp_path / "bag", normal(go2.joint_names))
    (path / "metadata.yaml").unlink()
    with pytest.raises(TraceError, match="interrupted; rescue it: trace bag recover"):
        read_bag(path, go2)


def test_a_bag_without_its_storage_says_what_to_do(tmp_path, go2):
    path = make_bag(tmp_path / "bag", normal(go2.joint_names))
    (path / "bag.mcap").unlink()
    with pytest.raises(TraceError) as error:
        read_bag(path, go2)
    assert str(error.value) == f"{path}: metadata.yaml names bag.mcap, which is missing: copy it there"


def test_what_the_effort_is_can_be_said_of_any_log(tmp_path, go2):
    log = read_bag(make_bag(tmp_path / "bag", normal(go2.joint_names)), go2)
    log = replace(log, joint_torque=np.ones((len(log), 12)), torque_source="commanded_effort")
    for name in ("own", "log.npz", "log.csv"):
        path = tmp_path / name
        write_log(path, log, go2)
        assert read_log(path, go2)[0].torque_source == "commanded_effort"
        assert read_log(path, go2, settings=ReadSettings(joints="hold"))[0].torque_source == "commanded_effort"
        assert read_log(path, go2, settings=ReadSettings(effort="pd_target"))[0].torque_source == "pd_target"
        without, _ = read_log(path, go2, settings=ReadSettings(effort="none"))
        assert without.torque_source == "none"
        assert without.joint_torque is None
        if name != "own":
            with pytest.raises(TraceError, match="in the body's frame already: IMU mounting by urdf is for bags"):
                read_log(path, go2, settings=ReadSettings(imu_mounting="urdf"))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("storage_identifier: mcap", "storage_identifier: rocksdb", "Storage plugin 'rocksdb' not supported"),
        ("version: 9", "version: 99", "version 99 not supported"),
        ("bag.mcap", "gone.mcap", r"metadata\.yaml names gone\.mcap, which is missing: copy it there; rescue the rest"),
        ("rosbag2_bagfile_information", "something_else", "metadata key is missing"),
    ],
)
def test_odd_metadata_is_one_line(tmp_path, go2, before, after, message):
    path = make_bag(tmp_path / "bag", normal(go2.joint_names))
    metadata = path / "metadata.yaml"
    content = metadata.read_text()
    assert before in content
    metadata.write_text(content.replace(before, after))
    with pytest.raises(TraceError, match=message) as error:
        read_bag(path, go2)
    one_line(error)


def test_bare_storage_files_are_bags_too(tmp_path, go2):
    for storage, name in ((StoragePlugin.MCAP, "m"), (StoragePlugin.SQLITE3, "s")):
        path = make_bag(tmp_path / name, normal(go2.joint_names), storage)
        file = next(file for file in path.iterdir() if file.suffix in (".mcap", ".db3"))
        assert len(read_bag(file, go2)) == 20


def test_joints_can_be_held_as_on_the_robot(tmp_path, go2):
    def messages():
        for index in range(20):
            stamp = START + index * 2 * MS
            yield "/imu/data", stamp, imu(stamp)
            if index in (2, 6):
                yield "/joint_states", stamp, joints(stamp, go2.joint_names, np.full(12, float(index)))

    log, report = read(tmp_path, go2, messages(), settings=ReadSettings(joints="hold", joint_timeout=0.02))
    np.testing.assert_array_equal(log.joint_position[:, 0], [2.0] * 4 + [6.0] * 11)
    assert (report.exact_pairs, report.unpaired) == (2, 5)


def test_the_truth_is_not_taken_for_an_odometry_in_a_namespace(tmp_path):
    messages = [("/reference/odom", START, odometry(START)), ("/chatter", START, text("hello"))]
    path = make_bag(tmp_path / "bag", messages)
    with pytest.raises(TraceError, match=r"no topic 'odom' .*; the bag has: /chatter .*, /reference/odom"):
        read_odometry(path, "odom", "reference/odom")
    assert len(read_odometry(path, "reference/odom", "reference/odom")) == 1
    both = make_bag(tmp_path / "both", [*messages, ("/go2/odom", START, odometry(START, (1.0, 2.0, 3.0)))])
    assert read_odometry(both, "odom", "reference/odom").position.tolist() == [[1.0, 2.0, 3.0]]
