"""The engine against mechanics worked out by hand, and its ground against `Terrain.height_at`."""

from dataclasses import replace

import mujoco
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.geometry import GRAVITY
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace, RobotDynamics, Scene, create_backend
from trace_ros.sim.domain_randomization import nominal_dynamics
from trace_ros.sim.mujoco_backend import MujocoBackend
from trace_ros.sim.policy import WalkingPolicy
from trace_ros.sim.policy_randomization import UNCHANGED, RandomizedPolicy
from trace_ros.sim.rollout import SimulationConfig, simulate_rollouts
from trace_ros.sim.sampling import SamplingConfig
from trace_ros.sim.terrain import Box, HeightField, Plane, Surface, Terrain
from trace_ros.sim.terrain_generation import TERRAIN_KINDS, TerrainConfig, generate_terrain
from trace_ros.sim.walk import Walk, standing_pose

CONFIG = PhysicsConfig()
FLAT = Terrain("flat", planes=(Plane(),))
LEVEL = np.array([[0.0, 0.0, 0.0, 1.0]])


def dynamics(go2, **changes) -> RobotDynamics:
    return RobotDynamics(**({"kp": 20.0, "kd": 0.5, "torque_limit": go2.torque_limits} | changes))


def hold(target):
    """The same targets (B, 12) in all physics steps of a control step."""
    return np.repeat(target[:, None], CONFIG.steps_per_control, axis=1)


def run(go2, scene, height, steps=10, push=(0.0, 0.0, 0.0), orientation=LEVEL, torque=(0.0, 0.0, 0.0)):
    backend = MujocoBackend([scene], go2, CONFIG)
    trace = PhysicsTrace.allocate(1, steps * CONFIG.steps_per_control)
    target = go2.nominal_joint_positions[None]
    backend.reset(np.array([[0.0, 0.0, height]]), orientation, target)
    for step in range(steps):
        backend.advance(hold(target), np.array([[*push, *torque]]), trace, step * CONFIG.steps_per_control)
    return trace, backend


def mass(backend) -> float:
    return float(backend._models[0].body_mass.sum())


def test_free_fall(go2):
    trace, backend = run(go2, Scene(FLAT, dynamics(go2)), 50.0)
    # The links' masses in the URDF: 6.921 + 4 (0.678 + 1.152 + 0.241352).
    assert mass(backend) == pytest.approx(15.2064, abs=1e-3)
    elapsed = np.arange(1, 201) / CONFIG.rate_hz
    # The origin is not the centre of mass, so joints that settle move it by a little.
    assert np.allclose(trace.velocity[0, :, 2], -GRAVITY * elapsed, atol=0.05)
    assert not trace.torso_contact.any()
    assert (trace.foot_force == 0).all()


def test_push_is_in_the_world_frame_whatever_the_heading(go2):
    turned = Rotation.from_euler("z", 1.2).as_quat()[None]
    for orientation in (LEVEL, turned):
        trace, backend = run(go2, Scene(FLAT, dynamics(go2)), 50.0, push=(100.0, 0.0, 0.0), orientation=orientation)
        expected = 100.0 / mass(backend) * 0.1
        assert trace.velocity[0, -1, 0] == pytest.approx(expected, rel=0.1)
        assert abs(trace.velocity[0, -1, 1]) < 0.1 * expected


@pytest.mark.parametrize("start", [(0.0, 0.0, 0.0), (0.0, 0.0, 1.2), (0.4, -0.3, 2.0)])
def test_push_torque_is_in_the_world_frame_whatever_the_attitude(go2, start):
    attitude = Rotation.from_euler("xyz", start)
    stiff = dynamics(go2, kp=300.0, kd=10.0, torque_limit=np.full(12, 200.0))
    trace, backend = run(
        go2, Scene(FLAT, stiff), 50.0, orientation=attitude.as_quat()[None], steps=2, torque=(0.0, 0.0, 3.0)
    )
    model = backend._models[0]
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, backend._current[0], int(mujoco.mjtState.mjSTATE_FULLPHYSICS))
    mujoco.mj_forward(model, data)
    # In free fall the angular momentum about the centre of mass is the torque's impulse: a pure torque moves nothing.
    mujoco.mj_subtreeVel(model, data)
    base = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, go2.base_link)
    assert np.allclose(data.subtree_angmom[base], [0.0, 0.0, 3.0 * 0.02], atol=4e-3)
    assert np.allclose(data.subtree_linvel[base], [0.0, 0.0, -GRAVITY * 0.02], atol=1e-3)
    assert trace.angular_velocity.any()


def test_a_robot_whose_state_blew_up_takes_no_others_along(go2):
    backend = MujocoBackend([Scene(FLAT, dynamics(go2))] * 2, go2, CONFIG)
    target = np.tile(go2.nominal_joint_positions, (2, 1))
    backend.reset(np.tile([0.0, 0.0, 50.0], (2, 1)), np.tile(LEVEL, (2, 1)), target)
    backend._current[0, backend._root_qpos + 3 : backend._root_qpos + 7] = np.nan
    torque = backend._body_torque(np.tile([1.0, 2.0, 3.0], (2, 1)))
    assert torque.tolist() == [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]


def test_targets_may_change_within_a_control_step(go2):
    backend = MujocoBackend([Scene(FLAT, dynamics(go2))], go2, CONFIG)
    steps = CONFIG.steps_per_control
    trace = PhysicsTrace.allocate(1, steps)
    target = go2.nominal_joint_positions[None]
    backend.reset(np.array([[0.0, 0.0, 50.0]]), LEVEL, target)
    targets = hold(target)
    targets[:, steps // 2 :] += 0.3
    backend.advance(targets, np.zeros((1, 6)), trace, 0)
    speed = np.abs(trace.joint_velocity[0]).max(axis=1)
    assert speed[: steps // 2].max() < 0.05 * speed[-1]
    assert speed[steps // 2] > 0.05 * speed[-1]


def test_damping_ratio_decides_the_rebound_and_not_the_softness(go2):
    """A robot with locked legs that lands: with little damping it is thrown back; both come to rest alike."""

    def land(ratio: float) -> tuple[float, float]:
        stiff = dynamics(
            go2, kp=2000.0, kd=20.0, torque_limit=np.full(12, 500.0), foot_time_constant=0.02, foot_damping_ratio=ratio
        )
        feet = go2.kinematics.forward(go2.nominal_joint_positions)[0]
        height = go2.foot_radius - float(feet[:, 2].min())
        trace, _ = run(go2, Scene(FLAT, stiff), height + 0.05, steps=150)
        return float(trace.velocity[0, :, 2].max()), float(trace.position[0, -1, 2])

    (bouncy, rest), (damped, rest_damped) = land(0.2), land(1.5)
    assert bouncy > 2 * max(damped, 0.0)
    assert rest == pytest.approx(rest_damped, abs=1e-3)


def _walking_feet(go2, scenes):
    """Depth (m) and force (N) of the feet of robots that go ahead on level ground for three seconds: (B, S, 4) each."""
    policy, count, steps = WalkingPolicy.load(go2), len(scenes), 400
    walk = Walk(scenes, RandomizedPolicy(policy, [UNCHANGED] * count, 0.01), go2, CONFIG, steps)
    terrains = [scene.terrain for scene in scenes]
    walk.reset(*standing_pose(terrains, np.zeros((count, 2)), np.zeros(count), policy.default_joint_position, go2))
    for step in range(steps):
        command = np.tile([0.7 * (step >= 100), 0.0, 0.0], (count, 1))
        walk.step(command, np.zeros(count, dtype=bool), np.zeros((count, 6)))
    walking = slice(100 * CONFIG.steps_per_control, None)
    trace, depths = walk.trace, []
    for robot in range(count):
        turn = Rotation.from_quat(trace.orientation[robot, walking]).as_matrix()
        feet = np.einsum("nij,nlj->nli", turn, go2.kinematics.forward(trace.joint_position[robot, walking]))
        depths.append(go2.foot_radius - feet[:, :, 2] - trace.position[robot, walking, None, 2])
    return np.array(depths), np.linalg.norm(trace.foot_force[:, walking], axis=-1)


def test_impedance_decides_whether_the_ground_follows_a_foot_that_lifts_off(go2):
    """Bearing the robot, feet sink in about as deep; near 1 they are pushed out before they leave, near 0 not."""
    policy = WalkingPolicy.load(go2)
    feet = {"foot_time_constant": 0.014, "foot_damping_ratio": 2.0}
    scenes = [
        Scene(FLAT, replace(nominal_dynamics(go2, policy), foot_impedance=impedance, **feet))
        for impedance in (0.1, 0.95)
    ]
    bearing, leaving = [], []
    for depth, force in zip(*_walking_feet(go2, scenes), strict=True):
        bearing.append(depth[force > 50.0].mean())
        leaving.append(depth[:-1][(force[:-1] > 15.0) & (force[1:] <= 15.0)].mean())
    assert 0.7 < bearing[0] / bearing[1] < 1.4
    assert leaving[0] / bearing[0] > 1.5 * leaving[1] / bearing[1]


def test_a_damper_that_would_shake_the_foot_is_weakened(go2):
    """Little impedance, hard, much damping: more than one step could take."""
    harsh = dynamics(go2, foot_time_constant=0.005, foot_damping_ratio=10.0, foot_impedance=0.1)
    feet = go2.kinematics.forward(go2.nominal_joint_positions)[0]
    height = go2.foot_radius - float(feet[:, 2].min())
    trace, _ = run(go2, Scene(FLAT, harsh), height + 0.02, steps=150)
    assert np.abs(trace.velocity[0, -200:]).max() < 0.05
    assert 100 < trace.foot_force[0, -200:, :, 2].sum(axis=1).mean() < 200


def test_impedance_goes_for_soft_ground_too(go2):
    soft = Scene(Terrain("flat", planes=(Plane(surface=Surface(friction=0.5)),)), dynamics(go2, foot_impedance=0.3))
    _, backend = run(go2, soft, 0.5, steps=1)
    model = backend._models[0]
    ground = [geom for geom in range(model.ngeom) if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_PLANE]
    assert np.allclose(model.geom_solimp[ground][:, :2], 0.3)
    # Ground that grows stiff with depth does so at any impedance.
    deep = Surface(time_constant=0.04, sinkage=0.02)
    heights = []
    for surface in (deep, replace(deep, sinkage=None)):
        scene = Scene(Terrain("flat", planes=(Plane(surface=surface),)), dynamics(go2, foot_impedance=0.3))
        trace, _ = run(go2, scene, 0.35, steps=100)
        heights.append(float(trace.position[0, -1, 2]))
    assert abs(heights[0] - heights[1]) > 1e-4


@pytest.mark.parametrize("rate_hz", [1000, 2000, 4000])
def test_a_walk_at_each_documented_rate(go2, rate_hz):
    """4 kHz is the paper's setting."""
    config = SimulationConfig.load()
    physics = config.physics.model_copy(update={"rate_hz": rate_hz})
    short = {"duration": 1.0, "settle": 0.3, "minimum_duration": 0.5}
    # Samples at the physics' own rate: others need not divide every physics rate.
    config = config.model_copy(update={"physics": physics, "sampling": SamplingConfig(), **short})
    rollouts = list(simulate_rollouts(config, go2, 3, 3))
    assert len(rollouts) == 3
    for rollout in rollouts:
        log = rollout.clean
        assert log.duration_s == pytest.approx(1.0, abs=0.01)
        up = log.reference.rotation_world_body.as_matrix()[:, 2, 2]
        assert up.min() > 0.7
        assert 100 < np.einsum("nli->ni", log.foot_force)[:, 2].mean() < 220


def test_standing_forces_and_normals(go2):
    trace, backend = run(go2, Scene(FLAT, dynamics(go2, kp=200.0, kd=5.0)), 0.34, steps=80)
    late = slice(-200, None)
    assert trace.foot_force[0, late].sum(axis=1).mean(axis=0) == pytest.approx([0, 0, mass(backend) * GRAVITY], abs=2.0)
    assert np.allclose(trace.foot_normal[0, late], [0, 0, 1])


def test_slope_tilts_the_normal_and_friction_holds(go2):
    slope = Terrain("slope", planes=(Plane(inclination=0.15),))
    feet = go2.kinematics.forward(go2.nominal_joint_positions)[0]
    height = float(np.max(slope.height_at(feet[:, :2]) - feet[:, 2])) + go2.foot_radius
    trace, _ = run(go2, Scene(slope, dynamics(go2, kp=200.0, kd=5.0)), height, steps=80)
    touching = np.linalg.norm(trace.foot_normal[0, -100:], axis=-1) > 0.5
    assert touching.any()
    # Rising along +x: the normal leans back.
    assert np.allclose(trace.foot_normal[0, -100:][touching], [-np.sin(0.15), 0, np.cos(0.15)], atol=1e-3)


def test_slippery_surface_lets_go_and_the_foot_friction_can_be_changed(go2):
    slope = Plane(inclination=0.1)
    feet = go2.kinematics.forward(go2.nominal_joint_positions)[0]
    height = float(np.max(slope.height_at(feet[:, :2]) - feet[:, 2])) + go2.foot_radius
    stiff = dynamics(go2, kp=200.0, kd=5.0, foot_friction=1.0)

    def slide(surface: Surface, friction: float | None) -> float:
        scene = Scene(Terrain("slope", planes=(Plane(0.1, surface=surface),)), stiff)
        backend = MujocoBackend([scene], go2, CONFIG)
        trace = PhysicsTrace.allocate(1, 60 * CONFIG.steps_per_control)
        target = go2.nominal_joint_positions[None]
        backend.reset(np.array([[0.0, 0.0, height]]), LEVEL, target)
        if friction is not None:
            backend.set_foot_friction(np.full((1, 4), friction))
        for step in range(60):
            backend.advance(hold(target), np.zeros((1, 6)), trace, step * CONFIG.steps_per_control)
        return float(trace.velocity[0, -200:, 0].mean())

    holds = slide(Surface(), None)
    assert abs(holds) < 0.1
    assert slide(Surface(friction=0.02), None) < holds - 0.2
    assert slide(Surface(), 0.02) < holds - 0.2


def test_what_a_surface_leaves_open_is_the_feet_s(go2):
    """MuJoCo lets one geom decide everything; feet keep their friction on soft ground, and their softness on ice."""

    def contact(surface: Surface) -> tuple[float, float]:
        feet = dynamics(go2, foot_friction=0.35, foot_time_constant=0.011)
        _, backend = run(go2, Scene(Terrain("x", planes=(Plane(surface=surface),)), feet), 0.33, steps=20)
        model, data = backend._models[0], mujoco.MjData(backend._models[0])
        mujoco.mj_setState(model, data, backend._current[0], int(mujoco.mjtState.mjSTATE_FULLPHYSICS))
        mujoco.mj_forward(model, data)
        assert data.ncon >= 4
        return float(data.contact[0].friction[0]), float(data.contact[0].solref[0])

    assert contact(Surface()) == pytest.approx((0.35, 0.011))
    assert contact(Surface(sinkage=0.005)) == pytest.approx((0.35, 0.011))
    assert contact(Surface(friction=0.1)) == pytest.approx((0.1, 0.011))
    assert contact(Surface(time_constant=0.05)) == pytest.approx((0.35, 0.05))


def test_dynamics_change_the_model(go2):
    scene = Scene(
        FLAT,
        dynamics(
            go2,
            base_mass=2.0,
            base_com_offset=(0.01, 0.02, 0.03),
            mass_scale=1.1,
            joint_friction=0.3,
            joint_damping=0.2,
        ),
    )
    _, changed = run(go2, scene, 50.0, steps=1)
    _, plain = run(go2, Scene(FLAT, dynamics(go2)), 50.0, steps=1)
    assert mass(changed) == pytest.approx(1.1 * mass(plain) + 2.0)
    before, after = plain._models[0], changed._models[0]
    base = mujoco.mj_name2id(before, mujoco.mjtObj.mjOBJ_BODY, go2.base_link)
    assert np.allclose(after.body_ipos[base] - before.body_ipos[base], (0.01, 0.02, 0.03))
    thigh = mujoco.mj_name2id(before, mujoco.mjtObj.mjOBJ_BODY, "FL_thigh")
    assert np.allclose(after.body_inertia[thigh], 1.1 * before.body_inertia[thigh])
    assert np.allclose(after.dof_frictionloss[6:], 0.3)
    assert np.allclose(after.dof_damping[6:], 0.2)
    assert np.allclose(after.dof_armature[6:], 0.01)


def test_torque_limit_is_the_actuators(go2):
    limit = np.full(12, 1.0)
    trace, _ = run(go2, Scene(FLAT, dynamics(go2, torque_limit=limit, kp=200.0)), 0.34, steps=60)
    assert trace.position[0, -1, 2] < 0.2  # too weak to stand
    assert trace.torso_contact[0].any()


@pytest.mark.parametrize("kind", TERRAIN_KINDS)
def test_the_engines_ground_is_where_height_at_says(go2, kind):
    terrain = generate_terrain(kind, TerrainConfig(), 4.0, np.random.default_rng(5))
    assert np.isfinite(terrain.height_at(np.random.default_rng(0).uniform(-4, 4, (200, 2)))).all()
    _compare(go2, terrain, 0.02 if kind == "perlin" else 1e-6)


def test_mixed_ground(go2):
    rng = np.random.default_rng(2)
    field = HeightField((1.0, -0.5), 0.2, rng.uniform(0.0, 0.3, (8, 12)))
    boxes = (Box((-1.0, 1.0, 0.1), (0.5, 0.7, 0.2), roll=0.2, pitch=-0.3),)
    _compare(go2, Terrain("mixed", (Plane(0.1, -0.2),), (field,), boxes), 0.1)


def _compare(go2, terrain, tolerance):
    """Rays from above must hit at `height_at`; facets of height fields differ from bilinear by the tolerance."""
    model = MujocoBackend([Scene(terrain, dynamics(go2))], go2, CONFIG)._models[0]
    data = mujoco.MjData(model)
    data.qpos[:3] = [0.0, 0.0, -50.0]  # the robot out of the way
    mujoco.mj_forward(model, data)
    hit = np.zeros(1, dtype=np.int32)
    points = np.random.default_rng(1).uniform(-2.0, 2.0, (100, 2))
    expected = terrain.height_at(points)
    for (x, y), height in zip(points, expected, strict=True):
        origin = np.array([x, y, 20.0])
        distance = mujoco.mj_ray(model, data, origin, np.array([0.0, 0.0, -1.0]), None, 1, -1, hit)
        assert 20.0 - distance == pytest.approx(height, abs=tolerance)


def test_a_urdf_that_cannot_be_loaded(go2, tmp_path):
    broken = tmp_path / "robot.urdf"
    broken.write_text("<robot name='x'><link name='base_link'><inertial><mass value='many'/></inertial></link></robot>")
    with pytest.raises(TraceError, match=r"robot.urdf: MuJoCo cannot load it"):
        MujocoBackend([Scene(FLAT, dynamics(go2))], go2.model_copy(update={"urdf": broken}), CONFIG)


def test_threads_do_not_change_the_result(go2):
    scenes = [Scene(FLAT, dynamics(go2, foot_friction=mu)) for mu in (0.4, 0.8, 1.2)]
    results = []
    for threads in (1, 2):
        config = PhysicsConfig(threads=threads)
        backend = create_backend(scenes, go2, config)
        trace = PhysicsTrace.allocate(3, 10 * config.steps_per_control)
        target = np.tile(go2.nominal_joint_positions, (3, 1))
        backend.reset(np.tile([0.0, 0.0, 0.35], (3, 1)), np.tile(LEVEL, (3, 1)), target)
        for step in range(10):
            backend.advance(hold(target), np.zeros((3, 6)), trace, step * config.steps_per_control)
        results.append(trace.position)
    assert np.array_equal(*results)
