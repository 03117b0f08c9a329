"""The URDF that the Bullet backend gives its engine: a robot's own file with one scene's dynamics written into it."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from trace_ros.logs import JOINTS
from trace_ros.sim.backend import RobotDynamics
from trace_ros.sim.scene_urdf import SceneUrdf

FloatArray = NDArray[np.float64]


class BulletUrdf(SceneUrdf):
    """A robot's URDF as Bullet is to have it."""

    def apply(self, dynamics: RobotDynamics) -> tuple[FloatArray, FloatArray]:
        """Write a robot's own masses into it; returns the joints' Coulomb friction (12,) N m and viscous damping (12,)
        N m s/rad, which are no longer in it: whoever computes the joints' torque adds them."""
        self.apply_masses(dynamics)
        friction = self.take_friction(dynamics)
        damping = np.zeros(JOINTS)
        for slot, name in enumerate(self._robot.joint_names):
            passive = self._passive(name)
            damping[slot] = float(passive.get("damping", "0"))
            # Bullet refuses an empty one.
            self._joints[name].remove(passive)
        for link in self._links.values():
            # Without it Bullet takes a kilogram.
            if link.find("inertial") is None:
                inertial = ElementTree.SubElement(link, "inertial")
                ElementTree.SubElement(inertial, "mass", {"value": "0"})
                ElementTree.SubElement(
                    inertial, "inertia", dict.fromkeys(("ixx", "ixy", "ixz", "iyy", "iyz", "izz"), "0")
                )
            # Bullet's own tag: friction and softness are the scene's.
            for contact in link.findall("contact"):
                link.remove(contact)
        if dynamics.joint_damping is not None:
            damping[:] = dynamics.joint_damping
        return friction, damping
