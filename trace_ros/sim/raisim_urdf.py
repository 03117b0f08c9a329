"""The URDF that the RaiSim backend gives its engine: a robot's own file with one scene's dynamics written into it.

All goes into the text because not all can be set afterwards in both versions of raisimpy: materials and rotor inertia
can not in the first.
"""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.logs import JOINTS
from trace_ros.robot import LEG_NAMES, RobotDescription
from trace_ros.sim.backend import RobotDynamics

FloatArray = NDArray[np.float64]


def foot_material(leg: int) -> str:
    """Name of the material that a foot is made of: each has its own, so that one can slip alone."""
    return f"foot_{LEG_NAMES[leg]}"


class RaisimUrdf:
    """A robot's URDF as RaiSim is to have it."""

    def __init__(self, robot: RobotDescription) -> None:
        self.path = robot.urdf
        try:
            self._root = ElementTree.parse(robot.urdf).getroot()
        except (OSError, ElementTree.ParseError) as error:
            raise TraceError(f"{robot.urdf}: cannot be read ({error})") from error
        self._robot = robot
        self._links = {str(link.get("name")): link for link in self._root.iterfind("link")}
        self._joints = {str(joint.get("name")): joint for joint in self._root.iterfind("joint")}
        self._joint_above = {self.child_of(name): name for name in self._joints}
        self.foot_bodies = tuple(self.child_of(robot.legs[leg].joints[2]) for leg in LEG_NAMES)
        """Links that the feet are merged with."""
        self.foot_joints = tuple(self._joint_above[link] for link in robot.foot_links)
        """Joints whose frames are the feet's centres."""
        for link in self._links.values():
            for visual in link.findall("visual"):
                link.remove(visual)
        for leg, foot in enumerate(robot.foot_links):
            self._name_material(foot, foot_material(leg))

    @property
    def text(self) -> str:
        """The file's text."""
        return ElementTree.tostring(self._root, encoding="unicode")

    def child_of(self, joint: str) -> str:
        """Name of the link that a joint moves."""
        child = self._joints[joint].find("child")
        return "" if child is None else str(child.get("link"))

    def _name_material(self, link: str, name: str) -> None:
        shapes = self._links[link].findall("collision")
        if not shapes:
            raise TraceError(f"{self.path}: foot link {link} has no collision shape")
        for shape in shapes:
            for old in shape.findall("material"):
                shape.remove(old)
            material = ElementTree.SubElement(shape, "material", {"name": ""})
            ElementTree.SubElement(material, "contact", {"name": name})

    def apply(self, dynamics: RobotDynamics) -> FloatArray:
        """Write a robot's own dynamics into it; returns the Coulomb friction of its joints, (12,) N m, which RaiSim
        does not know."""
        for link in self._links.values():
            _scale_inertial(link, dynamics.mass_scale, dynamics.mass_scale)
        base = self._links[self._robot.base_link]
        mass = base.find("inertial/mass")
        if mass is None:
            raise TraceError(f"{self.path}: link {self._robot.base_link} has no mass")
        factor = 1.0 + dynamics.base_mass / float(mass.get("value", "0"))
        _scale_inertial(base, factor, factor * dynamics.inertia_scale)
        _shift_inertial(base, dynamics.base_com_offset)
        friction = np.zeros(JOINTS)
        for slot, name in enumerate(self._robot.joint_names):
            joint = self._joints[name]
            passive = joint.find("dynamics")
            if passive is None:
                passive = ElementTree.SubElement(joint, "dynamics")
            friction[slot] = float(passive.attrib.pop("friction", "0"))
            passive.set("rotor_inertia", repr(float(dynamics.armature)))
            if dynamics.joint_damping is not None:
                passive.set("damping", repr(float(dynamics.joint_damping)))
            if dynamics.joint_friction is not None:
                friction[slot] = dynamics.joint_friction
            # The limit is kept by whoever computes the torque; a second one would hide a stronger motor.
            limit = joint.find("limit")
            if limit is not None:
                limit.set("effort", repr(2.0 * float(dynamics.torque_limit[slot] + friction[slot])))
        return friction


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
