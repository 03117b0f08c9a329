"""Drives a managed node through its transitions from the command line, where no ``ros2 lifecycle`` is installed.

python -m trace_ros.nodes.lifecycle estimator configure activate
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.node import Node

from trace_ros.errors import TraceError

TRANSITIONS = {
    "configure": Transition.TRANSITION_CONFIGURE,
    "activate": Transition.TRANSITION_ACTIVATE,
    "deactivate": Transition.TRANSITION_DEACTIVATE,
    "cleanup": Transition.TRANSITION_CLEANUP,
}


def change_states(node: Node, managed: str, transitions: Sequence[str], timeout_s: float = 30.0) -> None:
    """Ask a managed node for transitions, one after the other.

    Args:
        node: to ask through.
        managed: name of the managed node, with its namespace if it has one.
        transitions: keys of `TRANSITIONS`.
        timeout_s: s, for the node to appear and for each answer (a model takes some seconds to load).

    Raises:
        TraceError: unknown transition, no such node, no answer in time, or refused.
    """
    if unknown := [name for name in transitions if name not in TRANSITIONS]:
        raise TraceError(f"unknown transition {unknown[0]!r}: known are {', '.join(TRANSITIONS)}")
    client = node.create_client(ChangeState, f"{managed}/change_state")
    state = node.create_client(GetState, f"{managed}/get_state")
    if not client.wait_for_service(timeout_sec=2.0):
        print(f"waiting up to {timeout_s:g} s for a managed node {managed!r}", file=sys.stderr)
    for waited in (client, state):
        if not waited.wait_for_service(timeout_sec=timeout_s):
            raise TraceError(f"no managed node {managed!r} appeared within {timeout_s:g} s")
    for name in transitions:
        request = ChangeState.Request()
        request.transition.id = TRANSITIONS[name]
        answer = client.call_async(request)
        rclpy.spin_until_future_complete(node, answer, timeout_sec=timeout_s)
        if not answer.done():
            raise TraceError(f"{managed} did not answer to {name} within {timeout_s:g} s")
        if not answer.result().success:
            current = state.call_async(GetState.Request())
            rclpy.spin_until_future_complete(node, current, timeout_sec=timeout_s)
            label = current.result().current_state.label if current.done() else "unknown"
            raise TraceError(f"{managed} refused to {name} and is {label}: its log says why")


def main(args: Sequence[str] | None = None) -> int:
    """Entry point; exit code 2 with one line when a transition fails."""
    arguments = list(sys.argv[1:] if args is None else args)
    if len(arguments) < 2:
        print(f"usage: lifecycle NODE TRANSITION...  ({', '.join(TRANSITIONS)})", file=sys.stderr)
        return 2
    rclpy.init()
    node = rclpy.create_node("lifecycle_client")
    try:
        change_states(node, arguments[0], arguments[1:])
    except TraceError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
