"""rosbag2 to and from `SensorLog` and `Trajectory`, without a ROS installation.

Storage and message layout come from ``rosbags``, recovery of interrupted recordings from ``mcap``.
"""

from trace_ros.bags.files import convert, read_log, write_log
from trace_ros.bags.info import BagInfo, TopicInfo, bag_info
from trace_ros.bags.reading import BagReport, ReadSettings, read_bag, read_bag_with_report, read_odometry
from trace_ros.bags.recovery import RecoveryReport, recover_bag
from trace_ros.bags.storage import Storage
from trace_ros.bags.topics import Topics
from trace_ros.bags.writing import write_bag

__all__ = [
    "BagInfo",
    "BagReport",
    "ReadSettings",
    "RecoveryReport",
    "Storage",
    "TopicInfo",
    "Topics",
    "bag_info",
    "convert",
    "read_bag",
    "read_bag_with_report",
    "read_log",
    "read_odometry",
    "recover_bag",
    "write_bag",
    "write_log",
]
