"""Records the estimator's inputs and outputs into an MCAP rosbag2."""

from launch import LaunchContext, LaunchDescription
from launch.action import Action
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue


def recorder(context: LaunchContext) -> list[Action]:
    """The recorder, with the arguments that were given put over the parameter file."""
    overrides: dict[str, object] = {
        "use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool)
    }
    if bag := LaunchConfiguration("bag").perform(context):
        overrides["output"] = ParameterValue(bag, value_type=str)
    if topics := LaunchConfiguration("topics").perform(context).split():
        overrides["topics"] = topics
    files = [file for file in [LaunchConfiguration("params_file").perform(context)] if file]
    return [
        Node(
            package="trace_ros",
            executable="recorder",
            name="recorder",
            namespace=LaunchConfiguration("namespace"),
            output="screen",
            parameters=[*files, overrides],
            remappings=[("/tf", "tf"), ("/tf_static", "tf_static")],
            ros_arguments=["--log-level", LaunchConfiguration("log_level")],
        )
    ]


def generate_launch_description() -> LaunchDescription:
    """As ``ros2 launch trace_ros record.launch.py`` calls it."""
    return LaunchDescription(
        [
            DeclareLaunchArgument("bag", default_value="", description="new bag; empty: trace_<date>_<time>"),
            DeclareLaunchArgument("topics", default_value="", description="separated by spaces; empty: the usual ones"),
            DeclareLaunchArgument("params_file", default_value="", description="parameters of the recorder"),
            DeclareLaunchArgument("namespace", default_value="", description="of all topics and nodes"),
            DeclareLaunchArgument("use_sim_time", default_value="false", description="take the time from /clock"),
            DeclareLaunchArgument("log_level", default_value="info", description="debug, info, warn, error or fatal"),
            OpaqueFunction(function=recorder),
        ]
    )
