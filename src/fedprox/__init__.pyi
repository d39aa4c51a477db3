"""The public names; `__init__.py` imports each when it is first used."""

from fedprox import datasets, diagnostics, logs, metrics, models
from fedprox.algorithms import (
    Algorithm,
    First,
    OnClient,
    OnServer,
    centralised,
    ditto,
    fedadmm,
    fedavg,
    fedcm,
    feddane,
    feddc,
    feddyn,
    fedexp,
    fedgkd,
    fedlc,
    fednova,
    fedopt,
    fedper,
    fedprox,
    fedrep,
    fedsam,
    fedsgd,
    fedsplit,
    ifca,
    mime,
    moon,
    personal_parts,
    pfedme,
    qffl,
    scaffnew,
    scaffold,
    server,
)
from fedprox.diagnostics.clients import EvaluationResult, evaluate, nearest_models
from fedprox.diagnostics.diagnosis import Diagnosis, diagnose
from fedprox.diagnostics.newcomers import Newcomers, newcomers
from fedprox.errors import InputError
from fedprox.features import Prepared, Vectors, Windows
from fedprox.federation import Examples, Federation, Rows
from fedprox.measures import Fairness, fairness
from fedprox.messages.attack import Attack
from fedprox.messages.compression import Compression
from fedprox.messages.faults import Faults
from fedprox.messages.robust import Aggregation
from fedprox.metrics import Metric
from fedprox.model import Model
from fedprox.model.variants import freeze, lora, mixed_precision
from fedprox.privacy import AdaptiveClip, Privacy
from fedprox.report.compare import Difference
from fedprox.report.figure import figure
from fedprox.report.records import records
from fedprox.report.results import save
from fedprox.report.saved import load_model, save_model
from fedprox.report.table import table
from fedprox.report.weights import load_weights, save_weights
from fedprox.runner import run
from fedprox.simulation.config.asynchronous import Asynchronous
from fedprox.simulation.config.availability import DayNight, Intervals
from fedprox.simulation.config.cohort import Cohort
from fedprox.simulation.config.evaluation import Evaluation
from fedprox.simulation.config.population import LogNormal, Population
from fedprox.simulation.config.systems import Systems
from fedprox.simulation.config.trace import read_population
from fedprox.simulation.devices.compilation_cache import use_compilation_cache
from fedprox.simulation.devices.cpu import use_cpu_devices
from fedprox.simulation.loop.callbacks import Callback
from fedprox.simulation.loop.checkpoint import Checkpoints, Stopped
from fedprox.simulation.loop.progress import Progress
from fedprox.simulation.loop.stage import Stage
from fedprox.simulation.results.clients import ClientRecord
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run
from fedprox.simulation.results.selection import Selection
from fedprox.simulation.results.target import Target
from fedprox.simulation.simulate import rounds, simulate
from fedprox.solver import Solver, line_search_descent
from fedprox.studies.results import Study
from fedprox.studies.study import study
from fedprox.studies.table import StudyTable
from fedprox.studies.tuning import Tuning
from fedprox.subproblem import Subproblem

__version__: str

__all__ = [
    "AdaptiveClip",
    "Aggregation",
    "Algorithm",
    "Asynchronous",
    "Attack",
    "Callback",
    "Checkpoints",
    "ClientRecord",
    "Cohort",
    "Compression",
    "DayNight",
    "Diagnosis",
    "Difference",
    "Evaluation",
    "EvaluationResult",
    "Examples",
    "Fairness",
    "Faults",
    "Federation",
    "First",
    "InputError",
    "Intervals",
    "LogNormal",
    "Metric",
    "Model",
    "Newcomers",
    "OnClient",
    "OnServer",
    "Population",
    "Prepared",
    "Privacy",
    "Progress",
    "Record",
    "Rows",
    "Run",
    "Selection",
    "Solver",
    "Stage",
    "Stopped",
    "Study",
    "StudyTable",
    "Subproblem",
    "Systems",
    "Target",
    "Tuning",
    "Vectors",
    "Windows",
    "centralised",
    "datasets",
    "diagnose",
    "diagnostics",
    "ditto",
    "evaluate",
    "fairness",
    "fedadmm",
    "fedavg",
    "fedcm",
    "feddane",
    "feddc",
    "feddyn",
    "fedexp",
    "fedgkd",
    "fedlc",
    "fednova",
    "fedopt",
    "fedper",
    "fedprox",
    "fedrep",
    "fedsam",
    "fedsgd",
    "fedsplit",
    "figure",
    "freeze",
    "ifca",
    "line_search_descent",
    "load_model",
    "load_weights",
    "logs",
    "lora",
    "metrics",
    "mime",
    "mixed_precision",
    "models",
    "moon",
    "nearest_models",
    "newcomers",
    "personal_parts",
    "pfedme",
    "qffl",
    "read_population",
    "records",
    "rounds",
    "run",
    "save",
    "save_model",
    "save_weights",
    "scaffnew",
    "scaffold",
    "server",
    "simulate",
    "study",
    "table",
    "use_compilation_cache",
    "use_cpu_devices",
]
