"""A rosbag2 written live: MCAP that loses nothing older than the last flush, whatever ends the process.

No ROS in here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from mcap.writer import CompressionType, Writer

from trace_ros.bags.storage import METADATA_VERSION, typestore
from trace_ros.errors import TraceError

Compression = Literal["zstd", "lz4", "none"]

_CHUNK_BYTES = 256 * 1024
_FOREVER = {"sec": 9223372036, "nsec": 854775807}


@dataclass(frozen=True)
class TopicQos:
    """The part of a publisher's QoS that a player needs in order to offer the same.

    Attributes:
        reliable: else best effort.
        transient_local: else volatile.
        depth: of the history; 0 where unknown.
    """

    reliable: bool = True
    transient_local: bool = False
    depth: int = 10

    def as_rosbag2(self) -> dict[str, Any]:
        """With rosbag2's keys and rmw's numbers."""
        return {
            "history": 1 if self.depth else 3,
            "depth": self.depth,
            "reliability": 1 if self.reliable else 2,
            "durability": 1 if self.transient_local else 2,
            "deadline": _FOREVER,
            "lifespan": _FOREVER,
            "liveliness": 1,
            "liveliness_lease_duration": _FOREVER,
            "avoid_ros_namespace_conventions": False,
        }


@dataclass
class _Topic:
    name: str
    message_type: str
    channel: int
    qos: str
    messages: int = 0


class LiveBagWriter:
    """Writes raw CDR messages into ``<path>/<name>_0.mcap``; `close` adds index, footer and metadata.yaml.

    Whoever owns it calls `flush` at least as often as the loss that a kill may cause.
    """

    def __init__(self, path: Path, compression: Compression = "zstd") -> None:
        """Create the bag's directory.

        Raises:
            TraceError: it exists or cannot be created.
        """
        self.path = path
        self._file_name = f"{path.name}_0.mcap"
        try:
            path.mkdir(parents=True)
            self._file = (path / self._file_name).open("wb")
        except FileExistsError as error:
            raise TraceError(f"{path}: exists already; choose another name or delete it") from error
        except OSError as error:
            raise TraceError(f"{path}: cannot be written ({error.strerror})") from error
        kinds = {"zstd": CompressionType.ZSTD, "lz4": CompressionType.LZ4, "none": CompressionType.NONE}
        self._writer = Writer(self._file, chunk_size=_CHUNK_BYTES, compression=kinds[compression])
        self._writer.start(profile="ros2", library="trace_ros recorder")
        self._schemas: dict[str, int] = {}
        self._topics: dict[str, _Topic] = {}
        self._first_ns: int | None = None
        self._last_ns: int | None = None

    @property
    def messages(self) -> dict[str, int]:
        """Messages written so far by topic."""
        return {topic.name: topic.messages for topic in self._topics.values()}

    def add_topic(self, name: str, message_type: str, qos: Sequence[TopicQos] = ()) -> None:
        """Announce a topic (absolute name) before its first message.

        Raises:
            TraceError: the definition of the message type is not known.
        """
        if message_type not in self._schemas:
            if message_type not in typestore().types:
                raise TraceError(f"{name}: the definition of {message_type} is not known; it cannot be recorded")
            definition = typestore().generate_msgdef(message_type, ros_version=2)[0]
            self._schemas[message_type] = self._writer.register_schema(
                message_type, "ros2msg", definition.encode("utf-8")
            )
        profiles = yaml.safe_dump([item.as_rosbag2() for item in qos], sort_keys=False).strip() if qos else ""
        channel = self._writer.register_channel(
            name, "cdr", self._schemas[message_type], {"offered_qos_profiles": profiles}
        )
        self._topics[name] = _Topic(name, message_type, channel, profiles)

    def write(self, topic: str, time_ns: int, data: bytes) -> None:
        """Add one message of an announced topic.

        Raises:
            TraceError: the disk is full or gone.
        """
        entry = self._topics[topic]
        try:
            self._writer.add_message(entry.channel, time_ns, data, time_ns, entry.messages)
        except OSError as error:
            raise self._fault(error) from error
        entry.messages += 1
        self._first_ns = time_ns if self._first_ns is None else min(self._first_ns, time_ns)
        self._last_ns = time_ns if self._last_ns is None else max(self._last_ns, time_ns)

    def flush(self) -> None:
        """Hand everything to the operating system; from then on, killing the process loses none of it.

        Raises:
            TraceError: the disk is full or gone.
        """
        try:
            self._writer.flush()
        except OSError as error:
            raise self._fault(error) from error

    def close(self) -> None:
        """Finish the file and write metadata.yaml.

        Raises:
            TraceError: the disk is full or gone.
        """
        try:
            self._writer.finish()
            self._file.close()
            temporary = self.path / "metadata.yaml.tmp"
            temporary.write_text(yaml.safe_dump(self._metadata(), sort_keys=False), encoding="utf-8")
            temporary.replace(self.path / "metadata.yaml")
        except OSError as error:
            raise self._fault(error) from error

    def _metadata(self) -> dict[str, Any]:
        start = self._first_ns or 0
        duration = (self._last_ns or 0) - start
        count = sum(topic.messages for topic in self._topics.values())
        types = {name: typestore().hash_rihs01(name) for name in self._schemas}
        return {
            "rosbag2_bagfile_information": {
                "version": METADATA_VERSION,
                "storage_identifier": "mcap",
                "duration": {"nanoseconds": duration},
                "starting_time": {"nanoseconds_since_epoch": start},
                "message_count": count,
                "topics_with_message_count": [
                    {
                        "topic_metadata": {
                            "name": topic.name,
                            "type": topic.message_type,
                            "serialization_format": "cdr",
                            "offered_qos_profiles": topic.qos,
                            "type_description_hash": types[topic.message_type],
                        },
                        "message_count": topic.messages,
                    }
                    for topic in self._topics.values()
                ],
                "compression_format": "",
                "compression_mode": "",
                "relative_file_paths": [self._file_name],
                "files": [
                    {
                        "path": self._file_name,
                        "starting_time": {"nanoseconds_since_epoch": start},
                        "duration": {"nanoseconds": duration},
                        "message_count": count,
                    }
                ],
                "custom_data": None,
                "ros_distro": "",
            }
        }

    def _fault(self, error: OSError) -> TraceError:
        return TraceError(f"{self.path}: cannot be written ({error.strerror})")
