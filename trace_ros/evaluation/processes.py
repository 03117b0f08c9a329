"""Independent pieces of work spread over processes, with progress, one-line faults and Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized, SynchronizedArray
from typing import Any, TypeVar

import torch

from trace_ros.errors import TraceError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Seconds between two looks at how far the processes are.
_POLL = 0.2


def spread(
    work: Callable[[Item, Callable[[float], None]], Result],
    items: Sequence[Item],
    jobs: int,
    progress: Callable[[float], None] | None = None,
) -> list[Result]:
    """``work(item, advance)`` for every item; the results come in the order of the items.

    Args:
        work: picklable; tells ``advance`` now and then what part of the item is done, 0 to 1: only there can it be
            stopped.
        items: picklable.
        jobs: processes; with one (or one item) all runs in this process.
        progress: hears how many items are done, with parts.

    Raises:
        TraceError: what the work raised, or a process that died.
        KeyboardInterrupt: after all processes have stopped.
    """
    if min(jobs, len(items)) <= 1:
        tell = progress or (lambda _: None)
        results = []
        for index, item in enumerate(items):
            results.append(work(item, lambda part, before=index: tell(before + part)))  # type: ignore[misc]
            tell(index + 1)
        return results
    # Fresh interpreters: forking one that runs torch threads is not safe.
    context = multiprocessing.get_context("spawn")
    parts, stop = context.Array("d", len(items)), context.Value("b", 0)
    with ProcessPoolExecutor(min(jobs, len(items)), context, _start, (work, parts, stop)) as pool:
        with _interrupts_ignored():  # inherited by the processes: Ctrl-C is for this one to handle
            futures = [pool.submit(_run, index, item) for index, item in enumerate(items)]
        try:
            waiting = set(futures)
            while waiting:
                done, waiting = wait(waiting, _POLL, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                if progress is not None:
                    progress(sum(parts[:]))
        except BrokenProcessPool as error:
            raise TraceError(
                "a process ended unexpectedly (out of memory?); try again with one (--jobs 1, --workers 1)"
            ) from error
        except BaseException:
            stop.value = 1
            pool.shutdown(cancel_futures=True)
            raise
        return [future.result() for future in futures]


class _StoppedError(Exception):
    """Raised in a process whose work is no longer wanted."""


_state: dict[str, Any] = {}


def _start(work: Callable[..., Any], parts: SynchronizedArray[float], stop: Synchronized[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # threads of several processes would wait for each other at every small product
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _state.update(work=work, parts=parts, stop=stop)


def _leave_with_parent() -> None:
    """End with a parent that was killed: nobody else would tell."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(index: int, item: Any) -> Any:
    parts, stop = _state["parts"], _state["stop"]

    def advance(part: float) -> None:
        if stop.value:
            raise _StoppedError
        parts[index] = part

    advance(0.0)
    result = _state["work"](item, advance)
    advance(1.0)
    return result


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # where handlers cannot be set
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
