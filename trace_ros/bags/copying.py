"""Copying serialised messages from one bag to another, whatever their type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rosbags.interfaces import Connection, MessageDefinitionFormat, Qos
from rosbags.rosbag2 import Writer
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

from trace_ros.bags.storage import Storage, create_bag, open_bag, typestore


@dataclass(frozen=True)
class Channel:
    """A topic with all that a bag stores about it.

    Attributes:
        topic: name.
        message_type: as in ``sensor_msgs/msg/Imu``.
        definition: text of the message definition, empty if the source has none.
        idl: whether the definition is IDL rather than .msg.
        qos: offered QoS profiles.
    """

    topic: str
    message_type: str
    definition: str = ""
    idl: bool = False
    qos: tuple[Qos, ...] = ()

    @classmethod
    def from_connection(cls, connection: Connection) -> Channel:
        """The channel of a connection that ``rosbags`` read."""
        extension: Any = connection.ext
        return cls(
            connection.topic,
            connection.msgtype,
            connection.msgdef.data,
            connection.msgdef.format == MessageDefinitionFormat.IDL,
            tuple(extension.offered_qos_profiles),
        )


@dataclass
class Copier:
    """Writes messages of any channel into an open bag.

    Attributes:
        counts: messages written by topic.
        left_out: messages not written by topic, because no definition of their type is known.
    """

    writer: Writer
    counts: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    _connections: dict[Channel, Connection | None] = field(default_factory=dict)

    def add(self, channel: Channel) -> Connection | None:
        """Declare a channel, so that it appears in the copy even without messages."""
        if channel not in self._connections:
            self._connections[channel] = self._connect(channel)
            if self._connections[channel] is not None:
                self.counts.setdefault(channel.topic, 0)
        return self._connections[channel]

    def write(self, channel: Channel, recorded_ns: int, data: bytes) -> None:
        """Write one serialised message."""
        connection = self.add(channel)
        if connection is None:
            self.left_out[channel.topic] = self.left_out.get(channel.topic, 0) + 1
            return
        self.writer.write(connection, recorded_ns, data)
        self.counts[channel.topic] += 1

    def _connect(self, channel: Channel) -> Connection | None:
        for other, connection in self._connections.items():
            # The same topic recorded twice over (split files, two publishers) is one channel unless its QoS differs.
            if (other.topic, other.message_type, other.qos) == (channel.topic, channel.message_type, channel.qos):
                return connection
        text, digest = describe_type(channel)
        if not digest:
            return None
        return self.writer.add_connection(
            channel.topic, channel.message_type, msgdef=text, rihs01=digest, offered_qos_profiles=channel.qos
        )


def describe_type(channel: Channel) -> tuple[str, str]:
    """Definition and RIHS01 hash of a channel's type; empty if neither the channel nor ROS 2 itself defines it."""
    store = typestore()
    if channel.message_type in store.types:
        return store.generate_msgdef(channel.message_type, ros_version=2)[0], store.hash_rihs01(channel.message_type)
    if not channel.definition:
        return "", ""
    store = get_typestore(Stores.ROS2_JAZZY)
    try:
        if channel.idl:
            store.register(get_types_from_idl(channel.definition))
        else:
            store.register(get_types_from_msg(channel.definition, channel.message_type))
        return channel.definition, store.hash_rihs01(channel.message_type)
    except Exception:  # the parser meets text of unknown origin; whatever it trips over means: not understood
        return "", ""


def copy_bag(source: Path, destination: Path, storage: Storage) -> Copier:
    """Copy every message of a bag into a new one, in order of recording, with the metadata's custom notes.

    Raises:
        TraceError: the source cannot be read or the destination not be written.
    """
    with open_bag(source) as bag, create_bag(destination, storage) as writer:
        for key, value in bag.custom_data.items():
            writer.set_custom_data(key, value)
        copier = Copier(writer)
        channels = {connection.id: Channel.from_connection(connection) for connection in bag.connections}
        for channel in channels.values():
            copier.add(channel)
        for connection, recorded, data in bag.messages():
            copier.write(channels[connection.id], recorded, data)
    return copier


def topic_notes(left_out: dict[str, int]) -> Iterable[str]:
    """One line for each topic that could not be copied."""
    return (
        f"topic {topic}: left out {count} messages: no definition of their type" for topic, count in left_out.items()
    )
