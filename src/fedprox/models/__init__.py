"""The papers' models, one file each; `MODELS` is what experiment files can name."""

from collections.abc import Callable

from fedprox.model import Model
from fedprox.models.logistic import logistic

MODELS: dict[str, Callable[..., Model]] = {"logistic": logistic}

__all__ = ["MODELS", "logistic"]
