"""The requests of an experiment's runs to a site in plain words, from the experiment file alone."""

from collections.abc import Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, NamedTuple

from fedprox.algorithms import capabilities as needs
from fedprox.algorithms.base import Algorithm
from fedprox.deployment.approval import digest_of_run
from fedprox.deployment.coordinator import asked_by_file, check_deployable, measures_gradients
from fedprox.errors import plural
from fedprox.experiment.resolved import Described
from fedprox.experiment.schema import Table
from fedprox.experiment.sections import Experiment
from fedprox.parts.privacy import Privacy
from fedprox.parts.privacy.measures import evaluations_of
from fedprox.protocol.method import sweep_points


class RunAsked(NamedTuple):
    """A run that an experiment file describes: a method with a seed.

    Attributes:
        method: The method that is trained.
        points: Its sweep points, all of which are computed in the same rounds.
        asked: The requests to a node, as the file alone decides them.
    """

    method: Algorithm
    points: int
    asked: Table

    @property
    def digest(self) -> str:
        """The digest by which a site approves the run."""
        return digest_of_run(self.asked)


def runs_asked(experiment: Experiment) -> list[RunAsked]:
    """The runs of an experiment that can be deployed, method by method and seed by seed."""
    described = check_deployable(experiment)
    table = described.table
    table["evaluation"]["gradients"] = measures_gradients(experiment, described)
    settings, given = SimpleNamespace(**described.parts), experiment.deployment.secure
    secure = None if given is None else given.model_dump()
    more = _privacy(described.parts["privacy"], described) | {"secure": secure}
    every, rounds = described.parts["evaluation"].every, experiment.rounds
    more |= _noised(described.parts["privacy"], evaluations_of(rounds, every, rounds))
    return [
        RunAsked(
            method,
            len(sweep_points(method, method.solver(described.solver))),
            asked_by_file(settings, table, number, seed) | more,
        )
        for number, method in enumerate(described.methods)
        for seed in experiment.seeds
    ]


def _privacy(given: Privacy | None, described: Described) -> Table:
    """The privacy that a run declares, with the fields of `Setup` that a digest has."""
    if given is None:
        return {"privacy": None, "private_steps": None}
    declared: Table = {"clip": given.clip, "epsilon": given.epsilon}
    noise = {} if given.epsilon is not None else {"noise_multiplier": given.noise_multiplier}
    if given.unit == "example":
        return {"privacy": None, "private_steps": declared | noise | {"delta": given.delta}}
    adaptive = None if given.adaptive_clip is None else asdict(given.adaptive_clip)
    cohort, strategy = described.parts["cohort"], None
    if cohort.min_separation is not None:
        strategy = {"kind": given.kind_of_noise, "separation": cohort.min_separation}
    mechanism = {"sampling": cohort.sampling, "delta": given.delta, "strategy": strategy} | noise
    return {
        "privacy": declared | {"adaptive_clip": adaptive, "mechanism": mechanism},
        "private_steps": None,
    }


def _noised(given: Privacy | None, evaluations: int) -> Table:
    """How a run's measures get noise, likewise; empty if they get none."""
    if given is None or given.measures is None:
        return {}
    measures = given.measures
    declared: Table = {
        "loss_bound": measures.loss_bound,
        "share": measures.share,
        "only": None if measures.only is None else list(measures.only),
        "delta": given.delta,
        "evaluations": evaluations,
    }
    noise = {} if measures.share is not None else {"noise_multiplier": measures.noise_multiplier}
    return {"measures": declared | noise}


def in_words(run: RunAsked) -> list[tuple[str, str]]:
    """The requests of a run to a node: lines of text, each with its subject."""
    asked = run.asked
    secure = "none: the operator sees each node's sum"
    if asked["secure"] is not None:
        secure = f"the operator sees the sum over nodes: {_keys(asked['secure'])}"
    points = f"; {run.points} sweep points, each computed in every round" * (run.points > 1)
    deadline, cohort = asked["deadline"], plural(asked["clients_per_round"], "client")
    limit = "" if deadline is None else f"; a node works on a round for at most {deadline:g} s"
    return [
        ("run", f"{asked['method']['name']}, seed {asked['seed']}"),
        ("digest", run.digest),
        *_under("on joining", JOINING),
        ("data read", "all training rows of clients that are drawn; in evaluations, those of all"),
        ("", "clients, and test and validation rows"),
        ("rounds", f"{asked['rounds']}, with {cohort} each{limit}"),
        ("method", _keys(asked["method"]) + points),
        ("model", _keys(asked["model"])),
        ("solver", _keys(asked["solver"])),
        *_under("sent", _sent(run)),
        *_under("measures", _measured(run)),
        *_under("privacy", _privacy_in_words(asked)),
        ("secure sums", secure),
    ]


JOINING = (
    "for any run, approved or not: the clients' names and numbers of rows, shape and type of the",
    "data, number of classes; of a table names, kinds, values and units of columns, and numbers",
    "that standardize gives; what the node reports; digests of its public key and its peers'",
)
"""The words for all that a node tells of itself when it joins."""


def _under(key: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Lines about one thing."""
    return [(key if i == 0 else "", line) for i, line in enumerate(lines)]


def _sent(run: RunAsked) -> list[str]:
    """A description of what a node sends in a round, beside measures."""
    asked, method = run.asked, run.method
    lines = ["the weighted sum of the updates of the node's clients in a round; that of one client"]
    lines.append("if one is drawn, and always in asynchronous rounds")
    if asked["secure"] is not None:
        lines = ["the weighted sum of the updates of the node's clients in a round, under masks:"]
        lines.append("the operator sees the sum over nodes alone")
    if asked["compression"] is not None:
        lines = [f"each client's update by itself, coded: {_keys(asked['compression'])}"]
    elif asked["products"]:
        lines.append("the mean of adapters is that of their products")
    if needs.EXCHANGES.of(method):
        masked = ", under masks too" * (asked["secure"] is not None)
        lines.append(f"the weighted sum of the gradients of a first cohort's clients{masked}")
    if needs.LOSS.of(method):
        lines.append("what follows from each client's loss over all of its rows")
    if needs.GRADIENT.of(method) and not needs.EXCHANGES.of(method):
        lines.append("what follows from each client's gradient over all of its rows")
    lines.append("steps of each client, and whether its update was faulty")
    if asked["privacy"] is None and asked["private_steps"] is None:  # they have no noise
        masked = ", under masks too" * (asked["secure"] is not None)
        lines.append(
            "once, before round 1: count, mean and deviation of each column of numbers of a"
        )
        lines.append(f'table, unless its file gives another standardize than "federation"{masked}')
    if needs.KEEPS_STATE.of(method) or needs.OWN_MODELS.of(method):
        lines.append("not sent: what clients keep, which stays in the node's folder")
    return lines


def _measured(run: RunAsked) -> list[str]:
    """A description of the measures that a node takes for the operator."""
    model = {
        "server": "the server's model",
        "cohort": "the mean model of the last round's clients",
        "clients": "the mean of the clients' last models",
    }[run.asked["evaluated"]]
    lines = [f"losses, accuracies and metrics of {model}, as far as policy.report allows"]
    if run.asked["gradients"]:
        lines.append("the mean gradient, of the model's size, if policy.report names gradients")
    if run.asked["secure"] is not None:
        lines.append("under masks: the operator sees the sum over all nodes alone")
    if run.asked.get("measures") is None:
        lines.append("none of a node with [policy.privacy], unless it has exact_measures")
    else:
        lines.append("none of a node with own in [policy.privacy], unless it has exact_measures")
    return lines


def _privacy_in_words(asked: Table) -> list[str]:
    """The privacy that a run declares."""
    hidden = [each for each in ("privacy", "private_steps") if asked[each] is not None]
    if not hidden:
        return ["none: what is sent has no noise"]
    (key,) = hidden
    unit, given = {"privacy": "client", "private_steps": "example"}[key], asked[key]
    flat = given | given.get("mechanism", {})
    lines = [f"unit {unit}: clip {flat['clip']:g}, delta {flat['delta']:g}"]
    if flat["epsilon"] is not None:
        lines[0] += f", epsilon {flat['epsilon']:g} of the whole run, which the node checks"
    else:
        lines[0] += f", noise multiplier {flat['noise_multiplier']:g}"
        lines.append("epsilon follows from the clients' number; policy.privacy bounds it")
    if flat.get("strategy") is not None:
        apart = "a client takes part at most once in {separation} rounds; noise of rounds: {kind}"
        lines.append(apart.format(**flat["strategy"]))
    if flat.get("adaptive_clip") is not None:
        lines.append(f"the clip follows the clients' norms: {_keys(flat['adaptive_clip'])}")
    if key == "privacy" and asked["secure"] is None:
        lines.append("the operator adds the noise, and sees each node's sum without it")
    elif key == "privacy":
        lines.append("the nodes add the noise, so the operator sees no sum without it")
    else:
        lines.append("the node adds the noise to each local step")
    noised = asked.get("measures")
    if noised is None:
        lines.append("measures have no noise")
    else:
        noisy, bound = plural(noised["evaluations"], "evaluation"), noised["loss_bound"]
        lines.append(f"measures: {noisy} with noise, losses clipped to {bound:g}")
    return lines


def _keys(table: Table) -> str:
    """A section in one line.

    >>> _keys({"name": "fedprox", "mu": [0.0, 1.0], "solver": {"epochs": 2}, "server": None})
    'fedprox, mu = [0.0, 1.0], solver = {epochs = 2}'
    """
    return ", ".join(
        str(value) if key == "name" else f"{key} = {_value(value)}"
        for key, value in table.items()
        if value is not None
    )


def _value(value: Any) -> str:
    return f"{{{_keys(value)}}}" if isinstance(value, dict) else str(value)
