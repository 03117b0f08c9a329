"""From IMU and joint messages, as faulty as robots send them, to the samples that an estimator takes. No ROS in here.

The node feeds messages as they arrive, reading a bag feeds them as they were recorded: the same code, the same samples.
"""

from trace_ros.streams.kinds import KINDS, Kind, Tally
from trace_ros.streams.pairing import PairingSettings
from trace_ros.streams.streams import Event, SensorStreams, StreamSettings, TimeJump

__all__ = [
    "KINDS",
    "Event",
    "Kind",
    "PairingSettings",
    "SensorStreams",
    "StreamSettings",
    "Tally",
    "TimeJump",
]
