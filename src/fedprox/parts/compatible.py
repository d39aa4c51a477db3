"""The table of what goes with what: methods' needs, and settings that exclude each other.

All that no row names goes together. A condition on one value alone, or on numbers, is checked
beside the setting.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax

from fedprox.algorithms import capabilities as needs
from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.capabilities import Capability
from fedprox.errors import InputError
from fedprox.federation import Examples
from fedprox.model import trainable
from fedprox.model.variants import adapted
from fedprox.parts.compression import sends_more, sends_number, sent_leaves
from fedprox.solver import Solver


class Case(NamedTuple):
    """A case to check: settings, and a method with its solver.

    Attributes:
        settings: The settings, by the names of a protocol's fields.
        method: A method; None to look at the settings alone.
        solver: The method's local solver.
        place: Where rounds are computed; None if it does not matter.
        secure: How a deployment sums messages in secret; None if it does not.
    """

    settings: Any  # a `Protocol`, or what an experiment file describes
    method: Algorithm | None = None
    solver: Solver | None = None
    place: Literal["simulation", "deployment"] | None = None
    secure: Any = None  # a `Securing`

    def __getattr__(self, name: str) -> Any:
        return getattr(self.settings, name)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.federation)

    def read(self, key: str) -> Any:
        """The value at a dotted name; None if something on the way is None."""
        found: Any = self
        for name in key.split("."):
            found = None if found is None else getattr(found, name)
        return found


class Chosen(NamedTuple):
    """A setting with a value that does not go with everything.

    Attributes:
        key: Its name, or "" for a function of the whole case.
        given: (the value, which is not None) -> whether it is meant; or the value itself.
        instead: The values that are allowed in a row where this one is not.
        words: Its description in messages, in place of name and value; a function reads the case.
    """

    key: str
    given: Callable[[Any], bool] | str = lambda value: value is not False
    instead: str = "leave it out"
    words: str = ""

    @property
    def name(self) -> str:
        """Its name without a case."""
        meant = f' = "{self.given}"' if isinstance(self.given, str) else ""
        return self.words or self.key + meant

    def holds(self, case: Case) -> bool:
        """Whether a case has it."""
        value = case.read(self.key) if self.key else case
        if value is None:
            return False
        return self.given(value) if callable(self.given) else value == self.given

    def says(self, case: Case) -> str:
        """Its name in messages."""
        value = None if self.words else case.read(self.key)
        if isinstance(value, bool | int | float | str):
            return f"{self.key} = " + (f'"{value}"' if isinstance(value, str) else f"{value}")
        return self.name.format(case=case)


def both(setting: Chosen, other: Chosen) -> Chosen:
    """A setting beside another one."""
    words = f"{setting.name} with {other.name}"
    return Chosen("", lambda c: setting.holds(c) and other.holds(c), setting.instead, words)


class Row(NamedTuple):
    """Two things that do not go together.

    Attributes:
        first: A need of methods, or a setting.
        second: A setting, which the user is asked to change.
        why: The reason, as a clause; "" if it follows from the words of both.
    """

    first: Capability | Chosen
    second: Chosen
    why: str

    def holds(self, case: Case) -> bool:
        """Whether a case has both."""
        if isinstance(self.first, Chosen):
            # the first one may trace a method
            return self.second.holds(case) and self.first.holds(case)
        return case.method is not None and self.first.of(case.method) and self.second.holds(case)

    def refusal(self, case: Case) -> str:
        """The line that refuses a case; "" if the row does not."""
        if not self.holds(case):
            return ""
        whose, second, method = "", self.second.says(case), case.method
        if method is not None and not self.holds(case._replace(method=None, solver=None)):
            whose = f"{method.name}: "
        if isinstance(self.first, Capability):
            line = f"{method and self.first.says(method)}, so {second} does not fit"
        else:
            line = f"{second} does not go with {self.first.says(case)}"
        return f"{whose}{line}{self.why and ', since '}{self.why}; {self.second.instead}"


# the local solver of a method
GAMMAS = Chosen("solver.gamma", callable, "give a number", "solver.gamma as a function of clients")
LINE_SEARCH = Chosen("solver.searches_line", bool, "use another optimizer", "a line search")
# data and models
AUGMENTATION = Chosen("federation.augment", callable, "use data without", "augmentation of data")
RANDOM_OUTPUTS = Chosen(
    "",
    lambda c: bool(c.read("model.train")) and not c.model.state,
    "use a model without",
    "dropout, or other noise",
)
MOVING_STATE = Chosen(
    "",
    lambda c: bool(c.read("model.state")) and c.method is not None and c.method.moves_model_state,
    'give the method model_state = "server", or use a model without state',
    "a model whose state moves with mini-batches",
)
NO_ADAPTERS = Chosen(
    "model.shapes",
    lambda all_: not adapted(trainable(all_)),
    "use fedprox.lora",
    "a model without adapters",
)
OTHER_MESSAGES = Chosen(
    "",
    lambda c: c.method is not None and sends_more(c.method, trainable(c.model.shapes)),
    "run it without compression",
    "a method whose clients do not send an update of the whole model and nothing else",
)
COMPUTED_MODEL = Chosen(
    "",
    lambda c: c.method is not None and -1 in sent_leaves(c.method, trainable(c.model.shapes)),
    "leave out compression.download",
    "a method whose server sends what it computes from its state",
)
OTHER_EVALUATED = Chosen(
    "method.server.evaluated",
    callable,
    "give mu without adapt",
    "a method that evaluates another model",
)
ALL_STANDARDIZE = Chosen(
    "federation.columns.standardize",
    "federation",
    "give the numbers as standardize, in a deployment in [data] of the file of each node",
)
OWN_STANDARDIZE = Chosen("federation.columns.standardize", "client", "give its numbers")
# who takes part, and how far clients come
NOT_UNIFORM = Chosen("cohort.sampling", lambda name: name != "uniform", 'it must be "uniform"')
REPLACED = Chosen(
    "cohort.sampling", "proportional", 'it must be "uniform", "bernoulli" or "cyclic"'
)
CYCLIC = Chosen("cohort.sampling", "cyclic", 'it must be "uniform"')
NOT_CYCLIC = Chosen("cohort.sampling", lambda name: name != "cyclic", 'it must be "cyclic"')
SOME_CLIENTS = Chosen(
    "",
    lambda c: c.cohort.clients_per_round < c.clients,
    "it must be the number of clients",
    "cohort.clients_per_round = {case.cohort.clients_per_round} of {case.clients} clients",
)
OVER_SELECTION = Chosen("cohort.over_selection", lambda times: times > 1, "it must be 1")
STRAGGLERS = Chosen("systems.stragglers", bool)
NO_POPULATION = Chosen("", lambda c: c.population is None, "give a Population", "no population")
DROPOUT = Chosen("population.dropout", bool)
ADDS_MODELS = Chosen("asynchronous.adds", "models", 'it must be "updates"')
# what happens to messages
COMPARES = Chosen("faults.norm", lambda norm: norm < math.inf, "it must be inf")
CLIPPED = Chosen("faults.policy", "clip", 'it must be "drop" or "fail"')
LEFT_OUT = Chosen("faults.policy", lambda policy: policy != "fail", 'it must be "fail"')
RULE = Chosen("aggregation.rule", lambda rule: rule != "mean", 'it must be "mean"')
PRODUCT = Chosen("aggregation.rule", "product", "choose another")
BUCKETS = Chosen("aggregation.before", "bucketing")
LIES = Chosen(
    "attack.kind", lambda kind: kind != "label-flip", 'leave attack out, or use "label-flip"'
)
CLIENTS = Chosen("privacy.unit", "client", "run it without privacy")
OF_ROWS = Chosen("privacy.unit", "example", "run it without privacy")
CORRELATED = Chosen(
    "privacy.mechanism", lambda name: name != "independent", 'it must be "independent"'
)
OWN_NOISE = Chosen("privacy.trust", "none", 'it must be "server"')
# what is measured
OTHER_MODEL = Chosen("evaluation.model", lambda name: name != "server", 'it must be "server"')
LAST_MODELS = Chosen("evaluation.model", "clients", 'it must be "server" or "cohort"')
NO_GRADIENTS = Chosen(
    "evaluation.gradients",
    lambda value: not value,
    "it must be True",
    "evaluation.gradients = False",
)
CHOICE = Chosen(
    "",
    lambda c: c.selection.selects and not isinstance(c.federation.validation, Examples),
    "give privacy.measures, or a validation set that belongs to no client",
    "selection by clients' measures",
)
GRADIENTS = Chosen("evaluation.gradients", instead="it must be False")
METRICS = Chosen("model.metrics", bool, "use a model without", "a model with metrics")
EXACT = Chosen(
    "",
    lambda c: c.privacy is not None and c.privacy.measures is None,
    words="privacy without privacy.measures",
)
REPLACES = Chosen(
    "",
    lambda c: (
        c.read("privacy.unit") == "client"
        and c.privacy.noise_multiplier != 0
        and c.cohort.sampling == "uniform"
        and c.cohort.clients_per_round < c.clients
    ),
    'cohort.sampling must be "bernoulli" or "cyclic"',
    "uniform sampling with hidden clients",
)
SEVERAL_LABELS = Chosen(
    "",
    lambda c: c.read("privacy.unit") == "example" and c.federation.train.y.ndim > 1,
    "leave privacy.measures out",
    "hidden rows with several labels each",
)
# where rounds are computed
PROCESSES = Chosen("", lambda _: jax.process_count() > 1, "use one", "a run of several processes")
IN_SIMULATION = Chosen("place", "simulation", words="a simulation")
ON_NODES = Chosen("place", "deployment", "leave it out there", "a deployment")
SECURE = Chosen("secure", words="deployment.secure")
SECURE_NORM = Chosen(
    "secure.norm", instead="give deployment.secure.bound", words="deployment.secure.norm"
)
NUMBERED = Chosen(
    "",
    lambda c: c.method is not None and sends_number(c.method, trainable(c.model.shapes)),
    "run it without it",
    "a method whose clients send a number beside their update",
)
# settings together
GAMMA_BY_TIME = both(Chosen("solver.gamma"), Chosen("systems.deadline"))
CLIPPED_ON_NODES = both(CLIPPED, ON_NODES)
CLIENTS_ON_NODES, EXAMPLES_ON_NODES = both(ON_NODES, CLIENTS), both(ON_NODES, OF_ROWS)
NO_CLOCK = both(NO_POPULATION, IN_SIMULATION)._replace(words="no population in a simulation")
CODED_BY_NODES = both(ON_NODES, Chosen("compression"))


def rows(*groups: tuple[Any, Any, str]) -> Iterator[Row]:
    """The rows of all pairs of groups: firsts, seconds and a reason; a key is its setting."""

    def each(given: Any) -> Iterator[Any]:
        for one in given if isinstance(given, list) else [given]:
            yield Chosen(one) if isinstance(one, str) else one

    for firsts, seconds, why in groups:
        yield from (Row(first, second, why) for first in each(firsts) for second in each(seconds))


TWICE, LATE = "a client may be drawn twice", "a slow client is late and not a straggler"
OBJECTIVES = "each mini-batch has an objective of its own"
APART = "the operator sees no node's message alone"
OWN_STEPS = "the clock decides how many steps are taken, and noise is for a number known before"
NO_TIME = "rounds are drawn from the system's entropy, so a resumed run could not tell the time"
ROWS = tuple(
    rows(
        # where rounds are computed
        (needs.POOLED, PROCESSES, ""),
        ([needs.OWN_MODELS, needs.PROBES], PROCESSES, "one process measures these"),
        (PROCESSES, "evaluation.fine_tune", "one process measures clients' own models"),
        (needs.POOLED, ON_NODES, ""),
        (needs.EVERYONE, ON_NODES, "nodes may be missing"),
        (needs.PROBES, ON_NODES, "nodes measure one"),
        (ON_NODES, "attack", "clients are what they are"),
        (ON_NODES, "aggregation.ranks", "all messages have one shape"),
        (ON_NODES, ["evaluation.rows", "evaluation.clients"], "nodes measure all that they have"),
        (ON_NODES, ["evaluation.fine_tune", "evaluation.by_client"], "nodes report no client"),
        (ON_NODES, "evaluation.client_records", "nodes report no client"),
        (CLIENTS_ON_NODES, "population", NO_TIME),
        (EXAMPLES_ON_NODES, "asynchronous", OWN_STEPS),
        (ON_NODES, OWN_NOISE, "each site sets policy.privacy.own in its node's file"),
        (CODED_BY_NODES, "asynchronous", "messages then travel in full"),
        (CODED_BY_NODES, OTHER_MODEL, "nodes then send no models"),
        (needs.KEEPS_STATE, CLIPPED_ON_NODES, "nodes store it before messages are compared"),
        (SECURE, ["asynchronous", "compression", COMPARES, RULE, REPLACED], APART),
        (SECURE, ["privacy.adaptive_clip", "solver.gamma", "evaluation.gradients"], APART),
        (NUMBERED, SECURE_NORM, "nodes scale what is sent as a whole"),
        (SECURE, CORRELATED, "nodes that add noise keep none of it, and may miss a round"),
        # who takes part
        (needs.EVERYONE, [SOME_CLIENTS, NOT_UNIFORM, STRAGGLERS, "systems.deadline"], ""),
        (needs.EVERYONE, ["population.available", DROPOUT, LEFT_OUT], ""),
        ([needs.KEEPS_STATE, LAST_MODELS, "compression.error_feedback"], REPLACED, TWICE),
        (BUCKETS, NOT_UNIFORM, "buckets are of clients in the order of their draw"),
        (OVER_SELECTION, NO_POPULATION, "a population says whose messages are first"),
        ("asynchronous", NO_CLOCK, "the devices say who is done when"),
        ("population.available", CYCLIC, "nobody of a group may be available"),
        ("systems.deadline", NO_CLOCK, "only a deployment has a real clock"),
        # local solvers
        (needs.SEVERAL_STARTS, "initial", ""),
        (needs.POOLED, GAMMAS, ""),
        (needs.PROBES, "solver.gamma", "it is relative to one model"),
        (needs.OWN_PARTS, "solver.gamma", "they do not start from the server's model"),
        (needs.OBJECTIVE, ["solver.gamma", LINE_SEARCH], "it reads F_k"),
        (needs.DROPS, GAMMA_BY_TIME, "a straggler is known only after its work"),
        ([AUGMENTATION, RANDOM_OUTPUTS, MOVING_STATE], ["solver.gamma", LINE_SEARCH], OBJECTIVES),
        ([needs.GRADIENT, needs.LOSS], [AUGMENTATION, RANDOM_OUTPUTS, MOVING_STATE], OBJECTIVES),
        # measures
        ("solver.gamma", NO_GRADIENTS, "gradients show whether gamma was reached"),
        (needs.ADAPTS, [OTHER_MODEL, OTHER_EVALUATED], "another model is sent out"),
        (needs.ADAPTS, "compression.download", "another model is sent out"),
        ([needs.OWN_MODELS, needs.PROBES], OTHER_MODEL, ""),
        # privacy of clients
        (CLIENTS, "asynchronous", "its accounting is for rounds with a barrier"),
        (CLIENTS, OVER_SELECTION, "fast clients would take part more often"),
        (
            CLIENTS,
            "population.available",
            "every client must always be as likely to be drawn",
        ),
        (CLIENTS, "systems.straggler_epochs", "the function sees who else is in the cohort"),
        (CLIENTS, COMPARES, "a client would change whether others count"),
        (CLIENTS, MOVING_STATE, "noise could make a variance negative"),
        (CLIENTS, "compression", "messages that are clipped would arrive larger or smaller"),
        (CLIENTS, [RULE, LIES], "noise hides clients in a mean"),
        (CLIENTS, OTHER_MODEL, "no other model has noise"),
        (CORRELATED, NOT_CYCLIC, "it hides clients whose rounds are a number of rounds apart"),
        (CORRELATED, "privacy.adaptive_clip", "what is taken back must have the norm it had"),
        (EXACT, CHOICE, "these have no noise"),
        ("privacy.measures", REPLACES, "its guarantee is for a client that is replaced"),
        ("privacy.measures", SEVERAL_LABELS, "a row moves a count of them by more than one"),
        ("privacy.measures", "evaluation.clients", "all clients are evaluated"),
        (
            "privacy.measures",
            ["evaluation.fine_tune", "evaluation.by_client", "evaluation.client_records"],
            "it has no form with noise",
        ),
        ("privacy.measures", [GRADIENTS, METRICS], "these have no form with noise"),
        ("privacy", ALL_STANDARDIZE, "mean and deviation of all rows have no noise"),
        ([needs.POOLED, needs.NOT_PRIVATE], CLIENTS, ""),
        (needs.ADAPTS, [CLIENTS, OF_ROWS], "that loss has no noise"),
        (needs.EXCHANGES, "privacy.adaptive_clip", "gradients and updates differ in their norms"),
        (OWN_NOISE, CORRELATED, "clients keep no noise between rounds"),
        (OWN_NOISE, "privacy.adaptive_clip", "no client's bit has noise"),
        (OWN_NOISE, "privacy.measures", "the server adds their noise"),
        (OWN_NOISE, REPLACED, TWICE),
        (needs.EXCHANGES, OWN_NOISE, "no gradient has noise of its client's own"),
        # privacy of examples
        (needs.POOLED, OF_ROWS, ""),
        (
            OF_ROWS,
            CORRELATED,
            "a row may be in any two steps, and clients keep no noise between rounds",
        ),
        (OF_ROWS, OWN_STANDARDIZE, "a row would move all others of its client"),
        (
            [needs.GRADIENT, needs.LOSS, needs.LABELS, needs.PROBES],
            OF_ROWS,
            "that has no noise",
        ),
        (
            OF_ROWS,
            MOVING_STATE,
            "it couples the rows of a mini-batch, and would be sent without noise",
        ),
        (needs.WHOLE_BATCHES, OF_ROWS, "no gradient belongs to one example"),
        (needs.SECOND_PROBLEM, OF_ROWS, "only one model's steps are accounted for"),
        (
            OF_ROWS,
            ["solver.gamma", LINE_SEARCH],
            "it looks at gradients or losses without noise",
        ),
        # rounds without a barrier
        ("asynchronous", [NOT_UNIFORM, OVER_SELECTION], "clients are drawn one after the other"),
        ("asynchronous", [STRAGGLERS, "systems.deadline"], LATE),
        ("asynchronous", LAST_MODELS, "the mean of all clients' last models needs a barrier"),
        ("asynchronous", [RULE, LIES], "a buffer's updates have weights of their own"),
        (
            "asynchronous",
            "compression.error_feedback",
            "clients keep nothing between updates",
        ),
        ("asynchronous", "solver.gamma", "nobody knows how long a client takes"),
        ("compression", ADDS_MODELS, "what travels is an update"),
        ([needs.POOLED, needs.EVERYONE], "asynchronous", ""),
        (needs.KEEPS_STATE, "asynchronous", "it belongs to a state of the server's"),
        ([needs.EXCHANGES, needs.PROBES], "asynchronous", "these must be of one round"),
        (needs.REMEMBERS, "asynchronous", "it begins with one model"),
        (needs.ADAPTS, "asynchronous", "that is the loss of a round"),
        (needs.OTHER_MESSAGE, ADDS_MODELS, ""),
        # rules, attacks and faults
        (needs.POOLED, [RULE, LIES], ""),
        (needs.EXCHANGES, [RULE, LIES], "it leaves these as they are"),
        (needs.PROBES, [RULE, LIES, CLIPPED], "their updates are of different models"),
        ([needs.OTHER_MESSAGE, needs.OTHER_UPDATE], PRODUCT, ""),
        (PRODUCT, MOVING_STATE, "what is sent is more than adapters"),
        (PRODUCT, NO_ADAPTERS, "products are those of adapters"),
        (PRODUCT, ["compression", OTHER_MODEL, CLIPPED], "factors do not travel as an update"),
        # compression
        (needs.EXCHANGES, "compression", "these would travel in full"),
        ("compression", OTHER_MESSAGES, ""),
        (needs.MESSAGE_STATE, "compression", "something else arrives"),
        ("compression.download", COMPUTED_MODEL, ""),
    )
)
"""The pairs that do not go together. The first row that refuses a case gives the message."""


def check_case(case: Case, *, of: Chosen | None = None) -> None:
    """Raise `InputError` if something in a case does not go together."""
    for row in ROWS:
        if (of is None or of in row) and (line := row.refusal(case)):
            raise InputError(line)
