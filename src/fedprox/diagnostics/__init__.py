"""Measures of a federation's heterogeneity, and the bounds that theory derives from them."""

from fedprox.diagnostics.certificate import (
    Constants,
    best_mu,
    convex_case,
    decrease_possible,
    dissimilarity_bound,
    mu_needed,
    rho,
    rho_bounded_variance,
)
from fedprox.diagnostics.curvature import Curvature, curvature
from fedprox.diagnostics.feddyn_bounds import (
    FedDynBound,
    feddyn_convex,
    feddyn_nonconvex,
    feddyn_strongly_convex,
)
from fedprox.diagnostics.rates import ConvexRate, convex_rate, rho_by_round, rounds_needed

__all__ = [
    "Constants",
    "ConvexRate",
    "Curvature",
    "FedDynBound",
    "best_mu",
    "convex_case",
    "convex_rate",
    "curvature",
    "decrease_possible",
    "dissimilarity_bound",
    "feddyn_convex",
    "feddyn_nonconvex",
    "feddyn_strongly_convex",
    "mu_needed",
    "rho",
    "rho_bounded_variance",
    "rho_by_round",
    "rounds_needed",
]
