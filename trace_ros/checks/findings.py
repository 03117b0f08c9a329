"""What a check found, and the limits that the checks go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class Finding:
    """Something that does not fit.

    Attributes:
        level: ``warning``: odometry will be worse, or it is only likely to be wrong; ``fault``: odometry is nonsense.
        subject: what was looked at, in a word or two.
        text: one line: what is wrong, and the likely cause.
    """

    level: Literal["warning", "fault"]
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


class CheckSettings(BaseModel):
    """Limits of the checks.

    Attributes:
        window: s; samples are judged in pieces of this length, and a robot that stands must stand still for so long.
        steady: largest standard deviation of the specific force while standing, as a part of its magnitude.
        joint_motion: rad; largest movement of a joint within the window while standing.
        gravity: deviation of the specific force's magnitude from gravity, as a part of it, worth a warning.
        gravity_fault: the same, beyond which the readings are not in m/s^2.
        tilt: rad; angle between specific force and the normal of the feet's plane worth a warning; ground may slope.
        tilt_fault: rad; the same, beyond which the IMU is mounted in another way than described.
        joint_range: rad beyond the URDF's limits worth a warning; calibration and soft stops take some.
        joint_range_fault: rad beyond the limits that no calibration explains.
        foot_height: m; how far a foot of a standing robot may be off the plane of the other three.
        rate: deviation of the IMU's rate from the one that the model was trained at, as a part of it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    window: Positive = 0.5
    steady: Positive = 0.05
    joint_motion: Positive = 0.03
    gravity: Positive = 0.05
    gravity_fault: Positive = 0.3
    tilt: Positive = 0.35
    tilt_fault: Positive = 1.05
    joint_range: Positive = 0.2
    joint_range_fault: Positive = 0.6
    foot_height: Positive = 0.05
    rate: Positive = 0.2
