"""Words that people search for, and the page that the search shows first for each.

Sphinx ranks an index entry of exactly these words above titles and texts. Many are words that pages
do not use: "secure aggregation", "byzantine", "early stopping".
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docutils.nodes import document
    from sphinx.application import Sphinx

SOUGHT = {
    "faq": ("cite", "citation", "licence", "license"),
    "howto/adapters": ("lora", "peft", "adapters", "freeze"),
    "howto/choose": ("which method", "choose mu", "mu"),
    "howto/compression": ("quantization", "compression", "sparsification", "bandwidth"),
    "howto/data": ("csv", "parquet", "pandas", "polars", "hugging face", "dirichlet", "non-iid"),
    "howto/deploy": ("deployment", "real clients", "production"),
    "howto/evaluation": ("early stopping", "validation", "fairness"),
    "howto/faults": ("byzantine", "robust aggregation", "poisoning", "krum", "median"),
    "howto/from-others": ("flower", "flwr", "fedjax", "pfl-research", "pfllib"),
    "howto/from-pytorch": ("pytorch", "torch"),
    "howto/gpu": ("gpu", "cuda", "tpu", "mixed precision", "bfloat16"),
    "howto/hosts": ("slurm", "kubernetes", "multiple machines"),
    "howto/install": ("install", "pip", "extras"),
    "howto/logging": ("wandb", "tensorboard", "mlflow", "prometheus", "grafana", "callbacks"),
    "howto/long-runs": ("resume", "checkpoints", "interrupt"),
    "howto/million-clients": ("scale", "memory", "many clients"),
    "howto/models": ("batch norm", "batch normalization", "batchnorm", "flax", "equinox", "haiku"),
    "howto/operation": ("docker", "systemd", "upgrade"),
    "howto/personal": ("personalization", "ditto", "pfedme", "fedbn"),
    "howto/privacy": ("differential privacy", "epsilon", "dp-sgd", "dp", "privacy budget"),
    "howto/results": ("latex", "dataframe", "plot", "figure"),
    "howto/security": ("secure aggregation", "tls", "certificates", "encryption"),
    "howto/stragglers": ("stragglers", "slow clients"),
    "howto/studies": ("p-value", "significance", "confidence interval", "seeds"),
    "howto/sweeps": ("hyperparameter search", "grid search", "learning rate"),
    "howto/time": ("asynchronous", "deadline", "fedbuff", "slow devices"),
    "howto/warm-start": ("pretrained", "pre-trained", "fine-tuning"),
    "tutorials/clusters": ("clusters", "ifca", "clustered federated learning"),
    "tutorials/own-method": ("own method", "custom algorithm", "new algorithm"),
}
"""Pages, and the words in lower case for which each is the first result."""


def _add(app: "Sphinx", tree: "document") -> None:
    """Give a page its words as entries of the index."""
    from sphinx import addnodes

    words = SOUGHT.get(app.env.current_document.docname, ())
    entries = [("single", word, "", "main", None) for word in words]
    if entries:
        tree.insert(0, addnodes.index(entries=entries))


def first_found(index: dict[str, Any], words: str) -> list[str]:
    """The pages that the built index shows before all others for some words.

    >>> index = {"docnames": ["a", "b"], "indexentries": {"csv": [[1, "", True], [0, "", False]]}}
    >>> first_found(index, "csv"), first_found(index, "tls")
    (['b'], [])
    """
    entries = index["indexentries"].get(words, [])
    return [index["docnames"][page] for page, _, is_main in entries if is_main]


def _check(app: "Sphinx", error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    text = (Path(app.outdir) / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    for page, words in SOUGHT.items():
        for each in words:
            if (found := first_found(index, each)) != [page]:
                raise ValueError(f"a search for {each!r} shows {found} first, not {page}")


def setup(app: "Sphinx") -> None:
    """Add the words, and check the index at the end of a build."""
    app.connect("doctree-read", _add)
    app.connect("build-finished", _check)
