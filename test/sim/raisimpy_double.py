"""A double of raisimpy: the part of its interface that the backend uses, strict, with a little physics behind it.

What the real module does not have fails here too (unknown names, arrays of another length or type), and so does what it
would accept in silence: a step without a state or a torque, an object added after the first step, a friction for a
material that nothing is made of. `make_raisimpy` gives version 1 or 2 of it, with a record of its own.

The physics: a floating base with the robot's whole mass, legs without mass whose joints carry inertia of their own,
feet on the ground by a penalty with friction from the table of materials. Free fall, pushes and standing come out
right; nothing else is claimed.
"""

from __future__ import annotations

import enum
import math
import types
from dataclasses import dataclass, field
from xml.etree import ElementTree

import numpy as np
from raisimpy_double_ground import BodyType, Box, Ground, HeightMap, number, of_type, vector
from scipy.spatial.transform import Rotation

LINK_INERTIA = 0.01  # kg m^2, of a joint without rotor
STIFFNESS, DAMPING, SLIDING = 2e4, 60.0, 200.0  # N/m, N s/m, N s/m of a foot on the ground
BASE_RADIUS = 0.06  # m, of the sphere that the base touches the ground with


class ControlMode(enum.Enum):
    FORCE_AND_TORQUE = 0
    PD_PLUS_FEEDFORWARD_TORQUE = 1


class Contact:
    def __init__(self, body, position, normal, force, period, *, is_a=True, skipped=False, of_itself=False):
        self._body, self._position, self._is_a = body, np.array(position, float), is_a
        self._skipped, self._of_itself = skipped, of_itself
        # Normal and impulse are those of object A.
        sign = 1.0 if is_a else -1.0
        self._normal = sign * np.array(normal, float)
        side = _cross(self._normal, [0.6, -0.8, 0.1])
        side /= np.linalg.norm(side)
        self._frame = np.stack([side, _cross(self._normal, side), self._normal])
        self._impulse = self._frame @ (sign * np.array(force, float)) * period

    def getlocalBodyIndex(self):  # noqa: N802
        return self._body

    def get_position(self):
        return self._position.copy()

    def getNormal(self):  # noqa: N802
        return self._normal.copy()

    def getContactFrame(self):  # noqa: N802
        return self._frame.copy()

    def getImpulse(self):  # noqa: N802
        return self._impulse.copy()

    def isObjectA(self):  # noqa: N802
        return self._is_a

    def skip(self):
        return self._skipped

    def isSelfCollision(self):  # noqa: N802
        return self._of_itself


@dataclass
class _Joint:
    name: str
    kind: str
    parent: str
    child: str
    offset: np.ndarray
    axis: np.ndarray
    damping: float
    rotor: float
    effort: float
    index: int = -1  # among those that move


@dataclass
class _Foot:
    chain: list[_Joint]
    radius: float
    material: str
    body: int
    force: np.ndarray = field(default_factory=lambda: np.zeros(3))


class ArticulatedSystem:
    def __init__(self, world, text, joint_order, honours_order):
        self._world = world
        root = ElementTree.fromstring(text)
        assert not root.findall(".//visual")
        joints = [_read_joint(element) for element in root.iterfind("joint")]
        self._by_child = {joint.child: joint for joint in joints}
        movable = {joint.name: joint for joint in joints if joint.kind != "fixed"}
        if set(joint_order) != set(movable):
            raise ValueError(f"joint order {joint_order} does not name the joints {sorted(movable)}")
        order = joint_order if honours_order else sorted(movable, reverse=True)
        self._movable = [movable[name] for name in order]
        for index, joint in enumerate(self._movable):
            joint.index = index
        links = {str(link.get("name")): link for link in root.iterfind("link")}
        self._root = next(name for name in links if name not in self._by_child)
        self._bodies = [self._root, *(joint.child for joint in self._movable)]
        self._frames = [joint.name for joint in joints]
        self._joints = {joint.name: joint for joint in joints}
        self.masses = {
            name: float(link.find("inertial/mass").get("value"))
            for name, link in links.items()
            if link.find("inertial") is not None
        }
        base = links[next(iter(self.masses))].find("inertial")
        self.base_com = np.array(base.find("origin").get("xyz").split(), float)
        # Legs without mass: the base stands for the whole robot.
        inertia = base.find("inertia")
        self.base_inertia = np.array([float(inertia.get(key)) for key in ("ixx", "iyy", "izz")])
        self._mass = sum(self.masses.values())
        self.feet = []
        for name, link in links.items():
            contact = link.find("collision/material/contact")
            if contact is not None:
                radius = float(link.find("collision/geometry/sphere").get("radius"))
                chain = self._chain(name)
                body = max(joint.index for joint in chain) + 1
                self.feet.append(_Foot(chain, radius, contact.get("name"), body))
        n = len(self._movable)
        self._gc, self._gv = np.zeros(7 + n), np.zeros(6 + n)
        self._gc[3] = 1.0
        self._force, self._external, self._torques = np.zeros(6 + n), [], []
        self._placed = self._driven = False
        self._contacts: list[Contact] = []
        self.ignored: set[tuple[int, int]] = set()
        self.mode: ControlMode | None = None
        self.extra_contacts: list[Contact] = []
        """Reported after each step besides its own."""

    def _chain(self, link):
        chain = []
        while link in self._by_child:
            chain.append(self._by_child[link])
            link = chain[-1].parent
        return chain[::-1]

    def getGeneralizedCoordinateDim(self):  # noqa: N802
        return len(self._gc)

    def getDOF(self):  # noqa: N802
        return len(self._gv)

    def getBodyIdx(self, nm):  # noqa: N802
        return self._bodies.index(nm) if of_type(nm, str) in self._bodies else 2**64 - 1

    def getFrameIdxByName(self, name):  # noqa: N802
        return self._frames.index(of_type(name, str))

    def getFramePosition(self, frame_id):  # noqa: N802
        return self._point(self._chain(self._joints[self._frames[of_type(frame_id, int)]].child))[0]

    def ignoreCollisionBetween(self, body_idx1, body_idx2):  # noqa: N802
        pair = of_type(body_idx1, int), of_type(body_idx2, int)
        if not 0 <= pair[0] < pair[1] < len(self._bodies):
            raise ValueError(f"no pair of bodies: {pair}")
        self.ignored.add(pair)

    def setControlMode(self, mode):  # noqa: N802
        self.mode = of_type(mode, ControlMode)

    def setState(self, coordinates, velocities):  # noqa: N802
        coordinates = vector(coordinates, len(self._gc))
        if abs(np.linalg.norm(coordinates[3:7]) - 1) > 1e-6:
            raise ValueError("the quaternion is not normalised")
        self._gc, self._gv = coordinates, vector(velocities, len(self._gv))
        self._placed = True

    def getState(self):  # noqa: N802
        return self._gc.copy(), self._gv.copy()

    def setGeneralizedForce(self, forces):  # noqa: N802
        forces = vector(forces, len(self._gv))
        if forces[:6].any():
            raise ValueError("the floating base has no motors")
        self._force, self._driven = forces, True

    def setExternalForce(self, local_idx, pos, force):  # noqa: N802
        if of_type(local_idx, int) != 0:
            raise ValueError("only the base is pushed here")
        self._external.append((vector(pos, 3), vector(force, 3)))

    def setExternalTorque(self, local_idx, torque):  # noqa: N802
        if of_type(local_idx, int) != 0:
            raise ValueError("only the base is pushed here")
        self._torques.append(vector(torque, 3))

    def getContacts(self):  # noqa: N802
        return list(self._contacts)

    def _point(self, chain):
        """Position of a chain's end in the world, and its velocity's Jacobian by the chain's joints."""
        position, rotation, joints = np.zeros(3), np.eye(3), []
        for joint in chain:
            position = position + rotation @ joint.offset
            if joint.index >= 0:
                joints.append((joint.index, position, rotation @ joint.axis))
                rotation = rotation @ _turn(joint.axis, self._gc[7 + joint.index])
        world = _matrix(self._gc[3:7])
        columns = {index: world @ _cross(axis, position - origin) for index, origin, axis in joints}
        return self._gc[:3] + world @ position, columns

    def step(self, dt, gravity):
        if self.mode is not ControlMode.FORCE_AND_TORQUE:
            raise RuntimeError("the backend computes torques itself and must say so")
        if not (self._placed and self._driven):
            raise RuntimeError("integrate() without a state, or without a force since the step before")
        rotation = _matrix(self._gc[3:7])
        velocity, rate = self._gv[:3], self._gv[3:6]
        efforts = np.array([joint.effort for joint in self._movable])
        torque = np.clip(self._force[6:], -efforts, efforts)
        force, moment = self._mass * gravity, sum(self._torques, np.zeros(3))
        for place, push in self._external:
            force, moment = force + push, moment + _cross(rotation @ place, push)
        self._contacts = [*self.extra_contacts]
        for foot in self.feet:
            centre, columns = self._point(foot.chain)
            arm = centre - self._gc[:3]
            moving = velocity + _cross(rate, arm) + sum(c * self._gv[6 + i] for i, c in columns.items())
            touched = self._world.touch(centre, foot.radius)
            if touched is None:
                continue
            depth, normal, material = touched
            foot.force = _penalty(depth, normal, moving, self._world.friction(foot.material, material))
            force, moment = force + foot.force, moment + _cross(arm, foot.force)
            for i, column in columns.items():
                torque[i] += column @ foot.force
            # Every other foot is object B, and each contact is there twice, once to be skipped.
            point, is_a = centre - (foot.radius - depth / 2) * normal, foot.body % 2 == 0
            for skipped in (True, False):
                self._contacts.append(Contact(foot.body, point, normal, foot.force, dt, is_a=is_a, skipped=skipped))
        below = self._world.touch(self._gc[:3], BASE_RADIUS)
        if below is not None:
            push = _penalty(below[0], below[1], velocity, self._world.friction("default", below[2]))
            force = force + push
            self._contacts.append(Contact(0, self._gc[:3] - BASE_RADIUS * below[1], below[1], push, dt))
        damping = np.array([joint.damping for joint in self._movable])
        inertia = np.array([LINK_INERTIA + joint.rotor for joint in self._movable])
        self._gv[6:] = (self._gv[6:] + dt * torque / inertia) / (1 + dt * damping / inertia)
        self._gv[:3] += dt * force / self._mass
        self._gv[3:6] += dt * rotation @ ((rotation.T @ moment) / (4 * self.base_inertia))
        self._gc[:3] += dt * self._gv[:3]
        self._gc[7:] += dt * self._gv[6:]
        x, y, z, w = (Rotation.from_rotvec(dt * self._gv[3:6]) * Rotation.from_quat(self._gc[[4, 5, 6, 3]])).as_quat()
        self._gc[3:7] = w, x, y, z
        # External forces last for one step.
        self._external, self._torques, self._driven = [], [], False


class World:
    licensed = True
    honours_order = True
    """Whether `ArticulatedSystem` numbers its joints as it is told."""
    transposes_maps = False
    """Whether height maps run along y first."""
    created: list[World] = []  # noqa: RUF012
    keys: list[str] = []  # noqa: RUF012

    def __init__(self):
        if not type(self).licensed:
            raise RuntimeError("RaiSim: the license is not valid\n for this machine")
        self._dt, self._gravity, self._ran = None, None, False
        self.grounds, self.systems = [], []
        self.pairs, self._default = {}, None
        self.fixed_order = False
        type(self).created.append(self)

    @classmethod
    def setActivationKey(cls, activationKey):  # noqa: N802
        cls.keys.append(of_type(activationKey, str))

    def setTimeStep(self, dt):  # noqa: N802
        self._dt = number(dt)

    def setGravity(self, gravity):  # noqa: N802
        self._gravity = vector(gravity, 3)

    def setDefaultMaterial(self, friction, restitution, threshold, /):  # noqa: N802
        self._default = number(friction)
        assert number(restitution) == number(threshold) == 0

    def setMaterialPairProp(self, material1, material2, friction, restitution, threshold):  # noqa: N802
        assert number(restitution) == number(threshold) == 0
        self.pairs[frozenset((of_type(material1, str), of_type(material2, str)))] = number(friction)

    def _add(self, things, thing):
        if self._ran:
            raise RuntimeError("added after the first step")
        things.append(thing)
        return thing

    def addGround(self, height=0.0, material="default"):  # noqa: N802
        return self._add(self.grounds, Ground(number(height), of_type(material, str)))

    def addBox(self, x, y, z, mass, material="default"):  # noqa: N802
        assert number(mass) > 0
        return self._add(self.grounds, Box([number(x), number(y), number(z)], of_type(material, str)))

    def addHeightMap(  # noqa: N802
        self, x_samples, y_samples, x_scale, y_scale, x_center, y_center, heights, material="default"
    ):
        shape = of_type(y_samples, int), of_type(x_samples, int)
        if not isinstance(heights, list) or len(heights) != shape[0] * shape[1]:
            raise TypeError("heights must be a list of x_samples * y_samples numbers")
        values = np.array([number(value) for value in heights])
        grid = values.reshape(shape[::-1]).T if type(self).transposes_maps else values.reshape(shape)
        sizes, centre = (number(x_scale), number(y_scale)), (number(x_center), number(y_center))
        return self._add(self.grounds, HeightMap(grid, sizes, centre, of_type(material, str)))

    def addArticulatedSystem(self, urdf_path, res_path="", joint_order=()):  # noqa: N802
        of_type(res_path, str)
        if not of_type(urdf_path, str).lstrip().startswith("<"):
            raise ValueError("the double takes the text of a URDF only")
        system = ArticulatedSystem(self, urdf_path, of_type(joint_order, list), type(self).honours_order)
        return self._add(self.systems, system)

    def integrate(self):
        if self._dt is None or self._gravity is None or self._default is None:
            raise RuntimeError("integrate() before time step, gravity and materials are set")
        if not all(ground.static for ground in self.grounds):
            raise RuntimeError("ground that would fall")
        known = {"default"} | {ground.material for ground in self.grounds}
        known |= {foot.material for system in self.systems for foot in system.feet}
        # The feet's pairs with "ground" may be there without such ground.
        if unknown := {name for pair in self.pairs for name in pair} - known - {"ground"}:
            raise RuntimeError(f"friction of materials that nothing is made of: {sorted(unknown)}")
        self._ran = True
        for system in self.systems:
            system.step(self._dt, self._gravity)

    def friction(self, first, second):
        return self.pairs.get(frozenset((first, second)), self._default)

    def touch(self, centre, radius):
        """Depth, normal and material of a sphere's deepest contact with the ground, or None."""
        best = None
        for ground in self.grounds:
            found = ground.surface(centre[0], centre[1])
            if found is None:
                continue
            depth = radius - (centre[2] - found[0]) * found[1][2]
            if depth > 0 and (best is None or depth > best[0]):
                best = depth, found[1], ground.material
        return best


def _read_joint(element):
    origin, axis = element.find("origin"), element.find("axis")
    limit, dynamics = element.find("limit"), element.find("dynamics")
    assert dynamics is None or set(dynamics.attrib) <= {"damping", "rotor_inertia"}
    assert not np.any(np.array(origin.get("rpy", "0 0 0").split(), float))
    return _Joint(
        element.get("name"),
        element.get("type"),
        element.find("parent").get("link"),
        element.find("child").get("link"),
        np.array(origin.get("xyz").split(), float),
        np.array([1.0, 0, 0] if axis is None else axis.get("xyz").split(), float),
        0.0 if dynamics is None else float(dynamics.get("damping", 0)),
        0.0 if dynamics is None else float(dynamics.get("rotor_inertia", 0)),
        np.inf if limit is None else float(limit.get("effort")),
    )


def _penalty(depth, normal, velocity, friction):
    along = velocity @ normal
    pressure = max(STIFFNESS * depth - DAMPING * along, 0.0)
    sliding = velocity - along * normal
    speed = np.linalg.norm(sliding)
    return pressure * normal - sliding * min(SLIDING, friction * pressure / max(speed, 1e-9))


# Written out: a step calls these dozens of times, and numpy's and scipy's own take ten times as long.


def _cross(a, b):
    (ax, ay, az), (bx, by, bz) = a, b
    return np.array([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx])


def _matrix(wxyz):
    w, x, y, z = wxyz
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _turn(axis, angle):
    half = 0.5 * angle
    return _matrix((math.cos(half), *(math.sin(half) * axis)))


class World2(World):
    """What the backend uses of version 2 and version 1 does not have."""

    def setContactSolverIterationOrder(self, order):  # noqa: N802
        self.fixed_order = of_type(order, bool)


def make_raisimpy(version=1, **traits):
    """The module; ``traits`` set attributes of its `World`: licensed, honours_order, transposes_maps."""
    module = types.ModuleType("raisimpy")
    base = {1: World, 2: World2}[version]
    module.World = type("World", (base,), {"created": [], "keys": [], **traits})
    module.ControlMode, module.BodyType = ControlMode, BodyType
    return module
