"""Li et al. 2020, "Federated Optimization in Heterogeneous Networks", with its slides and draft."""

from experiments.fedprox import draft, figures, headline, searches

ITEMS = {
    "headline": headline.HEADLINE,
    "headline-shakespeare": headline.HEADLINE_SHAKESPEARE,
    "table-1": figures.TABLE_1,
    **{f"figure-{n}": getattr(figures, f"FIGURE_{n}") for n in range(1, 13)},
    "distributed-sgd": searches.DISTRIBUTED_SGD,
    "search-mu": searches.SEARCH_MU,
    "search-rates": searches.SEARCH_RATES,
}
DRAFT_ITEMS = draft.ITEMS
