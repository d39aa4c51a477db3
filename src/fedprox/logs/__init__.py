"""Loggers: callbacks that write runs to TensorBoard, MLflow, or Weights & Biases."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedprox.errors import require_one_of
from fedprox.logs.tools import mlflow, tensorboard, wandb
from fedprox.loop.following import Callback

LOGGERS: dict[str, Callable[..., Callback]] = {
    logger.__name__: logger for logger in (tensorboard, mlflow, wandb)
}
"""The loggers by their names on the command line."""

__all__ = ["mlflow", "tensorboard", "wandb"]


def loggers_of(names: Sequence[str], folder: Path, *, resume: bool) -> list[Callback]:
    """The loggers that `--log` names, for a run directory; repeated names count once."""
    for name in names:
        require_one_of("--log", name, tuple(LOGGERS))
    return [LOGGERS[name](folder, resume=resume) for name in dict.fromkeys(names)]
