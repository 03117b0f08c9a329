"""Work spread over processes: order, progress, faults, the death of a process, and Ctrl-C."""

import os
import signal
import threading
import time

import pytest

from trace_ros.errors import TraceError
from trace_ros.evaluation.processes import spread


def square(item, advance):
    advance(0.5)
    if item == "fault":
        raise TraceError("item: no good")
    if item == "death":
        os._exit(1)
    if item == "endless":
        while True:
            time.sleep(0.02)
            advance(0.5)
    return item * item, os.getpid()


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_order(jobs):
    seen = []
    results = spread(square, [3, 1, 2], jobs, seen.append)
    assert [value for value, _ in results] == [9, 1, 4]
    assert (os.getpid() in {pid for _, pid in results}) == (jobs == 1)
    assert seen == sorted(seen)
    assert seen[-1] == 3.0


@pytest.mark.parametrize("items", [["fault"], ["endless", "fault", 1]])
def test_a_fault_ends_all(items):
    with pytest.raises(TraceError, match="item: no good"):
        spread(square, items, 2)


def test_a_process_that_dies_is_one_line():
    with pytest.raises(TraceError, match="a process ended unexpectedly"):
        spread(square, [1, "death"], 2)


def test_ctrl_c_ends_the_processes_too():
    timers = []

    def interrupt(done: float) -> None:
        if done and not timers:
            timers.append(threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)))
            timers[0].start()

    with pytest.raises(KeyboardInterrupt):  # and not before the processes have ended, or they would go on for ever
        spread(square, ["endless", "endless"], 2, interrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
