"""What a node answers to arguments that are none of ROS's."""

import subprocess
import sys
from collections.abc import Callable

import pytest


def node(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"trace_ros.nodes.{name}_node", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("name", "parameter"), [("replay", "rate [1.0]: speed"), ("recorder", "one of zstd, lz4")])
def test_help_lists_the_parameters_and_starts_nothing(name: str, parameter: str) -> None:
    done = node(name, "--help")
    assert done.returncode == 0
    assert parameter in done.stdout
    assert not done.stderr


def test_an_argument_that_nobody_reads_is_refused() -> None:
    done = node("replay", "my_bag", "--ros-args", "-p", "rate:=2.0")
    assert done.returncode == 2
    (line,) = (done.stdout + done.stderr).splitlines()
    assert "unknown argument 'my_bag': parameters are given as --ros-args" in line


def test_a_managed_node_says_what_it_waits_for(start_node: Callable) -> None:
    start_node("estimator_node").wait_for("unconfigured: waiting for the transitions")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("-p", "use_sim_time:=5"), "use_sim_time"),
        (("-p", "rate:=fast"), "parameter 'rate' is a text, expected a number"),
        (("-p", "bag:=/nowhere"), "/nowhere"),
        (("-r", "__node:=9nodes"), "9nodes"),
        (("-r", "imu/data:=imu//data"), "imu//data"),
        (("--params-file", "/nowhere.yaml"), "nowhere.yaml"),
        (("--log-level", "loud"), "loud"),
    ],
)
def test_whatever_is_wrong_at_the_start_is_one_line(arguments: tuple[str, ...], complaint: str) -> None:
    done = node("replay", "--ros-args", *arguments)
    assert done.returncode == 2
    told = [line for line in (done.stdout + done.stderr).splitlines() if "FATAL" in line]
    assert len(told) == 1
    assert complaint in told[0]
    assert "Traceback" not in done.stdout + done.stderr
