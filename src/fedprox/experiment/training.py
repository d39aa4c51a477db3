"""Training what a resolved experiment describes."""

from collections.abc import Sequence

from fedprox.experiment.resolved import Resolved
from fedprox.experiment.sections import Experiment
from fedprox.simulation.loop.callbacks import Callback
from fedprox.simulation.loop.checkpoint import Checkpoints
from fedprox.simulation.results.run import Run
from fedprox.simulation.simulate import simulate


def train(
    experiment: Experiment,
    resolved: Resolved,
    callbacks: Sequence[Callback] = (),
    devices: int | None = None,
    checkpoints: Checkpoints | None = None,
    progress: bool = True,
) -> list[Run]:
    """Run a resolved experiment; see `fedprox.simulate`."""
    return simulate(
        resolved.federation,
        resolved.model,
        resolved.methods,
        solver=resolved.solver,
        evaluation=resolved.evaluation,
        cohort=resolved.cohort,
        systems=resolved.systems,
        faults=resolved.faults,
        rounds=experiment.rounds,
        client_store=experiment.client_store,
        seed=experiment.seed,
        target=resolved.target,
        stop_at_target=experiment.stop_at_target,
        selection=resolved.selection,
        privacy=resolved.privacy,
        initial=resolved.initial,
        devices=devices,
        checkpoints=checkpoints,
        callbacks=[described_by(resolved), *callbacks],
        progress=progress,
    )


def described_by(resolved: Resolved) -> Callback:
    """A callback that sets `Run.experiment` to the experiment, for those after it and the user."""

    def describe(runs: Sequence[Run] | None) -> None:
        for run in runs or ():
            run.experiment = resolved.table

    return Callback(on_start=describe, on_end=describe)
