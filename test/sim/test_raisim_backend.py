"""The RaiSim backend against a strict double of raisimpy; the real engine, which needs a licence, was never at hand."""

import logging
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import raisimpy_double as double
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.geometry import GRAVITY
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace, RobotDynamics, Scene, create_backend
from trace_ros.sim.raisim_backend import KEY_VARIABLE, RaisimBackend, _say_what_has_no_effect
from trace_ros.sim.rollout import SimulationConfig, simulate_rollouts
from trace_ros.sim.terrain import Box, HeightField, Plane, Surface, Terrain
from trace_ros.sim.terrain_generation import TERRAIN_KINDS, TerrainConfig, generate_terrain
from trace_ros.sim.walk import FallConfig, first_fall

CONFIG = PhysicsConfig(backend="raisim", rate_hz=1000)
STEPS = CONFIG.steps_per_control
FLAT = Terrain("flat", planes=(Plane(),))
LEVEL = np.array([[0.0, 0.0, 0.0, 1.0]])
STIFF = {"kp": 200.0, "kd": 5.0}


@pytest.fixture(autouse=True)
def licence(monkeypatch, tmp_path):
    key = tmp_path / "activation.raisim"
    key.touch()
    monkeypatch.setenv(KEY_VARIABLE, str(key))
    return key


@pytest.fixture
def install(monkeypatch):
    def put(**traits):
        module = double.make_raisimpy(**traits)
        monkeypatch.setitem(sys.modules, "raisimpy", module)
        return module

    return put


@pytest.fixture
def engine(install):
    return install()


def dynamics(go2, **changes) -> RobotDynamics:
    return RobotDynamics(**({"kp": 20.0, "kd": 0.5, "torque_limit": go2.torque_limits} | changes))


def hold(target):
    """The same targets (B, 12) in all physics steps of a control step."""
    return np.repeat(target[:, None], STEPS, axis=1)


class Run:
    """One robot, its world in the double, and what was recorded."""

    def __init__(self, engine, go2, terrain=FLAT, height=50.0, orientation=LEVEL, **changes):
        self.backend = create_backend([Scene(terrain, dynamics(go2, **changes))], go2, CONFIG)
        assert isinstance(self.backend, RaisimBackend)
        self.world = engine.World.created[-1]
        self.system = self.world.systems[0]
        self.target = go2.nominal_joint_positions[None]
        self.backend.reset(np.array([[0.0, 0.0, height]]), orientation, self.target)

    def advance(self, control_steps=1, push=(0.0, 0.0, 0.0), torque=(0.0, 0.0, 0.0)) -> PhysicsTrace:
        trace = PhysicsTrace.allocate(1, control_steps * STEPS)
        for step in range(control_steps):
            self.backend.advance(hold(self.target), np.array([[*push, *torque]]), trace, step * STEPS)
        return trace


def standing_height(go2) -> float:
    return go2.foot_radius - float(go2.kinematics.forward(go2.nominal_joint_positions)[0][:, 2].min())


@pytest.mark.parametrize(
    "misuse",
    [
        lambda _, robot: robot.getBodyIndex("base_link"),
        lambda _, robot: robot.setState(np.zeros(18), np.zeros(18)),
        lambda _, robot: robot.setState(np.zeros(19), np.zeros(18)),  # no quaternion
        lambda _, robot: robot.setGeneralizedForce(np.zeros(12)),
        lambda _, robot: robot.setGeneralizedForce(np.zeros(18, np.float32)),
        lambda _, robot: robot.setGeneralizedForce([0.0] * 18),
        lambda _, robot: robot.setExternalForce(0, np.zeros(3)),
        lambda _, robot: robot.setExternalTorque(0, np.zeros(6)),
        lambda _, robot: robot.setExternalTorque(1, np.zeros(3)),
        lambda _, robot: robot.setControlMode("FORCE_AND_TORQUE"),
        lambda world, _: world.integrate(),  # no torque since the last step
        lambda world, _: world.addGround(0.0, "ice"),  # after the first step
        lambda world, _: world.setGravity(np.zeros(2)),
        lambda world, _: world.setTimeStep("1 ms"),
        lambda world, _: world.setDefaultMaterial(1.0, 0.0, threshold=0.0),
        lambda world, _: world.setMaterialPairProp("foot_FL", "ground", np.float32(0.5), 0.0, 0.0),
        lambda world, _: world.addHeightMap(2, 2, 1.0, 1.0, 0.0, 0.0, np.zeros(4)),
        lambda world, _: world.addHeightMap(2, 2, 1.0, 1.0, 0.0, 0.0, [0.0] * 3),
    ],
)
def test_the_double_is_strict(engine, go2, misuse):
    run = Run(engine, go2)
    run.advance()
    with pytest.raises((AttributeError, TypeError, ValueError, RuntimeError)):
        misuse(run.world, run.system)


@pytest.mark.parametrize("version", [1, 2])
def test_free_fall(install, go2, version):
    run = Run(install(version=version), go2)
    trace = run.advance(5)
    elapsed = np.arange(1, 5 * STEPS + 1) / CONFIG.rate_hz
    assert np.allclose(trace.velocity[0, :, 2], -GRAVITY * elapsed, atol=1e-9)
    assert np.allclose(trace.joint_position[0], go2.nominal_joint_positions, atol=1e-6)
    assert not trace.torso_contact.any()
    assert (trace.foot_force == 0).all()
    assert (trace.foot_normal == 0).all()
    assert run.world.fixed_order == (version == 2)
    # No two bodies of the robot collide: 13 bodies.
    assert len(run.system.ignored) == 78


def test_state_is_converted(engine, go2):
    """The quaternion's order, and the angular velocity: the world's in RaiSim, the body's in the trace."""
    turned = Rotation.from_euler("xyz", (0.4, -0.3, 1.2))
    run = Run(engine, go2, orientation=turned.as_quat()[None])
    coordinates, velocities = run.system.getState()
    assert np.allclose(Rotation.from_quat(coordinates[[4, 5, 6, 3]]).as_matrix(), turned.as_matrix())
    spin = np.array([0.3, -0.5, 0.7])
    velocities[3:6] = spin
    run.system.setState(coordinates, velocities)
    trace = run.advance()
    last = Rotation.from_quat(trace.orientation[0, -1])
    expected = Rotation.from_rotvec(spin * STEPS / CONFIG.rate_hz) * turned
    assert (last.inv() * expected).magnitude() < 1e-9
    assert np.allclose(trace.angular_velocity[0, -1], expected.inv().apply(spin))
    assert not np.allclose(trace.angular_velocity[0, -1], spin, atol=0.1)


@pytest.mark.parametrize("honours_order", [True, False])
def test_joints_are_matched_by_name(install, go2, honours_order):
    """Also where the engine numbers them otherwise than it was asked to."""
    run = Run(install(honours_order=honours_order), go2)
    names = [joint.name for joint in run.system._movable]
    assert (names == list(go2.joint_names)) == honours_order
    run.target = run.target + np.linspace(-0.05, 0.05, 12)
    trace = run.advance(30)
    by_name = dict(zip(names, run.system.getState()[0][7:], strict=True))
    assert np.allclose([by_name[name] for name in go2.joint_names], trace.joint_position[0, -1], atol=1e-6)
    assert np.allclose(trace.joint_position[0, -1], run.target[0], atol=0.02)
    assert np.corrcoef(trace.joint_position[0, -1] - go2.nominal_joint_positions, np.arange(12))[0, 1] > 0.9


def test_torque_is_explicit_and_clipped(engine, go2):
    limit = np.linspace(2.0, 13.0, 12)
    run = Run(engine, go2, torque_limit=limit, joint_friction=0.0, kp=10.0, kd=0.5)
    position, velocity = (part.copy() for part in run.system.getState())
    sent = []
    accept = run.system.setGeneralizedForce
    run.system.setGeneralizedForce = lambda force: (sent.append(force.copy()), accept(force))
    run.target = run.target + np.array([0.05, -0.1, 9.0] * 4)
    trace = run.advance()
    assert len(sent) == STEPS
    q = np.vstack([position[7:], trace.joint_position[0, :-1]])
    dq = np.vstack([velocity[6:], trace.joint_velocity[0, :-1]])
    expected = np.clip(10.0 * (run.target - q) - 0.5 * dq, -limit, limit)
    assert np.allclose(np.array(sent)[:, 6:], expected, atol=1e-4)
    assert (np.abs(expected) == limit).any()
    assert (np.array(sent)[:, :6] == 0).all()


def test_dry_friction_brakes_and_does_not_reverse(engine, go2):
    run = Run(engine, go2, kp=1e-9, kd=0.0, joint_friction=0.3, joint_damping=0.0)
    coordinates, velocities = run.system.getState()
    velocities[6:] = 1.0
    run.system.setState(coordinates, velocities)
    rates = run.advance(10).joint_velocity[0]
    inertia = double.LINK_INERTIA + 0.01
    assert rates[9] == pytest.approx(1.0 - 0.3 / inertia * 10 / CONFIG.rate_hz, abs=1e-4)
    assert np.abs(rates[-1]).max() < 1e-3
    assert rates.min() > -1e-6


def test_push_is_in_the_world_frame_and_renewed_in_each_step(engine, go2):
    for angle in (0.0, 1.2):
        run = Run(engine, go2, orientation=Rotation.from_euler("z", angle).as_quat()[None])
        trace = run.advance(3, push=(100.0, 0.0, 0.0))
        mass = sum(run.system.masses.values())
        assert mass == pytest.approx(15.2064, abs=1e-3)
        assert np.allclose(trace.velocity[0, -1, :2], [100.0 / mass * 3 * STEPS / CONFIG.rate_hz, 0.0], atol=1e-9)
        after = run.advance(1)
        assert np.allclose(after.velocity[0, -1, :2], trace.velocity[0, -1, :2])


def test_push_torque_is_in_the_world_frame_and_renewed_in_each_step(engine, go2):
    for start in (LEVEL[0], Rotation.from_euler("xyz", (0.2, -0.3, 1.2)).as_quat()):
        run = Run(engine, go2, orientation=start[None])
        trace = run.advance(2, torque=(0.0, 0.5, 0.0))
        turned = (Rotation.from_quat(trace.orientation[0, -1]) * Rotation.from_quat(start).inv()).as_rotvec()
        assert turned[1] > 1e-5
        assert np.abs(turned[[0, 2]]).max() < 0.5 * turned[1]
        before = run.system.getState()[1][3:6]
        run.advance(1)
        assert np.allclose(run.system.getState()[1][3:6], before)


def test_targets_may_change_within_a_control_step(engine, go2):
    run = Run(engine, go2, torque_limit=np.full(12, 5.0), joint_friction=0.0, kp=1000.0, kd=0.0)
    sent = []
    accept = run.system.setGeneralizedForce
    run.system.setGeneralizedForce = lambda force: (sent.append(force.copy()), accept(force))
    targets = hold(run.target) + 1.0
    targets[:, STEPS // 2 :] -= 2.0
    run.backend.advance(targets, np.zeros((1, 6)), PhysicsTrace.allocate(1, STEPS), 0)
    forces = np.array(sent)[:, 6:]
    assert (forces[: STEPS // 2] == 5.0).all()
    assert (forces[STEPS // 2 :] == -5.0).all()


def test_standing_forces_and_normals(engine, go2):
    """Whether a foot is object A or B, whether a contact is there twice, the trace has the ground's force on it."""
    run = Run(engine, go2, height=standing_height(go2), **STIFF)
    trace = run.advance(60)
    late = slice(-50, None)
    weight = 15.2064 * GRAVITY
    assert trace.foot_force[0, late].sum(axis=1).mean(axis=0) == pytest.approx([0, 0, weight], abs=2.0)
    assert (trace.foot_force[0, late, :, 2] > 10).all()
    assert np.allclose(trace.foot_normal[0, late], [0, 0, 1], atol=1e-6)
    assert {contact.isObjectA() for contact in run.system.getContacts()} == {True, False}
    assert not trace.torso_contact.any()


def test_only_the_feets_contacts_count(engine, go2):
    run = Run(engine, go2)
    calf = run.system.getBodyIdx("FR_calf")
    foot = run.system.getFramePosition(run.system.getFrameIdxByName("FR_foot_fixed"))
    below = foot - np.array([0.0, 0.0, go2.foot_radius])
    up, force, period = [0.0, 0.0, 1.0], np.array([3.0, -2.0, 40.0]), 1 / CONFIG.rate_hz

    def seen(*contacts):
        run.system.extra_contacts = list(contacts)
        run.backend.reset(np.array([[0.0, 0.0, 50.0]]), LEVEL, run.target)
        trace = PhysicsTrace.allocate(1, STEPS)
        trace.foot_force[:], trace.foot_normal[:], trace.torso_contact[:] = 7.0, 7.0, True
        run.backend.advance(hold(run.target), np.zeros((1, 6)), trace, 0)
        return trace.foot_force[0, 0], trace.foot_normal[0, 0], trace.torso_contact[0, 0]

    for is_a in (True, False):
        forces, normals, torso = seen(double.Contact(calf, below, up, force, period, is_a=is_a))
        assert np.allclose(forces[1], force)
        assert np.allclose(normals[1], up)
        assert (forces[[0, 2, 3]] == 0).all()
        assert not torso
    # Two facets: the forces add up, the normal is the stronger one's.
    side = np.array([0.6, 0.0, 0.8])
    facets = (
        double.Contact(calf, below, up, force, period),
        double.Contact(calf, foot - go2.foot_radius * side, side, 2 * force, period),
    )
    for contacts in (facets, facets[::-1]):
        forces, normals, _ = seen(*contacts)
        assert np.allclose(forces[1], 3 * force)
        assert np.allclose(normals[1], side)
    ignored = (
        double.Contact(calf, below, up, force, period, skipped=True),
        double.Contact(calf, below, up, force, period, of_itself=True),
        double.Contact(calf, foot + np.array([0.0, 0.0, 0.1]), up, force, period),
        double.Contact(run.system.getBodyIdx("FR_thigh"), below, up, force, period),
    )
    forces, normals, torso = seen(*ignored)
    assert not forces.any()
    assert not normals.any()
    assert not torso
    assert seen(double.Contact(0, below, up, force, period))[2]


def test_a_state_that_blew_up_counts_as_a_fall(engine, go2):
    run = Run(engine, go2)
    good = run.advance(1)
    assert first_fall(good, FallConfig())[0] == STEPS
    accept, steps = run.world.integrate, []

    def blow_up():
        accept()
        steps.append(run.system)
        if len(steps) == 3:
            run.system._gv[0] = np.nan

    run.world.integrate = blow_up
    trace = run.advance(2)
    assert first_fall(trace, FallConfig())[0] == 2
    assert trace.torso_contact[0, 2:].all()
    # The engine is not asked again, and what is recorded is the last good state.
    assert len(steps) == 3
    assert (trace.velocity[0, 1:] == trace.velocity[0, 1]).all()
    assert np.isfinite(trace.position).all()
    run.world.integrate = accept
    run.backend.reset(np.array([[0.0, 0.0, 50.0]]), LEVEL, run.target)
    assert not run.advance().torso_contact.any()


def test_impulses_of_the_other_sign_are_refused(engine, go2):
    run = Run(engine, go2, height=standing_height(go2), **STIFF)
    accept = double.Contact.isObjectA
    with pytest.MonkeyPatch.context() as patch, pytest.raises(TraceError, match="pulls the feet"):
        patch.setattr(double.Contact, "isObjectA", lambda self: not accept(self))
        run.advance(10)


def test_dynamics_reach_the_engine(engine, go2):
    changes = {"base_mass": 2.0, "base_com_offset": (0.01, 0.02, 0.03), "mass_scale": 1.1, "inertia_scale": 1.2}
    plain = Run(engine, go2).system
    changed = Run(engine, go2, joint_damping=0.35, armature=0.007, **changes).system
    assert sum(changed.masses.values()) == pytest.approx(1.1 * sum(plain.masses.values()) + 2.0)
    assert changed.masses["FL_thigh"] == pytest.approx(1.1 * plain.masses["FL_thigh"])
    assert np.allclose(changed.base_com - plain.base_com, (0.01, 0.02, 0.03))
    grown = 1.1 * plain.masses["base_link"]
    assert np.allclose(changed.base_inertia, 1.2 * (1 + 2.0 / grown) * 1.1 * plain.base_inertia)
    assert {(joint.damping, joint.rotor) for joint in changed._movable} == {(0.35, 0.007)}
    assert {(joint.damping, joint.rotor) for joint in plain._movable} == {(0.1, 0.01)}
    # The engine's own limit never comes into play.
    assert all(joint.effort > 1.5 * limit for joint, limit in zip(changed._movable, go2.torque_limits, strict=True))
    # Nor is the URDF of the package touched.
    assert ElementTree.parse(go2.urdf).getroot().findall(".//visual")


def test_friction_of_each_foot_on_each_ground(engine, go2):
    terrain = Terrain(
        "mixed",
        planes=(Plane(),),
        boxes=(
            Box((5.0, 0.0, 0.1), (1.0, 1.0, 0.1), Surface(friction=0.25)),
            Box((9.0, 0.0, 0.1), (1.0, 1.0, 0.1)),
            Box((7.0, 0.0, 0.1), (1.0, 1.0, 0.1), Surface(friction=0.25)),
        ),
    )
    run = Run(engine, go2, terrain, foot_friction=0.7)
    world = run.world
    icy = world.grounds[1].material
    assert [ground.material for ground in world.grounds] == ["ground", icy, "ground", icy]
    feet = [f"foot_{leg}" for leg in ("FL", "FR", "RL", "RR")]
    assert {foot.material for foot in run.system.feet} == set(feet)
    assert [world.friction(foot, "ground") for foot in feet] == [0.7] * 4
    run.backend.set_foot_friction(np.array([[0.7, 0.3, 0.7, 0.4]]))
    assert [world.friction(foot, "ground") for foot in feet] == [0.7, 0.3, 0.7, 0.4]
    run.backend.set_foot_friction(np.full((1, 4), 0.7))
    assert [world.friction(foot, "ground") for foot in feet] == [0.7] * 4
    assert [world.friction(foot, icy) for foot in feet] == [0.25] * 4
    assert world.friction("default", icy) == 0.25
    run.advance()


def test_a_slope_holds_a_robot_until_its_feet_lose_friction(engine, go2):
    slope = Terrain("slope", planes=(Plane(0.2),))
    along = Rotation.from_euler("y", -0.2).as_quat()[None]

    def slide(friction):
        run = Run(engine, go2, slope, standing_height(go2) / np.cos(0.2), along, foot_friction=1.0, **STIFF)
        run.backend.set_foot_friction(np.full((1, 4), friction))
        trace = run.advance(30)
        touching = np.linalg.norm(trace.foot_normal[0, -50:], axis=-1) > 0.5
        assert touching.mean() > 0.9
        # Rising along +x: the normal leans back.
        assert np.allclose(trace.foot_normal[0, -50:][touching], [-np.sin(0.2), 0, np.cos(0.2)], atol=1e-6)
        return trace.velocity[0, -50:, 0].mean()

    assert abs(slide(1.0)) < 0.1
    # Downhill for 0.275 s on average, at g sin cos less a little friction.
    assert slide(0.02) == pytest.approx(-0.9 * GRAVITY * np.sin(0.2) * np.cos(0.2) * 0.275, rel=0.1)


@pytest.mark.parametrize("kind", TERRAIN_KINDS)
def test_the_engines_ground_is_where_height_at_says(engine, go2, kind):
    terrain = generate_terrain(kind, TerrainConfig(), 4.0, np.random.default_rng(5))
    world = Run(engine, go2, terrain).world
    _compare(world, terrain)


def test_mixed_ground(engine, go2):
    heights = np.random.default_rng(2).uniform(0.0, 0.3, (8, 12))
    boxes = (Box((-1.0, 1.0, 0.1), (0.5, 0.7, 0.2), roll=0.2, pitch=-0.3),)
    terrain = Terrain("mixed", (Plane(0.1, -0.2), Plane(0.0, -0.1)), (HeightField((1.0, -0.5), 0.2, heights),), boxes)
    _compare(Run(engine, go2, terrain).world, terrain)


def _compare(world, terrain):
    points = np.random.default_rng(1).uniform(-2.0, 2.0, (200, 2))
    found = [max((s[0] for g in world.grounds if (s := g.surface(*p)) is not None), default=-np.inf) for p in points]
    expected = terrain.height_at(points)
    # The double knows the top faces of boxes only, and a leaning one also has sides.
    same = np.isclose(found, expected, atol=1e-9)
    assert same.mean() > 0.95
    assert all(ground.static for ground in world.grounds)


def test_height_maps_in_another_layout_are_refused(install, go2):
    heights = np.random.default_rng(3).uniform(0.0, 0.3, (9, 9))
    terrain = Terrain("perlin", height_fields=(HeightField((0.0, 0.0), 0.1, heights),))
    with pytest.raises(TraceError, match="height maps out in another order"):
        Run(install(transposes_maps=True), go2, terrain)


@pytest.mark.parametrize("surface", [Surface(time_constant=0.05), Surface(friction=0.5, sinkage=0.02)])
def test_soft_ground_is_refused(engine, go2, surface):
    terrain = Terrain("marsh", planes=(Plane(surface=surface),))
    with pytest.raises(TraceError, match="'marsh' is soft"):
        Run(engine, go2, terrain)
    assert not engine.World.created


def test_what_has_no_effect_is_said_once(engine, go2, caplog):
    _say_what_has_no_effect.cache_clear()
    with caplog.at_level(logging.WARNING):
        Run(engine, go2)
        Run(engine, go2)
    assert len([record for record in caplog.records if "damping of the feet" in record.message]) == 1


def one_line(build) -> str:
    with pytest.raises(TraceError) as error:
        build()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_without_raisimpy(monkeypatch, go2):
    monkeypatch.setitem(sys.modules, "raisimpy", None)
    message = one_line(lambda: create_backend([Scene(FLAT, dynamics(go2))], go2, CONFIG))
    assert "not on PyPI" in message
    assert "CMake" in message


def test_without_a_licence(install, go2, monkeypatch, tmp_path):
    def build():
        return create_backend([Scene(FLAT, dynamics(go2))], go2, CONFIG)

    engine = install(licensed=False)
    assert "the license is not valid for this machine" in one_line(build)
    engine = install()
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "gone.raisim"))
    assert "gone.raisim: no RaiSim licence there" in one_line(build)
    monkeypatch.delenv(KEY_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ".raisim/activation.raisim: no RaiSim licence" in one_line(build)
    assert not engine.World.created
    (tmp_path / ".raisim").mkdir()
    (tmp_path / ".raisim" / "activation.raisim").touch()
    build()
    assert engine.World.keys == [str(tmp_path / ".raisim" / "activation.raisim")]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('<sphere radius="0.022"/></geometry></collision>', "", "FL_foot has no collision shape"),
        ('<link name="base_link">', '<link name="stand"/><link name="base_link">', "must be the root link"),
    ],
)
def test_a_urdf_that_does_not_fit(engine, go2, tmp_path, old, new, words):
    text = go2.urdf.read_text()
    assert old in text
    if not new:
        text = text.replace('<collision><origin xyz="0 0 0" rpy="0 0 0"/><geometry>' + old, "")
    else:
        text = text.replace(old, new).replace(
            "</robot>",
            '<joint name="mount" type="fixed"><parent link="stand"/><child link="base_link"/>'
            '<origin xyz="0 0 0"/></joint></robot>',
        )
    changed = tmp_path / "robot.urdf"
    changed.write_text(text)
    assert words in one_line(lambda: Run(engine, go2.model_copy(update={"urdf": changed})))


def test_a_urdf_that_the_engine_refuses(engine, go2, monkeypatch):
    def refuse(*_):
        raise RuntimeError("no\nmesh")

    monkeypatch.setattr(engine.World, "addArticulatedSystem", refuse)
    assert "go2.urdf: RaiSim cannot load it (no mesh)" in one_line(lambda: Run(engine, go2))


@pytest.mark.usefixtures("engine")
def test_rollouts_come_through_the_same_code(go2):
    data = SimulationConfig.load().model_dump()
    data |= {"duration": 0.4, "settle": 0.2, "minimum_duration": 0.2, "batch": 2}
    data["physics"] |= {"backend": "raisim", "rate_hz": 1000}
    data["sampling"] = {}  # not all rates of samples divide this one
    data["terrain"] |= {kind: {"weight": 0.0} for kind in TERRAIN_KINDS} | {"flat": {"weight": 1.0}}
    data["commands"] |= {"standing": 1.0}
    data["randomization"]["contact"]["slip_probability"] = 0.05
    config = SimulationConfig.model_validate(data)
    first, again = (list(simulate_rollouts(config, go2, 3, 2)) for _ in range(2))
    assert len(first) == 2
    assert sum(rollout.info["slips"] for rollout in first) > 0
    for rollout, same in zip(first, again, strict=True):
        assert np.array_equal(rollout.measured.angular_velocity, same.measured.angular_velocity)
        log = rollout.clean
        # What the trace says must fit together, whatever the physics: gyroscope and orientation, contacts and weight.
        rotation = log.reference.rotation_world_body
        period = np.diff(log.stamp_ns)[:, None] * 1e-9
        increment = (rotation[:-1].inv() * rotation[1:]).as_rotvec()
        assert np.abs(increment - log.angular_velocity[1:] * period).max() < 1e-4
        world = np.einsum("nij,nlj->nli", rotation.as_matrix(), log.foot_force).sum(axis=1)
        assert 110 < world[:, 2].mean() < 210
        assert log.contact.any()
        assert np.allclose(np.linalg.norm(log.contact_normal[log.contact], axis=-1), 1.0)
