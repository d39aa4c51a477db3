"""The public names; `__init__.py` imports each when it is first used."""

from fedprox import datasets, diagnostics, logs, losses, metrics, models
from fedprox.algorithms import (
    Algorithm,
    First,
    OnClient,
    OnServer,
    centralised,
    ditto,
    fedadmm,
    fedavg,
    fedbn,
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
    silobn,
)
from fedprox.columns import Column, Columns
from fedprox.devices.compilation_cache import use_compilation_cache
from fedprox.devices.mesh import use_cpu_devices
from fedprox.diagnostics.clients import EvaluationResult, evaluate, nearest_models
from fedprox.diagnostics.diagnosis import Diagnosis, diagnose
from fedprox.diagnostics.newcomers import Newcomers, newcomers
from fedprox.diagnostics.privacy_audit import PrivacyAudit, audit_privacy
from fedprox.errors import InputError
from fedprox.exports import export
from fedprox.features import Prepared, Vectors, Windows
from fedprox.federation import Examples, Federation, Rows
from fedprox.loop.checkpoint import Checkpoints
from fedprox.loop.following import Callback, Progress
from fedprox.loop.simulate import rounds, simulate
from fedprox.loop.snapshot import Stage
from fedprox.measures import Fairness, fairness
from fedprox.metrics import Metric
from fedprox.model import Model, Variables
from fedprox.model.variants import freeze, lora, mixed_precision
from fedprox.parts.asynchronous import Asynchronous
from fedprox.parts.attack import Attack
from fedprox.parts.compression import Compression
from fedprox.parts.faults import Faults
from fedprox.parts.population import DayNight, Intervals, LogNormal, Population, read_population
from fedprox.parts.privacy import AdaptiveClip, NoisedMeasures, Privacy
from fedprox.parts.robust import Aggregation
from fedprox.parts.systems import Systems
from fedprox.predictions import Probabilities, predict
from fedprox.protocol.cohort import Cohort
from fedprox.protocol.protocol import Evaluation
from fedprox.report.compare import Difference
from fedprox.report.directory import save
from fedprox.report.figure import figure
from fedprox.report.records import records
from fedprox.report.saved import load_model, load_weights, save_model, save_weights
from fedprox.report.table import table
from fedprox.results.record import ClientRecord, Record
from fedprox.results.run import Run
from fedprox.results.target import Selection, Target
from fedprox.runner import run
from fedprox.solver import Solver, line_search_descent
from fedprox.studies.results import Study, StudyTable
from fedprox.studies.run import Tuning
from fedprox.studies.search import Search
from fedprox.studies.study import study
from fedprox.subproblem import Subproblem
from fedprox.terminal import Stopped

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
    "Column",
    "Columns",
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
    "NoisedMeasures",
    "OnClient",
    "OnServer",
    "Population",
    "Prepared",
    "Privacy",
    "PrivacyAudit",
    "Probabilities",
    "Progress",
    "Record",
    "Rows",
    "Run",
    "Search",
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
    "Variables",
    "Vectors",
    "Windows",
    "audit_privacy",
    "centralised",
    "datasets",
    "diagnose",
    "diagnostics",
    "ditto",
    "evaluate",
    "export",
    "fairness",
    "fedadmm",
    "fedavg",
    "fedbn",
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
    "losses",
    "metrics",
    "mime",
    "mixed_precision",
    "models",
    "moon",
    "nearest_models",
    "newcomers",
    "personal_parts",
    "pfedme",
    "predict",
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
    "silobn",
    "simulate",
    "study",
    "table",
    "use_compilation_cache",
    "use_cpu_devices",
]
