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

__all__ = [
    "Constants",
    "Curvature",
    "best_mu",
    "corollary_7",
    "curvature",
    "dissimilarity_bound",
    "mu_needed",
    "remark_5",
    "rho",
    "rho_bounded_variance",
]
