"""Li et al. 2020, "Federated Optimization in Heterogeneous Networks", with its slides and draft."""

from experiments.fedprox import (
    dane,
    data,
    distributed_sgd,
    draft,
    headline,
    heterogeneity,
    sampling,
    searches,
    stragglers,
)

ITEMS = {
    "headline": headline.HEADLINE,
    "headline-shakespeare": headline.HEADLINE_SHAKESPEARE,
    "table-1": data.TABLE_1,
    "figure-1": stragglers.FIGURE_1,
    "figure-2": heterogeneity.FIGURE_2,
    "figure-3": heterogeneity.FIGURE_3,
    "figure-4": dane.FIGURE_4,
    "figure-5": stragglers.FIGURE_5,
    "figure-6": heterogeneity.FIGURE_6,
    "figure-7": stragglers.FIGURE_7,
    "figure-8": heterogeneity.FIGURE_8,
    "figure-9": stragglers.FIGURE_9,
    "figure-10": stragglers.FIGURE_10,
    "figure-11": heterogeneity.FIGURE_11,
    "figure-12": sampling.FIGURE_12,
    "distributed-sgd": distributed_sgd.DISTRIBUTED_SGD,
    "search-mu": searches.SEARCH_MU,
    "search-rates": searches.SEARCH_RATES,
}
DRAFT_ITEMS = draft.ITEMS
