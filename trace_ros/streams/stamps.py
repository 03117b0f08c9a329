"""The stamps of one stream: messages without one, messages out of order, wild stamps and new time lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from trace_ros.streams.intervals import usual_interval
from trace_ros.streams.kinds import Tally

T = TypeVar("T")

_EVIDENCE = 5
"""Messages in a row that must say the same before a stream is taken to have no stamps, or to have them again."""

_FAR_NS = 500_000_000
"""A stamp this far ahead, as one far behind, is believed once the next message of its stream goes on from there."""

_GOES_ON_NS = 10_000_000_000
"""Two messages no further apart than this make a time line."""

_LEFTOVERS = 50
"""Messages of the old time line that may still arrive on the other stream after a jump."""

_LEFTOVER_NS = 1_000_000_000
"""And how near to its end they are."""

_USUAL = 16
"""Intervals from which the usual one is told."""


class Stamper(Generic[T]):
    """Gives messages of a stream without stamps (all zero) the time of their arrival.

    A single message without a stamp is dropped: only the ones after it tell which of the two it is, so zeros wait.
    """

    def __init__(self, stream: str, tally: Tally) -> None:
        self._stream, self._tally = stream, tally
        self.clear()

    def clear(self) -> None:
        """Forget the past."""
        self._held: list[tuple[int, T]] = []
        self._seen_stamp = False
        self._stamped_in_a_row = 0
        self.by_arrival = False
        """Whether the times of arrival are used at present."""

    def stamp(self, stamp_ns: int, arrival_ns: int, message: T) -> list[tuple[int, T]]:
        """Take in one message; returns those whose time is known now, in order."""
        if stamp_ns > 0:
            return self._stamped(stamp_ns, arrival_ns, message)
        self._stamped_in_a_row = 0
        if self.by_arrival:
            self._tally.count(f"{self._stream}_restamped")
            return [(arrival_ns, message)]
        self._held.append((arrival_ns, message))
        if len(self._held) < _EVIDENCE:
            return []
        self.by_arrival = True
        held, self._held = self._held, []
        self._tally.count(f"{self._stream}_restamped", times=len(held))
        return held

    def _stamped(self, stamp_ns: int, arrival_ns: int, message: T) -> list[tuple[int, T]]:
        if self.by_arrival:
            self._stamped_in_a_row += 1
            if self._stamped_in_a_row < _EVIDENCE:
                self._tally.count(f"{self._stream}_restamped")
                return [(arrival_ns, message)]
            self.by_arrival = False
        waited: list[tuple[int, T]] = []
        if self._held:
            held, self._held = self._held, []
            if len(held) == 1 and not self._seen_stamp and stamp_ns <= _GOES_ON_NS:
                waited = [(0, held[0][1])]  # the clock of a simulation, which starts at zero
            else:
                self._tally.count(f"{self._stream}_unstamped", times=len(held))
        self._seen_stamp = True
        return [*waited, (stamp_ns, message)]


class StampOrder(Generic[T]):
    """Lets the messages of one stream through in order of their stamps.

    One wild stamp (a clock that jumped and came back) must not cost the estimator its pose: a message far from the time
    line waits for the next one, and only if that goes on from there do both count.
    """

    def __init__(
        self, stream: str, tally: Tally, jump_ns: int, follow_jumps: bool, on_jump: Callable[[int, int], None]
    ) -> None:
        """Start empty.

        Args:
            stream: "imu" or "joints", for counting.
            tally: where to count.
            jump_ns: stamps further back than this, two in a row, are a new time line; a smaller one is disorder.
            follow_jumps: whether a new time line is followed; else its messages are dropped until time catches up.
            on_jump: called with the last stamp of the old and the first of the new time line, before the latter's
                messages are let through.
        """
        self._stream, self._tally = stream, tally
        self._jump_ns, self._follow, self._on_jump = jump_ns, follow_jumps, on_jump
        self.last_ns: int | None = None
        """The newest stamp let through."""
        self._suspect: tuple[int, T] | None = None
        self._jump: tuple[int, int] | None = None
        self._leftovers = 0
        self._intervals: deque[int] = deque(maxlen=_USUAL)
        self._usual_ns = self._since_judged = 0

    def forget(self, jump: tuple[int, int]) -> None:
        """Start anew because another stream's time jumped: leftovers of the old time line are then known as such.

        Args:
            jump: the last stamp of the old and the first of the new time line.
        """
        self.last_ns = None
        self._jump, self._leftovers = jump, 0
        if self._suspect is not None and abs(self._suspect[0] - jump[1]) > _GOES_ON_NS:
            self._suspect = None
        self._intervals.clear()
        self._usual_ns = self._since_judged = 0

    def usual_ns(self) -> int:
        """The usual interval between messages; 0 while too few were seen."""
        return self._usual_ns

    def admit(self, stamp_ns: int, message: T) -> list[tuple[int, T]]:
        """Take in one message; returns those that count now, in order."""
        last = self.last_ns
        if last is not None:
            step = stamp_ns - last
            if 0 < step <= _FAR_NS:
                if self._suspect is not None:
                    self._suspect = None
                    self._count("stray", "a stamp far from all others, once")
                return [self._let_through(stamp_ns, message, step)]
            if -self._jump_ns <= step <= 0 or (step < 0 and not self._follow):
                if step == 0:
                    self._count("repeated", f"two messages stamped {stamp_ns * 1e-9:.6f} s")
                else:
                    self._count("disordered", f"a stamp {-step * 1e-9:.6f} s before that of an earlier message")
                return []
            return self._weigh(stamp_ns, message, step)
        return self._begin(stamp_ns, message)

    def _begin(self, stamp_ns: int, message: T) -> list[tuple[int, T]]:
        """The first message, or the first after a jump on another stream."""
        if self._jump is not None and self._leftovers < _LEFTOVERS:
            from_old, from_new = abs(stamp_ns - self._jump[0]), abs(stamp_ns - self._jump[1])
            if from_old < min(from_new, _LEFTOVER_NS):
                self._leftovers += 1
                self._count("stray", "a stamp of the time line before the jump")
                return []
        self._jump = None
        waited = []
        if self._suspect is not None:
            before, suspect = self._suspect
            self._suspect = None
            if 0 < stamp_ns - before <= _GOES_ON_NS:
                waited = [self._let_through(before, suspect, 0)]
        step = 0 if self.last_ns is None else stamp_ns - self.last_ns
        return [*waited, self._let_through(stamp_ns, message, step)]

    def _weigh(self, stamp_ns: int, message: T, step: int) -> list[tuple[int, T]]:
        """A stamp far ahead, or back by a jump: believed when it goes on from the one that waits."""
        suspect, self._suspect = self._suspect, None
        assert self.last_ns is not None
        goes_on = (
            suspect is not None
            and 0 < stamp_ns - suspect[0] <= _GOES_ON_NS
            and (suspect[0] < self.last_ns) == (stamp_ns < self.last_ns)
        )
        if suspect is None or not goes_on:
            if suspect is not None:
                self._count("stray", "a stamp far from all others, once")
            self._suspect = stamp_ns, message
            return []
        first_ns, first = suspect
        if step < 0:
            self._on_jump(self.last_ns, first_ns)
            self._jump = self.last_ns = None
            step = 0
        else:
            step = first_ns - self.last_ns
        return [
            self._let_through(first_ns, first, step),
            self._let_through(stamp_ns, message, stamp_ns - first_ns),
        ]

    def _let_through(self, stamp_ns: int, message: T, step: int) -> tuple[int, T]:
        if step > 0:
            if self._usual_ns and not self._usual_ns <= 2 * step <= 3 * self._usual_ns:
                self._judge(step)
            self._intervals.append(step)
            self._since_judged += 1
            if self._since_judged >= _USUAL:
                self._since_judged = 0
                self._usual_ns = round(usual_interval(self._intervals))
        self.last_ns = stamp_ns
        return stamp_ns, message

    def _judge(self, step: int) -> None:
        """An interval that is not like an earlier one: gap, burst, or nothing."""
        usual = self._usual_ns
        if step > 1.75 * usual and step > 1_000_000:
            if 4 * min(self._intervals) < usual and step < 0.1e9:
                return  # the pause between two packets
            self._count("gap", f"a pause of {step * 1e-9:.3f} s where {usual * 1e-9:.4f} s is usual")
        elif 4 * step < usual:
            self._count("burst", f"stamps {step * 1e-6:.3f} ms apart where {usual * 1e-6:.3f} ms is usual")

    def _count(self, fault: str, particulars: str) -> None:
        self._tally.count(f"{self._stream}_{fault}", particulars)
