"""Starts the estimator and, with autostart, configures and activates it."""

from launch import LaunchContext, LaunchDescription
from launch.action import Action
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

TOPICS = {"imu_topic": "imu/data", "joint_states_topic": "joint_states", "odom_topic": "odom"}
"""Arguments that rename a topic of the node."""


def estimator(context: LaunchContext) -> list[Action]:
    """The node, with the arguments that were given put over the parameter file.

    It starts itself: a request from here, after a respawn, could go to the process that was killed.
    """
    overrides: dict[str, object] = {
        name: ParameterValue(LaunchConfiguration(name), value_type=bool) for name in ("use_sim_time", "autostart")
    }
    for name in ("robot", "estimator", "model", "engine"):
        if value := LaunchConfiguration(name).perform(context):
            overrides[name] = ParameterValue(value, value_type=str)
    given = {topic: LaunchConfiguration(name).perform(context) for name, topic in TOPICS.items()}
    return [
        LifecycleNode(
            package="trace_ros",
            executable="estimator",
            name="estimator",
            namespace=LaunchConfiguration("namespace"),
            output="screen",
            respawn=LaunchConfiguration("use_respawn").perform(context).lower() in ("true", "1"),
            respawn_delay=1.0,
            parameters=[LaunchConfiguration("params_file"), overrides],
            # As Nav2 does: a namespaced robot has its own TF tree, one without a namespace has /tf.
            remappings=[("/tf", "tf"), ("/tf_static", "tf_static"), *(item for item in given.items() if item[1])],
            ros_arguments=["--log-level", LaunchConfiguration("log_level")],
        )
    ]


def generate_launch_description() -> LaunchDescription:
    """As ``ros2 launch trace_ros estimator.launch.py`` calls it."""
    parameters = PathJoinSubstitution([FindPackageShare("trace_ros"), "config", "estimator.yaml"])
    return LaunchDescription(
        [
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
            DeclareLaunchArgument("params_file", default_value=parameters, description="parameters of the estimator"),
            DeclareLaunchArgument("namespace", default_value="", description="of all topics and nodes"),
            DeclareLaunchArgument(
                "imu_topic", default_value="", description="sensor_msgs/Imu to listen to; empty: imu/data"
            ),
            DeclareLaunchArgument(
                "joint_states_topic",
                default_value="",
                description="sensor_msgs/JointState to listen to; empty: joint_states",
            ),
            DeclareLaunchArgument(
                "odom_topic", default_value="", description="nav_msgs/Odometry to publish; empty: odom"
            ),
            DeclareLaunchArgument("use_sim_time", default_value="false", description="take the time from /clock"),
            DeclareLaunchArgument("autostart", default_value="true", description="configure and activate at once"),
            DeclareLaunchArgument("use_respawn", default_value="false", description="start the node again if it ends"),
            DeclareLaunchArgument("log_level", default_value="info", description="debug, info, warn, error or fatal"),
            OpaqueFunction(function=estimator),
        ]
    )
