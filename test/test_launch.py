"""The launch files against the package: arguments, executables, files, parameters.

Where ``launch`` can be imported, the descriptions are also built and their actions looked at.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
RENAMED = {"imu_topic", "joint_states_topic", "odom_topic"}
SHARED = {"estimator", "engine", "params_file", "use_sim_time", "autostart", "use_respawn", "log_level"} | RENAMED
COMMON = SHARED | {"robot", "model", "namespace"}
ARGUMENTS = {
    "estimator.launch.py": COMMON,
    "replay.launch.py": COMMON | {"bag", "rate", "loop", "subscribers", "rviz"},
    "fleet.launch.py": SHARED | {"robots"},
    "record.launch.py": {"bag", "topics", "params_file", "namespace", "use_sim_time", "log_level"},
}
HAS_LAUNCH = all(importlib.util.find_spec(name) is not None for name in ("launch", "launch_ros"))


def console_scripts() -> dict[str, str]:
    """Entry points as setup.py declares them."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "entry_points":
            scripts = ast.literal_eval(node.value)["console_scripts"]
            return dict(entry.replace(" ", "").split("=") for entry in scripts)
    raise AssertionError("setup.py declares no entry points")


def calls(path: Path, name: str) -> list[ast.Call]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name]


def keyword(call: ast.Call, name: str) -> object:
    for item in call.keywords:
        if item.arg == name and isinstance(item.value, ast.Constant):
            return item.value.value
    return None


def test_every_launch_file_is_known() -> None:
    assert {path.name for path in (ROOT / "launch").glob("*.launch.py")} == set(ARGUMENTS)


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_arguments_executables_and_files(name: str) -> None:
    path = ROOT / "launch" / name
    declared = calls(path, "DeclareLaunchArgument")
    names = [call.args[0].value for call in declared if isinstance(call.args[0], ast.Constant)]
    assert set(names) == ARGUMENTS[name]
    assert len(names) == len(set(names))
    assert all(keyword(call, "description") for call in declared)
    used = {call.args[0].value for call in calls(path, "LaunchConfiguration") if isinstance(call.args[0], ast.Constant)}
    assert used <= set(names)
    scripts = console_scripts()
    nodes = calls(path, "Node") + calls(path, "LifecycleNode")
    ours = [keyword(call, "executable") for call in nodes if keyword(call, "package") == "trace_ros"]
    assert ours or name == "fleet.launch.py"  # which includes another
    for executable in ours:
        module, function = scripts[str(executable)].split(":")
        source = ROOT / f"{module.replace('.', '/')}.py"
        assert any(
            isinstance(node, ast.FunctionDef) and node.name == function for node in ast.parse(source.read_text()).body
        )
    for call in calls(path, "PathJoinSubstitution"):
        assert isinstance(call.args[0], ast.List)
        parts = [part.value for part in call.args[0].elts if isinstance(part, ast.Constant)]
        assert (ROOT.joinpath(*parts)).is_file()


def constant(name: str, variable: str) -> Any:
    """What a launch file assigns at its top."""
    for node in ast.parse((ROOT / "launch" / name).read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == variable:
            # A tuple may be made of several, unpacked.
            return eval(compile(ast.Expression(node.value), name, "eval"), {})
    raise AssertionError(f"{name} has no {variable}")


def test_replay_passes_on_every_argument_of_the_estimator() -> None:
    assert set(constant("replay.launch.py", "PASSED_ON")) == ARGUMENTS["estimator.launch.py"]


def test_a_fleet_passes_on_what_all_robots_share() -> None:
    # A model belongs to one robot; the robots themselves are named by the fleet's own argument.
    passed = set(constant("fleet.launch.py", "PASSED_ON"))
    assert passed == ARGUMENTS["estimator.launch.py"] - {"robot", "namespace", "model"}


def test_what_is_renamed_are_the_nodes_own_names() -> None:
    topics = constant("estimator.launch.py", "TOPICS")
    assert topics == constant("replay.launch.py", "TOPICS")
    assert set(topics) == RENAMED
    sources = [(ROOT / "trace_ros" / "nodes" / name).read_text() for name in ("inputs.py", "outputs.py")]
    assert all(any(f'"{topic}"' in source for source in sources) for topic in topics.values())
    replayed = (ROOT / "trace_ros" / "nodes" / "replay_node.py").read_text()
    for name in RENAMED - {"odom_topic"}:  # parameters of the player, where a bag has other names
        assert f'Parameter("{name}", "{topics[name]}"' in replayed


def fleet_parser() -> Callable[[str], dict[str, str]]:
    """The function out of the launch file, which cannot be imported where launch is not installed."""
    tree = ast.parse((ROOT / "launch" / "fleet.launch.py").read_text())
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "parse_robots")
    scope: dict[str, Any] = {}
    exec(compile(ast.Module([function], []), "fleet.launch.py", "exec"), scope)
    return scope["parse_robots"]


def test_the_robots_of_a_fleet() -> None:
    parse = fleet_parser()
    assert parse("alpha=go2 beta=a1") == {"alpha": "go2", "beta": "a1"}
    assert parse("/north/alpha=/etc/robots/mine.yaml, go2") == {"north/alpha": "/etc/robots/mine.yaml", "go2": "go2"}
    for text, complaint in (("", "none are given"), ("a=", "not NAMESPACE=ROBOT"), ("a=go2 a=a1", "given twice")):
        with pytest.raises(ValueError, match=complaint):
            parse(text)


def test_manifests_agree() -> None:
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    assert package.get("format") == "3"
    assert package.findtext("name") == "trace_ros"
    setup = ast.parse((ROOT / "setup.py").read_text())
    version = next(
        node.value.value
        for node in ast.walk(setup)
        if isinstance(node, ast.keyword) and node.arg == "version" and isinstance(node.value, ast.Constant)
    )
    assert package.findtext("version") == version
    assert package.findtext("license") == "Apache-2.0"
    depends = {element.text for element in package.findall("exec_depend")}
    assert {"rclpy", "sensor_msgs", "nav_msgs", "tf2_msgs", "diagnostic_msgs", "launch_ros"} <= depends
    cfg = ConfigParser()
    cfg.read(ROOT / "setup.cfg")
    # Where ros2 run and launch_ros look for executables.
    assert cfg["install"]["install_scripts"] == "$base/lib/trace_ros"
    assert (ROOT / "resource" / "trace_ros").is_file()


@pytest.mark.ros
def test_the_parameter_file_holds_every_parameter_with_its_default() -> None:
    pytest.importorskip("rclpy")
    from trace_ros.nodes.estimator_parameters import PARAMETERS

    data = yaml.safe_load((ROOT / "config" / "estimator.yaml").read_text())
    assert data == {"/**/estimator": {"ros__parameters": {p.name: p.default for p in PARAMETERS}}}


def actions_of(name: str, **given: str) -> list[Any]:
    """What a launch file does, with arguments given."""
    from launch import LaunchContext
    from launch.launch_description_sources import get_launch_description_from_python_launch_file

    description = get_launch_description_from_python_launch_file(str(ROOT / "launch" / name))
    arguments = {argument.name: argument for argument in description.get_launch_arguments()}
    assert set(arguments) == ARGUMENTS[name]
    context = LaunchContext()
    for argument in arguments.values():
        default = argument.default_value
        if default is not None and argument.name != "params_file":
            context.launch_configurations[argument.name] = "".join(part.perform(context) for part in default)
    context.launch_configurations.update(
        {"bag": "bag", "robots": "alpha=go2 beta", "params_file": str(ROOT / "config" / "estimator.yaml"), **given}
    )
    return [
        action
        for entity in description.entities
        if type(entity).__name__ == "OpaqueFunction"
        for action in entity.execute(context) or []
    ]


needs_launch = pytest.mark.skipif(not HAS_LAUNCH, reason="needs launch and launch_ros, which have no wheels")


@needs_launch
@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_descriptions_can_be_built(name: str) -> None:
    actions = actions_of(name)
    executables = {action.node_executable for action in actions if hasattr(action, "node_executable")}
    expected = {"estimator.launch.py": "estimator", "replay.launch.py": "replay", "record.launch.py": "recorder"}
    if name in expected:
        assert expected[name] in executables
    else:
        assert len(actions) == 2


@needs_launch
def test_topics_of_other_names_reach_every_node() -> None:
    from launch import LaunchContext
    from launch.utilities import perform_substitutions

    def remapped(action: Any) -> dict[str, str]:
        rules = action._Node__remappings
        texts = [[perform_substitutions(LaunchContext(), list(end)) for end in rule] for rule in rules]
        return {before: after for before, after in texts if not before.startswith("/")}

    names = {"imu_topic": "/sensors/imu", "joint_states_topic": "joints", "odom_topic": "trace/odom"}
    expected = {"imu/data": "/sensors/imu", "joint_states": "joints", "odom": "trace/odom"}
    nodes = [*actions_of("estimator.launch.py", **names), *actions_of("replay.launch.py", rviz="false", **names)]
    found = {action.node_executable: remapped(action) for action in nodes if hasattr(action, "node_executable")}
    assert found == {"estimator": expected, "replay": expected, "path": expected}
    assert remapped(actions_of("estimator.launch.py")[0]) == {}
    only = actions_of("estimator.launch.py", odom_topic="trace/odom")[0]
    assert remapped(only) == {"odom": "trace/odom"}
