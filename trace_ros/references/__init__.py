"""References as they come: another clock, another frame, another rate, with gaps and jumps; made fit to compare with.

`clean_reference` makes of raw reference poses and a log's IMU a reference on the log's stamps, and says what it did.
"""

from trace_ros.references.agreement import disagrees, torn
from trace_ros.references.clean import CleanReference, clean_reference
from trace_ros.references.clock import ClockOffset, estimate_clock_offset
from trace_ros.references.inertial_fit import InertialFit, fit_inertial
from trace_ros.references.segments import Cut, Segments, cut_reference
from trace_ros.references.settings import ReferenceSettings, RigidOffset

__all__ = [
    "CleanReference",
    "ClockOffset",
    "Cut",
    "InertialFit",
    "ReferenceSettings",
    "RigidOffset",
    "Segments",
    "clean_reference",
    "cut_reference",
    "disagrees",
    "estimate_clock_offset",
    "fit_inertial",
    "torn",
]
