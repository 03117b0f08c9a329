"""The estimator as a managed (lifecycle) node: IMU and joint states in, odometry and TF out."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseWithCovarianceStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from nav_msgs.msg import Odometry
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.task import Future
from sensor_msgs.msg import Imu, JointState
from std_msgs.msg import Float32MultiArray
from std_srvs.srv import Trigger

from trace_ros.errors import TraceError
from trace_ros.estimator.estimator import Estimate, TraceEstimator
from trace_ros.logs import JOINTS, Sample
from trace_ros.nodes import diagnostics
from trace_ros.nodes.conversions import BadMessageError, JointMapper, OutputMessages, imu_vectors, pose_arrays
from trace_ros.nodes.estimator_parameters import PARAMETERS
from trace_ros.nodes.pairing import PairingSettings, SamplePairer
from trace_ros.nodes.parameters import Parameters
from trace_ros.nodes.spin import RCLError, run
from trace_ros.nodes.transforms import TransformPublisher
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription

_WARM_UP_SAMPLES = 100
"""TorchScript compiles and specialises during its first calls, which take a hundred times as long as the later ones."""

_REPEAT_FAULT_S = 10.0

_TRANSITIONS = {
    Transition.TRANSITION_CONFIGURE: "configure",
    Transition.TRANSITION_CLEANUP: "cleanup",
    Transition.TRANSITION_ACTIVATE: "activate",
    Transition.TRANSITION_DEACTIVATE: "deactivate",
    Transition.TRANSITION_UNCONFIGURED_SHUTDOWN: "shutdown",
    Transition.TRANSITION_INACTIVE_SHUTDOWN: "shutdown",
    Transition.TRANSITION_ACTIVE_SHUTDOWN: "shutdown",
}


class EstimatorNode(LifecycleNode):
    """`TraceEstimator` between ROS topics. What each transition does stands in its callback."""

    def __init__(self, _stop: Future | None = None) -> None:
        super().__init__("estimator")
        self._params = Parameters(self, PARAMETERS)
        self._estimator: TraceEstimator | None = None
        self._odometry_publisher: Any = None
        self._reliability_publisher: Any = None
        self._diagnostics_publisher: Any = None
        self._diagnostics_timer: Any = None
        self._transforms: TransformPublisher | None = None
        self._inputs: list[Any] = []
        """Subscriptions; held exactly while the node is active."""
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_service(Trigger, "~/reset", self._on_reset)
        self._answer_invalid_requests()
        # A launch file goes on by itself; whoever starts the node by hand would otherwise look at a silent terminal.
        self.get_logger().info("unconfigured: waiting for the transitions configure and activate")

    # -- lifecycle --

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load robot and model, check that they fit, print the joint mapping, create the publishers."""
        try:
            self._params.check()
            self._configure()
        except TraceError as error:
            self.get_logger().error(f"not configured: {error}")
            self._drop()
            return TransitionCallbackReturn.FAILURE
        self._params.locked = True
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start anew: reset the estimator, then subscribe."""
        assert self._estimator is not None
        self._estimator.reset()
        self._start_statistics()
        result = super().on_activate(state)
        self._subscribe()
        self.get_logger().info(f"active: waiting for {self._statistics.imu.topic} and {self._statistics.joints.topic}")
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Unsubscribe; model and estimator stay loaded."""
        self._unsubscribe()
        self.get_logger().info(f"inactive after {self._statistics.odometry_messages} odometry messages")
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop model and publishers."""
        self._drop()
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop everything, from any state."""
        self._drop()
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop everything and be unconfigured again."""
        self.get_logger().error("an unexpected error in a transition: everything was dropped, configure again")
        self._drop()
        return super().on_error(state)

    def close(self) -> None:
        """Shut down in an orderly way, from whatever state."""
        with suppress(RCLError):  # finalised already
            self.trigger_shutdown()

    def _answer_invalid_requests(self) -> None:
        """In Jazzy, a request that is invalid in the current state raises, and its caller waits for ever."""
        for service in self.services:
            if service.srv_type is ChangeState:
                answer = service.callback

                def guarded(request: Any, response: Any, answer: Any = answer) -> Any:
                    try:
                        return answer(request, response)
                    except RCLError:
                        wanted = request.transition.label or _TRANSITIONS.get(request.transition.id, "this transition")
                        state = self._state_machine.current_state[1]
                        self.get_logger().error(f"refused: {wanted} is not possible in state {state!r}")
                        response.success = False
                        return response

                service.callback = guarded

    # -- configure and its inverse --

    def _configure(self) -> None:
        parameters = self._params
        if not parameters.text("odom_frame"):
            raise TraceError("parameter 'odom_frame' is empty, expected the name of a frame")
        torch.set_num_threads(parameters.integer("torch_threads"))
        robot = RobotDescription.load(parameters.text("robot"))
        model = parameters.text("model")
        path = Path(model).expanduser() if model else models_directory() / robot.name / "trace.pt"
        self._estimator = TraceEstimator.load(path, robot)
        self._robot = robot
        _warm_up(self._estimator)
        # The libraries' objects stay as they are: the collector need not walk them in the middle of a run.
        gc.collect()
        gc.freeze()
        self._mapper = JointMapper(robot.joint_names)
        self._imu_rotation = robot.rotation_body_imu if any(robot.imu.rpy) else None
        self._settings = PairingSettings(
            joint_timeout=parameters.number("joint_timeout"),
            joint_wait=parameters.number("joint_wait"),
            time_jump_limit=parameters.number("time_jump_limit"),
            reset_on_time_jump=parameters.flag("reset_on_time_jump"),
        )
        self._messages = OutputMessages(
            parameters.text("odom_frame"), parameters.text("base_link_frame") or robot.base_link
        )
        depth = parameters.integer("queue_depth")
        self._odometry_publisher = self.create_lifecycle_publisher(Odometry, "odom", depth)
        self._reliability_publisher = self.create_lifecycle_publisher(
            Float32MultiArray, "estimator/foot_reliability", depth
        )
        self._transforms = TransformPublisher(self, self._messages.transform)
        self._start_statistics()
        self._diagnostics_publisher = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._diagnostics_timer = self.create_timer(
            1.0 / parameters.number("diagnostics_rate"), self._publish_diagnostics, clock=self._steady
        )
        self.get_logger().info(f"robot {robot.name}, model {path}\n{_mapping_table(robot)}")

    def _start_statistics(self) -> None:
        self._pairer = SamplePairer(self._settings, self._on_time_jump)
        self._statistics = diagnostics.EstimatorStatistics(
            diagnostics.InputStatistics(self.resolve_topic_name("imu/data")),
            diagnostics.InputStatistics(self.resolve_topic_name("joint_states")),
        )
        self._told: set[str] = set()
        self._fault_told_s = -_REPEAT_FAULT_S
        self._last_report_s = time.monotonic()

    def _subscribe(self) -> None:
        # Best effort receives from reliable and best-effort publishers alike.
        qos = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=self._params.integer("queue_depth"),
            reliability=ReliabilityPolicy.BEST_EFFORT,
        )
        self._inputs = [
            self.create_subscription(Imu, "imu/data", self._on_imu, qos),
            self.create_subscription(JointState, "joint_states", self._on_joints, qos),
            self.create_subscription(PoseWithCovarianceStamped, "~/set_pose", self._on_set_pose, 10),
        ]

    def _unsubscribe(self) -> None:
        for subscription in self._inputs:
            self.destroy_subscription(subscription)
        self._inputs = []

    def _drop(self) -> None:
        self._unsubscribe()
        self._estimator = None
        if self._diagnostics_timer is not None:
            self.destroy_timer(self._diagnostics_timer)
        for publisher in (self._odometry_publisher, self._reliability_publisher):
            if publisher is not None:
                self.destroy_lifecycle_publisher(publisher)
        if self._diagnostics_publisher is not None:
            self.destroy_publisher(self._diagnostics_publisher)
        if self._transforms is not None:
            self._transforms.destroy()
        self._odometry_publisher = self._reliability_publisher = None
        self._diagnostics_publisher = self._diagnostics_timer = self._transforms = None
        self._params.locked = False

    # -- inputs --

    def _on_imu(self, message: Any) -> None:
        self._statistics.imu.arrived(time.monotonic())
        try:
            stamp_ns, angular_velocity, linear_acceleration = imu_vectors(message)
        except BadMessageError as error:
            self._drop_message("imu", error)
            return
        if self._imu_rotation is not None:
            angular_velocity = self._imu_rotation.apply(angular_velocity)
            linear_acceleration = self._imu_rotation.apply(linear_acceleration)
        self._estimate(self._pairer.add_imu(stamp_ns, angular_velocity, linear_acceleration))

    def _on_joints(self, message: Any) -> None:
        self._statistics.joints.arrived(time.monotonic())
        try:
            joints = self._mapper.convert(message, self._params.text("torque_source") != "none")
        except BadMessageError as error:
            self._drop_message("joints", error)
            return
        if self._statistics.fault:
            self._statistics.fault = ""
        if "mapping" not in self._told:
            self._told.add("mapping")
            self.get_logger().info(f"{self._statistics.joints.topic}: {self._mapper.describe()}")
            if joints.torque is None and self._params.text("torque_source") != "none":
                self.get_logger().warning(
                    f"{self._statistics.joints.topic} has no effort: estimating without joint torque"
                )
        self._estimate(self._pairer.add_joints(joints))

    def _drop_message(self, source: str, error: BadMessageError) -> None:
        """Count a bad message; tell of the first of its kind, and again while it keeps the node from working."""
        kind = f"{source}_{error.kind}"
        self._statistics.drops[kind] += 1
        if error.kind in ("missing_joints", "repeated_joints"):
            self._statistics.fault = error.text
            if (now := time.monotonic()) - self._fault_told_s >= _REPEAT_FAULT_S:
                self._fault_told_s = now
                self.get_logger().error(f"{self._statistics.joints.topic}: {error.text}")
        else:
            self._tell_once(kind, f"{error.text}: dropped (later ones are counted in /diagnostics)")

    def _tell_once(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self.get_logger().warning(text)

    def _on_time_jump(self, seconds: float) -> None:
        assert self._estimator is not None
        self._estimator.reset()
        self._statistics.time_jumps += 1
        self.get_logger().warning(f"time jumped by {seconds:.3f} s: the estimator starts anew")

    def _on_reset(self, _request: Any, response: Any) -> Any:
        if not self._inputs:
            response.success = False
            response.message = f"nothing to reset: the node is {self._state_machine.current_state[1]}"
            return response
        assert self._estimator is not None
        self._estimator.reset()
        response.success = True
        response.message = "reset: window, network state, pose and covariance"
        self.get_logger().info(response.message)
        return response

    def _on_set_pose(self, message: Any) -> None:
        assert self._estimator is not None
        try:
            position, orientation = pose_arrays(message, self._params.text("odom_frame"))
            self._estimator.set_pose(position, orientation)
        except TraceError as error:
            self.get_logger().error(f"ignored: {error}")
            return
        self.get_logger().info(f"pose set to {np.round(position, 3).tolist()}, {np.round(orientation, 4).tolist()}")

    # -- outputs --

    def _estimate(self, samples: Iterable[Sample]) -> None:
        assert self._estimator is not None
        for sample in samples:
            begin = time.perf_counter()
            try:
                estimate = self._estimator.step(sample)
            except (ValueError, TraceError) as error:
                self._statistics.drops["step_failed"] += 1
                self._tell_once("step_failed", f"the estimator refused a sample: {error}")
                continue
            self._statistics.step_time_s.append(time.perf_counter() - begin)
            if estimate is not None:
                self._publish(estimate)

    def _publish(self, estimate: Estimate) -> None:
        assert self._estimator is not None
        if not np.isfinite(estimate.position).all():
            self._statistics.drops["not_finite_estimates"] += 1
            self._tell_once("not_finite_estimates", "the network's output is not finite: the estimator starts anew")
            self._estimator.reset()
            return
        self._messages.fill(estimate)
        self._reliability_publisher.publish(self._messages.foot_reliability)
        self._odometry_publisher.publish(self._messages.odometry)
        if self._transforms is not None and self._params.flag("publish_tf"):
            self._transforms.publish()
        self._statistics.odometry_messages += 1
        self._statistics.stationary = estimate.stationary
        self._statistics.latency_s.append((self.get_clock().now().nanoseconds - estimate.stamp_ns) * 1e-9)

    def _publish_diagnostics(self) -> None:
        if self._diagnostics_publisher is None or not self._params.flag("publish_diagnostics"):
            return
        now = time.monotonic()
        statistics = self._statistics
        topics = (statistics.imu.topic, statistics.joints.topic)
        situation = diagnostics.Situation(
            now,
            max(now - self._last_report_s, 1e-3),
            self._params.number("sensor_timeout"),
            self._pairer.drops,
            {topic: self.count_publishers(topic) for topic in topics},
            {
                "robot": self._robot.name,
                "torque source": self._params.text("torque_source"),
                "paired exactly": str(self._pairer.exact),
                "paired by holding": str(self._pairer.held),
            },
        )
        self._last_report_s = now
        level, message, values = diagnostics.report(statistics, situation)
        if not self._inputs:
            level, message = diagnostics.OK, "configured, not active"
        name = f"{self.get_fully_qualified_name().lstrip('/')}: estimator"
        stamp = self.get_clock().now().to_msg()
        self._diagnostics_publisher.publish(
            diagnostics.diagnostic_array(stamp, name, self._robot.name, level, message, values)
        )


def _warm_up(estimator: TraceEstimator) -> None:
    robot = estimator.robot
    step_ns = round(1e9 / estimator.model.card.rate_hz)
    for index in range(_WARM_UP_SAMPLES):
        # A gyro reading above the stationary threshold: the moving branch is the one to warm.
        estimator.step(
            Sample(
                index * step_ns,
                np.full(3, 10.0 * robot.stationary.angular_velocity),
                np.array((0.0, 0.0, 9.81)),
                robot.nominal_joint_positions,
                np.zeros(JOINTS),
                np.zeros(JOINTS),
            )
        )
    estimator.reset()


def _mapping_table(robot: RobotDescription) -> str:
    lines = ["  leg  hip, thigh, calf joints -> foot link"]
    lines += [f"  {leg}   {', '.join(part.joints)} -> {part.foot_link}" for leg, part in robot.legs.items()]
    return "\n".join(lines)


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of ``ros2 run trace_ros estimator``."""
    return run("estimator", EstimatorNode, args, PARAMETERS)


if __name__ == "__main__":
    raise SystemExit(main())
