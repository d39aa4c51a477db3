"""`fedprox diagnose`."""

from pathlib import Path
from typing import Annotated

import typer

from fedprox.commands.options import Changes, DataDir, ExperimentFile
from fedprox.commands.training import prepare
from fedprox.diagnostics.diagnosis import diagnose as run_diagnosis
from fedprox.errors import printable, require
from fedprox.report.directory import RunDirectory
from fedprox.report.page import diagnosis_page, write_report


def diagnose(
    file: ExperimentFile,
    settings: Changes = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for diagnosis.json. [default: runs/NAME-OF-FILE-diagnosis]"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Measure how heterogeneous the clients of an experiment are, and suggest a mu.

    With evaluation.clients it diagnoses that many clients, drawn at random.

    It measures the clients' sizes, label skew, gradients and curvature, and states the mu that
    theory requires. It suggests a mu from a short sweep over {0, 0.001, 0.01, 0.1, 1} with the
    experiment's solver, cohort and stragglers. The methods of the file are not run.

    It writes diagnosis.json and report.html. If --out names the experiment's run directory, they
    join its results.

    Bad input is reported in one line, with exit status 2.
    """
    console, experiment, resolved = prepare(file, settings, data_dir)
    require(experiment.seeds, "seed: none given; at least one is needed")
    folder = out or Path("runs") / f"{file.stem}-diagnosis"
    with RunDirectory(folder, resolved.table) as directory:
        diagnosis = run_diagnosis(
            resolved.federation,
            resolved.model,
            solver=resolved.solver,
            cohort=resolved.cohort,
            systems=resolved.systems,
            population=resolved.population,
            rounds=experiment.rounds,
            evaluation=resolved.evaluation,
            seed=experiment.seeds[0],
            initial=resolved.initial,
        )
        directory.diagnosis(diagnosis.document())
        write_report([directory.path], directory.path / "report.html")
    console.print(diagnosis_page(diagnosis))
    console.print(f"\n{printable(directory.path)}: diagnosis.json, report.html")
