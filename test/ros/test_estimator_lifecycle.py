"""The estimator node as a managed node: every transition, every refusal, and a clean end from every state."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from conftest import START_LIMIT_S, wait_until
from lifecycle_msgs.msg import Transition
from std_srvs.srv import Trigger

from trace_ros.resources import config_directory

CONFIGURE, CLEANUP = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP
ACTIVATE, DEACTIVATE = Transition.TRANSITION_ACTIVATE, Transition.TRANSITION_DEACTIVATE


def test_transitions_and_invalid_requests(start_node: Callable, client, model: Path) -> None:
    node = start_node("estimator_node", model=model)
    assert client.state() == "unconfigured"
    reset = client.call(Trigger, "/estimator/reset", Trigger.Request())
    assert not reset.success
    assert "unconfigured" in reset.message

    assert not client.change_state(ACTIVATE)
    assert node.lines("refused: activate is not possible in state 'unconfigured'")
    assert client.change_state(CONFIGURE)
    assert client.state() == "inactive"
    for name in (
        "FL   FL_hip_joint, FL_thigh_joint, FL_calf_joint",
        "RR   RR_hip_joint, RR_thigh_joint, RR_calf_joint",
    ):
        assert len(node.lines(name)) == 1
    refused = client.set_parameter("robot", "another")
    assert not refused.successful
    assert "robot is fixed while the node is at work" in refused.reason
    assert client.set_parameter("publish_tf", False).successful

    assert not client.change_state(CONFIGURE)
    for _ in range(2):
        assert client.change_state(ACTIVATE)
        assert client.state() == "active"
        assert client.call(Trigger, "/estimator/reset", Trigger.Request()).success
        assert not client.change_state(CLEANUP)
        assert client.change_state(DEACTIVATE)
        assert client.state() == "inactive"
    assert client.change_state(CLEANUP)
    assert client.state() == "unconfigured"
    assert client.set_parameter("odom_frame", "world").successful

    assert client.change_state(CONFIGURE)
    assert client.change_state(ACTIVATE)
    assert client.change_state(Transition.TRANSITION_ACTIVE_SHUTDOWN)
    assert client.state() == "finalized"
    assert not client.change_state(CONFIGURE)
    assert node.process.poll() is None
    assert "Traceback" not in node.log()
    assert node.interrupt() == 0


def test_configure_refuses_in_one_line_and_can_be_mended(
    start_node: Callable, client, model: Path, tmp_path: Path
) -> None:
    other = yaml.safe_load((config_directory() / "robots" / "go2.yaml").read_text())
    other["urdf"] = str(config_directory() / "robots" / "go2.urdf")
    other["policy"] = None
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    (tmp_path / "go2.yaml").write_text(yaml.safe_dump(other | {"foot_radius": 0.03}))
    (tmp_path / "broken.yaml").write_text(yaml.safe_dump(other | {"foot_radios": 0.03}))
    (tmp_path / "text.pt").write_text("not a model")
    node = start_node("estimator_node", model=model)
    good = {"robot": "go2", "model": str(model)}
    cases = [
        ({"robot": "go7"}, "unknown robot 'go7': known are"),
        ({"robot": str(tmp_path / "broken.yaml")}, "broken.yaml: unknown key 'foot_radios'"),
        ({"robot": str(tmp_path / "other.yaml")}, "trained for robot 'go2', not 'other'"),
        ({"robot": str(tmp_path / "go2.yaml")}, "trained for a go2 of other dimensions"),
        ({"model": "nowhere/trace.pt"}, "nowhere/trace.pt: no such model file"),
        ({"model": str(tmp_path / "text.pt")}, "text.pt: not a TorchScript model"),
        ({"odom_frame": ""}, "parameter 'odom_frame' is empty"),
        ({"odom_frame": "/odom"}, "'odom_frame' is '/odom': frames have no leading slash"),
        ({"odom_frame": "base_link"}, "'odom_frame' and 'base_link_frame' are both 'base_link'"),
    ]
    for count, (changes, text) in enumerate(cases, start=1):
        for name, value in (good | changes).items():
            assert client.set_parameter(name, value).successful
        assert not client.change_state(CONFIGURE)
        assert client.state() == "unconfigured"
        complaints = node.lines("not configured: ")
        assert len(complaints) == count
        assert text in complaints[-1]
    for name, value in (good | {"odom_frame": "odom"}).items():
        assert client.set_parameter(name, value).successful
    assert client.change_state(CONFIGURE)
    assert "Traceback" not in node.log()
    assert node.interrupt() == 0


def test_a_bad_parameter_at_the_start_can_be_mended(start_node: Callable, client, model: Path) -> None:
    node = start_node("estimator_node", model=model, joint_timeout=-1.0)
    assert not client.change_state(CONFIGURE)
    assert len(node.lines("not configured: ")) == 1
    assert "parameter 'joint_timeout' is -1.0, expected 0 to 10 s" in node.lines("not configured: ")[0]
    assert client.set_parameter("joint_timeout", 0.05).successful
    assert client.change_state(CONFIGURE)
    assert node.interrupt() == 0


def test_autostart_needs_nobody(start_node: Callable, client, model: Path) -> None:
    """As after a respawn: no request of a launch file is needed."""
    node = start_node("estimator_node", model=model, autostart=True)
    node.wait_for("active: waiting for /imu/data and /joint_states")
    assert not node.lines("unconfigured: waiting")
    assert client.state() == "active"
    assert client.change_state(DEACTIVATE)
    assert client.state() == "inactive"  # and not active again by itself
    assert node.interrupt() == 0


def test_autostart_that_fails_says_why_and_can_be_mended(start_node: Callable, client, model: Path) -> None:
    node = start_node("estimator_node", model="nowhere.pt", autostart=True)
    node.wait_for("not configured: ")
    assert "nowhere.pt: no such model file" in node.lines("not configured: ")[0]
    assert client.state() == "unconfigured"
    assert client.set_parameter("model", str(model)).successful
    assert client.change_state(CONFIGURE)
    assert client.change_state(ACTIVATE)
    assert node.interrupt() == 0


def test_an_unknown_parameter_is_refused(start_node: Callable, client, model: Path, tmp_path: Path) -> None:
    (tmp_path / "parameters.yaml").write_text("/**/estimator:\n  ros__parameters: {robott: go2}\n")
    node = start_node("estimator_node", "--params-file", str(tmp_path / "parameters.yaml"), model=model)
    assert not client.change_state(CONFIGURE)
    assert len(node.lines("not configured: ")) == 1
    assert "unknown parameter 'robott': did you mean 'robot'?" in node.lines("not configured: ")[0]


def test_a_bad_parameter_file_is_one_line(start_node: Callable, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("/**:\n  ros__parameters: [")
    names = ("none.yaml", "broken.yaml")
    nodes = [start_node("path_node", "--params-file", str(tmp_path / name)) for name in names]
    for node, name in zip(nodes, names, strict=True):
        assert node.wait() == 2
        assert name in node.lines("FATAL")[0]
        assert "Traceback" not in node.log()


@pytest.mark.parametrize("module", ["estimator_node", "path_node", "recorder_node", "replay_node"])
def test_ctrl_c_ends_cleanly(module: str, start_node: Callable, client, model: Path, bag: Path, tmp_path: Path) -> None:
    parameters = {
        "estimator_node": {"model": model},
        "path_node": {},
        "recorder_node": {"output": tmp_path / "out"},
        "replay_node": {"bag": bag},
    }[module]
    transitions: list[list[int]] = [[]]
    if module == "estimator_node":
        transitions = [[], [CONFIGURE, ACTIVATE]]
    nodes = [start_node(module, "-r", f"__node:=n{index}", **parameters) for index in range(len(transitions))]
    for index, (node, steps) in enumerate(zip(nodes, transitions, strict=True)):
        if module == "estimator_node":
            client.state(f"/n{index}")
        else:
            _wait_for_node(client, f"n{index}")
        for step in steps:
            assert client.change_state(step, f"/n{index}")
        assert node.interrupt() == 0
        assert "Traceback" not in node.log()


def _wait_for_node(client, name: str) -> None:
    wait_until(lambda: name in client.node.get_node_names(), START_LIMIT_S, f"a node {name}")
    time.sleep(0.2)
