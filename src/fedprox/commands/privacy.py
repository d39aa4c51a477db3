"""`fedprox privacy` and `fedprox audit-privacy`."""

import warnings
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedprox.commands.options import Changes, DataDir, DeviceCount, ExperimentFile
from fedprox.commands.training import load, prepare, set_up_jax
from fedprox.diagnostics.privacy_audit import NOT_AUDITED, at_points
from fedprox.diagnostics.privacy_audit import audit_privacy as run_audit
from fedprox.errors import InputError, require, users_level
from fedprox.experiment import DEPLOYED, Experiment, Resolved, read_experiment
from fedprox.experiment.resolved import resolve_with
from fedprox.federation import Federation
from fedprox.parts.privacy.setting import check_delta, delta_warnings
from fedprox.protocol.method import checked_methods
from fedprox.protocol.protocol import Protocol
from fedprox.report.privacy import privacy_page
from fedprox.terminal import Bar, standard_console

MOST_ROWS = 10_000_000
"""Most rows of a client that `fedprox privacy` is told."""


def privacy(
    file: ExperimentFile,
    settings: Changes = None,
    data_dir: DataDir = None,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="N+N,...",
            help="Rows of each client, training and test, for a deployment's file without [data].",
        ),
    ] = None,
) -> None:
    """Compute the privacy of an experiment without training.

    It prints what the section [privacy] of the file means for each method: the noise, epsilon after
    each tenth of the rounds by each accountant, and the guarantee. It also prints the effect of
    larger cohorts and fewer rounds, and the cost of the cohort's limit. For examples it prints the
    noise, epsilon of the worst client and the guarantee.

    The file of a deployment has no data; --rows 256+64,160+40,96+24 is for three clients with so
    many training and test rows. Test rows may be left out; they count for noised measures alone.

    Bad input is reported in one line, with exit status 2.
    """
    experiment = read_experiment(file, settings or (), {"data": {"name": DEPLOYED}})
    if experiment.data.get("name") == DEPLOYED:
        set_up_jax(experiment.cohort.clients_per_round, None)
        console, resolved = standard_console(), _with_rows(file, experiment, rows)
    else:
        require(rows is None, f"--rows {rows}: {file} has a section [data]; leave --rows out")
        console, resolved = load(experiment, data_dir)
    if not resolved.privacy:
        raise InputError(f"{file}: the section [privacy] is missing")
    sizes = resolved.federation.train.sizes
    check_delta(resolved.privacy, sizes)
    for line in delta_warnings(resolved.privacy, sizes):
        warnings.warn(line, stacklevel=users_level())
    with Bar("accounting"):
        protocol = Protocol(**resolved.settings, seeds=tuple(experiment.seeds))
        methods = [m for m in resolved.methods if not (protocol.hides_clients and m.pooled)]
        page = privacy_page(resolved.privacy, checked_methods(protocol, methods))
    console.print(page)


def _with_rows(file: Path, experiment: Experiment, rows: str | None) -> Resolved:
    """The objects of the file of a deployment, for clients with so many training rows.

    The price of privacy depends on their rows alone, so a small model stands for any.
    """
    require(
        rows is not None,
        f"{file}: no section [data], as of a deployment; give the training and test rows of each "
        "client, such as --rows 256+64,160+40,96+24",
    )
    sizes = [(*each.split("+", 1), "0")[:2] for each in str(rows).split(",")]
    require(
        all(n.isdecimal() and int(n) <= MOST_ROWS for size in sizes for n in size)
        and all(int(train) for train, _ in sizes),
        f"--rows {rows}; a client has from 1 to {MOST_ROWS:,} training rows, such as 256, or "
        "256+64 with its test rows",
    )
    train, test = (
        [(np.zeros((int(n), 1), np.float32), np.zeros(int(n), np.int32)) for n in part]
        for part in zip(*sizes, strict=True)
    )
    federation = Federation.from_arrays(train, test, classes=2)
    small = experiment.model_copy(update={"model": {"name": "logistic"}, "initial": None})
    return resolve_with(small, lambda: (federation, {"name": DEPLOYED}))


def audit_privacy(
    file: ExperimentFile,
    settings: Changes = None,
    data_dir: DataDir = None,
    devices: DeviceCount = None,
    canaries: Annotated[int, typer.Option(metavar="N", help="Clients, or rows, to add.")] = 1000,
    confidence: Annotated[
        float, typer.Option(metavar="C", help="Confidence of the lower bound.")
    ] = 0.95,
) -> None:
    """Audit the privacy of an experiment by canaries.

    It trains each method and sweep point of the file with clients or rows that take part or not by
    a coin. It guesses the coins from the run's releases, and prints a lower bound of epsilon beside
    the printed one. It runs with the first seed, and leaves out targets, selection and evaluations.
    A lower bound above the printed epsilon refutes the guarantee, and the exit status is then 1. A
    small one proves nothing. It needs the extra jax-privacy.

    Bad input is reported in one line, with exit status 2.
    """
    console, experiment, resolved = prepare(file, settings, data_dir, devices)
    if not resolved.privacy:
        raise InputError(f"{file}: the section [privacy] is missing")
    require(experiment.seeds, "seed: none given; at least one is needed")
    given = {k: v for k, v in resolved.settings.items() if k not in (*NOT_AUDITED, "evaluation")}
    refuted = False
    for method in resolved.methods:
        if method.pooled and resolved.privacy.of_clients:
            continue  # it has no clients to hide
        for name, chosen in at_points(method, resolved.settings["solver"]):
            audit = run_audit(
                method=chosen,
                canaries=canaries,
                confidence=confidence,
                seed=experiment.seeds[0],
                **given,
            )
            console.print(f"{name}\n{audit}\n", highlight=False, soft_wrap=True)
            refuted |= audit.refuted
    if refuted:
        raise typer.Exit(1)
