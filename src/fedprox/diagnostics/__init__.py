"""Measures of a federation's heterogeneity, and the bounds that theory derives from them."""

from fedprox.diagnostics.curvature import Curvature, curvature
from fedprox.diagnostics.grouping import Grouping, grouping
from fedprox.diagnostics.theory import (
    Constants,
    ConvexRate,
    FedDynBound,
    convex_case,
    convex_rate,
    dissimilarity_bound,
    feddyn_convex,
    feddyn_nonconvex,
    feddyn_strongly_convex,
    mu_needed,
    rho,
    rounds_needed,
)

__all__ = [
    "Constants",
    "ConvexRate",
    "Curvature",
    "FedDynBound",
    "Grouping",
    "convex_case",
    "convex_rate",
    "curvature",
    "dissimilarity_bound",
    "feddyn_convex",
    "feddyn_nonconvex",
    "feddyn_strongly_convex",
    "grouping",
    "mu_needed",
    "rho",
    "rounds_needed",
]
