"""The parameters of the estimator node; ``config/estimator.yaml`` holds them all with their effects."""

from __future__ import annotations

from typing import get_args

from trace_ros.baselines.registry import ESTIMATORS, TRACE
from trace_ros.estimator.engines import DEFAULT_ENGINE, EngineName
from trace_ros.nodes.input_parameters import INPUT_PARAMETERS
from trace_ros.nodes.parameters import Parameter

PARAMETERS = (
    Parameter("robot", "go2", "name of the robot (config/robots/<name>.yaml), or path of a robot's YAML file"),
    Parameter(
        "estimator", TRACE, "what estimates: the network, or another method of docs/baselines.md", choices=ESTIMATORS
    ),
    Parameter(
        "model", "", "path of the estimator's file; empty: the one that ships, for trace models/<robot>/trace.pt"
    ),
    Parameter(
        "engine",
        DEFAULT_ENGINE,
        "what computes the network of trace; onnxruntime is quicker and installed apart",
        choices=get_args(EngineName),
    ),
    Parameter("autostart", False, "configure and activate at the start, without being asked to"),
    Parameter("odom_frame", "odom", "frame of the pose; parent in TF"),
    Parameter("base_link_frame", "", "frame of the twist; child in TF; empty: the base_link of the robot's file"),
    Parameter("publish_tf", True, "publish odom_frame -> base_link_frame on /tf", live=True),
    Parameter(
        "initial_pose",
        [],
        "x, y, z and heading in odom_frame to begin at, from the next activation or reset on; empty: all zero",
        "m, rad",
        -1e6,
        1e6,
        live=True,
        lengths=(0, 4),
    ),
    Parameter(
        "max_rate",
        0.0,
        "highest rate of odom, /tf and foot reliability, by stamp; 0: as the IMU",
        "Hz",
        0,
        10000,
        live=True,
    ),
    Parameter("two_d_mode", False, "output without height, roll and pitch: the pose on a flat map", live=True),
    Parameter(
        "pose_covariance_diagonal",
        [],
        "variances of x, y, z, rotation about X, Y, Z to publish instead of the model's; empty: the model's",
        "m^2, rad^2",
        1e-12,
        1e12,
        live=True,
        lengths=(0, 6),
    ),
    Parameter(
        "twist_covariance_diagonal",
        [],
        "variances of vx, vy, vz, wx, wy, wz to publish instead of the model's; empty: the model's",
        "m^2/s^2, rad^2/s^2",
        1e-12,
        1e12,
        live=True,
        lengths=(0, 6),
    ),
    Parameter(
        "sensor_timeout", 0.1, "an input silent for longer is reported as missing", "s", 0.001, 3600.0, live=True
    ),
    *INPUT_PARAMETERS,
    Parameter(
        "markers_rate",
        10.0,
        "rate of estimator/markers while somebody subscribes (needs visualization_msgs); 0: none",
        "Hz",
        0.0,
        100.0,
    ),
    Parameter(
        "startup_checks",
        "refuse",
        "what to do when the readings do not fit the robot: publish no odometry, only warn, or do not look",
        choices=("refuse", "warn", "off"),
        live=True,
    ),
    Parameter(
        "timing_watch",
        True,
        "look now and then, while the robot walks, whether the joint readings are of the IMU's time",
        live=True,
    ),
    Parameter(
        "silence_timeout",
        2.0,
        "an input silent for longer is told in the log, with its publishers and whether they fit",
        "s",
        0.1,
        3600.0,
        live=True,
    ),
    Parameter(
        "input_reliability",
        "best_effort",
        "of the input subscriptions; reliable has lost messages sent again and takes no best-effort publisher",
        choices=("best_effort", "reliable"),
    ),
    Parameter(
        "queue_depth", 500, "depth of the input queues; at 500 Hz, 500 ride out a stall of 1 s", "messages", 1, 100000
    ),
    Parameter(
        "torch_threads", 1, "threads of the network; more than 1 makes a step slower and less regular", "", 1, 64
    ),
    Parameter("publish_diagnostics", True, "publish /diagnostics", live=True),
    Parameter(
        "diagnostics_hold", 2.0, "how long a status must have been better before it is told", "s", 0.0, 60.0, live=True
    ),
    Parameter("diagnostics_rate", 1.0, "rate of /diagnostics", "Hz", 0.1, 50.0),
)
