"""The entry point `study`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedprox.algorithms.base import Algorithm
from fedprox.devices.compilation_cache import use_default_compilation_cache
from fedprox.errors import require, shown
from fedprox.federation import Federation
from fedprox.measures import ON_ROWS, lower_is_better
from fedprox.model import Model
from fedprox.parts.privacy import Privacy
from fedprox.parts.privacy.setting import check_delta
from fedprox.protocol.protocol import measures_of
from fedprox.results.record import RECORD_COLUMNS
from fedprox.studies.grid import METHOD, SETTINGS, Cell, cells_of
from fedprox.studies.results import Study, check_folder, first_seeds, write_study
from fedprox.studies.run import Place, Tuning, check_budgets, check_cell, check_seeds, train_cells
from fedprox.studies.search import load_optuna

StudyData = Federation | Callable[[int], Federation]
"""A data set, or a function of a seed that makes it anew for each seed."""


def study(
    methods: Mapping[str, Algorithm | Mapping[str, Any]] | Sequence[Algorithm],
    *,
    data: StudyData | Mapping[str, StudyData | Mapping[str, Any]],
    vary: Mapping[str, Mapping[str, Any]] | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    tuning: Tuning = Tuning(),  # noqa: B008 (frozen)
    measure: str = "test_accuracy",
    against: str | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> Study:
    """Compare methods over data sets, settings and seeds, each with its best hyperparameters.

    Every method is trained at every combination of a data set and the levels of `vary`. With the
    same seed all methods see the same data, cohorts, stragglers, mini-batches and initial model, so
    they are compared seed by seed.

    If a method or the solver has several values of a hyperparameter, as in a sweep, each method
    tries all of its combinations, separately for each data set and setting. `tuning` says how one
    of them is chosen on validation rows. All methods must try equally many.

    A level of a factor is a dict of arguments of `simulate`, with "federation" for the data and
    "method" for the algorithm. It may also be one argument whose type tells its name, such as
    `fp.Systems(0.5)`. Levels replace the study's own settings; a method's settings replace both.

    Args:
        methods: The methods by the names that tables give them. A method that needs settings of
            its own, such as a cohort, is a dict of them with the algorithm as "method".
        data: The data set, or several by their names. A function of a seed makes the data anew for
            each seed.
        vary: Further factors by their names, each a dict from the names of its levels to levels.
        seeds: The seeds of every method and setting.
        tuning: How hyperparameters are chosen, and whether budgets must be equal.
        measure: Name of the measure of the study's table, as in `metrics.jsonl`.
        against: The method to which the others are compared in the study's conclusions. None means
            that the best is compared to the second.
        out: Folder of the study. Everything is written there, and a study that was interrupted, or
            has more methods, levels, rounds or seeds now, continues from the results there. Further
            seeds change no choice of hyperparameters. None means nothing is written.
        progress: Whether progress over all rounds of the study is shown on stderr.
        settings: The other arguments of `simulate` that all methods share: `model`, which may be a
            function of the federation such as `fp.models.logistic`, `solver`, `cohort`, `rounds`
            and so on.

    Returns:
        The results: tables, a figure, paired differences, and who won.

    Raises:
        InputError: If a setting is unknown, missing or invalid, budgets are unequal, there are no
            validation rows to choose by, or `out` holds results of other settings.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4).hold_out(0.2)
        >>> found = fp.study(
        ...     {"FedAvg": fp.fedavg(), "FedProx": fp.fedprox(mu=0.1)},
        ...     data=federation,
        ...     vary={"stragglers": {"none": fp.Systems(0.0), "half": fp.Systems(0.5)}},
        ...     model=fp.models.logistic,
        ...     solver=fp.Solver(learning_rate=[0.01, 0.1], batch_size=10, epochs=2),
        ...     cohort=fp.Cohort(clients_per_round=2),
        ...     rounds=2,
        ...     evaluation=fp.Evaluation(gradients=False),
        ...     seeds=[0, 1],
        ...     progress=False,
        ... )
        >>> found.table().columns
        [('none',), ('half',)]
    """
    use_default_compilation_cache()
    for name in settings:
        require(
            name in SETTINGS and name != "federation",
            f"study: unknown argument {name!r}; allowed beside its own: "
            f"{', '.join(each for each in SETTINGS if each != 'federation')}",
        )
    require(isinstance(tuning, Tuning), f"tuning = {shown(tuning)}; it must be a fedprox.Tuning")
    cells = cells_of(methods, data, vary or {}, settings)
    place = Place(None if out is None else Path(out))
    return run_study(cells, seeds, tuning, measure, against, place, progress=progress)


def run_study(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    tuning: Tuning,
    measure: str,
    against: str | None,
    place: Place,
    *,
    progress: bool = True,
) -> Study:
    """Tune and train the cells of a study, and write its results if it has a folder.

    Hyperparameters are chosen over the seeds that the study began with, unless `tuning` has its
    own; with further seeds only what was chosen is trained.
    """
    check_seeds("seeds", seeds)
    if tuning.search:
        load_optuna()  # what is missing is said before anything is trained
    names = {cell.levels[METHOD] for cell in cells}
    require(
        against in (None, *names),
        f"against = {shown(against)}; the methods are {', '.join(sorted(names))}",
    )
    first = list(map(int, seeds))
    if place.out:
        check_folder(place.out)
        first = first if place.force else first_seeds(place.out, first)
    more = [seed for seed in seeds if seed not in first]
    budgets = check_budgets(cells, tuning)
    rounds, choosing, lower = 0, dict[str, None](), None
    own = tuning.seeds or ()
    for cell in cells:  # what is wrong with the last one is said before the first is trained
        settings = cell.settings(first[0])
        model, federation = settings["model"], settings["federation"]
        _check_measure(cell.name, measure, model, federation)
        if isinstance(privacy := settings.get("privacy"), Privacy):
            check_delta(privacy, federation.train.sizes)
        if measure.partition("_")[2] in model.metrics:
            lower = lower_is_better(measure, model.metrics)
        check_cell(cell, settings, [*first, *own, *more])
        trained = len(first) + len(more)
        if len(cell.points) > 1:
            choosing[tuning.measure_for(cell.name, federation, model)[0]] = None
            if tuning.search:
                rounds += tuning.search.cost(settings["rounds"]) * len(own or first)
            else:
                trained += len(own)
        rounds += settings["rounds"] * trained
    outcomes = train_cells(cells, first, more, tuning, place, rounds, progress=progress)
    chosen = tuning.sentence(budgets, list(choosing), first if more else ())
    study = Study(outcomes, measure, against, chosen, lower)
    if place.out:
        write_study(study, place.out, first)
    return study


def _check_measure(where: str, measure: object, model: Model, federation: Federation) -> None:
    """Raise `InputError` if records of a model on a federation do not have a measure."""
    known = measures_of(model, federation)
    of_rows = isinstance(measure, str) and measure.partition("_")[0] in ON_ROWS
    require(
        measure in known or (not of_rows and measure in RECORD_COLUMNS),
        f"measure = {shown(measure)}; {where} has {', '.join(known)}",
    )
