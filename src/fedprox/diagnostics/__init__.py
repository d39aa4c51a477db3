"""Measures of a federation's heterogeneity, and the bounds that theory derives from them."""

from fedprox.diagnostics.certificate import (
    Constants,
    best_mu,
    corollary_7,
    dissimilarity_bound,
    mu_needed,
    remark_5,
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
from fedprox.diagnostics.rates import ConvexRate, corollary_9, remark_8, theorem_6

__all__ = [
    "Constants",
    "ConvexRate",
    "Curvature",
    "FedDynBound",
    "best_mu",
    "corollary_7",
    "corollary_9",
    "curvature",
    "dissimilarity_bound",
    "feddyn_convex",
    "feddyn_nonconvex",
    "feddyn_strongly_convex",
    "mu_needed",
    "remark_5",
    "remark_8",
    "rho",
    "rho_bounded_variance",
    "theorem_6",
]
