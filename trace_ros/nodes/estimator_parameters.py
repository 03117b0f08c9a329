"""The parameters of the estimator node; ``config/estimator.yaml`` holds them all with their effects."""

from __future__ import annotations

from trace_ros.nodes.parameters import Parameter

PARAMETERS = (
    Parameter("robot", "go2", "name of the robot (config/robots/<name>.yaml), or path of a robot's YAML file"),
    Parameter("model", "", "path of the TorchScript model; empty: the one that ships, models/<robot>/trace.pt"),
    Parameter("odom_frame", "odom", "frame of the pose; parent in TF"),
    Parameter("base_link_frame", "", "frame of the twist; child in TF; empty: the base_link of the robot's file"),
    Parameter("publish_tf", True, "publish odom_frame -> base_link_frame on /tf", live=True),
    Parameter(
        "torque_source",
        "measured_effort",
        "what the effort in joint_states is; none: do not use it",
        choices=("commanded_effort", "pd_target", "measured_effort", "none"),
    ),
    Parameter(
        "sensor_timeout", 0.1, "an input silent for longer is reported as missing", "s", 0.001, 3600.0, live=True
    ),
    Parameter("joint_timeout", 0.02, "a joint state older than this at an IMU stamp is not used", "s", 0.0, 10.0),
    Parameter("joint_wait", 0.01, "how long, by stamp, an IMU message waits for its joint state", "s", 0.0, 1.0),
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
        "queue_depth", 500, "depth of the input queues; at 500 Hz, 500 ride out a stall of 1 s", "messages", 1, 100000
    ),
    Parameter(
        "torch_threads", 1, "threads of the network; more than 1 makes a step slower and less regular", "", 1, 64
    ),
    Parameter("publish_diagnostics", True, "publish /diagnostics", live=True),
    Parameter("diagnostics_rate", 1.0, "rate of /diagnostics", "Hz", 0.1, 50.0),
)
