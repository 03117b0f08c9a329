"""Parameters of the nodes: one table each, declared with type, range, unit and description, checked in one place."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, cast

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

from trace_ros.errors import TraceError

Value = bool | int | float | str | list[str] | list[float]

# Declared by rclpy itself, or by the middleware, on any node.
_FOREIGN = ("use_sim_time", "start_type_description_service")
_FOREIGN_PREFIX = "qos_overrides."

_BOOLEAN_WORDS = {False: ("off", "no"), True: ("on", "yes")}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a node.

    Attributes:
        name: as in YAML files.
        default: also gives the type.
        description: what it does; shown by ``ros2 param describe``.
        unit: of numbers.
        minimum, maximum: of numbers, inclusive; both or none.
        choices: of texts; none means any text.
        live: whether it may change while the node is at work.
        lengths: how many numbers a list may hold; such a parameter is a list of numbers, each within the range.
    """

    name: str
    default: Value
    description: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    live: bool = False
    lengths: tuple[int, ...] = ()

    def given(self, value: Any) -> Any:
        """A value as it came from a file or a command line, in the type of this parameter where that is no guess."""
        if isinstance(self.default, float) and type(value) is int:
            return float(value)  # nobody wants to be told that 1 is not 1.0
        if isinstance(value, bool) and self.choices:
            # To YAML, and so to the command line of ROS, the bare word off is false.
            return next((word for word in self.choices if word in _BOOLEAN_WORDS[value]), value)
        if self.lengths:
            return _numbers([value] if 1 in self.lengths and type(value) in (int, float) else value)
        if isinstance(self.default, list) and isinstance(value, (list, tuple)):
            return [str(item) for item in value]
        return value

    def fault(self, value: Any) -> str | None:
        """What is wrong with a value, as the end of a sentence that starts with the name; None if it will do."""
        if self.lengths:
            return self._fault_of_numbers(value)
        if type(value) is not type(self.default):
            return f"is {_kind(value)}, expected {_kind(self.default)}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"is {value}, expected a finite number"
        low, high = self.minimum, self.maximum
        value = cast(Any, value)
        if low is not None and high is not None and not low <= value <= high:
            return f"is {value}, expected {low:g} to {high:g}{' ' + self.unit if self.unit else ''}"
        if self.choices and value not in self.choices:
            return f"is {value!r}, expected one of {', '.join(self.choices)}"
        return None

    def _fault_of_numbers(self, values: Any) -> str | None:
        if not isinstance(values, list) or not all(isinstance(value, float) for value in values):
            return f"is {_kind(values)}, expected a list of numbers"
        if len(values) not in self.lengths:
            return f"has {len(values)} numbers, expected {' or '.join(map(str, self.lengths))}"
        single = Parameter(self.name, 0.0, "", self.unit, self.minimum, self.maximum)
        faults = ((index, single.fault(value)) for index, value in enumerate(values))
        return next((f"{fault} (number {index + 1})" for index, fault in faults if fault is not None), None)

    def descriptor(self) -> ParameterDescriptor:
        """For ``ros2 param describe`` and for tools that draw sliders."""
        unit = f" [{self.unit}]" if self.unit else ""
        descriptor = ParameterDescriptor(name=self.name, description=f"{self.description}{unit}")
        if self.choices:
            descriptor.additional_constraints = f"one of {', '.join(self.choices)}"
        if not self.live:
            descriptor.additional_constraints += f"{'; ' if self.choices else ''}fixed while the node is at work"
        if self.lengths:
            # ROS has no ranges for lists: in words.
            counts = f"{' or '.join(map(str, self.lengths))} numbers"
            if self.minimum is not None and self.maximum is not None:
                counts += f" from {self.minimum:g} to {self.maximum:g}"
            before = f"{descriptor.additional_constraints}; " if descriptor.additional_constraints else ""
            descriptor.additional_constraints = before + counts
        elif self.minimum is not None and self.maximum is not None:
            if isinstance(self.default, float):
                # Fields of messages are not checked in ROS 2 Jazzy: an integer would be sent as the bits of a number.
                low, high = float(self.minimum), float(self.maximum)
                descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
            else:
                descriptor.integer_range = [IntegerRange(from_value=int(self.minimum), to_value=int(self.maximum))]
        return descriptor


class Parameters:
    """The declared parameters of one node.

    A bad value given at the start is remembered rather than raised, so that a managed node can refuse to configure with
    a clear line, have the parameter set right, and configure again.
    """

    def __init__(self, node: Node, table: Sequence[Parameter]) -> None:
        self._table = {parameter.name: parameter for parameter in table}
        self._values: dict[str, Any] = {}
        self._faults: dict[str, str] = {}
        self.locked = False
        """Whether parameters that are not ``live`` are fixed at present."""
        # rclpy has no public way to see what was given on the command line or in files under names nobody declared.
        given: dict[str, Any] = {name: p.value for name, p in getattr(node, "_parameter_overrides", {}).items()}
        for parameter in table:
            value = parameter.given(given.get(parameter.name, parameter.default))
            if fault := parameter.fault(value):
                self._faults[parameter.name] = f"parameter {parameter.name!r} {fault}"
                value = parameter.default
            if parameter.lengths:
                # An empty list does not tell its type.
                node.declare_parameter(
                    parameter.name, RosParameter.Type.DOUBLE_ARRAY, parameter.descriptor(), ignore_override=True
                )
                node.set_parameters([RosParameter(parameter.name, RosParameter.Type.DOUBLE_ARRAY, value)])
            else:
                node.declare_parameter(parameter.name, value, parameter.descriptor(), ignore_override=True)
            self._values[parameter.name] = value
        for name in given:
            if name not in self._table and name not in _FOREIGN and not name.startswith(_FOREIGN_PREFIX):
                near = get_close_matches(name, self._table, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(self._table))}"
                self._faults[name] = f"unknown parameter {name!r}: {hint}"
        node.add_on_set_parameters_callback(self._on_set)

    def check(self) -> None:
        """Refuse to go on with bad or unknown parameters.

        Raises:
            TraceError: names the first one.
        """
        if self._faults:
            first, *others = self._faults.values()
            raise TraceError(first + (f" (and {len(others)} more)" if others else ""))

    def text(self, name: str) -> str:
        """Value of a text parameter."""
        return str(self._values[name])

    def texts(self, name: str) -> list[str]:
        """Value of a list of texts."""
        return list(self._values[name])

    def numbers(self, name: str) -> list[float]:
        """Value of a list of numbers."""
        return list(self._values[name])

    def number(self, name: str) -> float:
        """Value of a floating-point parameter."""
        return float(self._values[name])

    def integer(self, name: str) -> int:
        """Value of an integer parameter."""
        return int(self._values[name])

    def flag(self, name: str) -> bool:
        """Value of a boolean parameter."""
        return bool(self._values[name])

    def _on_set(self, proposed: Sequence[Any]) -> SetParametersResult:
        for item in proposed:
            parameter = self._table.get(item.name)
            if parameter is None:
                continue
            value = parameter.given(item.value)
            if self.locked and not parameter.live and value != self._values[item.name]:
                reason = f"{item.name} is fixed while the node is at work: clean up (or end) the node, then set it"
                return SetParametersResult(successful=False, reason=reason)
            if fault := parameter.fault(value):
                return SetParametersResult(successful=False, reason=f"{item.name} {fault}")
        for item in proposed:
            if item.name in self._table:
                self._values[item.name] = self._table[item.name].given(item.value)
                self._faults.pop(item.name, None)
        return SetParametersResult(successful=True)


def _numbers(value: Any) -> Any:
    """A list of numbers out of what ROS makes of it: an array type, integers where nothing stands behind the dot."""
    if value is None:
        return []
    if isinstance(value, (list, tuple, array)) and all(type(item) in (int, float) for item in value):
        return [float(item) for item in value]
    return value


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "an integer", float: "a number", str: "a text", list: "a list of texts"}
    return kinds.get(type(value), "not set" if value is None else type(value).__name__)
