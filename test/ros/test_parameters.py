"""Declaring, checking and changing parameters, on a node in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter
from rclpy.serialization import deserialize_message, serialize_message

from trace_ros.errors import TraceError
from trace_ros.nodes import estimator_parameters, path_node, recorder_node, replay_node
from trace_ros.nodes.parameters import Parameter, Parameters

TABLE = (
    Parameter("name", "go2", "a text"),
    Parameter("kind", "a", "a choice", choices=("a", "b")),
    Parameter("speed", 1.0, "a number", "m/s", 0.0, 2.0, live=True),
    Parameter("depth", 5, "an integer", "messages", 1, 10),
    Parameter("enabled", True, "a flag", live=True),
    Parameter("topics", ["one"], "a list of texts"),
)


@pytest.fixture
def declare() -> Iterator[Callable[..., tuple[Node, Parameters]]]:
    nodes: list[Node] = []

    def make(**given: object) -> tuple[Node, Parameters]:
        overrides = [RosParameter(name, value=value) for name, value in given.items()]
        nodes.append(Node(f"parameters_{len(nodes)}", parameter_overrides=overrides, use_global_arguments=False))
        return nodes[-1], Parameters(nodes[-1], TABLE)

    yield make
    for node in nodes:
        node.destroy_node()


def test_defaults_and_given_values(declare: Callable) -> None:
    node, parameters = declare(speed=2, topics=["a", "b"], use_sim_time=False)
    parameters.check()
    assert parameters.number("speed") == 2.0  # an integer will do
    assert node.get_parameter("speed").value == 2.0
    assert parameters.texts("topics") == ["a", "b"]
    assert parameters.text("name") == "go2"
    assert parameters.integer("depth") == 5
    assert parameters.flag("enabled") is True
    descriptor = node.describe_parameter("speed")
    assert descriptor.description == "a number [m/s]"
    assert (descriptor.floating_point_range[0].from_value, descriptor.floating_point_range[0].to_value) == (0.0, 2.0)
    assert "one of a, b" in node.describe_parameter("kind").additional_constraints


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"speed": 2.5}, "parameter 'speed' is 2.5, expected 0 to 2 m/s"),
        ({"speed": float("nan")}, "parameter 'speed' is nan, expected a finite number"),
        ({"speed": "fast"}, "parameter 'speed' is a text, expected a number"),
        ({"depth": 0}, "parameter 'depth' is 0, expected 1 to 10 messages"),
        ({"depth": 2.0}, "parameter 'depth' is a number, expected an integer"),
        ({"enabled": 1}, "parameter 'enabled' is an integer, expected true or false"),
        ({"kind": "c"}, "parameter 'kind' is 'c', expected one of a, b"),
        ({"name": True}, "parameter 'name' is true or false, expected a text"),
        ({"sped": 1.0}, "unknown parameter 'sped': did you mean 'speed'?"),
        ({"zzz": 1.0}, "unknown parameter 'zzz': known are depth, enabled, kind, name, speed, topics"),
        ({"zzz": 1.0, "depth": 0}, r"parameter 'depth' is 0, expected 1 to 10 messages \(and 1 more\)"),
    ],
)
def test_bad_values_are_named(declare: Callable, given: dict, complaint: str) -> None:
    _, parameters = declare(**given)
    with pytest.raises(TraceError, match=f"^{complaint.replace('?', '[?]')}$"):
        parameters.check()


def test_the_bare_word_off_which_yaml_takes_for_false_is_the_choice() -> None:
    parameter = Parameter("checks", "warn", "what to do", choices=("warn", "off"))
    assert parameter.given(False) == "off"
    assert parameter.given("off") == "off"
    assert parameter.fault(parameter.given(True)) == "is true or false, expected a text"
    plain = Parameter("name", "a", "a text")
    assert plain.fault(plain.given(False)) == "is true or false, expected a text"


def test_a_bad_value_can_be_set_right(declare: Callable) -> None:
    node, parameters = declare(depth=0)
    assert node.set_parameters([RosParameter("depth", value=7)])[0].successful
    parameters.check()
    assert parameters.integer("depth") == 7


def test_changes_at_run_time(declare: Callable) -> None:
    node, parameters = declare()

    def change(name: str, value: object) -> str:
        result = node.set_parameters([RosParameter(name, value=value)])[0]
        return "" if result.successful else result.reason

    parameters.locked = True
    assert change("speed", 0.5) == ""
    assert parameters.number("speed") == 0.5
    assert change("kind", "b").startswith("kind is fixed while the node is at work")
    assert change("kind", "a") == ""  # no change
    parameters.locked = False
    assert change("kind", "c") == "kind is 'c', expected one of a, b"
    assert change("kind", "b") == ""
    assert parameters.text("kind") == "b"
    assert change("speed", 9.0)  # by the declared range
    assert parameters.number("speed") == 0.5


@pytest.mark.parametrize("module", [estimator_parameters, path_node, recorder_node, replay_node])
def test_every_parameter_of_every_node_is_described_and_its_default_is_valid(module) -> None:
    names = [parameter.name for parameter in module.PARAMETERS]
    assert len(names) == len(set(names))
    for parameter in module.PARAMETERS:
        assert parameter.fault(parameter.default) is None
        assert parameter.description
        if isinstance(parameter.default, (int, float)) and not isinstance(parameter.default, bool):
            assert parameter.minimum is not None
            assert parameter.maximum is not None


@pytest.mark.parametrize("module", [estimator_parameters, path_node, recorder_node, replay_node])
def test_ranges_are_sent_as_they_are(module) -> None:
    """An integer in a field for a number is sent as 5e-324 or the like, and nothing says so."""
    for parameter in module.PARAMETERS:
        sent = deserialize_message(serialize_message(parameter.descriptor()), ParameterDescriptor)
        ranges = [*sent.floating_point_range, *sent.integer_range]
        numeric = type(parameter.default) in (int, float)
        assert [(item.from_value, item.to_value) for item in ranges] == (
            [(parameter.minimum, parameter.maximum)] if numeric else []
        ), parameter.name


def test_every_parameter_of_the_estimator_is_in_its_documentation() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "node.md").read_text(encoding="utf-8")
    section = text[text.index("## Parameters") : text.index("## Start-up checks")]
    for parameter in estimator_parameters.PARAMETERS:
        mark = "\\*" if parameter.live else ""
        assert f"`{parameter.name}`{mark}" in section, parameter.name


LISTS = (Parameter("variances", [], "a list of numbers", "m", 0.1, 9.0, live=True, lengths=(0, 3)),)


def test_lists_of_numbers() -> None:
    def make(value: object = None) -> tuple[Node, Parameters]:
        overrides = [] if value is None else [RosParameter("variances", value=value)]
        node = Node("lists", parameter_overrides=overrides, use_global_arguments=False)
        return node, Parameters(node, LISTS)

    for value, expected in ((None, []), ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), ([1, 2, 3], [1.0, 2.0, 3.0])):
        node, parameters = make(value)
        parameters.check()
        assert parameters.numbers("variances") == expected
        assert node.get_parameter("variances").type_ == RosParameter.Type.DOUBLE_ARRAY
        assert "0 or 3 numbers from 0.1 to 9" in node.describe_parameter("variances").additional_constraints
        result = node.set_parameters([RosParameter("variances", value=[3.0, 2.0, 1.0])])[0]
        assert result.successful
        assert parameters.numbers("variances") == [3.0, 2.0, 1.0]
        result = node.set_parameters([RosParameter("variances", value=[3.0, 0.0, 1.0])])[0]
        assert not result.successful
        assert result.reason == "variances is 0.0, expected 0.1 to 9 m (number 2)"
        node.destroy_node()
    for value, complaint in (
        ([1.0], "has 1 numbers, expected 0 or 3"),
        (["a"], "is a list of texts, expected a list of numbers"),
        ([1.0, 2.0, float("nan")], "is nan, expected a finite number .number 3."),
        (1.0, "is a number, expected a list of numbers"),
    ):
        node, parameters = make(value)
        with pytest.raises(TraceError, match=f"parameter 'variances' {complaint}"):
            parameters.check()
        node.destroy_node()


def test_a_list_of_at_most_one_number_may_be_given_as_that_number() -> None:
    table = (Parameter("late", [], "a number, or none", "s", -0.1, 0.1, lengths=(0, 1)),)
    for value, expected in ((None, []), (0.02, [0.02]), (0, [0.0]), ([0.02], [0.02]), ([], [])):
        overrides = [] if value is None else [RosParameter("late", value=value)]
        node = Node("lists", parameter_overrides=overrides, use_global_arguments=False)
        parameters = Parameters(node, table)
        parameters.check()
        assert parameters.numbers("late") == expected
        node.destroy_node()
    node = Node("lists", parameter_overrides=[RosParameter("late", value=0.2)], use_global_arguments=False)
    with pytest.raises(TraceError, match=r"parameter 'late' is 0\.2, expected -0\.1 to 0\.1 s \(number 1\)"):
        Parameters(node, table).check()
    node.destroy_node()
