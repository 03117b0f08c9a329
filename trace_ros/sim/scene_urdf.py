"""A robot's URDF with one scene's dynamics written into it, for engines that can not all change it afterwards."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.logs import JOINTS
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import RobotDynamics

FloatArray = NDArray[np.float64]


class SceneUrdf:
    """A robot's URDF, without what is only to be seen."""

    def __init__(self, robot: RobotDescription) -> None:
        """Raises `TraceError`: the file cannot be read, or a foot has no collision shape."""
        self.path = robot.urdf
        try:
            self._root = ElementTree.parse(robot.urdf).getroot()
        except (OSError, ElementTree.ParseError) as error:
            raise TraceError(f"{robot.urdf}: cannot be read ({error})") from error
        self._robot = robot
        self._links = {str(link.get("name")): link for link in self._root.iterfind("link")}
        self._joints = {str(joint.get("name")): joint for joint in self._root.iterfind("joint")}
        for link in self._links.values():
            for visual in link.findall("visual"):
                link.remove(visual)
        for foot in robot.foot_links:
            if not self._links[foot].findall("collision"):
                raise TraceError(f"{self.path}: foot link {foot} has no collision shape")

    @property
    def text(self) -> str:
        """The file's text."""
        return ElementTree.tostring(self._root, encoding="unicode")

    def child_of(self, joint: str) -> str:
        """Name of the link that a joint moves."""
        child = self._joints[joint].find("child")
        return "" if child is None else str(child.get("link"))

    def apply_masses(self, dynamics: RobotDynamics) -> None:
        """Write masses, inertias and the body's centre of mass.

        Raises:
            TraceError: the base link has no mass.
        """
        for link in self._links.values():
            _scale_inertial(link, dynamics.mass_scale, dynamics.mass_scale)
        base = self._links[self._robot.base_link]
        mass = base.find("inertial/mass")
        if mass is None:
            raise TraceError(f"{self.path}: link {self._robot.base_link} has no mass")
        factor = 1.0 + dynamics.base_mass / float(mass.get("value", "0"))
        _scale_inertial(base, factor, factor * dynamics.inertia_scale)
        _shift_inertial(base, dynamics.base_com_offset)

    def take_friction(self, dynamics: RobotDynamics) -> FloatArray:
        """Take the Coulomb friction of the joints out of the file: (12,) N m, the dynamics' where they have one."""
        friction = np.zeros(JOINTS)
        for slot, name in enumerate(self._robot.joint_names):
            friction[slot] = float(self._passive(name).attrib.pop("friction", "0"))
        return friction if dynamics.joint_friction is None else np.full(JOINTS, dynamics.joint_friction)

    def _passive(self, joint: str) -> ElementTree.Element:
        """A joint's ``dynamics``, made where it has none."""
        passive = self._joints[joint].find("dynamics")
        return ElementTree.SubElement(self._joints[joint], "dynamics") if passive is None else passive


def _scale_inertial(link: ElementTree.Element, mass_factor: float, inertia_factor: float) -> None:
    mass, inertia = link.find("inertial/mass"), link.find("inertial/inertia")
    if mass is not None:
        mass.set("value", repr(mass_factor * float(mass.get("value", "0"))))
    if inertia is not None:
        for key, value in inertia.attrib.items():
            inertia.set(key, repr(inertia_factor * float(value)))


def _shift_inertial(link: ElementTree.Element, offset: tuple[float, float, float]) -> None:
    inertial = link.find("inertial")
    assert inertial is not None
    origin = inertial.find("origin")
    if origin is None:
        origin = ElementTree.SubElement(inertial, "origin")
    place = [float(part) for part in origin.get("xyz", "0 0 0").split()]
    origin.set("xyz", " ".join(repr(a + b) for a, b in zip(place, offset, strict=True)))
