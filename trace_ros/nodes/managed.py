"""What a managed node needs beyond rclpy's: refusals that are answered, and unexpected errors that are told."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from trace_ros.nodes.spin import RCLError

_TRANSITIONS = {
    Transition.TRANSITION_CONFIGURE: "configure",
    Transition.TRANSITION_CLEANUP: "cleanup",
    Transition.TRANSITION_ACTIVATE: "activate",
    Transition.TRANSITION_DEACTIVATE: "deactivate",
    Transition.TRANSITION_UNCONFIGURED_SHUTDOWN: "shutdown",
    Transition.TRANSITION_INACTIVE_SHUTDOWN: "shutdown",
    Transition.TRANSITION_ACTIVE_SHUTDOWN: "shutdown",
}

Self = TypeVar("Self", bound="ManagedNode")


class ManagedNode(LifecycleNode):
    """A lifecycle node whose faults can be seen from outside."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._answer_invalid_requests()

    @property
    def state_label(self) -> str:
        """``unconfigured``, ``inactive``, ``active``, ``finalized``, or the name of the transition under way."""
        return str(self._state_machine.current_state[1])

    def start_by_itself(self) -> None:
        """Configure and activate once the node spins; where a transition fails, its own line says why.

        A launch file could ask for both. But when a process is started again, the request may go to the one that was
        killed, which others take to be alive for some seconds more, and is then never answered.
        """

        def start() -> None:
            self.destroy_timer(timer)
            if self.state_label == "unconfigured":
                self.trigger_configure()
            if self.state_label == "inactive":
                self.trigger_activate()

        timer = self.create_timer(0.001, start, clock=Clock(clock_type=ClockType.STEADY_TIME))

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
                        self.get_logger().error(f"refused: {wanted} is not possible in state {self.state_label!r}")
                        response.success = False
                        return response

                service.callback = guarded


def told(
    transition: Callable[[Self, LifecycleState], TransitionCallbackReturn],
) -> Callable[[Self, LifecycleState], TransitionCallbackReturn]:
    """A transition whose unexpected exception is a line in the log; rclpy itself says nothing of it.

    The node goes through ``on_error`` then.
    """

    @wraps(transition)
    def guarded(node: Self, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            return transition(node, state)
        except Exception as error:
            name = transition.__name__.removeprefix("on_")
            node.get_logger().error(f"unexpected error in {name}: {described(error)}")
            return TransitionCallbackReturn.ERROR

    return guarded


def described(error: Exception) -> str:
    """An exception that nobody foresaw, in one line with its place."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({Path(last.filename).name}:{last.lineno})"
