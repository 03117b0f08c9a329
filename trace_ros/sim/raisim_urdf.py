"""The URDF that the RaiSim backend gives its engine: a robot's own file with one scene's dynamics written into it.

All goes into the text because not all can be set afterwards in both versions of raisimpy: materials and rotor inertia
can not in the first.
"""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from trace_ros.robot import LEG_NAMES, RobotDescription
from trace_ros.sim.backend import RobotDynamics
from trace_ros.sim.scene_urdf import SceneUrdf

FloatArray = NDArray[np.float64]


def foot_material(leg: int) -> str:
    """Name of the material that a foot is made of: each has its own, so that one can slip alone."""
    return f"foot_{LEG_NAMES[leg]}"


class RaisimUrdf(SceneUrdf):
    """A robot's URDF as RaiSim is to have it."""

    def __init__(self, robot: RobotDescription) -> None:
        super().__init__(robot)
        joint_above = {self.child_of(name): name for name in self._joints}
        self.foot_bodies = tuple(self.child_of(robot.legs[leg].joints[2]) for leg in LEG_NAMES)
        """Links that the feet are merged with."""
        self.foot_joints = tuple(joint_above[link] for link in robot.foot_links)
        """Joints whose frames are the feet's centres."""
        for leg, foot in enumerate(robot.foot_links):
            self._name_material(foot, foot_material(leg))

    def _name_material(self, link: str, name: str) -> None:
        for shape in self._links[link].findall("collision"):
            for old in shape.findall("material"):
                shape.remove(old)
            material = ElementTree.SubElement(shape, "material", {"name": ""})
            ElementTree.SubElement(material, "contact", {"name": name})

    def apply(self, dynamics: RobotDynamics) -> FloatArray:
        """Write a robot's own dynamics into it; returns the Coulomb friction of its joints, (12,) N m, which RaiSim
        does not know."""
        self.apply_masses(dynamics)
        friction = self.take_friction(dynamics)
        for slot, name in enumerate(self._robot.joint_names):
            passive = self._passive(name)
            passive.set("rotor_inertia", repr(float(dynamics.armature)))
            if dynamics.joint_damping is not None:
                passive.set("damping", repr(float(dynamics.joint_damping)))
            # The limit is kept by whoever computes the torque; a second one would hide a stronger motor.
            limit = self._joints[name].find("limit")
            if limit is not None:
                limit.set("effort", repr(2.0 * float(dynamics.torque_limit[slot] + friction[slot])))
        return friction
