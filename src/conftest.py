"""Functions that `fedprox` names have their examples in their own modules."""

collect_ignore = ["fedprox/__init__.py"]
