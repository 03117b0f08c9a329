"""How fast a machine trains and simulates, each by itself and both at once (``trace train --benchmark``).

Rates are given twice: by the clock on the wall, and by the processor time that the process used, which says what an
idle machine would do when this one is busy.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Annotated, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field

from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.robot import RobotDescription
from trace_ros.sim.rollout import SimulationConfig, simulate_rollouts
from trace_ros.sim.terrain_generation import TERRAIN_KINDS, TerrainKind
from trace_ros.training.config import CommonTraining
from trace_ros.training.dataset import ROW_SIZE, pack
from trace_ros.training.learner import LaneBatch
from trace_ros.training.methods import learner_for

Count = Annotated[int, Field(ge=1)]
_SEED = 0


class BenchmarkPlan(BaseModel):
    """What is measured.

    Attributes:
        training_s: s of gradient steps.
        robots: simulated at once in each measurement of the simulator.
        terrains: kinds of ground, each by itself.
        physics_hz: physics rates, each by itself.
        shared_rollouts: simulated, with the training's own settings, alone and beside training.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    training_s: Annotated[float, Field(gt=0)] = 10.0
    robots: Count = 24
    terrains: tuple[TerrainKind, ...] = ("flat", "perlin", "stairs")
    physics_hz: tuple[Count, ...] = (1000, 2000, 4000)
    shared_rollouts: Count = 24


class Rate(NamedTuple):
    """Something counted over a while.

    Attributes:
        per_s: by the wall clock.
        per_cpu_s: by the time that this process had a processor, all its threads together.
    """

    per_s: float
    per_cpu_s: float


class Benchmark(NamedTuple):
    """What `run_benchmark` measured.

    Attributes:
        training: samples through gradient steps, nothing else running.
        simulation: rollouts, by kind of ground and physics rate (Hz), nothing else running.
        simulation_alone: rollouts with the training's own settings, in a process of its own.
        training_beside, simulation_beside: both at once.
    """

    training: Rate
    simulation: dict[tuple[str, int], Rate]
    simulation_alone: Rate
    training_beside: Rate
    simulation_beside: Rate


class _Timer:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    @property
    def wall(self) -> float:
        """s."""
        return time.perf_counter() - self._wall

    def rate(self, count: float) -> Rate:
        """Of so many things since then."""
        return Rate(count / self.wall, count / max(1e-9, time.process_time() - self._processor))


class TrainingLoad:
    """Gradient steps (noise on the inputs, forward, losses, backward, clipping, Adam) on made-up numbers."""

    def __init__(self, config: CommonTraining) -> None:
        torch.manual_seed(_SEED)
        self._config = config
        self._learner = learner_for(config)
        self._network = self._learner.make_network()
        self._parameters = [parameter for parameter in self._network.parameters() if parameter.requires_grad]
        self._optimiser = torch.optim.Adam(self._parameters, fused=True)
        self._generator = torch.Generator().manual_seed(_SEED)
        self._rows = torch.randn(
            config.batch, config.segment + self._learner.history, ROW_SIZE, generator=self._generator
        )
        self._rows[..., obs.DT] = 0.002
        self._offsets = config.feedback.draw_offsets(config.batch, self._generator)
        self._hidden = torch.zeros(config.batch, self._learner.hidden)

    def step(self) -> None:
        """One gradient step."""
        config = self._config
        segment = self._learner.segment(self._rows, self._offsets, self._generator)
        # From the end of a budget, where everything is learned from.
        terms, _ = self._learner.loss(lambda compute: compute(self._network), LaneBatch(segment, self._hidden), 1.0)
        self._optimiser.zero_grad(set_to_none=True)
        terms.total.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, config.optimiser.gradient_clip or torch.inf, foreach=True)
        self._optimiser.step()

    def measure(self, enough: Callable[[float], bool]) -> Rate:
        """Samples per second, until ``enough`` says so of the seconds that have passed."""
        for _ in range(2):  # the first steps allocate, and start the optimiser
            self.step()
        timer, steps = _Timer(), 0
        while not steps or not enough(timer.wall):
            self.step()
            steps += 1
        return timer.rate(steps * self._config.batch * self._config.segment)


def measure_training_rate(config: CommonTraining, seconds: float = 10.0) -> Rate:
    """Samples per second of gradient steps; ``torch.set_num_threads`` says with how many threads."""
    return TrainingLoad(config).measure(lambda passed: passed >= seconds)


def on_one_ground(config: SimulationConfig, terrain: TerrainKind, physics_hz: int, robots: int) -> SimulationConfig:
    """The same simulation on one kind of ground, at one physics rate and one sample rate, all robots at once.

    Raises:
        TraceError: the physics rate is none of the sample rate's multiples.
    """
    data = config.model_dump()
    for kind in TERRAIN_KINDS:
        data["terrain"][kind]["weight"] = float(kind == terrain)
    data["physics"] |= {"rate_hz": physics_hz, "threads": 1}
    data["sampling"]["rates"] = {}
    data["batch"] = robots
    try:
        return SimulationConfig.model_validate(data)
    except ValueError as error:
        raise TraceError(f"benchmark: {' '.join(str(error).split())}") from error


def measure_simulation_rate(
    simulation: SimulationConfig, robot: RobotDescription, rows: int, robots: int, seed: int = _SEED
) -> Rate:
    """Rollouts per second of the whole pipeline: ground, models, policy, physics, sensors, packing.

    Rollouts that end in a fall count as well: their time was spent.
    """
    timer = _Timer()
    for rollout in simulate_rollouts(simulation, robot, seed, robots):
        pack(rollout, robot, rows)
    return timer.rate(robots)


def run_benchmark(
    config: CommonTraining,
    robot: RobotDescription,
    plan: BenchmarkPlan | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Benchmark:
    """Measure everything that ``plan`` names; under two minutes with the default one on idle cores.

    Args:
        config: of the training; its simulation config says what is simulated.
        robot: whom to simulate.
        plan: what to measure.
        tell: is told what comes next.
    """
    plan = plan or BenchmarkPlan()
    simulation = SimulationConfig.load(config.simulation)
    tell(f"gradient steps for {plan.training_s:g} s")
    training = measure_training_rate(config, plan.training_s)
    rates: dict[tuple[str, int], Rate] = {}
    # Loads the policy and the engine, so that the first measurement does not pay for it.
    measure_simulation_rate(on_one_ground(simulation, "flat", plan.physics_hz[0], 1), robot, config.rows, 1)
    for terrain in plan.terrains:
        for physics_hz in plan.physics_hz:
            tell(f"simulation, {terrain} at {physics_hz} Hz")
            ground = on_one_ground(simulation, terrain, physics_hz, plan.robots)
            rates[terrain, physics_hz] = measure_simulation_rate(ground, robot, config.rows, plan.robots)
    return Benchmark(training, rates, *_side_by_side(config, simulation, robot, plan, tell))


def _side_by_side(
    config: CommonTraining,
    simulation: SimulationConfig,
    robot: RobotDescription,
    plan: BenchmarkPlan,
    tell: Callable[[str], None],
) -> tuple[Rate, Rate, Rate]:
    """Simulation alone, then training and simulation at once, in two processes as a run has them.

    Of equal priority, unlike in a run, where gradients come first: so each shows what the other costs it.
    """
    # A fresh interpreter, as for a run: forking one that runs torch threads is not safe.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    arguments = (there, simulation, robot, config.rows, plan.shared_rollouts)
    process = context.Process(target=_simulate_when_told, args=arguments, daemon=True)
    process.start()
    there.close()
    try:
        tell("simulation in a process of its own")
        here.send(1)
        _receive(here)
        here.send(plan.shared_rollouts)
        alone = _receive(here)
        tell("training and simulation at once")
        load = TrainingLoad(config)
        here.send(plan.shared_rollouts)
        training = load.measure(lambda _: here.poll())
        return alone, training, _receive(here)
    finally:
        process.kill()
        process.join()


def _receive(connection: Connection) -> Rate:
    try:
        answer = connection.recv()
    except EOFError as error:
        raise TraceError("benchmark: the simulation process has ended; is there enough memory?") from error
    if isinstance(answer, str):
        raise TraceError(answer)
    return Rate(*answer)


def _simulate_when_told(
    connection: Connection, simulation: SimulationConfig, robot: RobotDescription, rows: int, robots: int
) -> None:
    """Body of the other process: simulates as many rollouts as it is told, and answers with their rate."""
    torch.set_num_threads(1)
    simulation = simulation.model_copy(update={"batch": robots})
    try:
        while True:
            connection.send(tuple(measure_simulation_rate(simulation, robot, rows, connection.recv())))
    except TraceError as error:
        connection.send(str(error))
    except (EOFError, KeyboardInterrupt):
        return
