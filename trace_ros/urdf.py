"""A URDF as a tree of links and joints: what the kinematics, the mass and the checks of a robot are read from.

Transmissions, sensors and everything else that a URDF may hold are passed over; so are meshes, but for their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.resources import read_bounded

FloatArray = NDArray[np.float64]
MAX_BYTES = 16 * 1024**2
"""No URDF is as long (meshes are files of their own)."""

MOVING = ("revolute", "continuous", "prismatic")
"""Kinds of joints that this module can move; ``floating`` and ``planar`` ones are held at zero, like fixed ones."""


@dataclass(frozen=True)
class UrdfShape:
    """A collision shape: ``box``, ``cylinder``, ``sphere``, ``capsule`` or ``mesh``; ``origin`` (3,) m in the link;
    ``radius`` m where it has one."""

    kind: str
    origin: FloatArray
    radius: float | None


@dataclass(frozen=True)
class UrdfLink:
    """A link.

    Attributes:
        name: of the link.
        mass: kg, 0 without an ``inertial``.
        centre_of_mass: (3,) m, in the link.
        inertia: (3, 3) kg m^2 about the centre of mass, in the link's axes.
        collisions: its collision shapes.
    """

    name: str
    mass: float
    centre_of_mass: FloatArray
    inertia: FloatArray
    collisions: tuple[UrdfShape, ...]


@dataclass(frozen=True)
class UrdfJoint:
    """A joint between two links.

    Attributes:
        name, kind: as in the file.
        parent, child: names of the links.
        translation, rotation: (3,) m and (3, 3), pose of the joint's frame in the parent link at position zero.
        axis: (3,) unit vector in the joint's frame.
        limits: texts of the attributes of ``limit``: ``lower``, ``upper``, ``effort``, ``velocity``.
    """

    name: str
    kind: str
    parent: str
    child: str
    translation: FloatArray
    rotation: FloatArray
    axis: FloatArray
    limits: Mapping[str, str] = field(default_factory=dict)

    def limit(self, urdf: Path, which: str, absent: float) -> float:
        """One of the limits (rad, N m or rad/s), or ``absent``. Raises `TraceError` when it is no number."""
        text = self.limits.get(which)
        try:
            value = absent if text is None else float(text)
        except ValueError:
            value = np.nan
        if np.isnan(value):
            raise TraceError(f"{urdf}: joint {self.name}: its {which} limit is {text!r}, expected a number")
        return value


@dataclass(frozen=True)
class Urdf:
    """A robot's links and joints by name, as ``path`` has them."""

    path: Path
    links: Mapping[str, UrdfLink]
    joints: Mapping[str, UrdfJoint]

    @classmethod
    def read(cls, path: Path) -> Urdf:
        """Read a file.

        Raises:
            TraceError: it is unreadable or not XML, or a number in it is none (names the link or joint).
        """
        try:
            data = read_bounded(path, MAX_BYTES, "a URDF")
            # A few lines of them can stand for gigabytes of text, or for other files.
            if b"<!ENTITY" in data:
                raise TraceError(f"{path}: declares XML entities, which no URDF needs; write their text instead")
            root = ElementTree.fromstring(data)
        except ElementTree.ParseError as error:
            raise TraceError(f"{path}: not valid XML ({error})") from error
        links = {str(link.get("name")): _read_link(path, link) for link in root.findall("link")}
        joints = {str(joint.get("name")): _read_joint(path, joint) for joint in root.findall("joint")}
        return cls(path, links, joints)

    @cached_property
    def joint_above(self) -> dict[str, UrdfJoint]:
        """The joint by which each link hangs on its parent, by the link's name; a root link has none."""
        return {joint.child: joint for joint in self.joints.values()}

    @property
    def roots(self) -> list[str]:
        """Links that hang on no other; a proper URDF has one."""
        return [name for name in self.links if name not in self.joint_above]

    @property
    def mass(self) -> float:
        """kg, of all links."""
        return sum(link.mass for link in self.links.values())

    def chain(self, base: str, link: str) -> list[UrdfJoint]:
        """The joints from ``base`` to ``link``, in that order.

        Raises:
            TraceError: none leads there.
        """
        chain: list[UrdfJoint] = []
        at = link
        while at != base:
            # No chain is longer than all joints together, unless it runs in a circle.
            if at not in self.joint_above or len(chain) > len(self.joints):
                raise TraceError(f"{self.path}: no chain of joints leads from {base} to {link}")
            chain.append(self.joint_above[at])
            at = chain[-1].parent
        return chain[::-1]

    def below(self, link: str) -> Iterator[str]:
        """The links that hang on ``link`` by fixed joints, however far down, itself first."""
        yield link
        for joint in self.joints.values():
            if joint.parent == link and joint.kind not in MOVING:
                yield from self.below(joint.child)

    def pose(self, base: str, link: str, positions: Mapping[str, float]) -> tuple[FloatArray, FloatArray]:
        """Rotation (3, 3) and position (3,) m of a link in ``base``, with the joints at ``positions`` (rad, m; else 0).

        Raises:
            TraceError: no chain of joints leads there.
        """
        rotation, position = np.eye(3), np.zeros(3)
        for joint in self.chain(base, link):
            position = position + rotation @ joint.translation
            rotation = rotation @ joint.rotation
            value = positions.get(joint.name, 0.0)
            if joint.kind == "prismatic":
                position = position + rotation @ joint.axis * value
            elif joint.kind in MOVING:
                rotation = rotation @ Rotation.from_rotvec(joint.axis * value).as_matrix()
        return rotation, position

    def centre_of_mass(self, base: str, positions: Mapping[str, float]) -> FloatArray:
        """(3,) m in ``base``, of all links with mass that hang on it; NaN without any."""
        moment, mass = np.zeros(3), 0.0
        for link in self.links.values():
            if link.mass <= 0:
                continue
            try:
                rotation, position = self.pose(base, link.name, positions)
            except TraceError:  # above the base
                continue
            moment += link.mass * (position + rotation @ link.centre_of_mass)
            mass += link.mass
        return moment / mass if mass else np.full(3, np.nan)


def _read_link(path: Path, link: ElementTree.Element) -> UrdfLink:
    name = str(link.get("name"))
    inertial = link.find("inertial")
    try:
        shapes = tuple(_read_shape(collision) for collision in link.findall("collision"))
        if inertial is None:
            return UrdfLink(name, 0.0, np.zeros(3), np.zeros((3, 3)), shapes)
        mass = _number(_attribute(inertial, "mass", "value", "0"))
        xx, xy, xz, yy, yz, zz = (
            _number(_attribute(inertial, "inertia", key, "0")) for key in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
        )
        centre = _triple(_attribute(inertial, "origin", "xyz", "0 0 0"))
        turn = Rotation.from_euler("xyz", _triple(_attribute(inertial, "origin", "rpy", "0 0 0"))).as_matrix()
    except ValueError as error:
        raise TraceError(f"{path}: link {name}: {error}") from error
    inertia = turn @ np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]) @ turn.T
    return UrdfLink(name, mass, centre, inertia, shapes)


def _read_shape(collision: ElementTree.Element) -> UrdfShape:
    geometry = collision.find("geometry")
    shape = None if geometry is None else next(iter(geometry), None)
    kind = "nothing" if shape is None else shape.tag
    radius = None if shape is None or shape.get("radius") is None else _number(shape.get("radius", ""))
    return UrdfShape(kind, _triple(_attribute(collision, "origin", "xyz", "0 0 0")), radius)


def _read_joint(path: Path, joint: ElementTree.Element) -> UrdfJoint:
    name = str(joint.get("name"))
    limit = joint.find("limit")
    try:
        translation = _triple(_attribute(joint, "origin", "xyz", "0 0 0"))
        rpy = _triple(_attribute(joint, "origin", "rpy", "0 0 0"))
        axis = _triple(_attribute(joint, "axis", "xyz", "1 0 0"))
    except ValueError as error:
        raise TraceError(f"{path}: joint {name}: {error}") from error
    kind, norm = str(joint.get("type")), float(np.linalg.norm(axis))
    if norm < 1e-9:
        if kind in MOVING:
            raise TraceError(f"{path}: joint {name} has a zero axis")
        norm = 1.0
    return UrdfJoint(
        name=name,
        kind=kind,
        parent=_attribute(joint, "parent", "link", ""),
        child=_attribute(joint, "child", "link", ""),
        translation=translation,
        rotation=Rotation.from_euler("xyz", rpy).as_matrix(),
        axis=axis / norm,
        limits={} if limit is None else dict(limit.attrib),
    )


def _attribute(element: ElementTree.Element, tag: str, attribute: str, absent: str) -> str:
    child = element.find(tag)
    return absent if child is None else str(child.get(attribute, absent))


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise ValueError(f"expected a finite number, found {text!r}")
    return value


def _triple(text: str) -> FloatArray:
    try:
        values = np.array([float(part) for part in text.split()])
    except ValueError:
        values = np.empty(0)
    if values.shape != (3,) or not np.isfinite(values).all():
        raise ValueError(f"expected three finite numbers, found {text!r}")
    return values
