"""What every estimator offers, whatever it is made of: what runs logs, judges and publishes asks for no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.logs import Sample

if TYPE_CHECKING:  # torch takes a second to import, and filters never need it
    from trace_ros.estimator.estimator import Estimate

Output = Literal["velocity", "attention", "contact", "stationary"]
"""What an estimate may hold besides pose, angular velocity and covariances."""


class Estimator(Protocol):
    """Takes samples one after another and tells where the body is.

    The first `trace_ros.estimator.observation.WINDOW` - 1 samples after a start, a reset or a gap of more than
    `trace_ros.estimator.observation.MAX_GAP_S` give no estimate, so that all estimators begin at the same sample, and
    from the same pose.
    """

    @property
    def name(self) -> str:
        """Of the method, as on the command line."""

    @property
    def outputs(self) -> frozenset[Output]:
        """What its estimates hold."""

    @property
    def source(self) -> str:
        """What it was made from, for titles and results: the file of its weights or of its numbers."""

    def reset(self) -> None:
        """Forget everything. A reset run equals a fresh one."""

    def set_pose(self, position: NDArray[np.float64], orientation: NDArray[np.float64]) -> None:
        """Put the body at a position (3,) m and orientation (4,) quaternion x, y, z, w.

        Raises:
            TraceError: not finite, wrong length, or a zero quaternion.
        """

    def step(self, sample: Sample) -> Estimate | None:
        """Take in one sample.

        Returns:
            The estimate at the sample's stamp, or None while there is none yet.

        Raises:
            ValueError: the stamp does not come after the previous one.
        """


@runtime_checkable
class Placeable(Protocol):
    """An estimator that can also be told where its runs begin, and how uncertain a pose is that it is given."""

    def set_initial_pose(self, position: NDArray[np.float64], heading: float) -> None:
        """Where runs begin, this one (where it has not begun) and those after a `reset`.

        Args:
            position: (3,) m.
            heading: rad. Roll and pitch are gravity's to say.

        Raises:
            TraceError: not finite, or wrong length.
        """

    def set_pose(
        self,
        position: NDArray[np.float64],
        orientation: NDArray[np.float64],
        position_sigma: float = 0.0,
        heading_sigma: float = 0.0,
    ) -> None:
        """As of `Estimator`, with standard deviations beyond the least that is assumed.

        Args:
            position: (3,) m.
            orientation: (4,) quaternion x, y, z, w.
            position_sigma: m, each axis.
            heading_sigma: rad.

        Raises:
            TraceError: not finite, wrong length, or a zero quaternion.
        """


@runtime_checkable
class RateBound(Protocol):
    """An estimator that was trained at a rate."""

    @property
    def rate_hz(self) -> float:
        """That rate, Hz."""


@runtime_checkable
class GapBound(Protocol):
    """An estimator that can be told how long a pause it bridges; others start anew after `MAX_GAP_S`."""

    @property
    def max_gap_s(self) -> float:
        """That pause, s."""


def checked_pose(
    position: NDArray[np.float64],
    orientation: NDArray[np.float64],
    position_sigma: float = 0.0,
    heading_sigma: float = 0.0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Arguments of `Placeable.set_pose`, looked at: position (3,) m, a copy, and rotation (3, 3), body to fixed frame.

    Raises:
        TraceError: not finite, wrong length, or a zero quaternion.
    """
    place, quaternion = np.array(position, dtype=float), np.asarray(orientation, dtype=float)
    sizes = place.shape == (3,) and quaternion.shape == (4,)
    if not (sizes and np.isfinite(place).all() and np.isfinite(quaternion).all() and np.linalg.norm(quaternion) > 1e-6):
        raise TraceError(f"set_pose: not a pose: position {place.tolist()}, orientation {quaternion.tolist()}")
    if not (np.isfinite(position_sigma) and np.isfinite(heading_sigma)):
        raise TraceError("set_pose: its covariance is not finite")
    return place, Rotation.from_quat(quaternion).as_matrix()


def checked_initial_pose(position: NDArray[np.float64], heading: float) -> tuple[NDArray[np.float64], float]:
    """Arguments of `Placeable.set_initial_pose`, looked at: position (3,) m, a copy, and heading, rad.

    Raises:
        TraceError: not finite, or wrong length.
    """
    place = np.array(position, dtype=float)
    if place.shape != (3,) or not (np.isfinite(place).all() and np.isfinite(heading)):
        raise TraceError(f"initial pose: {[*place.tolist(), heading]} is not a position and a heading")
    return place, float(heading)
