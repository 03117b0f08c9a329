import json
from dataclasses import replace

import pytest
from commands import run_trace
from trajectories import sensor_log, walk

from trace_ros.bags import write_bag
from trace_ros.robot import RobotDescription


@pytest.fixture
def trace(monkeypatch, capsys):
    return lambda *arguments: run_trace(monkeypatch, capsys, *arguments)


@pytest.fixture
def standing(tmp_path):
    """A robot that stands for two seconds, and nothing else."""
    robot = RobotDescription.load("go2")
    log = sensor_log(walk(2.0))
    still = replace(
        log,
        angular_velocity=0.001 * log.angular_velocity,
        linear_acceleration=0.01 * log.linear_acceleration + [0.0, 0.0, 9.7],
        joint_position=robot.nominal_joint_positions + 0 * log.joint_position,
        joint_velocity=0 * log.joint_position,
        reference=None,
    )
    write_bag(tmp_path / "bag", still, robot)
    write_bag(tmp_path / "down", replace(still, linear_acceleration=-still.linear_acceleration), robot)
    return tmp_path


def test_one_page_one_verdict(standing, trace):
    result = trace("bag", "check", standing / "bag", "--json", standing / "check.json")
    assert result.code == 0, result.err
    for words in ("/imu/data", "500.0 Hz", "0 lost", "gravity", "remark little_motion", "-> record half a minute"):
        assert words in result.out
    assert "verdict: fit with remarks" in result.out
    found = json.loads((standing / "check.json").read_text())
    assert found["verdict"] == "fit with remarks"
    assert {"level", "name", "subject", "text", "remedy"} == set(found["findings"][0])
    assert found["values"]["/joint_states"]["messages"] == 1000


def test_a_log_that_is_not_fit_is_exit_code_2_and_still_told(standing, trace):
    result = trace("bag", "check", standing / "down", "--json", standing / "check.json")
    assert result.code == 2
    assert "fault  gravity: gravity: it points down" in result.out
    assert "verdict: not fit" in result.out
    assert result.err == f"error: {standing / 'down'}: not fit (gravity)\n"
    assert json.loads((standing / "check.json").read_text())["verdict"] == "not fit"


def test_limits_come_from_a_file(standing, trace):
    (standing / "limits.yaml").write_text("walking: 0.001\nturning: 0.0001\ngravity: 0.001\nweight: [0.001, 100]\n")
    result = trace("bag", "check", standing / "bag", "--limits", standing / "limits.yaml")
    assert "wants calibration" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{t}/none",), "{t}/none: no such file or directory"),
        (("{t}/bag", "--robot", "cow"), "unknown robot 'cow'"),
        (("{t}/bag", "--reference-topic", "truth"), "no topic 'truth'"),
        (("{t}/bag", "--limits", "{t}/none.yaml"), "none.yaml"),
        (("{t}/bag", "--json", "{t}"), "{t}: is a folder, expected a file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(standing, trace, arguments, message):
    result = trace("bag", "check", *(argument.format(t=standing) for argument in arguments))
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert message.format(t=standing) in result.err


def test_an_unknown_limit_is_named(standing, trace):
    (standing / "limits.yaml").write_text("legs: 5\n")
    result = trace("bag", "check", standing / "bag", "--limits", standing / "limits.yaml")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "unknown key 'legs'" in result.err
