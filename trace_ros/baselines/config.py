"""The numbers of the model-based estimators (``config/baselines/iekf.yaml``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trace_ros.errors import TraceError
from trace_ros.resources import config_directory, read_yaml_on_base
from trace_ros.robot import describe_validation_error

NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class KinematicContactConfig(BaseModel):
    """Contact from kinematics alone: feet that are low and move neither up nor down stand.

    Attributes:
        height, leave_height: m above the lowest foot, along gravity, up to which a foot comes to stand, and beyond
            which it no longer does.
        vertical_speed, leave_vertical_speed: m/s along gravity, likewise.
    """

    model_config = _STRICT
    height: Positive = 0.015
    leave_height: Positive = 0.03
    vertical_speed: Positive = 0.15
    leave_vertical_speed: Positive = 0.4

    @model_validator(mode="after")
    def _hysteresis(self) -> KinematicContactConfig:
        if self.leave_height < self.height or self.leave_vertical_speed < self.vertical_speed:
            raise ValueError("leave_height and leave_vertical_speed must not lie below height and vertical_speed")
        return self


class ContactConfig(BaseModel):
    """When a foot stands.

    Attributes:
        enter, leave: vertical ground reaction force, as part of the body's weight, at which a foot comes to stand, and
            below which it no longer does.
        touchdown_dwell, liftoff_dwell: s, for which that must last.
        rest: a smaller force at which a foot comes to stand too, where it lasts: feet that share the weight.
        rest_dwell: s, for which that must last.
        smoothing: s, time constant of a low-pass on the force; 0 without.
        rotor_inertia: kg m^2, of motor and gear as seen at each joint.
        without_torque: for samples without joint torque.
    """

    model_config = _STRICT
    enter: Positive = 0.32
    leave: Positive = 0.087
    touchdown_dwell: NotNegative = 0.0
    liftoff_dwell: NotNegative = 0.0
    rest: Positive = 0.12
    rest_dwell: NotNegative = 0.1
    smoothing: NotNegative = 0.0007
    rotor_inertia: NotNegative = 0.01
    without_torque: KinematicContactConfig = KinematicContactConfig()

    @model_validator(mode="after")
    def _hysteresis(self) -> ContactConfig:
        if not self.leave <= self.rest <= self.enter:
            limits = f"leave ({self.leave:g}), rest ({self.rest:g}) and enter ({self.enter:g})"
            raise ValueError(f"{limits} must not come in another order")
        return self


class FilterNoise(BaseModel):
    """Variances; those of processes for each second.

    Attributes:
        gyro, accel: of the readings, (rad/s)^2/Hz and (m/s^2)^2/Hz.
        contact, contact_vertical: of a standing foot's velocity over the ground and up or down, (m/s)^2/Hz.
        sinking: standard deviation of a standing foot's height at a load of the body's weight, m; it grows in
            proportion to the load. Errors of successive samples are far from independent: take several times what the
            ground yields. 0 for ground that does not yield.
        slip: of a slipping foot's velocity, (m/s)^2/Hz.
        encoder: of joint positions, rad^2.
        gyro_bias, accel_bias: of the change of the biases, (rad/s^2)^2/Hz and (m/s^3)^2/Hz.
    """

    model_config = _STRICT
    gyro: Positive = 8.5e-6
    accel: Positive = 4.4e-6
    contact: Positive = 1.9e-4
    contact_vertical: Positive = 2.2e-6
    sinking: NotNegative = 0.11
    slip: Positive = 1.0
    encoder: Positive = 2.7e-5
    gyro_bias: NotNegative = 1e-10
    accel_bias: NotNegative = 6.1e-7


class FilterPrior(BaseModel):
    """Standard deviations at the start: roll and pitch, heading (rad), velocity (m/s), position (m), biases (rad/s,
    m/s^2)."""

    model_config = _STRICT
    tilt: Positive = 0.03
    yaw: Positive = 0.001
    velocity: Positive = 0.3
    position: Positive = 0.001
    gyro_bias: Positive = 0.002
    accel_bias: Positive = 0.05


class LegOdometryConfig(BaseModel):
    """Dead reckoning with gyro and standing feet.

    Attributes:
        landing: s, for which a foot must stand before it counts: it bounces and sinks.
        tilt_time_constant: s, by which gravity corrects roll and pitch.
        steady_force: m/s^2; deviation of the specific force from gravity at which it counts half.
        position_per_sqrt_metre, yaw_per_sqrt_second, tilt, velocity: standard deviations that it reports: growth of the
            position's with distance, m/sqrt(m), and of the heading's with time, rad/sqrt(s); roll and pitch, rad; body
            velocity, m/s.
    """

    model_config = _STRICT
    landing: NotNegative = 0.024
    tilt_time_constant: Positive = 5.0
    steady_force: Positive = 1.0
    position_per_sqrt_metre: Positive = 0.1
    yaw_per_sqrt_second: Positive = 0.005
    tilt: Positive = 0.03
    velocity: Positive = 0.1


class BaselineConfig(BaseModel):
    """Everything that the model-based estimators can be told.

    Attributes:
        contact: when a foot stands.
        noise, prior: of the filter.
        slip_speed: m/s, of a standing foot over the ground, beyond which it slips.
        slip_patience: s, for which all standing feet may be found slipping; then they are believed until one is not.
        slip_direction: which part of that speed counts, and gets the noise of slip: ``horizontal``, or ``any``.
        rolling_feet: whether round feet roll as the shank turns over them; else their centres stand still.
        leg_odometry: of the plain leg odometry.
    """

    model_config = _STRICT
    contact: ContactConfig = ContactConfig()
    noise: FilterNoise = FilterNoise()
    prior: FilterPrior = FilterPrior()
    slip_speed: Positive = 0.16
    slip_patience: Positive = 0.2
    slip_direction: Literal["horizontal", "any"] = "horizontal"
    rolling_feet: bool = True
    leg_odometry: LegOdometryConfig = LegOdometryConfig()

    @classmethod
    def load(cls, path: Path | None = None) -> BaselineConfig:
        """Read a file, by default the package's own. Its key ``base`` may name another one that it changes.

        Raises:
            TraceError: unreadable, not YAML, or an unknown or bad key.
        """
        path = path or default_config()
        data: Any = read_yaml_on_base(path)
        if not isinstance(data, dict):
            raise TraceError(f"{path}: expected keys and values, found {type(data).__name__}")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise TraceError(f"{path}: {describe_validation_error(error)}") from error


def default_config() -> Path:
    """The package's own file."""
    return config_directory() / "baselines" / "iekf.yaml"
