"""Bags read at once give bit for bit what the streams make of their messages, whatever is wrong with them."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
from bagmaking import IMU, JOINTS, MS, ODOMETRY, START, STORE, imu, joints, make_bag, normal, odometry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trace_ros.bags import at_once, read_bag, read_odometry, reading, write_bag
from trace_ros.bags.layout import read_groups
from trace_ros.bags.messages import read_odometry_messages
from trace_ros.bags.reading import BagReport, ReadSettings
from trace_ros.bags.storage import open_bag
from trace_ros.errors import TraceError
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.robot import RobotDescription

GO2 = RobotDescription.load("go2")
NAMES = tuple(GO2.reported_joint_names)
NAN = float("nan")


class Recording:
    """Messages as an open bag gives them."""

    def __init__(self, messages):
        self.items = [
            (
                SimpleNamespace(topic=topic),
                recorded,
                raw if isinstance(raw, bytes) else bytes(STORE.serialize_cdr(*raw)),
            )
            for topic, recorded, raw in ((t, r, m if isinstance(m, bytes) else (m[1], m[0])) for t, r, m in messages)
        ]

    def messages(self, *topics):
        return iter([item for item in self.items if not topics or item[0].topic in topics])


def clean(count=60, step=2 * MS, every=1, phase=0):
    """Two streams side by side; joint states every so many samples, at a phase (ns)."""
    out = []
    for k in range(count):
        stamp = START + k * step
        out.append(("/imu", stamp, imu(stamp, gyro=(0.01 * k, -0.2, 0.3), accel=(0.1, 0.01 * k, 9.8))))
        if k % every == 0:
            values = np.sin(np.arange(12) + 0.1 * k)
            at = stamp + phase
            out.append(("/joints", at, joints(at, NAMES, values, velocity=2 * values, effort=3 * values)))
    return out


def result(read, bag, options):
    report = BagReport("/imu", "/joints", None)
    try:
        paired = read(bag, report, GO2, options)
    except TraceError as error:
        return str(error)
    lines = [tuple(np.ascontiguousarray(value).tobytes() for value in vars(line).values()) for line in paired.lines]
    return lines, paired.faults, paired.exact, paired.made, paired.imu_messages, paired.joint_messages


def one_by_one(bag, options):
    return result(reading._one_by_one, bag, options)


def as_read(bag, options):
    source = "measured_effort" if options.use_effort else "none"
    return result(lambda *arguments: reading._read_samples(*arguments, source), bag, options)


def same(messages, options=None):
    """Both ways agree; returns whether the bag was read at once."""
    options, bag = options or ReadSettings(), Recording(messages)
    assert as_read(bag, options) == one_by_one(bag, options)
    return at_once.samples_at_once(bag, "/imu", "/joints", GO2, options) is not None


def message(item):
    return item[2][1]


def stamped(item, by_ns):
    topic, recorded, (kind, old) = item
    new = copy.deepcopy(old)
    total = new.header.stamp.sec * 10**9 + new.header.stamp.nanosec + by_ns
    new.header.stamp.sec, new.header.stamp.nanosec = divmod(max(total, 0), 10**9)
    return topic, recorded, (kind, new)


def changed(name, value):
    """A change of a field of one message, if it has it."""

    def change(item):
        topic, recorded, (kind, old) = item
        new = copy.deepcopy(old)
        if hasattr(new, name):
            setattr(new, name, value(getattr(new, name)))
        return [(topic, recorded, (kind, new))]

    return change


def with_number(name, index, number):
    def put(values):
        values = np.array(values, dtype=float)
        if len(values) > index:
            values[index] = number
        return values

    return changed(name, put)


def framed(frame):
    def change(item):
        topic, recorded, (kind, old) = item
        new = copy.deepcopy(old)
        new.header.frame_id = frame
        return [(topic, recorded, (kind, new))]

    return change


def nanoseconds(number):
    def put(header):
        header.stamp.nanosec = number
        return header

    return changed("header", put)


def gyro(number):
    def put(vector):
        vector.y = number
        return vector

    return changed("angular_velocity", put)


def reordered(item):
    topic, recorded, (kind, old) = item
    if kind != JOINTS or len(old.position) != len(old.name):
        return [item]
    new = copy.deepcopy(old)
    new.name = [*old.name[::-1], "arm"]
    for name in ("position", "velocity", "effort"):
        if len(getattr(old, name)) == len(old.name):
            setattr(new, name, np.append(getattr(old, name)[::-1], NAN))
    return [(topic, recorded, (kind, new))]


def part(item):
    topic, recorded, (kind, old) = item
    if kind != JOINTS:
        return [item]
    new = copy.deepcopy(old)
    for name in ("name", "position", "velocity", "effort"):
        setattr(new, name, getattr(old, name)[:6])
    return [(topic, recorded, (kind, new))]


def foreign(item):
    return [item, ("/joints", item[1], joints(item[1], ["gripper_left", "gripper_right"]))]


def raw(change):
    def spoil(item):
        topic, recorded, (kind, old) = item
        return [(topic, recorded, change(bytes(STORE.serialize_cdr(old, kind))))]

    return spoil


def big_endian(item):
    topic, recorded, (kind, old) = item
    return [(topic, recorded, bytes(STORE.serialize_cdr(old, kind, little_endian=False)))]


def dirty_padding(item):
    """Bytes between the fields mean nothing."""
    topic, recorded, (kind, old) = item
    data = bytearray(STORE.serialize_cdr(old, kind))
    if kind == IMU:
        end = 16 + len(old.header.frame_id) + 1
        data[end : 4 + -(-(end - 4) // 8) * 8] = b"\xa5" * (4 + -(-(end - 4) // 8) * 8 - end)
    return [(topic, recorded, bytes(data))]


AT_ONCE = {
    "as it is": lambda item: [item],
    "lost": lambda _item: [],
    "twice": lambda item: [item, item],
    "late": lambda item: [stamped(item, -7 * MS)],
    "early": lambda item: [stamped(item, MS // 2)],
    "no gyro": gyro(NAN),
    "infinite": gyro(float("inf")),
    "absurd": gyro(1e9),
    "orientation only": changed("angular_velocity_covariance", lambda _values: np.full(9, -1.0)),
    "another frame": framed("imu"),
    "frame of the same length": framed("FRAME"),
    "frame with an umlaut": framed("rücken"),
    "other order of names": reordered,
    "no position": with_number("position", 3, NAN),
    "absurd position": with_number("position", 3, -1e7),
    "too few positions": changed("position", lambda values: values[:-1]),
    "an arm": foreign,
    "a byte more": raw(lambda data: data + b"\0"),
    "big endian": big_endian,
    "padding of another writer": dirty_padding,
}
ONE_BY_ONE = {
    "without stamp": lambda item: [stamped(item, -(10**19))],
    "nanoseconds of two seconds": nanoseconds(2_000_000_000),
    "far ahead": lambda item: [stamped(item, 10**12)],
    "far back": lambda item: [stamped(item, -(10**12))],
    "velocity empty": changed("velocity", lambda values: values[:0]),
    "effort empty": changed("effort", lambda values: values[:0]),
    "effort short": changed("effort", lambda values: values[:-1]),
    "no velocity": with_number("velocity", 5, NAN),
    "in parts": part,
    "names without end": changed("name", lambda names: [*names[:-1], names[0]]),
    "truncated": raw(lambda data: data[:-9]),
    "much too long": raw(lambda data: data + bytes(40)),
    "no frame": raw(lambda data: data[:12] + b"\xff\xff\xff\x7f" + data[16:]),
    "frame is no text": raw(lambda data: data[:16] + b"\xff" + data[17:]),
    "empty": raw(lambda _data: b""),
}
CHANGES = AT_ONCE | ONE_BY_ONE


def spoilt(messages, changes):
    """Changes by place; the last ones first, so that places stay what they are."""
    messages = list(messages)
    for place, name in sorted(changes.items(), reverse=True):
        messages[place : place + 1] = CHANGES[name](messages[place])
    return messages


@pytest.mark.parametrize("name", AT_ONCE)
@pytest.mark.parametrize("place", [60, 61])
def test_what_is_wrong_with_a_message_itself_is_seen_at_once(name, place):
    assert same(spoilt(clean(), {place: name, 80: "as it is"}))


@pytest.mark.parametrize("name", ONE_BY_ONE)
@pytest.mark.parametrize("place", [40, 41])
def test_what_concerns_others_goes_through_the_streams(name, place):
    same(spoilt(clean(), {place: name}))


@pytest.mark.parametrize(("every", "phase"), [(1, 700_000), (2, 0), (3, -900_000), (10, 1), (20, 5)])
@pytest.mark.parametrize("joint", ["interpolate", "hold"])
def test_joint_states_of_another_rate(every, phase, joint):
    assert same(clean(120, every=every, phase=phase), ReadSettings(joints=joint))
    # An interval that is not interpolated over, and one that is not held over.
    same(clean(120, every=every, phase=phase), ReadSettings(joints=joint, joint_interval=0.003, joint_timeout=0.009))


def test_gaps_and_bursts_are_counted_as_the_streams_count_them():
    rng = np.random.default_rng(0)
    messages = clean(500)
    keep = rng.random(len(messages)) > 0.1
    keep[300:340] = False
    lossy = [item for item, kept in zip(messages, keep, strict=True) if kept]
    assert same(lossy)
    assert same([stamped(item, int(rng.integers(0, 1_900_000))) for item in messages])
    # Packets of five: all stamps of one within a fifth of a millisecond.
    bursts = [stamped(item, -(k // 2 % 5) * 1_950_000) for k, item in enumerate(messages)]
    assert same(bursts)


def test_one_stream_ahead_of_the_other():
    readings = [item for item in clean(300) if item[0] == "/imu"]
    states = [item for item in clean(300) if item[0] == "/joints"]
    for lead in (3, 60, 100, 200, 299):
        one_first = [*readings[:lead]]
        for reading_, state in zip([*readings[lead:], *[None] * lead], states, strict=True):
            one_first += [state] if reading_ is None else [state, reading_]
        same(one_first)
    assert not same([*readings, *states])


def test_settings_that_need_the_streams():
    assert not same(clean(), ReadSettings(imu_mounting="urdf", imu_frame=GO2.base_link))
    assert not same(clean(), ReadSettings(joint_wait=0.0))
    assert same(clean(), ReadSettings(use_effort=False))
    for delay in (0.012, 0.0031, -0.007, 0.1):
        assert same(clean(), ReadSettings(joint_delay=delay))
    assert same(clean(), ReadSettings(reset_on_time_jump=False))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.integers(0, 79), st.sampled_from(sorted(CHANGES)), max_size=6),
    st.sampled_from([(1, 0), (1, 300_000), (2, 0), (4, 1)]),
    st.booleans(),
)
def test_any_mixture_of_faults(changes, rate, follow):
    every, phase = rate
    messages = clean(80, every=every, phase=phase)
    changes = {place: name for place, name in changes.items() if place < len(messages)}
    same(spoilt(messages, changes), ReadSettings(reset_on_time_jump=follow))


def test_an_imu_that_is_turned_and_joints_of_other_signs(monkeypatch):
    turned = GO2.model_copy(
        update={
            "imu": GO2.imu.model_copy(update={"rpy": (0.1, -0.2, 3.0)}),
            "joint_messages": GO2.joint_messages.model_copy(
                update={"sign": {GO2.joint_names[4]: -1}, "offset": {GO2.joint_names[4]: 0.3}}
            ),
        }
    )
    monkeypatch.setattr(f"{__name__}.GO2", turned)
    assert any(turned.imu.rpy)
    assert same(clean())


def test_blocks_join(monkeypatch):
    monkeypatch.setattr(at_once, "_BLOCK", 7)
    assert same(spoilt(clean(), {20: "no gyro", 33: "other order of names", 34: "late", 57: "an arm"}))


def test_large_messages_are_decoded_a_few_at_a_time(monkeypatch):
    sizes = []

    def counted(raw, message_type):
        sizes.append(sum(map(len, raw)))
        return read_groups(raw, message_type)

    monkeypatch.setattr(at_once, "_BLOCK_BYTES", 3000)
    monkeypatch.setattr(at_once, "read_groups", counted)
    assert same(clean())
    assert len(sizes) > 5 and max(sizes) < 4500


def test_groups_hold_every_message_once_whatever_their_layout():
    raws = [Recording([item]).items[0][2] for item in spoilt(clean(), {3: "other order of names", 9: "big endian"})]
    states = [data for data, item in zip(raws, spoilt(clean(), {}), strict=True) if item[0] == "/joints"]
    groups = list(read_groups(states, JOINTS))
    assert sorted(np.concatenate([group.rows for group in groups]).tolist()) == list(range(len(states)))
    many = [
        bytes(STORE.serialize_cdr(imu(START + k)[1], IMU)).replace(b"frame", b"f%04d" % (k % 40)) for k in range(90)
    ]
    groups = list(read_groups(many, IMU))
    stamps = np.concatenate([group.stamp_ns for group in groups])[
        np.argsort(np.concatenate([group.rows for group in groups]))
    ]
    assert stamps.tolist() == [START + k for k in range(90)]


def test_odometry_with_other_frames_is_read_as_ever_and_the_first_bad_one_named():
    messages = [odometry(START + k * MS, (0.1 * k, 0.0, 0.3), (0.1, 0.0, 0.0), 0.01 * k)[1] for k in range(30)]
    for k in (4, 5, 20):
        messages[k].child_frame_id = "body"
        messages[k].pose.covariance = np.arange(36.0)
    serialised = [(7 + k, bytes(STORE.serialize_cdr(message, ODOMETRY))) for k, message in enumerate(messages)]
    columns = read_odometry_messages("/odom", serialised)
    for k, each in enumerate(messages):
        p, q, v = each.pose.pose.position, each.pose.pose.orientation, each.twist.twist.linear
        assert columns.stamp_ns[k] == START + k * MS
        assert columns.values["position"][k].tolist() == [p.x, p.y, p.z]
        assert columns.values["orientation"][k].tolist() == [q.x, q.y, q.z, q.w]
        assert columns.values["velocity"][k].tolist() == [v.x, v.y, v.z]
        assert columns.values["covariance"][k].tobytes() == np.asarray(each.pose.covariance).tobytes()
    for k in (9, 17):
        serialised[k] = (k, serialised[k][1][: 50 + k])
    with pytest.raises(TraceError, match="topic /odom, message 9: not a nav_msgs/msg/Odometry"):
        read_odometry_messages("/odom", serialised)


def test_a_bag_on_disk_is_read_at_once(tmp_path, monkeypatch):
    messages = list(normal(NAMES, 40))
    messages += [("/reference/odom", START + k * 2 * MS, odometry(START + k * 2 * MS)) for k in range(40)]
    path = make_bag(tmp_path / "bag", messages)
    expected = read_bag(path, GO2)
    assert expected.joint_torque is not None
    monkeypatch.setattr(reading, "SensorStreams", None)  # the streams are not asked
    log = read_bag(path, GO2)
    assert len(log) == 40
    np.testing.assert_array_equal(log.joint_torque, expected.joint_torque)
    assert len(read_odometry(path, "reference/odom")) == 40


def test_what_is_written_at_once_is_what_the_serialiser_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("trace_ros.bags.writing._BLOCK", 8)
    rng = np.random.default_rng(0)
    n = 30
    velocity, torque = rng.normal(size=(n, 12)), rng.normal(size=(n, 12))
    velocity[5:11], torque[9:20] = NAN, NAN
    stamp_ns = START + np.arange(n) * 2 * MS
    truth = Trajectory(stamp_ns, rng.normal(size=(n, 3)), rng.normal(size=(n, 4)), rng.normal(size=(n, 3)))
    log = SensorLog(
        stamp_ns, *(rng.normal(size=(n, k)) for k in (3, 3, 12)), velocity, torque, "pd_target", "go2", truth
    )
    write_bag(tmp_path / "bag", log, GO2)
    with open_bag(tmp_path / "bag") as bag:
        messages = list(bag.messages())
    assert len(messages) == 3 * n
    for connection, recorded, data in messages:
        message = STORE.deserialize_cdr(data, connection.msgtype)
        assert bytes(STORE.serialize_cdr(message, connection.msgtype)) == data
        at = (recorded - START) // (2 * MS)
        assert message.header.stamp.sec * 10**9 + message.header.stamp.nanosec == recorded == stamp_ns[at]
        if connection.msgtype == JOINTS:
            assert (len(message.velocity) == 12) == (not 5 <= at < 11)
            assert (len(message.effort) == 12) == (not 9 <= at < 20)
        if connection.msgtype == IMU:
            assert message.orientation_covariance[0] == -1.0
            assert message.orientation.w == 1.0
        if connection.msgtype == ODOMETRY:
            assert message.twist.covariance[[21, 28, 35]].tolist() == [-1.0] * 3
    again = read_bag(tmp_path / "bag", GO2)
    np.testing.assert_array_equal(again.joint_position, log.joint_position)
    np.testing.assert_array_equal(again.linear_acceleration, log.linear_acceleration)
    np.testing.assert_array_equal(again.reference.position, truth.position)
