"""Training what a resolved experiment describes."""

from collections.abc import Callable

from fedprox.experiment.resolved import Resolved
from fedprox.experiment.sections import Experiment
from fedprox.simulation.loop.checkpoint import Checkpoints
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run
from fedprox.simulation.simulate import simulate


def train(
    experiment: Experiment,
    resolved: Resolved,
    on_record: Callable[[Record], None] | None = None,
    devices: int | None = None,
    checkpoints: Checkpoints | None = None,
    progress: bool = True,
) -> list[Run]:
    """Run a resolved experiment; see `fedprox.simulate`."""
    runs = simulate(
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
        on_record=on_record,
        progress=progress,
    )
    for run in runs:
        run.experiment = resolved.table
    return runs
