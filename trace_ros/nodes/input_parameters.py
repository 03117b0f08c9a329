"""The estimator node's parameters for what comes in, and what they set."""

from __future__ import annotations

from typing import Any

from trace_ros.nodes.parameters import Parameter, Parameters
from trace_ros.streams import StreamSettings
from trace_ros.streams.pairing import LARGEST_JOINT_DELAY

INPUT_PARAMETERS = (
    Parameter(
        "torque_source",
        "measured_effort",
        "what the effort in joint_states is; none: do not use it",
        choices=("commanded_effort", "pd_target", "measured_effort", "none"),
    ),
    Parameter(
        "joint_pairing",
        "interpolate",
        "joints at an IMU stamp that has no joint state of its own: between the two around it, or the one before",
        choices=("interpolate", "hold"),
    ),
    Parameter(
        "joint_interval", 0.025, "joint states further apart are not interpolated between; 0: never", "s", 0.0, 1.0
    ),
    Parameter("joint_timeout", 0.05, "a joint state older than this at an IMU stamp is not used", "s", 0.0, 10.0),
    Parameter(
        "joint_wait",
        0.04,
        "how long, by stamp, an IMU message waits for the joint state after it; 0: take the newest that is there",
        "s",
        0.0,
        1.0,
    ),
    Parameter(
        "joint_delay",
        [],
        "how much older joint states are than IMU messages of the same stamp; empty: as the model says",
        "s",
        -LARGEST_JOINT_DELAY,
        LARGEST_JOINT_DELAY,
        lengths=(0, 1),
    ),
    Parameter(
        "max_gap",
        0.1,
        "after a longer pause in the samples the window starts anew and the covariance shows the jump; "
        "shorter ones are bridged",
        "s",
        0.01,
        10.0,
    ),
    Parameter(
        "reset_on_time_jump", True, "start anew when stamps jump back (bag loops); else drop until they catch up"
    ),
    Parameter(
        "time_jump_limit",
        0.5,
        "a stamp further back than this is a jump, a smaller step back is disorder",
        "s",
        0.001,
        3600.0,
    ),
    Parameter(
        "imu_mounting",
        "robot",
        "where the IMU's place in the body is read from: the robot file, a link of the URDF, or /tf_static",
        choices=("robot", "urdf", "tf"),
    ),
    Parameter("imu_frame", "", "that link or frame; empty: the frame_id of the IMU's messages"),
)


def stream_settings(parameters: Parameters, joint_delay: float = 0.0) -> StreamSettings:
    """What the parameters say of the streams, and the estimator of the lateness of its joints (s)."""
    values: dict[str, Any] = {
        "joints": parameters.text("joint_pairing"),
        "use_effort": parameters.text("torque_source") != "none",
        "reset_on_time_jump": parameters.flag("reset_on_time_jump"),
        "imu_mounting": parameters.text("imu_mounting"),
        "imu_frame": parameters.text("imu_frame"),
        "joint_delay": joint_delay,
    }
    values |= {
        name: parameters.number(name) for name in ("joint_interval", "joint_timeout", "joint_wait", "time_jump_limit")
    }
    return StreamSettings(**values)
