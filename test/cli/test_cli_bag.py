import json

import numpy as np
import pytest
from commands import run_trace
from trajectories import sensor_log, walk

from trace_ros.bags import ReadSettings, read_bag, write_bag
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription

LOG = sensor_log(walk(1.0))


@pytest.fixture
def trace(monkeypatch, capsys):
    return lambda *arguments: run_trace(monkeypatch, capsys, *arguments)


@pytest.fixture
def bag(tmp_path):
    write_bag(tmp_path / "walk", LOG, RobotDescription.load("go2"))
    return tmp_path / "walk"


def test_info(bag, trace, tmp_path):
    result = trace("bag", "info", bag, "--json", tmp_path / "info.json")
    assert result.code == 0, result.err
    for word in ("/imu/data", "sensor_msgs/JointState", "500.0", "mcap, 1500 messages", "FL_hip_joint"):
        assert word in result.out
    assert "torque is commanded effort" in result.out
    info = json.loads((tmp_path / "info.json").read_text())
    assert {topic["name"]: topic["messages"] for topic in info["topics"]} == dict.fromkeys(
        ("/imu/data", "/joint_states", "/reference/odom"), 500
    )


def test_recover(bag, trace, tmp_path):
    (bag / "metadata.yaml").unlink()
    before = trace("bag", "info", bag)
    assert before.code == 2
    assert f"trace bag recover {bag}\n" in before.err
    result = trace("bag", "recover", bag, "--output", tmp_path / "saved", "--json", tmp_path / "r.json")
    assert result.code == 0, result.err
    assert str(tmp_path / "saved") in result.out
    assert json.loads((tmp_path / "r.json").read_text())["messages"]["/imu/data"] == 500
    assert len(read_bag(tmp_path / "saved", RobotDescription.load("go2"))) == 500


def test_names_with_brackets_are_shown_as_they_are(bag, trace):
    odd = bag.with_name("[red]walk")
    bag.rename(odd)
    result = trace("bag", "info", odd)
    assert result.code == 0, result.err
    assert "[red]walk:" in "".join(result.out.split())  # the title wraps where the path is long


def test_convert_there_and_back(bag, trace, tmp_path):
    for source, target, more in (
        (bag, tmp_path / "a", ("--storage", "sqlite3")),
        (tmp_path / "a", tmp_path / "b.npz", ()),
        (tmp_path / "b.npz", tmp_path / "c.csv", ()),
        (tmp_path / "c.csv", tmp_path / "d", ()),
    ):
        result = trace("bag", "convert", source, target, *more)
        assert result.code == 0, result.err
        assert str(target) in result.out
    assert (tmp_path / "a" / "a.db3").is_file()
    again = read_bag(tmp_path / "d", RobotDescription.load("go2"))
    assert (again.joint_torque == LOG.joint_torque).all()
    assert (again.stamp_ns == LOG.stamp_ns).all()


def test_an_imu_elsewhere_is_moved_as_the_node_moves_it(bag, trace, tmp_path):
    go2 = RobotDescription.load("go2")
    mounted = ("--imu-mounting", "urdf", "--imu-frame", "base_link", "--torque-source", "none")
    result = trace("bag", "convert", bag, tmp_path / "moved.npz", *mounted)
    assert result.code == 0, result.err
    moved = SensorLog.load(tmp_path / "moved.npz")
    expected = read_bag(bag, go2, settings=ReadSettings(imu_mounting="urdf", imu_frame="base_link", effort="none"))
    np.testing.assert_array_equal(moved.linear_acceleration, expected.linear_acceleration)
    assert np.abs(moved.linear_acceleration - LOG.linear_acceleration).max() > 1e-3
    assert moved.joint_torque is None
    assert "for .npz and .csv" in trace("bag", "convert", bag, tmp_path / "copy", *mounted).err
    assert "--imu-frame 'imu' is a link or a frame" in trace("bag", "check", bag, "--imu-frame", "imu").err
    assert "--imu-mounting 'urd' is none of robot, urdf, tf" in trace("bag", "check", bag, "--imu-mounting", "urd").err
    assert "'imu7'" in trace("bag", "check", bag, "--imu-mounting", "urdf", "--imu-frame", "imu7").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("info", "{t}/none"), "{t}/none: no such file or directory"),
        (("recover", "{t}/none"), "{t}/none: no such file or directory"),
        (("recover", "{t}/walk", "-o", "{t}/walk"), "{t}/walk: exists already"),
        (("recover", "{t}/walk", "-o", "{t}/x", "--storage", "tape"), "--storage 'tape' is none of mcap, sqlite3"),
        (("convert", "{t}/walk", "{t}/walk"), "{t}/walk: exists already"),
        (("info", "{t}/" + 300 * "x"), "File name too long"),
        (("info", "{t}/[/red]"), "{t}/[/red]: no such file or directory"),
        (("info", "{t}/two\nlines"), "{t}/two lines: no such file or directory"),
        (("info", "{t}/walk", "--json", "{t}"), "{t}: is a folder, expected a file"),
        (("recover", "{t}/walk", "-o", "{t}/x", "--json", "{t}/walk/walk.mcap/r.json"), "walk.mcap is not a folder"),
        (("convert", "{t}/none", "{t}/x"), "{t}/none: no such file or directory"),
        (("convert", "{t}/walk", "{t}/x.npz", "--joint-topic", "legs"), "no topic 'legs'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(bag, trace, tmp_path, arguments, message):
    assert bag.is_dir()
    result = trace("bag", *(argument.format(t=tmp_path) for argument in arguments))
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert message.format(t=tmp_path) in result.err
