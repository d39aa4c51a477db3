"""`fedprox privacy`, and the section [privacy] of experiment files."""

import re
from pathlib import Path
from typing import Any

import pytest

import fedprox as fp
from fedprox.experiment import read_experiment, resolve
from fedprox.parts.privacy import setting
from fedprox.parts.privacy.accounting import Mechanism, epsilon_of
from fedprox.parts.privacy.correlated import Strategy, error, reach
from tests.test_cli import status
from tests.variants import mostly_slow

FILE = """
rounds = 20

[data]
name = "synthetic"
clients = 60

[cohort]
clients_per_round = 6
sampling = "bernoulli"

[solver]
learning_rate = 0.01
batch_size = 10
epochs = 1

[privacy]
clip = 0.5
noise_multiplier = 4.0
delta = 1e-3

[[method]]
name = "fedavg"

[[method]]
name = "fedprox"
mu = [0.1, 1.0]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "private.toml"
    path.write_text(FILE)
    return path


def printed(capsys: Any, *arguments: object) -> str:
    assert status("privacy", *arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return str(captured.out)


def settings(*changes: str) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def rows(text: str, title: str) -> list[list[str]]:
    """The cells of the table below a title, header first."""
    block = text[text.index(title) :].split("\n\n")[0]
    return [re.split(r" {2,}", line.strip()) for line in block.splitlines()[1:]]


def test_the_page(file: Path, capsys: Any) -> None:
    text = printed(capsys, file)
    assert "fedavg, fedprox: one noised sum a round" in text
    assert re.search(r"noise multiplier +4 +given", text)
    assert re.search(rf"noise in the mean +{4 * 0.5 / 6:.5g}", text)
    header, *table = rows(text, "Epsilon after a number of rounds, with delta = 0.001")
    capacity = int(re.findall(r"largest cohort +(\d+) +mean 6", text)[0])
    assert header == [
        "rounds",
        f"pld, at most {capacity} clients",
        "pld, no limit",
        "rdp, no limit",
    ]
    tenths = [2 * i for i in range(1, 11)]
    assert [int(row[0]) for row in table] == tenths
    cut = Mechanism(60, 6, "bernoulli", capacity, 4.0, 1, 1e-3, "pld")
    columns = cut, cut._replace(capacity=None), cut._replace(capacity=None, accountant="rdp")
    for index, mechanism in enumerate(columns, start=1):
        shown = [float(row[index]) for row in table]
        assert shown == pytest.approx([epsilon_of(mechanism, t) for t in tenths], abs=1e-3)
    first, twice, four_times, half, quarter = rows(text, "Larger cohorts and fewer rounds")[1:]
    assert [row[:2] for row in (first, twice, four_times)] == [
        ["6", "20"],
        ["12", "20"],
        ["24", "20"],
    ]
    assert [row[:2] for row in (half, quarter)] == [["6", "10"], ["6", "5"]]
    assert {row[3] for row in (first, twice, four_times, half, quarter)} == {"0.33333"}
    spent = [float(row[4]) for row in (first, twice, four_times)]
    assert spent[0] > spent[1] > spent[2]
    assert spent[0] == float(table[-1][1])
    for word in ("Unit: a client", "Poisson", "dp-accounting 0.6", "Trust: the server"):
        assert word in text


@pytest.mark.slow
def test_the_file_of_a_deployment_is_for_clients_of_given_rows(
    file: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if their rows were here; by a small model, whatever that of the file is."""
    monkeypatch.setenv("COLUMNS", "200")
    changes = settings(
        *("privacy.unit=example", "cohort.sampling=uniform", "method=[{name='fedavg'}]"),
        "evaluation.gradients=false",
        "privacy.measures={loss_bound=4.0,noise_multiplier=9.0,only=['train_loss','test_accuracy']}",
    )
    federation = resolve(read_experiment(file)).federation
    here = printed(capsys, file, *changes)
    assert "noise in test_accuracy" in here
    data, model = '[data]\nname = "synthetic"\nclients = 60\n', '[model]\nname = "cnn"\n'
    file.write_text(FILE.replace(data, model))
    both = zip(federation.train.sizes.tolist(), federation.test.sizes.tolist(), strict=True)
    sizes = ",".join(f"{train}+{test}" for train, test in both)
    assert printed(capsys, file, *changes, "--rows", sizes) == here
    more = "a client has from 1 to 10,000,000 training rows, such as 256, or 256+64 with its test"
    for given, line in (
        ([], "no section [data], as of a deployment; give the training and test rows of each"),
        (["--rows", "256,0+9"], f"--rows 256,0+9; {more}"),
        (["--rows", "2+5+9"], f"--rows 2+5+9; {more}"),
        (["--rows", "5", "--set", "data.name=synthetic"], "has a section [data]; leave --rows out"),
    ):
        assert status("privacy", file, *given) == 2
        assert line in capsys.readouterr().err


@pytest.mark.parametrize("count", mostly_slow([6, 60], 60))
def test_an_epsilon_gives_the_noise(count: int, file: Path, capsys: Any) -> None:
    text = file.read_text().replace("noise_multiplier = 4.0", 'epsilon = 0.5\naccountant = "rdp"')
    file.write_text(text)
    text = printed(capsys, file, *settings(f"cohort.clients_per_round={count}"))
    noise = float(re.findall(r"noise multiplier +([\d.]+) +for epsilon = 0.5", text)[0])
    mechanism = Mechanism(60, count, "bernoulli", None, noise, 1, 1e-3, "rdp")
    assert epsilon_of(mechanism, 20) == pytest.approx(0.5, abs=1e-3)
    table = rows(text, "Larger cohorts and fewer rounds, with the same epsilon")[1:]
    assert all(0.499 <= float(row[4]) <= 0.5 for row in table)
    in_mean = [float(row[3]) for row in table]
    assert in_mean[0] > in_mean[1] > in_mean[2]
    assert count == 60 or in_mean[0] > in_mean[3] > in_mean[4]


def test_clients_that_trust_nobody(file: Path, capsys: Any) -> None:
    text = printed(capsys, file, *settings('privacy.trust="none"'))
    assert "fedavg, fedprox: a noised message of each client a round" in text
    assert re.search(rf"noise in the mean +{4 * 0.5 / 6**0.5:.5g}", text)
    header, *table = rows(text, "Epsilon after a number of rounds, with delta = 0.001")
    assert header == ["rounds", "pld", "rdp"]
    whole = Mechanism(1, 1, "bernoulli", None, 4.0, 1, 1e-3, "pld")
    assert float(table[-1][1]) == pytest.approx(epsilon_of(whole, 20), abs=1e-3)
    assert "Trust: each client, which clips its own messages" in text
    assert "Larger cohorts" not in text


def test_a_method_with_an_exchange_pays_twice(file: Path, capsys: Any) -> None:
    changes = settings("method.0.name=feddane", "method.0.mu=0.1", "privacy.accountant=rdp")
    text = printed(capsys, file, *changes)
    one, two = text.split("feddane: two noised sums a round")
    assert "fedprox: one noised sum a round" in one
    assert "20 rounds with 2 noised sums each" in " ".join(two.split())
    last = [float(rows(part, "Epsilon after")[-1][-1]) for part in (one, two)]
    assert last[1] > 1.3 * last[0]


@pytest.mark.slow
def test_uniform_cohorts_have_one_accountant(file: Path, capsys: Any) -> None:
    changes = settings("cohort={clients_per_round=6}")  # uniform by default
    text = printed(capsys, file, *changes)
    header, *table = rows(text, "Epsilon after")
    assert header == ["rounds", "rdp", "pld"]
    assert {row[2] for row in table} == {"not accounted"}
    assert "one client is replaced by another" in text
    assert "cost of the limit" not in text
    assert status("privacy", file, *changes, *settings("privacy.accountant=pld")) == 2
    assert 'or the accountant "rdp"' in capsys.readouterr().err


def test_everybody_and_no_noise(file: Path, capsys: Any) -> None:
    text = printed(capsys, file, *settings("cohort.clients_per_round=60"))
    assert rows(text, "Epsilon after")[0] == ["rounds", "pld", "rdp"]
    assert "all 60 clients take part" in text
    text = printed(capsys, file, *settings("privacy.noise_multiplier=0"))
    assert "no privacy guarantee" in text
    assert {row[1] for row in rows(text, "Epsilon after")[1:]} == {"inf"}


def test_an_adaptive_norm_splits_the_noise(file: Path, capsys: Any) -> None:
    text = printed(
        capsys, file, *settings("privacy.adaptive_clip={count_noise=3}", "privacy.accountant=rdp")
    )
    assert re.search(rf"of the messages +{(4**-2 - 6**-2) ** -0.5:.5g}", text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("privacy.epsilon=1", "give one of the two"),
        ("privacy.clip=-1", "privacy.clip = -1"),
        ("privacy.accountant=gdp", 'one of "pld", "rdp"'),
        ("privacy.adaptive_clip={quantile=2}", "privacy.adaptive_clip.quantile = 2"),
        ("privacy.adaptive_clip={size=2}", "privacy.adaptive_clip: unknown key 'size'"),
        ("privacy.noise=2", "privacy: unknown key 'noise'"),
        ("cohort.sampling=proportional", 'it must be "bernoulli"'),
        ("cohort.clients_per_round=100", "the federation has 60 clients"),
        ("privacy.capacity=5", "at least cohort.clients_per_round = 6"),
        ("privacy=5", "a section, written [privacy]"),
    ],
)
def test_bad_input_is_one_line(file: Path, capsys: Any, change: str, message: str) -> None:
    assert status("privacy", file, *settings(change)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_file_without_privacy_is_refused(file: Path, capsys: Any) -> None:
    file.write_text(re.sub(r"\[privacy\][^\[]+", "", FILE))
    assert status("privacy", file) == 2
    assert "the section [privacy] is missing" in capsys.readouterr().err


def test_the_section_becomes_the_setting(file: Path) -> None:
    resolved = resolve(read_experiment(file, ["privacy.adaptive_clip={rate=0.1}"]))
    assert resolved.privacy == fp.Privacy(
        clip=0.5, noise_multiplier=4.0, delta=1e-3, adaptive_clip=fp.AdaptiveClip(rate=0.1)
    )
    assert resolved.table["privacy"] == {
        "clip": 0.5,
        "noise_multiplier": 4.0,
        "delta": 1e-3,
        "adaptive_clip": {"quantile": 0.5, "rate": 0.1, "count_noise": 6.0},
        "unit": "client",
        "mechanism": "independent",
        "trust": "server",
    }


def test_the_page_of_cyclic_cohorts(file: Path, capsys: Any) -> None:
    """Here with independent noise, whose strategy is not optimized."""
    cyclic = settings('cohort.sampling="cyclic"', "cohort.min_separation=8")
    text = printed(capsys, file, *cyclic)
    assert re.search(r"mechanism +independent +independent noise", text)
    assert re.search(r"rounds of a client +3 +at most, at least 8 apart", text)
    assert re.search(rf"of one mechanism +{4 / 3**0.5:.5g}", text)
    assert re.search(rf"noise in the mean +{4 * 0.5 / 6:.5g} +of the last round", text)
    assert re.search(rf"noise in a model +{4 * 0.5 / 6 * 10.5**0.5:.5g}", text)
    assert "gain" not in text
    assert "Larger cohorts" not in text
    header, *table = rows(text, "Epsilon after a number of rounds, with delta = 0.001")
    assert header == ["rounds", "pld", "rdp"]
    everybody = Mechanism(60, 60, "bernoulli", None, 4.0, 1, 1e-3, "pld")
    spent = {int(t): float(epsilon) for t, epsilon, _ in table}
    for t, times in ((2, 1), (8, 1), (10, 2), (20, 3)):
        assert spent[t] == pytest.approx(epsilon_of(everybody, times), abs=1e-3)
    words = " ".join(text.split())
    assert "A client takes part in at most 3 rounds, at least 8 apart" in words


def test_the_page_of_correlated_noise_says_what_it_gains(
    file: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = Strategy("banded", 8, 20, (0.75, 0.5, 0.25))
    monkeypatch.setattr(setting, "strategy_of", lambda *_: strategy)
    changes = ('cohort.sampling="cyclic"', "cohort.min_separation=8", 'privacy.mechanism="banded"')
    text = printed(capsys, file, *settings(*changes))
    sensitivity = reach(strategy, 20).all
    assert re.search(rf"of one mechanism +{4 / sensitivity:.5g}", text)
    gained = (10.5 * 3) ** 0.5 / (error(strategy) * sensitivity)
    assert gained > 1
    assert re.search(rf"gain +{gained:.3g} +times less", text)
    assert "correlated noise of a banded Toeplitz matrix" in text


@pytest.mark.slow
def test_the_page_says_what_plans_of_evaluations_cost(file: Path, capsys: Any) -> None:
    """A share of epsilon, all evaluations counted; fewer have less noise."""
    text = file.read_text().replace("noise_multiplier = 4.0", 'epsilon = 2.0\naccountant = "rdp"')
    text = text.replace("[privacy]", "[evaluation]\nevery = 4\ngradients = false\n\n[privacy]")
    file.write_text(text)
    measures = 'privacy.measures={ share = 0.25, loss_bound = 8.0, only = ["train_loss"] }'
    out = printed(capsys, file, *settings(measures))
    _, *table = rows(out, "Measures with noise, which is smaller for fewer evaluations")[-5:]
    table = [row for row in table if row[0].isdigit()]
    assert [(int(row[0]), int(row[1])) for row in table] == [(6, 4), (4, 8), (2, 20)]
    for count, _, noise, alone, deviation in table:
        one = Mechanism(1, 1, "bernoulli", None, float(noise), 1, 1e-3, "rdp")
        assert epsilon_of(one, int(count)) == pytest.approx(0.5, rel=2e-3)
        assert 0.499 <= float(alone) <= 0.5
        assert float(deviation) == pytest.approx(8 * float(noise) / 60, rel=5e-3)
    (last,) = [row for row in rows(out, "Epsilon after a number of rounds") if row[0] == "20"]
    assert 1.999 <= float(last[3]) <= 2.0
    joined = " ".join(out.split())
    for words in (
        "The models and measures of all 20 rounds together",
        "Measures: 6 evaluations, each of which releases losses and accuracies with noise once",
        "Outside the guarantee: counts of clients and of their steps",
    ):
        assert words in joined
