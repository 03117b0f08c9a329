"""The second engine against mechanics worked out by hand, and its ground against `Terrain.height_at`."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.geometry import GRAVITY
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace, RobotDynamics, Scene, create_backend
from trace_ros.sim.course import Course, simulate_course
from trace_ros.sim.rollout import Rollout
from trace_ros.sim.terrain import Box, HeightField, Plane, Surface, Terrain
from trace_ros.sim.terrain_generation import TERRAIN_KINDS, TerrainConfig, generate_terrain
from trace_ros.sim.walk import standing_pose

bullet = pytest.importorskip("pybullet", reason="needs pybullet, which has no wheel for every Python")
backend_module = pytest.importorskip("trace_ros.sim.bullet_backend")

CONFIG = PhysicsConfig(backend="bullet", rate_hz=1000)
STEPS = CONFIG.steps_per_control
FLAT = Terrain("flat", planes=(Plane(),))
# The links' masses in the URDF: 6.921 + 4 (0.678 + 1.152 + 0.241352).
MASS = 15.2064


def dynamics(go2, **changes) -> RobotDynamics:
    plain = {"kp": 200.0, "kd": 5.0, "torque_limit": go2.torque_limits, "joint_friction": 0.0, "joint_damping": 0.0}
    return RobotDynamics(**(plain | changes))


class World:
    """One robot that holds its posture."""

    def __init__(self, go2, feet=None, *, terrain=FLAT, height=None, yaw=0.3, config=CONFIG, offset=0.0):
        self.config = config
        self.backend = create_backend([Scene(terrain, feet or dynamics(go2))], go2, config)
        posture = go2.nominal_joint_positions
        position, orientation = standing_pose([terrain], np.zeros((1, 2)), np.array([yaw]), posture, go2)
        if height is not None:
            position[:, 2] = height
        self.target = np.tile(posture + offset, (1, config.steps_per_control, 1))
        self.backend.reset(position, orientation, posture[None])
        self.start = position[0], Rotation.from_quat(orientation[0])

    def run(self, control_steps, push=(0.0, 0.0, 0.0), torque=(0.0, 0.0, 0.0)) -> PhysicsTrace:
        steps = self.config.steps_per_control
        trace = PhysicsTrace.allocate(1, control_steps * steps)
        for step in range(control_steps):
            self.backend.advance(self.target, np.array([[*push, *torque]]), trace, step * steps)
        return trace


def test_free_fall(go2):
    trace = World(go2, height=50.0).run(10)
    elapsed = np.arange(1, 10 * STEPS + 1) / CONFIG.rate_hz
    assert np.allclose(trace.velocity[0, :, 2], -GRAVITY * elapsed, atol=1e-6)
    assert not trace.torso_contact.any()
    assert (trace.foot_force == 0).all()


@pytest.mark.parametrize("yaw", [0.0, 1.2])
def test_push(go2, yaw):
    trace = World(go2, height=50.0, yaw=yaw).run(10, push=(100.0, 0.0, 0.0))
    expected = 100.0 / MASS * 0.1
    assert trace.velocity[0, -1, 0] == pytest.approx(expected, rel=0.1)
    assert abs(trace.velocity[0, -1, 1]) < 0.1 * expected


@pytest.mark.parametrize("yaw", [0.0, 1.2])
def test_in_flight_both_engines_agree(go2, yaw):
    """Masses, inertias, frames, where and how pushes act, the motors: without contact nothing is left to differ."""

    def fly(engine: str) -> PhysicsTrace:
        config = PhysicsConfig(backend=engine, rate_hz=4000)
        feet = dynamics(go2, kp=30.0, kd=1.0, armature=0.0, base_mass=1.0, base_com_offset=(0.02, -0.01, 0.01))
        world = World(go2, feet, height=50.0, yaw=yaw, config=config, offset=0.1 * np.cos(np.arange(12)))
        return world.run(10, push=(30.0, -20.0, 10.0), torque=(3.0, -2.0, 4.0))

    ours, theirs = fly("bullet"), fly("mujoco")
    assert np.abs(theirs.angular_velocity).max() > 0.5
    for name in ("position", "orientation", "velocity", "joint_position"):
        assert np.allclose(getattr(ours, name), getattr(theirs, name), atol=2e-3), name
    for name in ("angular_velocity", "joint_velocity"):  # explicit motors here, implicit ones there
        assert np.allclose(getattr(ours, name), getattr(theirs, name), atol=5e-2), name


def test_the_record_is_consistent(go2):
    """Velocities are the derivatives of positions: of the base link's origin, in the frames that the trace promises."""
    trace = World(go2, height=50.0, yaw=1.2).run(30, push=(40.0, 20.0, 0.0), torque=(0.0, 0.0, 4.0))
    rotation = Rotation.from_quat(trace.orientation[0])
    increment = (rotation[:-1].inv() * rotation[1:]).as_rotvec() * CONFIG.rate_hz
    assert np.allclose(increment, trace.angular_velocity[0, 1:], atol=5e-3)
    assert np.abs(increment).max() > 0.5
    steps = np.diff(trace.position[0], axis=0) * CONFIG.rate_hz
    assert np.allclose(steps, trace.velocity[0, 1:], atol=5e-3)
    joints = np.diff(trace.joint_position[0], axis=0) * CONFIG.rate_hz
    assert np.allclose(joints, trace.joint_velocity[0, 1:], atol=5e-3)


def test_reset_puts_the_base_links_origin_where_it_is_told(go2):
    world = World(go2, height=50.0, yaw=1.2)
    trace = world.run(1)
    position, rotation = world.start
    assert np.allclose(trace.position[0, 0], position, atol=1e-4)
    assert (Rotation.from_quat(trace.orientation[0, 0]) * rotation.inv()).magnitude() < 1e-3


@pytest.mark.parametrize("joint", range(12))
def test_joints_by_name(go2, joint):
    trace = World(go2, height=50.0, offset=0.1 * np.eye(12)[joint]).run(20)
    moved = trace.joint_position[0, -1] - go2.nominal_joint_positions
    assert int(np.argmax(moved)) == joint
    assert moved[joint] == pytest.approx(0.1, abs=0.04)


def test_standing(go2):
    trace = World(go2).run(200)
    late = slice(-200, None)
    assert trace.foot_force[0, late].sum(axis=1).mean(axis=0) == pytest.approx([0, 0, MASS * GRAVITY], abs=0.5)
    assert np.allclose(trace.foot_normal[0, late], [0, 0, 1], atol=1e-6)
    assert not trace.torso_contact.any()
    assert np.abs(trace.velocity[0, late]).max() < 1e-3


def test_forces_of_the_ground_balance_a_push(go2):
    """Sign and axes of the friction forces: they hold against a push while nothing moves."""
    trace = World(go2, yaw=0.7).run(150, push=(12.0, -8.0, 5.0))
    assert trace.foot_force[0, -300:].sum(axis=1).mean(axis=0) == pytest.approx(
        [-12.0, 8.0, MASS * GRAVITY - 5.0], abs=0.5
    )


def test_slope_tilts_the_normal_and_friction_holds(go2):
    slope = Terrain("slope", planes=(Plane(inclination=0.15),))
    trace = World(go2, terrain=slope, yaw=0.0).run(250)
    touching = np.linalg.norm(trace.foot_normal[0, -100:], axis=-1) > 0.5
    assert touching.any()
    # Rising along +x: the normal leans back.
    assert np.allclose(trace.foot_normal[0, -100:][touching], [-np.sin(0.15), 0, np.cos(0.15)], atol=1e-3)
    assert np.abs(trace.velocity[0, -100:]).max() < 2e-3  # no creep


SLOPE = 0.1


def slide(go2, surface: Surface, friction=None) -> float:
    """How far the robot has gone along +x after it has touched the slope, in a second (m)."""
    world = World(go2, dynamics(go2, foot_friction=1.0), terrain=Terrain("slope", (Plane(SLOPE, surface=surface),)))
    if friction is not None:
        world.backend.set_foot_friction(np.array(friction, dtype=float)[None])
    return float(world.run(100).position[0, -1, 0])


def test_friction_of_ground_and_feet(go2):
    held = slide(go2, Surface())
    assert abs(held) < 0.05  # the robot leans until its feet carry it
    # A second down the slope against little friction.
    free = -(np.sin(SLOPE) - 0.02 * np.cos(SLOPE)) * GRAVITY * np.cos(SLOPE) / 2
    assert slide(go2, Surface(friction=0.02)) == pytest.approx(free, rel=0.25)
    assert slide(go2, Surface(), [0.02] * 4) == pytest.approx(free, rel=0.25)
    # Two feet hold what two do not; and ground with a friction of its own knows no slips.
    assert slide(go2, Surface(), [0.02, 1.0, 1.0, 0.02]) == pytest.approx(held, abs=0.03)
    assert slide(go2, Surface(friction=0.9), [0.02] * 4) == pytest.approx(held, abs=0.03)


def test_friction_that_comes_back(go2):
    world = World(go2, dynamics(go2, foot_friction=1.0), terrain=Terrain("slope", (Plane(SLOPE),)))
    world.backend.set_foot_friction(np.full((1, 4), 0.01))
    assert world.run(30).velocity[0, -1, 0] < -0.1
    world.backend.set_foot_friction(np.full((1, 4), 1.0))
    assert abs(world.run(200).velocity[0, -50:, 0].mean()) < 0.01


def sinkage(go2, surface: Surface, **feet) -> float:
    """How deep the feet of a standing robot are in the level ground (m)."""
    trace = World(go2, dynamics(go2, **feet), terrain=Terrain("flat", (Plane(surface=surface),))).run(150)
    feet_position = go2.kinematics.forward(trace.joint_position[0, -1].astype(float))[0]
    world = trace.position[0, -1] + Rotation.from_quat(trace.orientation[0, -1]).apply(feet_position)
    return float(np.mean(go2.foot_radius - world[:, 2]))


def test_soft_ground_sinks_in(go2):
    hard, soft = sinkage(go2, Surface()), sinkage(go2, Surface(time_constant=0.05))
    stiffness, _ = backend_module.contact_stiffness(Surface(time_constant=0.05), dynamics(go2), MASS)
    assert soft == pytest.approx(MASS * GRAVITY / 4 / stiffness, rel=0.05)
    assert hard < 0.3 * soft
    assert sinkage(go2, Surface(time_constant=0.05, sinkage=0.05)) > 1.2 * soft
    assert sinkage(go2, Surface(), foot_time_constant=0.05) == pytest.approx(soft, rel=0.02)


def test_stiffness_of_surfaces(go2):
    feet = dynamics(go2, foot_time_constant=0.01)
    stiffness, damping = backend_module.contact_stiffness(Surface(), feet, MASS)
    # What a surface leaves open is the feet's.
    assert backend_module.contact_stiffness(Surface(friction=0.1), feet, MASS) == (stiffness, damping)
    half, _ = backend_module.contact_stiffness(Surface(time_constant=0.02), feet, MASS)
    assert half == pytest.approx(stiffness / 4)
    # Ground so soft that it is pressed through its sinkage has its full stiffness; otherwise between half and all.
    shallow, _ = backend_module.contact_stiffness(Surface(sinkage=0.0005), feet, MASS)
    assert shallow == stiffness
    deep, _ = backend_module.contact_stiffness(Surface(sinkage=1.0), feet, MASS)
    assert deep == pytest.approx(stiffness / 2, rel=0.01)
    # Two feet sink in to where the stiffness that grows with the depth carries the robot.
    soft, sinks = 0.03, 0.01
    full, _ = backend_module.contact_stiffness(Surface(time_constant=soft), feet, MASS)
    linear, _ = backend_module.contact_stiffness(Surface(time_constant=soft, sinkage=sinks), feet, MASS)
    depth = MASS * GRAVITY / 2 / linear
    assert depth < sinks
    assert full * (0.5 + 0.5 * depth / sinks) == pytest.approx(linear, rel=1e-6)


def test_damping_ratio_decides_the_rebound(go2):
    def land(ratio: float) -> float:
        stiff = dynamics(
            go2, kp=2000.0, kd=20.0, torque_limit=np.full(12, 500.0), foot_time_constant=0.02, foot_damping_ratio=ratio
        )
        feet = go2.kinematics.forward(go2.nominal_joint_positions)[0]
        height = go2.foot_radius - float(feet[:, 2].min())
        config = CONFIG.model_copy(update={"rate_hz": 4000})
        return float(World(go2, stiff, height=height + 0.05, config=config).run(60).velocity[0, :, 2].max())

    assert land(0.1) > 2 * max(land(1.5), 0.0)


def test_torque_limit(go2):
    trace = World(go2, dynamics(go2, torque_limit=np.full(12, 1.0))).run(60)
    assert trace.position[0, -1, 2] < 0.2  # too weak to stand
    assert trace.torso_contact[0].any()


def test_rotors_turn_with_the_links_of_the_first_and_the_third_joint(go2):
    bare, geared = (masses(World(go2, dynamics(go2, armature=armature))) for armature in (0.0, 0.02))
    for leg in ("FL", "FR", "RL", "RR"):
        # About the joints' axes: x, none, y; the principal axes lean a little.
        for link, added in (("hip", (0.02, 0, 0)), ("thigh", (0, 0, 0)), ("calf", (0, 0.02, 0))):
            assert np.allclose(geared[f"{leg}_{link}"][1] - bare[f"{leg}_{link}"][1], added, atol=1e-5)


def test_torque_and_dry_friction(go2):
    """The first acceleration of a joint under a known torque."""

    def acceleration(friction: float) -> float:
        weak = dynamics(go2, kp=1000.0, kd=0.0, torque_limit=np.full(12, 2.0), joint_friction=friction)
        trace = World(go2, weak, height=50.0, offset=np.eye(12)[2]).run(1)
        return float(trace.joint_velocity[0, 9, 2] - trace.joint_velocity[0, 4, 2])

    free = acceleration(0.0)
    assert free > 0.5
    assert 0.4 * free < acceleration(0.5) < 0.8 * free  # a quarter less torque, and the next joint brakes too
    assert abs(acceleration(3.0)) < 0.05 * free  # it creeps, but does not get faster


def test_damping_of_the_joints(go2):
    """With motors that do nothing, joints of a falling robot keep their speed but for the damping."""
    loose = dynamics(go2, kp=1000.0, kd=0.0, torque_limit=np.full(12, 1.0), joint_damping=0.1)
    trace = World(go2, loose, height=50.0, offset=np.eye(12)[2]).run(20)
    # A torque of 1 N m against 0.1 N m s/rad ends at 10 rad/s at most.
    assert 2.0 < trace.joint_velocity[0, :, 2].max() < 10.0


def masses(world) -> dict[str, tuple[float, np.ndarray, np.ndarray]]:
    """Mass, principal inertia and centre of mass of each link."""
    own = world.backend._worlds[0]
    found = {}
    for link in own._links:
        name = (
            bullet.getBodyInfo(own._robot, physicsClientId=own._client)[0]
            if link < 0
            else bullet.getJointInfo(own._robot, link, physicsClientId=own._client)[12]
        )
        info = bullet.getDynamicsInfo(own._robot, link, physicsClientId=own._client)
        found[name.decode()] = info[0], np.array(info[2]), np.array(info[3])
    return found


def test_dynamics_change_the_model(go2):
    plain = masses(World(go2))
    assert sum(mass for mass, _, _ in plain.values()) == pytest.approx(MASS, abs=1e-3)
    assert plain["FL_foot"][0] == 0.0  # no inertia in the URDF: none, not a kilogram
    changed = masses(
        World(go2, dynamics(go2, base_mass=2.0, base_com_offset=(0.01, 0.02, 0.03), mass_scale=1.1, inertia_scale=1.2))
    )
    assert sum(mass for mass, _, _ in changed.values()) == pytest.approx(1.1 * MASS + 2.0, abs=1e-3)
    assert np.allclose(changed["base_link"][2] - plain["base_link"][2], (0.01, 0.02, 0.03))
    assert np.allclose(changed["FL_thigh"][1], 1.1 * plain["FL_thigh"][1])
    factor = 1.1 * 1.2 * (1 + 2.0 / (1.1 * plain["base_link"][0]))
    assert np.allclose(changed["base_link"][1], factor * plain["base_link"][1])


@pytest.mark.parametrize("kind", TERRAIN_KINDS)
def test_the_engines_ground_is_where_height_at_says(go2, kind):
    terrain = generate_terrain(kind, TerrainConfig(), 4.0, np.random.default_rng(5))
    compare(go2, terrain, 0.02 if kind == "perlin" else 2e-3)


def test_mixed_ground(go2):
    rng = np.random.default_rng(2)
    # Not as wide as long, and not about the origin.
    field = HeightField((1.0, -0.5), 0.2, 0.3 + rng.uniform(0.0, 0.05, (8, 12)) + 0.02 * np.arange(12))
    boxes = (Box((-1.0, 1.0, 0.1), (0.5, 0.7, 0.2), roll=0.2, pitch=-0.3),)
    compare(go2, Terrain("mixed", (Plane(0.1, -0.2),), (field,), boxes), 0.03)


def compare(go2, terrain, tolerance):
    """Rays from above must hit at `height_at`; facets of height fields differ from bilinear by the tolerance."""
    world = World(go2, terrain=terrain, height=-50.0)  # the robot out of the way
    points = np.random.default_rng(1).uniform(-2.0, 2.0, (200, 2))
    begin = [[float(x), float(y), 20.0] for x, y in points]
    end = [[float(x), float(y), -20.0] for x, y in points]
    hits = bullet.rayTestBatch(begin, end, physicsClientId=world.backend._worlds[0]._client)
    found = np.array([hit[3][2] for hit in hits])
    assert np.allclose(found, terrain.height_at(points), atol=tolerance)


def test_feet_stand_on_a_height_field(go2):
    """Not only rays meet it: feet do, and the normal is the facet's."""
    field = HeightField((0.0, 0.0), 0.25, np.tile(0.1 * 0.25 * np.arange(17), (17, 1)))
    hard = dynamics(go2, foot_time_constant=0.006)
    trace = World(go2, hard, terrain=Terrain("ramp", height_fields=(field,)), yaw=0.0).run(80)
    feet = go2.kinematics.forward(trace.joint_position[0, -1].astype(float))[0]
    world = trace.position[0, -1] + Rotation.from_quat(trace.orientation[0, -1]).apply(feet)
    slope = np.arctan(0.1)
    gap = (world[:, 2] - field.height_at(world[:, :2])) * np.cos(slope) - go2.foot_radius
    assert np.abs(gap).max() < 1e-3
    assert np.allclose(trace.foot_normal[0, -1], [-np.sin(slope), 0.0, np.cos(slope)], atol=1e-3)


@pytest.fixture(scope="module")
def walk(go2) -> Rollout:
    """The real policy walks there and back, over a bump and a step, turns, and stands."""
    course = {
        "name": "short",
        "duration": 9.0,
        "final_stand": 1.0,
        "phases": [{"stand": 0.5}, {"walk_to": [1.6, 0.0]}, {"walk_to": [0.0, 0.8]}],
        "patches": [
            {"kind": "perlin", "x": [0.4, 2.2], "y": [-0.8, 0.3], "amplitude": 0.06, "wavelength": 0.8},
            {"kind": "stairs", "x": [-0.6, 0.6], "y": [0.5, 1.6], "rise": 0.04, "tread": 0.2, "steps": 1},
        ],
        "physics": {"backend": "bullet"},
    }
    return simulate_course(Course.model_validate(course), go2, 1)


def test_the_policy_walks(walk, go2):
    """`simulate_course` refuses falls."""
    log = walk.clean
    assert walk.info["finished"] == 1.0
    assert walk.info["path_length_m"] > 2.5
    force = np.linalg.norm(log.foot_force, axis=-1)
    assert force.max() < 1500.0
    # All feet step, and together they carry the robot.
    assert (np.diff(log.contact.astype(int), axis=0) < 0).sum(axis=0).min() > 8
    # Forces are in the body's axes.
    world = log.reference.rotation_world_body.apply(log.foot_force.sum(axis=1))
    assert world.mean(axis=0) == pytest.approx([0.0, 0.0, MASS * GRAVITY], abs=4.0)
    # Feet in contact stand, but that their spheres roll; the others do not.
    feet, jacobian, _ = go2.kinematics.forward_and_jacobians(log.joint_position)
    relative = np.einsum("nlij,nlj->nli", jacobian, log.joint_velocity.reshape(-1, 4, 3))
    turning = np.cross(log.reference.angular_velocity[:, None], feet)
    speed = np.linalg.norm(log.reference.velocity[:, None] + turning + relative, axis=-1)
    assert np.median(speed[log.contact]) < 0.15
    assert np.median(speed[~log.contact]) > 3 * np.median(speed[log.contact])


def test_perfect_sensors_integrate_to_the_motion(walk, go2):
    log, reference = walk.clean, walk.clean.reference
    rotation = reference.rotation_world_body
    period = np.diff(log.stamp_ns)[:, None] * 1e-9
    turned = (rotation[:-1].inv() * rotation[1:]).as_rotvec()
    assert np.abs(turned - log.angular_velocity[1:] * period).max() < 1e-5
    at_imu = rotation.apply(reference.velocity + np.cross(reference.angular_velocity, go2.imu.position))
    force = log.linear_acceleration[1:]
    predicted = ((rotation[:-1].apply(force) + rotation[1:].apply(force)) / 2 - [0, 0, GRAVITY]) * period
    # Over the whole walk the differences must not add up.
    assert np.abs(at_imu[-1] - at_imu[0] - predicted.sum(axis=0)).max() < 5e-3
    world = rotation.apply(reference.velocity)
    travelled = ((world[1:] + world[:-1]) / 2 * period).sum(axis=0)
    assert np.abs(reference.position[-1] - reference.position[0] - travelled).max() < 2e-3


def test_targets_may_change_within_a_control_step(go2):
    world = World(go2, height=50.0)
    world.target[:, STEPS // 2 :] += 0.3
    speed = np.abs(world.run(1).joint_velocity[0]).max(axis=1)
    assert speed[: STEPS // 2].max() < 0.05 * speed[-1]
    assert speed[STEPS // 2] > 0.05 * speed[-1]


def test_worlds_are_apart_and_runs_repeat(go2):
    def walk(frictions):
        scenes = [Scene(FLAT, dynamics(go2, foot_friction=mu)) for mu in frictions]
        backend = create_backend(scenes, go2, CONFIG)
        robots = len(scenes)
        trace = PhysicsTrace.allocate(robots, 30 * STEPS)
        target = np.tile(go2.nominal_joint_positions, (robots, 1))
        backend.reset(np.tile([0.0, 0.0, 0.35], (robots, 1)), np.tile([0.0, 0.0, 0.0, 1.0], (robots, 1)), target)
        for step in range(30):
            push = np.tile([60.0, 0.0, 0.0, 0.0, 0.0, 0.0], (robots, 1))
            backend.advance(np.repeat(target[:, None], STEPS, axis=1), push, trace, step * STEPS)
        return trace

    both, alone = walk((0.8, 0.1)), walk((0.1,))
    assert np.array_equal(both.position[1], alone.position[0])
    assert not np.allclose(both.position[0], both.position[1], atol=1e-3)


def test_a_state_that_blew_up_is_a_fall_and_takes_no_others_along(go2):
    backend = create_backend([Scene(FLAT, dynamics(go2))] * 2, go2, CONFIG)
    target = np.tile(go2.nominal_joint_positions, (2, 1))
    backend.reset(np.tile([0.0, 0.0, 0.4], (2, 1)), np.tile([0.0, 0.0, 0.0, 1.0], (2, 1)), target)
    trace = PhysicsTrace.allocate(2, 2 * STEPS)
    push = np.zeros((2, 6))
    push[0, 0] = np.nan
    for step in range(2):
        backend.advance(np.repeat(target[:, None], STEPS, axis=1), push, trace, step * STEPS)
    assert trace.torso_contact[0].all()
    assert not trace.torso_contact[1].any()
    assert np.isfinite(trace.position[1]).all()
    backend.reset(np.tile([0.0, 0.0, 50.0], (2, 1)), np.tile([0.0, 0.0, 0.0, 1.0], (2, 1)), target)
    backend.advance(np.repeat(target[:, None], STEPS, axis=1), np.zeros((2, 6)), trace, 0)
    assert not trace.torso_contact[:, :STEPS].any()


def test_many_backends_one_after_another(go2):
    """Worlds are given back: Bullet has about a thousand."""
    scenes = [Scene(FLAT, dynamics(go2))]
    first = create_backend(scenes, go2, CONFIG)._worlds[0]._client
    assert create_backend(scenes, go2, CONFIG)._worlds[0]._client == first


def test_a_urdf_that_cannot_be_loaded(go2, tmp_path):
    broken = tmp_path / "robot.urdf"
    lost = '<parent link="base_link"/><child link="FL_hip"/>'
    broken.write_text(go2.urdf.read_text().replace(lost, lost.replace("base_link", "nowhere")))
    with pytest.raises(TraceError, match=r"robot.urdf: Bullet cannot load it") as caught:
        create_backend([Scene(FLAT, dynamics(go2))], go2.model_copy(update={"urdf": broken}), CONFIG)
    assert "\n" not in str(caught.value)


def test_no_noise():
    """Bullet talks on the process's own streams."""
    code = (
        "from trace_ros.robot import RobotDescription as R\n"
        "from trace_ros.sim.backend import *\n"
        "from trace_ros.sim.terrain import *\n"
        "r = R.load('go2')\n"
        "t = Terrain('t', (Plane(),), (HeightField((0.0, 0.0), 0.5, np.zeros((4, 4))),))\n"
        "create_backend([Scene(t, RobotDynamics(1.0, 1.0, r.torque_limits))], r, PhysicsConfig(backend='bullet'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
