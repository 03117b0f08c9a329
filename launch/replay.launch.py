"""Plays a bag into the estimator, with RViz to watch it."""

from pathlib import Path

from ament_index_python.packages import PackageNotFoundError, get_package_share_directory
from launch import Event, LaunchContext, LaunchDescription
from launch.action import Action
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    IncludeLaunchDescription,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

PASSED_ON = (
    "robot",
    "estimator",
    "model",
    "engine",
    "params_file",
    "imu_topic",
    "joint_states_topic",
    "odom_topic",
    "namespace",
    "use_sim_time",
    "autostart",
    "use_respawn",
    "log_level",
)
"""Arguments of estimator.launch.py."""

VIEWED = (
    *("tf", "tf_static", "odom", "path", "reference_path", "reference/odom", "robot_description"),
    "estimator/markers",
)
"""Topics in the RViz configuration, absolute there; with a namespace they are the robot's own."""


TOPICS = {"imu_topic": "imu/data", "joint_states_topic": "joint_states", "odom_topic": "odom"}
"""Arguments that rename a topic: of the sensors as the bag has it, and so for player and estimator alike."""


def renamed(context: LaunchContext) -> dict[str, str]:
    """The topics that have another name, by argument."""
    return {name: value for name in TOPICS if (value := LaunchConfiguration(name).perform(context))}


def player(context: LaunchContext) -> list[Action]:
    """The replay and path nodes; RViz where it is wanted and installed. Without RViz, all ends with the bag."""
    namespace = LaunchConfiguration("namespace")
    log_level = ["--log-level", LaunchConfiguration("log_level")]
    names = renamed(context)
    remappings = [(TOPICS[name], value) for name, value in names.items()]
    in_bag = {name: ParameterValue(value, value_type=str) for name, value in names.items() if name != "odom_topic"}
    replay = Node(
        package="trace_ros",
        executable="replay",
        name="replay",
        namespace=namespace,
        output="screen",
        parameters=[
            {
                "bag": ParameterValue(LaunchConfiguration("bag"), value_type=str),
                "rate": ParameterValue(LaunchConfiguration("rate"), value_type=float),
                "loop": ParameterValue(LaunchConfiguration("loop"), value_type=bool),
                "subscribers": ParameterValue(LaunchConfiguration("subscribers"), value_type=int),
                # Small computers take long to load the network; the bag must not begin without it.
                "wait_for_subscribers": 120.0,
                **in_bag,
            }
        ],
        remappings=remappings,
        ros_arguments=log_level,
    )
    path = Node(
        package="trace_ros",
        executable="path",
        name="path",
        namespace=namespace,
        output="screen",
        parameters=[{"use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool)}],
        remappings=remappings,
        ros_arguments=log_level,
    )
    viewer = rviz(context) if LaunchConfiguration("rviz").perform(context).lower() in ("true", "1") else []
    if any(isinstance(action, Node) for action in viewer):
        return [replay, path, *viewer]
    return [replay, path, *viewer, RegisterEventHandler(OnProcessExit(target_action=replay, on_exit=end))]


def end(_event: Event, context: LaunchContext) -> list[Action]:
    """End all with the bag. Where Ctrl-C has ended the player, all ends already: a second time would be an error."""
    return [] if context.is_shutdown else [EmitEvent(event=Shutdown(reason="the bag has ended"))]


def rviz(context: LaunchContext) -> list[Action]:
    """RViz and, where it is installed, the robot's model in it."""
    if not installed("rviz2"):
        return [LogInfo(msg="rviz2 is not installed: playing without it (rviz:=false silences this)")]
    namespace = LaunchConfiguration("namespace")
    use_sim_time = {"use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool)}
    odom = renamed(context).get("odom_topic", "odom")
    remappings = [(f"/{topic}", odom if topic == "odom" else topic) for topic in VIEWED]
    configuration = PathJoinSubstitution([FindPackageShare("trace_ros"), "config", "rviz", "estimator.rviz"])
    actions: list[Action] = [
        Node(
            package="rviz2",
            executable="rviz2",
            namespace=namespace,
            arguments=["-d", configuration],
            parameters=[use_sim_time],
            remappings=remappings,
        )
    ]
    if installed("robot_state_publisher"):
        from trace_ros.robot import RobotDescription

        robot = RobotDescription.load(LaunchConfiguration("robot").perform(context) or "go2")
        description = Path(robot.urdf).read_text(encoding="utf-8")
        actions.append(
            Node(
                package="robot_state_publisher",
                executable="robot_state_publisher",
                namespace=namespace,
                parameters=[use_sim_time, {"robot_description": ParameterValue(description, value_type=str)}],
                remappings=remappings,
            )
        )
    return actions


def installed(package: str) -> bool:
    """Whether a package is in the environment."""
    try:
        get_package_share_directory(package)
    except PackageNotFoundError:
        return False
    return True


def generate_launch_description() -> LaunchDescription:
    """As ``ros2 launch trace_ros replay.launch.py bag:=PATH`` calls it."""
    share = FindPackageShare("trace_ros")
    return LaunchDescription(
        [
            DeclareLaunchArgument("bag", description="rosbag2 directory, or a .mcap or .db3 file"),
            DeclareLaunchArgument("rate", default_value="1.0", description="speed; 2.0 plays twice as fast"),
            DeclareLaunchArgument("loop", default_value="false", description="start again at the end"),
            DeclareLaunchArgument(
                "subscribers",
                default_value="1",
                description="begin when so many listen to IMU and joints; 2 where a recorder runs beside the estimator",
            ),
            DeclareLaunchArgument("rviz", default_value="true", description="show it in RViz"),
            DeclareLaunchArgument(
                "robot", default_value="", description="robot's name or YAML file; empty: as in params_file"
            ),
            DeclareLaunchArgument(
                "estimator",
                default_value="",
                description="trace, iekf_sr, ... (docs/baselines.md); empty: as in params_file",
            ),
            DeclareLaunchArgument(
                "model", default_value="", description="the estimator's file; empty: as in params_file"
            ),
            DeclareLaunchArgument(
                "engine", default_value="", description="torchscript or onnxruntime; empty: as in params_file"
            ),
            DeclareLaunchArgument(
                "params_file",
                default_value=PathJoinSubstitution([share, "config", "estimator.yaml"]),
                description="parameters of the estimator",
            ),
            DeclareLaunchArgument(
                "imu_topic", default_value="", description="sensor_msgs/Imu in the bag; empty: imu/data"
            ),
            DeclareLaunchArgument(
                "joint_states_topic",
                default_value="",
                description="sensor_msgs/JointState in the bag; empty: joint_states",
            ),
            DeclareLaunchArgument(
                "odom_topic", default_value="", description="nav_msgs/Odometry to publish; empty: odom"
            ),
            DeclareLaunchArgument("namespace", default_value="", description="of all topics and nodes"),
            DeclareLaunchArgument("use_sim_time", default_value="true", description="take the time from the bag"),
            DeclareLaunchArgument("autostart", default_value="true", description="configure and activate at once"),
            DeclareLaunchArgument("use_respawn", default_value="false", description="start it again if it ends"),
            DeclareLaunchArgument("log_level", default_value="info", description="debug, info, warn, error or fatal"),
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(PathJoinSubstitution([share, "launch", "estimator.launch.py"])),
                launch_arguments=[(name, LaunchConfiguration(name)) for name in PASSED_ON],
            ),
            OpaqueFunction(function=player),
        ]
    )
