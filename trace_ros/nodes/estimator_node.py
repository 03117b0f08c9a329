"""An estimator as a managed (lifecycle) node: IMU and joint states in, odometry and TF out."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseWithCovarianceStamped
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn
from rclpy.task import Future
from std_srvs.srv import Trigger

from trace_ros.checks.footing import Footing
from trace_ros.checks.startup import StartupCheck
from trace_ros.checks.timing_watch import TimingWatch
from trace_ros.errors import TraceError
from trace_ros.estimator.estimator import Estimate
from trace_ros.estimator.interface import Estimator, Placeable
from trace_ros.logs import Sample
from trace_ros.nodes import diagnostics, estimators, markers
from trace_ros.nodes.conversions import check_frames, now_ns, pose_arrays, pose_deviations
from trace_ros.nodes.estimator_parameters import PARAMETERS
from trace_ros.nodes.inputs import Inputs
from trace_ros.nodes.managed import ManagedNode, told
from trace_ros.nodes.monitoring import Monitor
from trace_ros.nodes.outputs import Outputs
from trace_ros.nodes.parameters import Parameters
from trace_ros.nodes.spin import run
from trace_ros.robot import RobotDescription
from trace_ros.streams import Event, TimeJump


class EstimatorNode(ManagedNode):
    """An estimator of the registry between ROS topics. What each transition does stands in its callback."""

    def __init__(self, _stop: Future | None = None) -> None:
        super().__init__("estimator")
        self._params = Parameters(self, PARAMETERS)
        self._estimator: Estimator | None = None
        self._outputs: Outputs | None = None
        self._monitor: Monitor | None = None
        self._inputs: Inputs | None = None
        """The sensors; subscribed to exactly while the node is active."""
        self._pose_subscription: Any = None
        self._setup: StartupCheck | None = None
        self._watching = False
        """Looks at the samples until the robot has stood still and all was well."""
        self.create_service(Trigger, "~/reset", self._on_reset)
        if self._params.flag("autostart"):
            self.start_by_itself()
        else:  # whoever starts the node by hand would otherwise look at a silent terminal
            self.get_logger().info("unconfigured: waiting for the transitions configure and activate")

    # -- lifecycle --

    @told
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

    @told
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start anew: reset the estimator, then subscribe."""
        assert self._estimator is not None
        assert self._outputs is not None
        assert self._monitor is not None
        assert self._inputs is not None
        self._outputs.start()
        self._monitor.start()
        self._start_anew()
        result = super().on_activate(state)
        self._subscribe()
        self.get_logger().info(f"active: waiting for {self._inputs.imu_topic} and {self._inputs.joints_topic}")
        return result

    @told
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Unsubscribe; model and estimator stay loaded."""
        self._unsubscribe()
        assert self._outputs is not None
        self._outputs.stop()
        self.get_logger().info(f"inactive after {self._outputs.published} odometry messages")
        return super().on_deactivate(state)

    @told
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop model and publishers."""
        self._drop()
        return super().on_cleanup(state)

    @told
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop everything, from any state."""
        self._drop()
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop everything and be unconfigured again."""
        self.get_logger().error("everything was dropped: configure again")
        self._drop()
        return super().on_error(state)

    # -- configure and its inverse --

    def _configure(self) -> None:
        parameters = self._params
        robot = RobotDescription.load(parameters.text("robot"))
        check_frames(parameters.text("odom_frame"), parameters.text("base_link_frame") or robot.base_link)
        self._estimator = estimator = estimators.make_estimator(parameters, robot)
        self._robot, self._footing, self._timing = robot, Footing(robot), TimingWatch(robot)
        # The libraries' objects stay as they are: the collector need not walk them in the middle of a run. But what an
        # earlier configure has left there must go.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._inputs = Inputs(
            self,
            robot,
            parameters,
            self._on_events,
            self._on_arrival,
            self._on_unexpected,
            estimators.joint_delay_s(estimator, parameters),
        )
        feet = bool(estimators.feet_are_told_by(estimator))
        self._outputs = Outputs(self, parameters, robot, self.get_logger().error, feet)
        if parameters.number("markers_rate") > 0 and not markers.available():
            self.get_logger().info("visualization_msgs is not installed: no estimator/markers")
        self._monitor = Monitor(
            self,
            parameters,
            self._inputs,
            self._outputs,
            robot.name,
            estimators.rate_hz(estimator),
            estimators.max_gap_s(estimator),
            {"robot": robot.name} | estimators.facts(estimator, parameters),
        )
        self.get_logger().info(
            f"estimator {estimator.name}, robot {robot.name}, model {estimator.source}\n"
            f"{self._inputs.streams.mapping()}"
        )
        for line in estimators.shortcomings(estimator, parameters):
            self.get_logger().warning(line)

    def _start_anew(self) -> None:
        """As after a fresh start: nothing of the past is left but the counts."""
        assert self._estimator is not None
        assert self._inputs is not None
        if isinstance(self._estimator, Placeable):
            x, y, z, heading = self._params.numbers("initial_pose") or (0.0, 0.0, 0.0, 0.0)
            self._estimator.set_initial_pose(np.array((x, y, z)), heading)
        self._estimator.reset()
        self._footing.reset()
        self._forget_timing()
        self._inputs.reset()
        if self._outputs is not None:
            self._outputs.schedule.clear()
        self._setup = None if self._params.text("startup_checks") == "off" else StartupCheck(self._robot)
        if self._monitor is not None:
            self._monitor.setup_faults, self._monitor.setup_warnings = [], []

    def _subscribe(self) -> None:
        assert self._inputs is not None
        self._inputs.subscribe()
        self._pose_subscription = self.create_subscription(
            PoseWithCovarianceStamped, "~/set_pose", self._on_set_pose, 10
        )

    def _unsubscribe(self) -> None:
        if self._inputs is not None:
            self._inputs.unsubscribe()
        if self._pose_subscription is not None:
            self.destroy_subscription(self._pose_subscription)
        self._pose_subscription = None

    def _drop(self) -> None:
        self._unsubscribe()
        if self._monitor is not None:
            self._monitor.close()
        if self._outputs is not None:
            self._outputs.destroy()
        self._estimator = self._inputs = self._outputs = self._monitor = self._setup = None
        self._params.locked = False

    # -- inputs --

    def _on_arrival(self, stream: str, stamp_ns: int) -> None:
        if self._monitor is not None:
            self._monitor.arrived(stream, stamp_ns)

    def _on_events(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, TimeJump):
                self._on_time_jump(event.seconds)
            else:
                self._estimate(event)

    def _on_unexpected(self, text: str) -> None:
        """An exception on the way from a message to the outputs: counted and told; the run begins anew."""
        if self._monitor is not None and self._inputs is not None:
            self._monitor.warn_once("unexpected_error", f"unexpected error, the estimator starts anew: {text}")
            self._start_anew()

    def _on_time_jump(self, seconds: float) -> None:
        assert self._estimator is not None
        assert self._outputs is not None
        assert self._monitor is not None
        self._estimator.reset()
        self._footing.reset()
        self._forget_timing()
        self._outputs.schedule.clear()
        self._monitor.statistics.time_jumps += 1
        self.get_logger().warning(f"time jumped by {seconds:.3f} s: the estimator starts anew")

    def _on_reset(self, _request: Any, response: Any) -> Any:
        if self._inputs is None or not self._inputs.subscribed:
            response.success = False
            response.message = f"nothing to reset: the node is {self.state_label}"
            return response
        assert self._estimator is not None
        self._start_anew()
        response.success = True
        response.message = "reset: window, network state, pose and covariance"
        self.get_logger().info(response.message)
        return response

    def _on_set_pose(self, message: Any) -> None:
        assert self._estimator is not None
        try:
            position, orientation = pose_arrays(message, self._params.text("odom_frame"))
            if isinstance(self._estimator, Placeable):
                self._estimator.set_pose(position, orientation, *pose_deviations(message))
            else:
                self._estimator.set_pose(position, orientation)
        except TraceError as error:
            self.get_logger().error(f"ignored: {error}")
            return
        self._footing.placed()
        self.get_logger().info(f"pose set to {np.round(position, 3).tolist()}, {np.round(orientation, 4).tolist()}")

    # -- outputs --

    def _estimate(self, sample: Sample) -> None:
        assert self._estimator is not None
        assert self._monitor is not None
        if self._setup is not None and not self._setup_allows(sample):
            return
        begin = time.perf_counter()
        try:
            estimate = self._estimator.step(sample)
        except (ValueError, TraceError) as error:
            self._monitor.warn_once("step_failed", f"the estimator refused a sample: {error}")
            return
        self._monitor.statistics.step_time_s.append(time.perf_counter() - begin)
        if estimate is not None:
            self._publish(estimate, sample)

    def _setup_allows(self, sample: Sample) -> bool:
        """Show a sample to the start-up checks; False while they have found what makes odometry nonsense."""
        assert self._setup is not None
        assert self._monitor is not None
        refuses = self._params.text("startup_checks") == "refuse"
        faulty = bool(self._setup.faults)
        if self._setup.add(sample):
            self._tell_findings(self._setup, refuses)
            if faulty and not self._setup.faults and self._estimator is not None:
                self._estimator.reset()
            if self._setup.finished:
                self._setup = None
                return True
        return not (refuses and self._setup.faults)

    def _tell_findings(self, setup: StartupCheck, refuses: bool) -> None:
        """New findings go to the log, all of them to the diagnostics."""
        monitor, log = self._monitor, self.get_logger()
        assert monitor is not None
        for text in setup.faults:
            if text not in monitor.setup_faults:
                log.error(f"{text}{': no odometry until that is mended' if refuses else ''}")
        for text in setup.warnings:
            if text not in monitor.setup_warnings:
                log.warning(text)
        if monitor.setup_faults and not setup.faults:
            log.info("start-up checks: what was wrong is mended")
        monitor.setup_faults, monitor.setup_warnings = setup.faults, setup.warnings

    def _publish(self, estimate: Estimate, sample: Sample) -> None:
        assert self._estimator is not None
        assert self._outputs is not None
        assert self._monitor is not None
        # One number is finite only if all nine are, and takes a third of the time of asking each.
        if not math.isfinite(estimate.position.dot(estimate.velocity) + estimate.angular_velocity.sum()):
            text = "the estimator's output is not finite: it starts anew"
            self._monitor.warn_once("not_finite_estimates", text)
            self._estimator.reset()
            self._footing.reset()
            return
        if self._footing.astray:
            estimate = self._footing.widened(estimate)
        statistics = self._monitor.statistics
        statistics.stationary = estimate.stationary
        statistics.gyro_bias = getattr(self._estimator, "gyro_bias", None)
        if self._outputs.publish(estimate, sample.joint_position):
            self._monitor.transforms.sent(self._outputs.messages.transform)
            if now := now_ns(self.get_clock()):  # a simulation's clock may not have come yet
                statistics.latency_s.append((now - estimate.stamp_ns) * 1e-9)
        self._watch_footing(estimate, sample)
        self._watch_timing(sample)

    def _watch_footing(self, estimate: Estimate, sample: Sample) -> None:
        """Once the estimate is out, which need not wait for this."""
        assert self._monitor is not None
        footing, doubted = self._footing, self._footing.doubtful
        footing.update(estimate.stamp_ns, sample.joint_position, estimate.velocity, estimate.angular_velocity)
        statistics = self._monitor.statistics
        statistics.agreement, statistics.doubtful = footing.agreement, footing.doubtful
        if footing.doubtful and not doubted:
            self.get_logger().warning(f"{diagnostics.DOUBTFUL}, by {footing.difference:.2f} m/s")
        elif doubted and not footing.doubtful:
            self.get_logger().info("a foot bears out the estimated velocity again")

    def _watch_timing(self, sample: Sample) -> None:
        """Once the estimate is out, likewise."""
        assert self._estimator is not None
        assert self._monitor is not None
        if not self._params.flag("timing_watch"):
            if self._watching:
                self._forget_timing()
            return
        timing, statistics, self._watching = self._timing, self._monitor.statistics, True
        timing.update(sample)
        if timing.text and not statistics.timing:
            delay_s = estimators.joint_delay_s(self._estimator, self._params)
            already = f"; joints are put back by {delay_s * 1e3:g} ms already" if delay_s else ""
            remedy = "trace bag check on a bag of it tells how late they are as stamped, for the parameter joint_delay"
            self.get_logger().warning(f"{timing.text}{already} ({remedy})")
        elif statistics.timing and not timing.text:
            self.get_logger().info("joint and IMU readings are of one time again")
        statistics.timing, statistics.timing_shares = timing.text, timing.shares

    def _forget_timing(self) -> None:
        self._timing.reset()
        self._watching = False
        if self._monitor is not None:
            self._monitor.statistics.timing, self._monitor.statistics.timing_shares = "", None


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of ``ros2 run trace_ros estimator``."""
    return run("estimator", EstimatorNode, args, PARAMETERS)


if __name__ == "__main__":
    raise SystemExit(main())
