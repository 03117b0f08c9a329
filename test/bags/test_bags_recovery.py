import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest
from bagmaking import IMU, JOINTS, START, make_bag, normal, text
from mcap.reader import make_reader
from rosbags.rosbag2 import Reader, StoragePlugin

from trace_ros.bags import bag_info, read_bag, recover_bag
from trace_ros.errors import TraceError


@pytest.fixture(scope="module")
def recording(tmp_path_factory, go2):
    """A good recording of 16 s in about eight chunks."""
    path = tmp_path_factory.mktemp("recording") / "bag"
    return make_bag(path, [("/note", START, text("hello")), *normal(go2.joint_names, 8000)])


@pytest.fixture
def bag(recording, tmp_path):
    """A copy of it to spoil."""
    return shutil.copytree(recording, tmp_path / "bag")


def mcap(path):
    return next(path.glob("*.mcap"))


@pytest.mark.parametrize("share", [0.3, 0.7, 0.99, 1.0])
def test_every_complete_chunk_of_a_cut_recording_returns(tmp_path, go2, bag, share):
    whole = read_bag(bag, go2)
    (bag / "metadata.yaml").unlink()
    file = mcap(bag)
    before = file.read_bytes()
    before = before[: int(len(before) * share)]
    file.write_bytes(before)
    report = recover_bag(bag, tmp_path / "saved")
    assert file.read_bytes() == before
    log = read_bag(tmp_path / "saved", go2)
    assert report.messages["/imu/data"] >= len(log) > 0
    # What returns is a beginning of the recording, unchanged.
    np.testing.assert_array_equal(log.stamp_ns, whole.stamp_ns[: len(log)])
    np.testing.assert_array_equal(log.angular_velocity, whole.angular_velocity[: len(log)])
    assert report.messages["/note"] == 1
    assert ("ends without a footer" in "\n".join(report.notes)) == (share < 1.0)
    if share == 1.0:
        assert len(log) == len(whole)
    else:
        # Chunks are 1 MiB; no more than one is lost.
        lost = len(whole) * share - len(log)
        assert lost < 1.2 * 2**20 / (file.stat().st_size / (len(whole) * share))


def test_a_damaged_chunk_costs_only_itself(tmp_path, go2, bag):
    (bag / "metadata.yaml").unlink()
    file = mcap(bag)
    data = bytearray(file.read_bytes())
    # The length of the first message in the second chunk becomes one that cannot be.
    with file.open("rb") as opened:
        second = make_reader(opened).get_summary().chunk_indexes[1].chunk_start_offset
    position = second + 9 + 40
    assert data[position] == 5
    data[position + 1 : position + 9] = b"\xff" * 8
    file.write_bytes(bytes(data))
    report = recover_bag(bag, tmp_path / "saved")
    assert "skipped 1 damaged chunks" in "\n".join(report.notes)
    assert 5500 < report.messages["/imu/data"] < 7999
    assert len(read_bag(tmp_path / "saved", go2)) > 5500


@pytest.mark.parametrize("size", [0, 5, 60])
def test_nothing_to_rescue_leaves_nothing_behind(tmp_path, bag, size):
    (bag / "metadata.yaml").unlink()
    mcap(bag).write_bytes(mcap(bag).read_bytes()[:size])
    with pytest.raises(TraceError, match="no complete message can be recovered"):
        recover_bag(bag, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_not_an_mcap_file(tmp_path):
    (tmp_path / "fake.mcap").write_bytes(b"hello world, this is no recording at all")
    with pytest.raises(TraceError, match=r"no complete message can be recovered \(fake.mcap: unreadable"):
        recover_bag(tmp_path / "fake.mcap", tmp_path / "saved")


def test_paths_are_checked(tmp_path, bag):
    with pytest.raises(TraceError, match="no such file"):
        recover_bag(tmp_path / "missing", tmp_path / "saved")
    (tmp_path / "folder").mkdir()
    with pytest.raises(TraceError, match="nothing to recover"):
        recover_bag(tmp_path / "folder", tmp_path / "saved")
    with pytest.raises(TraceError, match="exists already"):
        recover_bag(bag, tmp_path / "folder")


def test_the_default_output_is_beside_the_source(bag):
    assert recover_bag(bag).output == bag.with_name("bag_recovered")
    with Reader(bag) as first, Reader(bag.with_name("bag_recovered")) as second:
        assert [(c.topic, t, d) for c, t, d in first.messages()] == [(c.topic, t, d) for c, t, d in second.messages()]


def test_committed_sqlite_messages_return(tmp_path, go2):
    path = make_bag(tmp_path / "bag", normal(go2.joint_names, 100), StoragePlugin.SQLITE3)
    (path / "metadata.yaml").unlink()
    report = recover_bag(path, tmp_path / "saved")
    assert report.messages == {"/imu/data": 100, "/joint_states": 100}
    assert len(read_bag(tmp_path / "saved", go2)) == 100


def test_an_interrupted_sqlite_transaction_is_rolled_back_and_explained(tmp_path, go2):
    path = make_bag(tmp_path / "bag", normal(go2.joint_names, 100), StoragePlugin.SQLITE3)
    (path / "metadata.yaml").unlink()
    # A writer that dies inside a transaction, large enough that pages reached the disk, with its journal left behind.
    script = (
        "import os, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('PRAGMA cache_size=5'); c.execute('BEGIN')\n"
        "add = 'INSERT INTO messages(topic_id, timestamp, data) VALUES (1, 0, zeroblob(500))'\n"
        "for i in range(2000): c.execute(add)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path / "bag.db3")], check=False)
    assert (path / "bag.db3-journal").is_file()
    report = recover_bag(path, tmp_path / "saved")
    assert report.messages == {"/imu/data": 100, "/joint_states": 100}


def test_a_sqlite_recording_without_a_commit_says_so(tmp_path):
    connection = sqlite3.connect(tmp_path / "bag.db3")
    connection.execute("CREATE TABLE topics(id INTEGER, name TEXT, type TEXT)")
    connection.execute("CREATE TABLE messages(id INTEGER, topic_id INTEGER, timestamp INTEGER, data BLOB)")
    connection.commit()
    connection.close()
    with pytest.raises(TraceError, match="no transaction was ever committed"):
        recover_bag(tmp_path / "bag.db3", tmp_path / "saved")


def test_a_killed_writer_loses_only_what_was_not_flushed(tmp_path):
    """A process that closes a chunk every 50 messages is killed in the middle of the next ones."""
    script = f"""
import sys, time
sys.path[:0] = {[os.fspath(p) for p in sys.path if p]!r}
from bagmaking import STORE, imu, START, MS
from rosbags.rosbag2 import Writer, StoragePlugin
writer = Writer({str(tmp_path / "bag")!r}, version=9, storage_plugin=StoragePlugin.MCAP)
writer.open()
topic = writer.add_connection("/imu/data", {IMU!r}, typestore=STORE)
for i in range(100000):
    writer.write(topic, START + i * 2 * MS, STORE.serialize_cdr(imu(START + i * 2 * MS)[1], {IMU!r}))
    if i % 50 == 49:
        writer.storage.close_chunk()
        writer.storage.bio.flush()
        print(i + 1, flush=True)
        time.sleep(0.01)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    flushed = 0
    begin = time.monotonic()
    while flushed < 500 and time.monotonic() - begin < 60:
        flushed = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    flushed = int((rest.split() or [flushed])[-1])
    report = recover_bag(tmp_path / "bag", tmp_path / "saved")
    assert report.messages["/imu/data"] >= flushed
    assert report.duration_s == pytest.approx((report.messages["/imu/data"] - 1) * 0.002)
    assert bag_info(tmp_path / "saved").messages == report.messages["/imu/data"]


def test_custom_message_types_return_with_their_definition(tmp_path):
    from rosbags.rosbag2 import Writer
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg("float64 grip\nstring note", "acme_msgs/msg/Foot"))
    message = store.types["acme_msgs/msg/Foot"](1.5, "hard")
    with Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        topic = writer.add_connection("/foot", "acme_msgs/msg/Foot", typestore=store)
        writer.write(topic, START, store.serialize_cdr(message, "acme_msgs/msg/Foot"))
    (tmp_path / "bag" / "metadata.yaml").unlink()
    assert recover_bag(tmp_path / "bag", tmp_path / "saved").messages == {"/foot": 1}
    with Reader(tmp_path / "saved") as reader:
        assert "float64 grip" in reader.topics["/foot"].msgdef.data


def test_info_tells_rates_gaps_and_joints(tmp_path, go2):
    messages = [m for m in normal(go2.joint_names, 100) if m[1] // 2_000_000 % 100 != 50]
    info = bag_info(make_bag(tmp_path / "bag", messages, declare={"/unused": JOINTS}))
    topics = {topic.name: topic for topic in info.topics}
    assert set(topics) == {"/imu/data", "/joint_states", "/unused"}
    assert topics["/imu/data"].rate_hz == pytest.approx(500)
    assert topics["/imu/data"].messages == 99
    assert topics["/imu/data"].longest_gap_s == pytest.approx(0.004)
    assert topics["/imu/data"].duration_s == pytest.approx(0.198)
    assert topics["/joint_states"].joint_names == go2.joint_names
    assert topics["/joint_states"].fields == ("position", "velocity", "effort")
    assert topics["/unused"].messages == 0
    assert (info.storage, info.messages, info.start_ns) == ("mcap", 198, START)
    with pytest.raises(TraceError, match="no such file"):
        bag_info(tmp_path / "missing")
