"""Everything that can be wrong with a message, by name: what is done about it, what it usually comes from, how often.

``docs/troubleshooting.md`` has the same table in words; a test holds the two together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Action = Literal["kept", "repaired", "dropped"]


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        name: as counted: the stream (``imu`` or ``joints``) and what is wrong.
        action: what is done with the message.
        text: what it is, for the log.
        cause: what it usually comes from.
        warns: whether its occurrence is worth a warning; else it is only counted.
    """

    name: str
    action: Action
    text: str
    cause: str
    warns: bool = True


def _both(fault: str, action: Action, text: str, cause: str) -> tuple[Kind, Kind]:
    return Kind(f"imu_{fault}", action, text, cause), Kind(f"joints_{fault}", action, text, cause)


_TABLE = (
    *_both("not_finite", "dropped", "NaN or infinity", "a driver that has no reading yet, or lost its device"),
    *_both("absurd", "dropped", "a number that no sensor says", "wrong units, or bytes of a broken transfer"),
    *_both("repeated", "dropped", "the same stamp again", "a message sent twice, or a driver that reuses a stamp"),
    *_both(
        "disordered", "dropped", "an earlier stamp after a later one", "UDP, or several threads in the driver; two IMUs"
    ),
    *_both("stray", "dropped", "a stamp far from the one before and the one after", "a clock that was set meanwhile"),
    *_both("unstamped", "dropped", "no stamp (zero) between stamped messages", "a clock that was not there yet"),
    *_both(
        "restamped", "repaired", "no stamps (zero) throughout: the time of arrival is used", "a driver without a clock"
    ),
    *_both("gap", "kept", "a pause in the stamps", "lost messages, a stalled driver, a full queue"),
    *_both("burst", "kept", "stamps far closer together than usual", "stamps given on arrival of a packet of readings"),
    Kind(
        "imu_other_clock",
        "dropped",
        "stamps more than a second away from those of the joints",
        "IMU and joints are stamped by two clocks: the machine's and a device's time since its start",
    ),
    Kind(
        "imu_not_reported",
        "dropped",
        "marked as not reported (covariance -1, REP-145)",
        "a driver that gives orientation only, or a topic that is no IMU's",
    ),
    Kind(
        "imu_no_transform",
        "dropped",
        "no transform from base_link to the IMU's frame",
        "nobody publishes /tf_static, or the frame_id is another",
    ),
    Kind(
        "imu_before_joints",
        "dropped",
        "nothing came from the joints yet",
        "the start: the IMU's topic was found first",
        warns=False,
    ),
    Kind(
        "imu_without_joints",
        "dropped",
        "no joint state near enough in time",
        "joint states that stopped, are late, or come seldom",
    ),
    Kind(
        "joints_wrong_length",
        "dropped",
        "fewer or more positions than names",
        "a driver that fills its message before it knows its joints",
    ),
    Kind("joints_repeated_joints", "dropped", "a joint named twice", "two drivers merged into one message"),
    Kind(
        "joints_overlap",
        "dropped",
        "joints that another publisher reports already",
        "two publishers of joint states, for example joint_state_publisher beside the driver",
    ),
    Kind(
        "joints_foreign",
        "kept",
        "none of the robot's joints: not looked at",
        "an arm or a gripper on the same topic",
        warns=False,
    ),
    Kind(
        "joints_velocity_missing",
        "repaired",
        "no usable velocity, which the messages before had: the last one is held",
        "an empty array, one of the wrong length, NaN",
    ),
    Kind(
        "joints_effort_missing",
        "repaired",
        "no usable effort, which the messages before had: the last one is held",
        "an empty array, one of the wrong length, NaN",
    ),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _TABLE}
"""All kinds by name."""


class Tally:
    """Counts faults by kind, and tells of the first of each."""

    def __init__(self, on_first: Callable[[Kind, str], None] | None = None) -> None:
        """Start at zero.

        Args:
            on_first: called with the kind and one line of particulars when a kind is counted for the first time.
        """
        self._on_first = on_first
        self.counts: Counter[str] = Counter()
        """How often, by name of the kind."""

    def count(self, name: str, particulars: str = "", times: int = 1) -> None:
        """Count a fault. Raises `KeyError` for a kind that is not in `KINDS`."""
        kind = KINDS[name]
        first = name not in self.counts
        self.counts[name] += times
        if first and self._on_first is not None:
            self._on_first(kind, f"{particulars or kind.text}: {_DONE[kind.action]}; usually {kind.cause}")

    def of(self, *actions: Action) -> Counter[str]:
        """The counts of kinds with one of these actions."""
        return Counter({name: count for name, count in self.counts.items() if KINDS[name].action in actions})

    @property
    def warnings(self) -> int:
        """Faults so far that are worth a warning."""
        return sum(count for name, count in self.counts.items() if KINDS[name].warns)


_DONE = {"kept": "kept", "repaired": "repaired", "dropped": "dropped"}
