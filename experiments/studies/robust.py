"""Shares of dishonest clients against robust rules, on MNIST and FEMNIST."""

from experiments.engine.item import Claim, Comparison, Item, Line, Panel, Table, Values
from experiments.engine.series import ACCURACY
from experiments.engine.summaries import FINAL

MEAN, MEDIAN, KRUM, GEOMETRIC = "mean", "median", "multi-Krum", "geometric median"
RULES: dict[str, Table] = {
    MEAN: {"rule": "mean"},
    MEDIAN: {"rule": "median"},
    "trimmed mean": {"rule": "trimmed-mean", "faulty": 0.3},
    KRUM: {"rule": "multi-krum", "faulty": 0.3},
    GEOMETRIC: {"rule": "geometric-median"},
    "mixing, trimmed mean": {"rule": "trimmed-mean", "faulty": 0.3, "before": "mixing"},
}
"""`[aggregation]` by name. Rules that need f have that of the largest share of attackers."""

HONEST = "all honest"
ATTACKS: dict[str, Table | None] = {
    HONEST: None,
    **{
        f"{name}, {share:.0%}": {"kind": kind, "share": share, "scale": scale}
        for name, kind, scale in (
            ("sign flip", "sign-flip", 3.0),
            ("a little is enough", "a-little-is-enough", 1.5),
            ("label flip", "label-flip", 1.0),
        )
        for share in (0.1, 0.3)
    },
}
"""`[attack]` by name."""

LABEL = "fedavg"
MOST = [attack for attack in ATTACKS if attack.endswith("30%")]


def name_of(data: str, attack: str, rule: str) -> str:
    """The name of a run."""
    return f"{data}, {attack}, {rule}"


def experiment(data: Table, cohort: int, attack: Table | None, rule: Table) -> Table:
    """The experiment of an attack and a rule."""
    table = {
        "rounds": 200,
        "data": data,
        "evaluation": {"gradients": False, "every": 10},
        "solver": {"learning_rate": 0.03, "batch_size": 10, "epochs": 2},
        "cohort": {"clients_per_round": cohort},
        "aggregation": rule,
        "method": [{"name": LABEL}],
    }
    return table if attack is None else {**table, "attack": attack}


def item(title: str, data: Table, cohort: int, seconds: float, note: str) -> Item:
    """The attacks and rules on a data set."""

    def of(attack: str) -> str:
        return f"{title}, {attack}"

    def line(attack: str, rule: str) -> Line:
        return Line(of(attack), rule)

    def claim(attack: str, text: str) -> Claim:
        """That the mean is better than each rule where all are honest, and else worse."""
        pairs = [(line(attack, MEAN), line(attack, rule)) for rule in RULES if rule != MEAN]
        ordered = pairs if attack == HONEST else [pair[::-1] for pair in pairs]
        comparisons = tuple(Comparison(attack, *pair) for pair in ordered)
        return Claim(text, ACCURACY, FINAL, comparisons, by="by the claim")

    return Item(
        f"Robust rules against dishonest clients: {title}",
        "A study of this library",
        {"short": seconds, "paper": 12 * seconds},
        {
            name_of(title, attack, rule): experiment(data, cohort, how, what)
            for attack, how in ATTACKS.items()
            for rule, what in RULES.items()
        },
        (
            tuple(
                Panel(attack, ACCURACY, (of(attack),), tuple(RULES)) for attack in (HONEST, *MOST)
            ),
        ),
        (
            claim(HONEST, "Where all are honest, the mean is more accurate than each rule."),
            claim(MOST[0], "With 30 % of sign flips, each rule is more accurate than the mean."),
            claim(
                MOST[1],
                "With 30 % of attackers that stay among the honest, each is more accurate, too.",
            ),
        ),
        values=(
            Values(
                "Test accuracy at the end.",
                ((ACCURACY, FINAL),),
                tuple(RULES),
                tuple((attack, tuple(line(attack, rule) for rule in RULES)) for attack in ATTACKS),
            ),
        ),
        joined={
            of(attack): {name_of(title, attack, rule): {LABEL: rule} for rule in RULES}
            for attack in ATTACKS
        },
        notes=(
            f"FedAvg with {cohort} clients a round, two epochs, batches of 10 and learning rate "
            f"0.03; logistic regression. {note} All seeds have one draw of the data and of the "
            "attackers, whose number in a round varies.",
        ),
    )


MNIST = item(
    "MNIST",
    {"name": "mnist", "partition": "power-law"},
    20,
    400.0,
    "A thousand clients hold two digits each.",
)
FEMNIST = item("FEMNIST", {"name": "femnist"}, 20, 400.0, "200 clients hold five letters each.")
