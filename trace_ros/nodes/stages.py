"""Where the node's time goes: each stage from a serialised message to a published odometry, timed by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import rclpy
from rclpy.lifecycle import LifecycleNode
from rclpy.parameter import Parameter as RosParameter
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Imu, JointState

from trace_ros.logs import Sample
from trace_ros.nodes import estimators
from trace_ros.nodes.conversions import set_stamp
from trace_ros.nodes.estimator_parameters import PARAMETERS
from trace_ros.nodes.input_parameters import stream_settings
from trace_ros.nodes.messages import reliability_of_feet
from trace_ros.nodes.outputs import Outputs
from trace_ros.nodes.parameters import Parameters
from trace_ros.nodes.traffic import serialised_walk
from trace_ros.robot import RobotDescription
from trace_ros.streams import SensorStreams

STAGES = {
    "deserialise": "IMU and joint state to rclpy's messages",
    "convert": "checks, joints by name, pairing by stamp: to a sample",
    "step": "the estimator's step",
    "fill": "estimate into the output messages",
    "publish": "odometry, transform and reliability of the feet to the middleware",
}
"""What is timed, in the order of the work."""

_WARM_UP = 500
_START_NS = 1_000_000_000_000


def measure_stages(
    robot: RobotDescription,
    given: dict[str, object],
    count: int,
    rate_hz: float = 500.0,
    progress: Callable[[int], None] | None = None,
) -> dict[str, tuple[float, float]]:
    """Time the stages of a sample one after the other, in this process, with the node's own parts.

    Args:
        robot: whose motion.
        given: parameters of the node; those that are None are left out.
        count: samples that are timed.
        rate_hz: of the samples' stamps; they follow each other as quickly as they can.
        progress: called now and then with how many are done.

    Returns:
        p50 and p99, us, by the names of `STAGES`.

    Raises:
        TraceError: a bad parameter, or an estimator that cannot be loaded.
    """
    # What is published here is nobody's odometry.
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    begun = not rclpy.ok()
    if begun:
        rclpy.init(args=[])
    overrides = [
        RosParameter(name, value=str(value) if isinstance(value, Path) else value)
        for name, value in given.items()
        if value is not None
    ]
    node = LifecycleNode(
        "stages",
        namespace=f"/trace_stages_{os.getpid()}",
        cli_args=["--ros-args", "-r", "/tf:=tf"],
        parameter_overrides=overrides,
        use_global_arguments=False,
    )
    try:
        parameters = Parameters(node, PARAMETERS)
        parameters.check()
        return _measure(node, parameters, robot, count, rate_hz, progress)
    finally:
        node.destroy_node()
        if begun:
            rclpy.try_shutdown()


def _measure(
    node: LifecycleNode,
    parameters: Parameters,
    robot: RobotDescription,
    count: int,
    rate_hz: float,
    progress: Callable[[int], None] | None,
) -> dict[str, tuple[float, float]]:
    estimator = estimators.make_estimator(parameters, robot)
    settings = stream_settings(parameters, estimators.joint_delay_s(estimator, parameters))
    streams, delay_ns = SensorStreams(robot, settings), round(settings.joint_delay * 1e9)
    told: list[str] = []
    outputs = Outputs(node, parameters, robot, told.append, bool(estimators.feet_are_told_by(estimator)))
    walk = [(bytes(imu), bytes(joints)) for imu, joints in serialised_walk(robot, rate_hz)]
    times = np.full((len(STAGES), count), np.nan)
    clock = time.perf_counter
    try:
        node.trigger_configure()
        node.trigger_activate()
        outputs.start()
        for index in range(-_WARM_UP, count):
            imu_bytes, joint_bytes = walk[index % len(walk)]
            stamp_ns = _START_NS + round((index + _WARM_UP) * 1e9 / rate_hz)
            begin = clock()
            imu, joints = deserialize_message(imu_bytes, Imu), deserialize_message(joint_bytes, JointState)
            deserialised = clock()
            set_stamp(imu.header.stamp, stamp_ns)
            # As late as they are taken to be, so that no message waits for a later one.
            set_stamp(joints.header.stamp, stamp_ns + delay_ns)
            convert = clock()
            events = [*streams.add_joints(joints, stamp_ns), *streams.add_imu(imu, stamp_ns)]
            converted = clock()
            sample = events[0]
            assert isinstance(sample, Sample)
            stepping = clock()
            estimate = estimator.step(sample)
            stepped = clock()
            if estimate is None:
                continue
            outputs.messages.fill(estimate)
            filled = clock()
            outputs.send(estimate.stamp_ns, reliability_of_feet(estimate))
            published = clock()
            if index >= 0:
                times[:, index] = (
                    deserialised - begin,
                    converted - convert,
                    stepped - stepping,
                    filled - stepped,
                    published - filled,
                )
                if progress is not None and index % 500 == 499:
                    progress(index + 1)
    finally:
        outputs.destroy()
    p50, p99 = (np.nanpercentile(times, (50, 99), axis=1) * 1e6).tolist()
    return dict(zip(STAGES, zip(p50, p99, strict=True), strict=True))
