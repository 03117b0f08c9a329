"""Several robots on one graph: an estimator for each, in a namespace of its own.

ros2 launch trace_ros fleet.launch.py robots:="alpha=go2 beta=a1"
"""

from launch import LaunchContext, LaunchDescription
from launch.action import Action
from launch.actions import DeclareLaunchArgument, GroupAction, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.substitutions import FindPackageShare

PASSED_ON = (
    *("estimator", "engine", "params_file", "imu_topic", "joint_states_topic", "odom_topic"),
    *("use_sim_time", "autostart", "use_respawn", "log_level"),
)
"""Arguments of estimator.launch.py that are the same for all robots."""


def parse_robots(text: str) -> dict[str, str]:
    """``"alpha=go2 beta=a1"`` to the robot of each namespace; a name alone is a namespace and a robot of that name."""
    robots: dict[str, str] = {}
    for item in text.replace(",", " ").split():
        namespace, separator, robot = item.partition("=")
        namespace = namespace.strip("/")
        if not namespace or (separator and not robot):
            raise ValueError(f"robots: {item!r} is not NAMESPACE=ROBOT")
        if namespace in robots:
            raise ValueError(f"robots: the namespace {namespace!r} is given twice")
        robots[namespace] = robot or namespace
    if not robots:
        raise ValueError("robots: none are given; expected something like 'alpha=go2 beta=a1'")
    return robots


def estimators(context: LaunchContext) -> list[Action]:
    """One estimator.launch.py a robot."""
    source = PathJoinSubstitution([FindPackageShare("trace_ros"), "launch", "estimator.launch.py"])
    shared = [(name, LaunchConfiguration(name)) for name in PASSED_ON]
    return [
        GroupAction(
            [
                IncludeLaunchDescription(
                    PythonLaunchDescriptionSource(source),
                    launch_arguments=[("namespace", namespace), ("robot", robot), *shared],
                )
            ]
        )
        for namespace, robot in parse_robots(LaunchConfiguration("robots").perform(context)).items()
    ]


def generate_launch_description() -> LaunchDescription:
    """As ``ros2 launch trace_ros fleet.launch.py robots:=...`` calls it."""
    return LaunchDescription(
        [
            DeclareLaunchArgument("robots", description="NAMESPACE=ROBOT for each, with spaces between"),
            DeclareLaunchArgument(
                "params_file",
                default_value=PathJoinSubstitution([FindPackageShare("trace_ros"), "config", "estimator.yaml"]),
                description="parameters of all estimators",
            ),
            DeclareLaunchArgument(
                "estimator",
                default_value="",
                description="of all robots: trace, iekf_sr, ...; empty: as in params_file",
            ),
            DeclareLaunchArgument("engine", default_value="", description="of all robots; empty: as in params_file"),
            DeclareLaunchArgument(
                "imu_topic", default_value="", description="of each robot, in its namespace; empty: imu/data"
            ),
            DeclareLaunchArgument(
                "joint_states_topic",
                default_value="",
                description="of each robot, in its namespace; empty: joint_states",
            ),
            DeclareLaunchArgument(
                "odom_topic", default_value="", description="of each robot, in its namespace; empty: odom"
            ),
            DeclareLaunchArgument("use_sim_time", default_value="false", description="take the time from /clock"),
            DeclareLaunchArgument("autostart", default_value="true", description="configure and activate at once"),
            DeclareLaunchArgument("use_respawn", default_value="false", description="start nodes again that end"),
            DeclareLaunchArgument("log_level", default_value="info", description="debug, info, warn, error or fatal"),
            OpaqueFunction(function=estimators),
        ]
    )
