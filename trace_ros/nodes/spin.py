"""How every node of the package runs: the executor, Ctrl-C, and user errors as one line."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import rclpy
from rclpy.exceptions import NameValidationException, ParameterException
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.logging import get_logger
from rclpy.qos_overriding_options import InvalidQosOverridesError
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future
from rclpy.utilities import remove_ros_args

from trace_ros.errors import TraceError
from trace_ros.nodes.parameters import Parameter

RCLError = rclpy_implementation.RCLError
"""What rclpy raises when the middleware or the state machine refuses something."""

USER_ERROR = 2
"""Exit code for a fault in what the user gave, as on the command line."""


class RunnableNode(Protocol):
    """A node with something to put away before it is destroyed."""

    def close(self) -> None:
        """Called once, after the last callback; the context is still valid."""

    def destroy_node(self) -> Any:
        """As in rclpy."""


def make_executor() -> Any:
    """The events executor where this ROS 2 has it: far less CPU than the single-threaded one at 2 x 500 Hz."""
    try:
        from rclpy.experimental.events_executor import EventsExecutor
    except ImportError:
        return SingleThreadedExecutor()
    return EventsExecutor()


def run(
    name: str,
    create: Callable[[Future], RunnableNode],
    args: Sequence[str] | None = None,
    parameters: Sequence[Parameter] = (),
    period_s: float = 0.2,
    linger_s: float = 0.0,
) -> int:
    """Create a node and run it until Ctrl-C, SIGTERM, or the node's own end; the last thing a process does.

    Args:
        name: for the log, when the node itself does not exist.
        create: makes the node; the future it is given ends the run when the node completes it (with a `TraceError` as
            exception: in failure).
        args: ROS arguments; the process's own when None.
        parameters: of the node, for ``--help``.
        period_s: longest time (s) until a signal is noticed while nothing happens.
        linger_s: go on for this long (s) after the end was asked for, to take what has already arrived.

    Returns:
        Exit code: 0 after an orderly end, 2 after a user's error, which is logged as one line.
    """
    stop = Future()

    def on_signal(_number: int, _frame: Any) -> None:
        if not stop.done():
            stop.set_result(None)

    try:
        # Not rclpy's own handlers: they invalidate the context at once, before the node could put its things away.
        rclpy.init(args=None if args is None else list(args), signal_handler_options=SignalHandlerOptions.NO)
    except (RCLError, ValueError, RuntimeError) as error:
        get_logger(name).fatal(_one_line(error))
        return USER_ERROR
    others = remove_ros_args(sys.argv[1:] if args is None else list(args))
    if others:
        rclpy.try_shutdown()
        if others[0] in ("-h", "--help"):
            print(_usage(name, parameters))
            return 0
        get_logger(name).fatal(f"unknown argument {others[0]!r}: parameters are given as --ros-args -p NAME:=VALUE")
        return USER_ERROR
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        signal.signal(number, on_signal)
    try:
        return _run(name, create, stop, period_s, linger_s)
    except TraceError as error:
        get_logger(name).fatal(str(error))
        return USER_ERROR
    except (NameValidationException, ParameterException, InvalidQosOverridesError) as error:
        # What only turns out to be wrong when the node is made: names after remapping, use_sim_time, QoS overrides.
        get_logger(name).fatal(f"cannot start: {_one_line(error)}")
        return USER_ERROR
    finally:
        with suppress(RCLError):
            rclpy.try_shutdown()
        # The process ends now. A launch file repeats the terminal's Ctrl-C, and the second one must not interrupt the
        # interpreter's own end.
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        # What is alive now goes with the process; walking torch's objects once more would take a second.
        gc.freeze()


def _usage(name: str, parameters: Sequence[Parameter]) -> str:
    lines = [f"usage: {name} [--ros-args -p PARAMETER:=VALUE ... --params-file FILE -r FROM:=TO]", "", "parameters:"]
    for parameter in parameters:
        descriptor = parameter.descriptor()
        default = " ".join(map(str, parameter.default)) if isinstance(parameter.default, list) else parameter.default
        choices = f"; one of {', '.join(parameter.choices)}" if parameter.choices else ""
        lines.append(f"  {parameter.name} [{default}]: {descriptor.description}{choices}")
    return "\n".join(lines)


def _run(name: str, create: Callable[[Future], RunnableNode], stop: Future, period_s: float, linger_s: float) -> int:
    executor = make_executor()
    try:
        node = create(stop)
        try:
            executor.add_node(node)
            spin(executor, stop, name, period_s)
            if linger_s > 0:
                executor.spin_until_future_complete(Future(), timeout_sec=linger_s)
            executor.remove_node(node)
        finally:
            node.close()
            node.destroy_node()
    finally:
        executor.shutdown()
    if (error := stop.exception()) is not None:
        raise error
    return 0


def spin(executor: Any, stop: Future, name: str, period_s: float = 0.2) -> None:
    """Spin until ``stop`` is done.

    The events executor's plain ``spin()`` never returns to Python in some builds, so that not even Ctrl-C ends it; with
    a timeout it does. A refused lifecycle request raises out of ``spin`` in Jazzy and must not end the process.
    """
    while rclpy.ok() and not stop.done():
        try:
            executor.spin_until_future_complete(stop, timeout_sec=period_s)
        except RCLError as error:  # noqa: PERF203
            get_logger(name).error(f"a request was refused: {_one_line(error)}")
        except (KeyboardInterrupt, ExternalShutdownException):
            return


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
