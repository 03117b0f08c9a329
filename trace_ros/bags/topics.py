"""Which topics of a bag hold the IMU, the joints and the reference."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from trace_ros.errors import TraceError

IMU_TYPE = "sensor_msgs/msg/Imu"
JOINT_STATE_TYPE = "sensor_msgs/msg/JointState"
ODOMETRY_TYPE = "nav_msgs/msg/Odometry"

TopicTypes = Mapping[str, str]
"""Message type by topic name, as the bag has them."""


class Topics(BaseModel):
    """Topic names to look for; a leading slash or a namespace in the bag does not matter.

    Attributes:
        imu: sensor_msgs/Imu.
        joint_states: sensor_msgs/JointState.
        reference: nav_msgs/Odometry that is the truth, or None: do not look for one.

    A name that was given explicitly must be in the bag. Without one, the IMU and the joint states are also taken by
    type when the bag has a single topic of that type; the reference never is, because an estimator's own odometry has
    the same type.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    imu: str = Field(default="imu/data", min_length=1)
    joint_states: str = Field(default="joint_states", min_length=1)
    reference: str | None = Field(default="reference/odom", min_length=1)


def describe_topics(types: TopicTypes) -> str:
    """The topics of a bag on one line, for error messages."""
    return ", ".join(f"{topic} [{types[topic]}]" for topic in sorted(types)) or "none"


def find_topic(types: TopicTypes, wanted: str, message_type: str, where: str, never: str | None = None) -> str | None:
    """The topic called ``wanted``, with or without a leading slash or namespace; None if there is none.

    ``never`` names a topic whose last part may look like ``wanted`` in a namespace, but is another one.

    Raises:
        TraceError: the name fits several topics, or one of another type.
    """
    bare = wanted.strip("/")
    exact = [topic for topic in types if topic.strip("/") == bare]
    fitting = exact or [topic for topic in types if topic.endswith(f"/{bare}")]
    if never is not None and never.strip("/") != bare:
        other = f"/{never.strip('/')}"
        fitting = [topic for topic in fitting if topic in exact or not f"/{topic.strip('/')}".endswith(other)]
    typed = [topic for topic in fitting if types[topic] == message_type]
    if len(typed) > 1:
        raise TraceError(
            f"{where}: {wanted!r} fits several topics: {', '.join(sorted(typed))}; give the full name of one"
        )
    if fitting and not typed:
        raise TraceError(f"{where}: topic {fitting[0]} is {types[fitting[0]]}, expected {message_type}")
    return typed[0] if typed else None


def require_topic(
    types: TopicTypes, wanted: str, message_type: str, where: str, *, by_type: bool, never: str | None = None
) -> str:
    """Like `find_topic`, but the topic must be there; with ``by_type`` a single topic of the right type will do.

    Raises:
        TraceError: no such topic, or several to choose from; lists what the bag has.
    """
    topic = find_topic(types, wanted, message_type, where, never)
    if topic is not None:
        return topic
    if by_type:
        candidates = sorted(name for name, kind in types.items() if kind == message_type)
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise TraceError(
                f"{where}: no topic {wanted!r}, but several of type {message_type}: {', '.join(candidates)}; name one"
            )
    raise TraceError(f"{where}: no topic {wanted!r} [{message_type}]; the bag has: {describe_topics(types)}")
