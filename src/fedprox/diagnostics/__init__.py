"""Measurements of a federation's heterogeneity, and what theory makes of them."""

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
from fedprox.diagnostics.clients import client_measures
from fedprox.diagnostics.curvature import Curvature, curvature

__all__ = [
    "Constants",
    "Curvature",
    "best_mu",
    "client_measures",
    "corollary_7",
    "curvature",
    "dissimilarity_bound",
    "mu_needed",
    "remark_5",
    "rho",
    "rho_bounded_variance",
]
