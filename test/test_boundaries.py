"""Only the nodes know ROS, only the backends know a simulator: everything else imports with those names blocked."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROS = (
    *("rclpy", "tf2_ros", "tf2_msgs", "sensor_msgs", "nav_msgs", "geometry_msgs", "std_msgs", "std_srvs", "launch"),
    *("launch_ros", "diagnostic_msgs", "lifecycle_msgs", "rosgraph_msgs", "builtin_interfaces", "rcl_interfaces"),
    "visualization_msgs",
)
SIMULATORS = ("mujoco", "pybullet", "raisimpy")

PROGRAM = """
import importlib, sys
blocked = set({blocked!r})

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{{name}} must not be imported here")

sys.meta_path.insert(0, Refuse())
for name in {modules!r}:
    importlib.import_module(name)
print(len({modules!r}))
"""


def modules() -> list[str]:
    files = sorted((ROOT / "trace_ros").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    return [name.removesuffix(".__init__") for name in names]


def import_all(names: list[str], blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(blocked=blocked, modules=names)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)


def test_nothing_outside_the_nodes_needs_ros():
    core = [name for name in modules() if not name.startswith("trace_ros.nodes.")]
    assert len(core) > 30
    result = import_all(core, ROS)
    assert result.returncode == 0, result.stderr


def test_nothing_outside_the_backends_needs_a_simulator():
    core = [name for name in modules() if not name.endswith("_backend") and not name.startswith("trace_ros.nodes.")]
    result = import_all(core, SIMULATORS)
    assert result.returncode == 0, result.stderr


def test_what_only_reads_bags_robots_and_metrics_starts_without_torch():
    light = ["trace_ros.logs", "trace_ros.robot", "trace_ros.geometry", "trace_ros.evaluation.metrics"]
    light += [name for name in modules() if name.startswith("trace_ros.bags")]
    result = import_all(light, ("torch", "matplotlib", "plotly"))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("module", "blocked"), [("trace_ros.nodes.spin", ROS), ("trace_ros.sim.mujoco_backend", SIMULATORS)]
)
def test_the_block_itself_works(module, blocked):
    result = import_all([module], blocked)
    assert result.returncode != 0
    assert "must not be imported here" in result.stderr
