"""Nodes whose data are tables: what they declare, and the numbers of all nodes that standardize."""

import contextlib
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedprox as fp
from fedprox.columns import Column, Columns, Moments, joined
from fedprox.columns import standardized as by_moments
from fedprox.deployment.conversation import Conversation
from fedprox.deployment.coordinator import Ledger
from fedprox.deployment.fixed_point import MEASURES_BOUND, FixedPoint
from fedprox.deployment.joining import description_of, differences, join
from fedprox.deployment.moments import mean_and_size, scaled_by_sum, summed_part
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import FromTable, Node
from fedprox.deployment.node_file import Deal, NodeFile, load_node
from fedprox.deployment.policy import Policy, PrivacyPolicy, SecurePolicy
from fedprox.deployment.wire import VERSION, DataKind, Request, parcel_of
from fedprox.errors import InputError
from fedprox.federation import Federation
from tests.deployment.federations import deployed, in_memory, overheard, table_of
from tests.deployment.federations import simulated as simulated_by_file

AGE, DOSE = Column("age", "number", unit="years"), Column("dose", "number")
SEX = Column("sex", "category", values=("f", "m"))
COLUMNS = Columns((AGE, SEX, DOSE), Column("ill", "boolean"), "federation")
NUMBERS = [0, 3]
"""The features that are numbers."""


def kind_of(columns: Columns | None) -> DataKind:
    """What a node with some columns declares."""
    rows = np.zeros((2, len(columns.names) if columns else 4), np.float32)
    federation = fp.Federation.from_arrays([(rows, [0, 1])])
    federation = replace(federation, columns=columns)
    return description_of("node", "", federation, [], sampled=False).kind


def test_nodes_with_the_same_columns_do_not_differ() -> None:
    unknown_unit = replace(COLUMNS, features=(replace(AGE, unit=""), SEX, DOSE))
    assert differences(kind_of(COLUMNS), kind_of(COLUMNS)) == []
    assert differences(kind_of(COLUMNS), kind_of(unknown_unit)) == []
    assert differences(kind_of(None), kind_of(None)) == []


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (None, [("data", "a table", "no table")]),
        (
            replace(COLUMNS, features=(replace(AGE, unit="months"), SEX, DOSE)),
            [("column 'age', unit", "years", "months")],
        ),
        (
            replace(COLUMNS, features=(Column("age", "date"), replace(SEX, values=("F", "M")))),
            [
                ("column 'age', kind", "number", "date"),
                ("column 'sex', values", "f, m", "F, M"),
                ("column 'dose'", "a column of kind number", "no such column"),
            ],
        ),
        (
            replace(COLUMNS, features=(replace(AGE, missing="column"), SEX, DOSE)),
            [("column 'age', missing", "none", "column")],
        ),
        (
            replace(COLUMNS, features=(SEX, AGE, DOSE)),
            [("order of columns", "age, sex, dose", "sex, age, dose")],
        ),
        (
            replace(COLUMNS, label=Column("sick", "category", values=("no", "yes"))),
            [
                ("label, name", "ill", "sick"),
                ("label, kind", "boolean", "category"),
                ("label, values", "none", "no, yes"),
            ],
        ),
        (replace(COLUMNS, standardize=None), [("standardize", "federation", "none")]),
    ],
)
def test_each_difference_of_columns_is_told(other: Columns | None, found: Any) -> None:
    assert differences(kind_of(COLUMNS), kind_of(other)) == found


def test_given_numbers_are_compared() -> None:
    one, two = (
        replace(COLUMNS, standardize="given", mean=(0.0, mean), scale=(1.0, 2.0)) for mean in (3, 4)
    )
    found = differences(kind_of(one), kind_of(two))
    assert found == [("mean", "0.0, 3.0", "0.0, 4.0")]


def moments_of(federation: Federation) -> Moments:
    """The moments of clients' numbers."""
    clients = [federation.train.client(k)[0][:, NUMBERS] for k in range(len(federation))]
    each = [(np.full(2, len(x)), x.mean(0), ((x - x.mean(0)) ** 2).sum(0)) for x in clients]
    return Moments(*(np.array(part, float) for part in zip(*each, strict=True)))


def standardized(federation: Federation, columns: Columns) -> Federation:
    """A federation whose numbers are standardized."""

    def changed(rows: Any) -> Any:
        x = rows.x.copy()
        x[:, NUMBERS] = (x[:, NUMBERS] - columns.mean) / columns.scale
        return replace(rows, x=x)

    parts = {"train": changed(federation.train), "test": changed(federation.test)}
    return replace(federation, columns=columns, **parts)


def raw(clients: int = 6, rows: int = 10) -> Federation:
    """Clients of 4 features, two of which are numbers of different sizes."""
    rng, made = np.random.default_rng(5), []
    for k in range(clients):
        sex = np.eye(2)[rng.integers(0, 2, rows)]
        numbers = rng.normal((40 + k, 3000), (9, 800), (rows, 2))
        x = np.column_stack([numbers[:, :1], sex, numbers[:, 1:]])
        made.append((x, (x[:, 3] > 3000).astype(int)))
    return replace(fp.Federation.from_arrays(made, made), columns=COLUMNS)


Array = np.ndarray[Any, Any]
TABLE = table_of({"name": "fedavg"}, rounds=2, evaluation={"every": 1})
TABLE.pop("client_rows")
ALL = TABLE | {"cohort": {"clients_per_round": 6}, "solver": TABLE["solver"] | {"epochs": 1}}


def sites(
    folder: Path, count: int = 3, policy: Policy | None = None, identities: Any = None
) -> list[Node]:
    """Nodes that hold the clients in turn."""
    nodes, federation = [], raw()
    for i, block in enumerate(np.array_split(np.arange(len(federation)), count)):
        own, name = federation.of_clients(block), f"node-{i}"
        table = FromTable(moments_of(own), partial(standardized, own))
        identity = identities and identities[name]
        held = folder / name
        nodes.append(Node(name, own, held, policy or Policy(), identity, table))
    return nodes


def replace_moments(node: Node, column: int, **numbers: float) -> None:
    """Give a node other moments of one column, the same for each of its clients."""
    assert node.table is not None
    changed = {name: getattr(node.table.moments, name).copy() for name in numbers}
    for name, value in numbers.items():
        changed[name][:, column] = value
    node.table = node.table._replace(moments=node.table.moments._replace(**changed))


def simulated(federation: Federation) -> fp.Run:
    """The run of the same experiment on data that are standardized before."""
    solver = fp.Solver(**ALL["solver"])
    cohort, evaluation = fp.Cohort(6), fp.Evaluation(every=1, gradients=False)
    (run,) = fp.simulate(
        federation, fp.models.logistic(federation), fp.fedavg(), solver=solver, cohort=cohort,
        evaluation=evaluation, rounds=2, progress=False,
    )  # fmt: skip
    return run


def expected() -> Columns:
    """The columns with the numbers of all clients."""
    return by_moments(COLUMNS, moments_of(raw()))


def test_a_deployment_standardizes_by_the_rows_of_all_nodes_as_a_simulation(tmp_path: Path) -> None:
    ledger, asked = Ledger(run="run1"), list[str]()
    nodes = sites(tmp_path)
    heard = [overheard(node.answer, lambda q, _: asked.append(q.head.decode())) for node in nodes]
    (run,) = deployed(ALL, heard, ledger=ledger)
    want = simulated(standardized(raw(), expected()))
    assert run.final.train_loss == pytest.approx(want.final.train_loss, rel=1e-6)
    np.testing.assert_allclose((ledger.mean, ledger.scale), numbers_of(expected()), rtol=1e-12)
    assert run.columns == replace(COLUMNS, mean=ledger.mean, scale=ledger.scale)
    assert sum('"kind":"moments"' in each for each in asked) == 3


def test_a_run_that_goes_on_has_the_numbers_that_it_began_with(tmp_path: Path) -> None:
    asked, nodes = list[str](), sites(tmp_path)
    heard = [overheard(node.answer, lambda q, _: asked.append(q.head.decode())) for node in nodes]
    ledger = Ledger(run="run1", mean=(1.0, 2.0), scale=(3.0, 4.0))
    (run,) = deployed(ALL, heard, ledger=ledger)
    assert run.columns == replace(COLUMNS, mean=(1.0, 2.0), scale=(3.0, 4.0))
    assert not any('"kind":"moments"' in each for each in asked)


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        (Policy(fewest_clients=3), "moments: 2 clients; policy.fewest_clients = 3"),
        (
            Policy(privacy=PrivacyPolicy(epsilon=1.0, delta=1e-5)),
            r"a run without \[privacy\]; at most epsilon = 1 with delta = 1e-05 is allowed$",
        ),
    ],
)
def test_a_node_that_keeps_its_moments_ends_the_run(
    tmp_path: Path, policy: Policy, line: str
) -> None:
    with pytest.raises(InputError, match=line):
        deployed(ALL, [node.answer for node in sites(tmp_path, policy=policy)])


def test_a_column_with_few_values_is_not_told(tmp_path: Path) -> None:
    nodes = sites(tmp_path, policy=Policy(fewest_rows=10))
    replace_moments(nodes[0], 1, counts=4.0)
    with pytest.raises(InputError) as raised:
        deployed(ALL, [each.answer for each in nodes])
    assert str(raised.value) == (
        "node 'node-0': it refuses: moments: column 'dose': 8 training rows have a value; "
        "policy.fewest_rows = 10; the run needs mean and deviation of each node's columns: give "
        "the same numbers as standardize in [data] of all nodes' files"
    )


@pytest.mark.parametrize(
    ("name", "value"), [("means", np.nan), ("squares", np.inf), ("squares", -1e6)]
)
def test_moments_that_cannot_be_end_the_run(tmp_path: Path, name: str, value: float) -> None:
    """Those of one column, whatever the others' are."""
    nodes = sites(tmp_path)
    replace_moments(nodes[1], 0, **{name: value})
    with pytest.raises(
        InputError, match=r"^node 'node-1': .*: its moments cannot be; the run needs"
    ):
        deployed(ALL, [each.answer for each in nodes])


def test_private_runs_need_given_numbers(tmp_path: Path) -> None:
    private = ALL | {"privacy": {"noise_multiplier": 1.0, "clip": 1.0, "delta": 0.01}}
    private["cohort"] = {"clients_per_round": 3, "sampling": "bernoulli"}
    nodes = [node.answer for node in sites(tmp_path)]
    with pytest.raises(InputError) as raised:
        deployed(private, nodes)
    assert str(raised.value) == (
        'federation.columns.standardize = "federation" does not go with privacy, since mean and '
        "deviation of all rows have no noise; give the numbers as standardize, in a deployment in "
        "[data] of the file of each node"
    )


def test_nodes_whose_tables_differ_are_left_out_with_a_line_for_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = sites(tmp_path)
    other = replace(
        COLUMNS, features=(Column("age", "number", unit="months"), SEX, Column("d", "number"))
    )
    nodes[1].federation = replace(nodes[1].federation, columns=other)
    with caplog.at_level(logging.WARNING), pytest.raises(InputError, match="2 joined"):
        deployed(ALL, in_memory([node.answer for node in nodes]), patience=0.1)
    assert [line for line in caplog.messages if "left out" in line] == [
        "node 1: column 'age', unit: it has months, and node 'node-0' has years; left out",
        "node 1: column 'd': it has a column of kind number, and node 'node-0' has no such column; "
        "left out",
        "node 1: column 'dose': it has no such column, and node 'node-0' has a column of kind "
        "number; left out",
    ]


def with_columns(node: Node, columns: Columns) -> None:
    """Give a node that has not joined other columns."""
    node.federation = replace(node.federation, columns=columns)


def test_a_node_hears_once_a_run_why_it_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = sites(tmp_path)
    with_columns(nodes[1], replace(COLUMNS, label=Column("sick", "boolean")))
    network = in_memory([node.answer for node in nodes])
    by_name = network._replace(name_of=lambda number: f"hospital-{number}")
    why = "label, name: it has sick, and node 'node-0' has ill"
    for wanted in (2, 3):  # at once, and while the operator waits for it
        caplog.clear()
        with caplog.at_level(logging.WARNING), contextlib.suppress(InputError):
            join(Conversation(by_name, patience=0.1), wanted)
        assert [line for line in caplog.messages if "left out" in line] == [
            f"node 'hospital-1': {why}; left out"
        ]
        told = [line for line in caplog.messages if "leaves this node out" in line]
        assert told == [f"the operator leaves this node out: {why}"]
        nodes[1].answer(describing())
    with pytest.raises(InputError) as raised:
        join(Conversation(by_name, patience=0.1), 3, names=["node-0", "hospital-1", "node-2"])
    assert str(raised.value).endswith(
        "(node-0, node-2, hospital-1: its name 'node-1' is not one of node-0, hospital-1, node-2)"
    )


def describing() -> Parcel:
    """The request of another run, which has not left the node out."""
    return parcel_of(Request(version=VERSION, id="another", kind="describe"))


def test_a_node_with_another_order_of_columns_is_told_what_to_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = sites(tmp_path)
    size = replace(DOSE, name="größe")
    for node, others in zip(nodes, [(AGE, SEX), (SEX, AGE), (AGE, SEX)], strict=True):
        with_columns(node, replace(COLUMNS, features=(*others, size)))
    with caplog.at_level(logging.WARNING):
        join(Conversation(in_memory([node.answer for node in nodes]), patience=0.1), 2)
    assert caplog.messages[0] == (
        "node 1: order of columns: not that of node 'node-0'; [data] of its file needs features = "
        '["age", "sex", "größe"]; left out'
    )


def test_a_unit_that_some_nodes_do_not_declare_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = sites(tmp_path)
    with_columns(nodes[1], replace(COLUMNS, features=(replace(AGE, unit=""), SEX, DOSE)))
    with caplog.at_level(logging.WARNING):
        join(Conversation(in_memory([node.answer for node in nodes]), patience=0.1), 3)
        assert caplog.messages == [
            "a unit that only some nodes declare is compared with nothing: column 'age': years on "
            "node-0, node-2, none on node-1"
        ]
        caplog.clear()
        for node in nodes:
            with_columns(node, COLUMNS)
        join(Conversation(in_memory([node.answer for node in nodes]), patience=0.1), 3)
    assert not caplog.messages


def secure_sites(folder: Path) -> list[Node]:
    """Nodes whose moments are summed under masks."""
    pytest.importorskip("cryptography")
    from tests.deployment.secure.sums import identities

    policy = Policy(secure=SecurePolicy(threshold=3, peers={}))
    return sites(folder, policy=policy, identities=identities([f"node-{i}" for i in range(3)]))


SECURE = ALL | {"deployment": {"secure": {"threshold": 3, "bound": 10.0}}}


def test_numbers_by_secure_sums_are_those_in_the_clear(tmp_path: Path) -> None:
    nodes, heard = secure_sites(tmp_path), list[bytes]()
    answers = [overheard(node.answer, lambda _, a: heard.append(a.body)) for node in nodes]
    ledger = Ledger(run="run1")
    (run,) = deployed(SECURE, answers, ledger=ledger)
    np.testing.assert_allclose((ledger.mean, ledger.scale), numbers_of(expected()), rtol=1e-6)
    want = simulated(standardized(raw(), expected()))
    assert run.final.train_loss == pytest.approx(want.final.train_loss, rel=1e-3)
    own = joined(moments_of(raw().of_clients(np.arange(2))))
    assert not any(np.float64(own.means[0, 0]).tobytes() in body for body in heard)


def test_a_constant_column_is_named_and_not_divided(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, nodes = Ledger(run="run1"), secure_sites(tmp_path)
    for node in nodes:
        replace_moments(node, 1, means=2.5, squares=0.0)
    deployed(SECURE, [node.answer for node in nodes], ledger=ledger)
    assert ledger.scale[1] == 1.0
    said = [r.getMessage() for r in caplog.records if r.name == "fedprox.deployment.moments"]
    assert said == [
        "columns 'dose': constant, or with a deviation too small for a secure sum; they are not "
        "divided"
    ]


def test_a_node_that_refuses_a_secure_sum_of_moments_is_named(tmp_path: Path) -> None:
    nodes = secure_sites(tmp_path)
    nodes[1].policy = nodes[1].policy.model_copy(update={"runs": []})
    line = r"^node 'node-1': it refuses: run [0-9a-f]{64}; it is not in policy.runs$"
    with pytest.raises(InputError, match=line):
        deployed(SECURE, [node.answer for node in nodes])


def numbers_of(columns: Columns) -> tuple[Array, Array]:
    """Mean and scale of columns."""
    assert columns.mean is not None
    assert columns.scale is not None
    return np.array(columns.mean), np.array(columns.scale)


def by_sums(parts: Sequence[Moments], columns: Columns) -> Columns:
    """The numbers of some nodes by two sums of whole numbers."""
    fixed = FixedPoint(MEASURES_BOUND, 64, len(parts))
    rows, error = sum(each.counts.max() for each in parts), len(parts) * fixed.step

    def summed(about: Sequence[np.ndarray]) -> Any:
        likes = [summed_part(each, about, rows) for each in parts]
        words = [fixed.quantized(like, np.ones(1, np.float32)) for like in likes]
        total, clipped = fixed.values(np.add.reduce(words), likes[0])
        assert clipped == 0
        return total

    mean, unit = mean_and_size(columns, summed([]), error)
    return scaled_by_sum(columns, mean, unit, summed([mean, unit]), error)[0]


@given(
    seed=st.integers(0, 2**16),
    nodes=st.integers(3, 9),
    size=st.floats(-4, 7),
    shift=st.floats(-20, 20),
)
def test_two_sums_of_whole_numbers_give_mean_and_deviation(
    seed: int, nodes: int, size: float, shift: float
) -> None:
    rng = np.random.default_rng(seed)
    columns, parts = Columns((DOSE,), COLUMNS.label, "federation"), []
    for _ in range(nodes):
        v = (rng.normal(size=(int(rng.integers(2, 50)), 1)) + shift) * 10**size
        squares = ((v - v.mean(0)) ** 2).sum(0)[None]
        parts.append(Moments(np.full((1, 1), float(len(v))), v.mean(0)[None], squares))
    want = by_moments(columns, Moments(*map(np.concatenate, zip(*parts, strict=True))))
    got = by_sums(parts, columns)
    (want_mean, want_scale), (mean, scale) = map(numbers_of, (want, got))
    np.testing.assert_allclose(scale, want_scale, rtol=2e-3)
    assert abs(mean - want_mean) < 1e-4 * want_scale


def test_a_constant_column_is_not_divided_and_a_tiny_one_refused() -> None:
    columns = Columns((DOSE,), COLUMNS.label, "federation")

    def constant(value: float) -> list[Moments]:
        return [Moments(*(np.full((1, 1), x) for x in (9.0, value, 0.0)))] * 3

    assert by_sums(constant(7.25), columns).scale == (1.0,)
    assert by_sums(constant(0.0), columns).scale == (1.0,)
    with pytest.raises(InputError, match=r"column 'dose': values of about .*e-0[89] are too small"):
        by_sums(constant(1e-8), columns)


def test_a_node_refuses_no_scale_that_an_operator_chooses() -> None:
    own = Moments(*(np.full((1, 1), x) for x in (9.0, 1e5, 1e12)))
    about = [np.zeros((1, 1)), np.full((1, 1), 1e-200)]
    fixed = FixedPoint(MEASURES_BOUND, 64, 3)
    vector = fixed.quantized(summed_part(own, about, 9.0), np.ones(1, np.float32))
    assert vector[-1] == 2  # both numbers are cut off and counted, in a word that is masked


@pytest.mark.parametrize(
    ("mean", "unit", "line"),
    [
        (np.full((1, 1), np.nan), np.ones((1, 1)), "moments: m finite, u above 0"),
        (np.zeros((1, 1)), np.zeros((1, 1)), "moments: m finite, u above 0"),
        (np.zeros((1, 1)), np.ones((1, 2)), "moments: arrays must be float64(1, 1)"),
    ],
)
def test_the_numbers_of_a_second_sum_are_checked(mean: Array, unit: Array, line: str) -> None:
    own = Moments(*(np.full((1, 1), x) for x in (9.0, 2.0, 3.0)))
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
        summed_part(own, [mean, unit], 9.0)


@pytest.mark.slow
def test_nodes_that_read_their_own_tables_are_the_simulation_of_one(tmp_path: Path) -> None:
    rng, lines = np.random.default_rng(3), {"a": list[str](), "b": list[str]()}
    for name, mean in (("a", 40.0), ("b", 60.0)):
        for _ in range(30):
            age, weight = rng.normal(mean, 9), rng.normal(70000, 9000)
            ill, sex = age + rng.normal(0, 9) > 50, rng.choice(["f", "m"])
            lines[name].append(f"{age:.1f},{weight:.0f},{sex},{'yes' if ill else 'no'}")
    head = "age,weight,sex,ill"
    for name, own in lines.items():
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *own]))
    both = [f"{name},{line}" for name, own in lines.items() for line in own]
    (tmp_path / "all.csv").write_text("\n".join([f"hospital,{head}", *both]))
    kinds: dict[str, Any] = {
        "weight": {"kind": "number", "unit": "g"},
        "sex": {"kind": "category", "values": ["f", "m"]},
        "ill": {"kind": "category", "values": ["no", "yes"]},
    }
    data = {"label": "ill", "test": 0.2, "kinds": kinds}
    shared: dict[str, Any] = {"superlink": "", "ca_certificate": "", "key": ""}
    nodes = [
        load_node(
            NodeFile(
                name=name,
                folder=str(tmp_path / name),
                data=data | {"table": str(tmp_path / f"{name}.csv")},
                **shared,
            )
        )
        for name in lines
    ]
    whole = data | {"client": "hospital", "table": str(tmp_path / "all.csv")}
    table = ALL | {"data": whole, "cohort": {"clients_per_round": 2}}
    (alone,) = simulated_by_file(table)
    (run,) = deployed(table, [node.answer for node in nodes])
    assert run.final.test_accuracy == alone.final.test_accuracy
    assert run.final.train_loss == pytest.approx(alone.final.train_loss, rel=1e-6)
    assert run.columns is not None
    assert alone.columns is not None
    np.testing.assert_allclose(numbers_of(run.columns), numbers_of(alone.columns), rtol=1e-12)
    for name in ("sex", "ill"):
        fewer = {each: kind for each, kind in kinds.items() if each != name}
        unstated = data | {"table": str(tmp_path / "a.csv"), "kinds": fewer}
        given = NodeFile(name="a", folder=str(tmp_path / "c"), data=unstated, **shared)
        with pytest.raises(InputError, match=f"column '{name}': its values are not stated"):
            load_node(given)
    part = NodeFile(
        name="part", folder=str(tmp_path / "part"), data=whole, deal=Deal(part=1, parts=2), **shared
    )
    dealt = load_node(part)
    assert (list(dealt.federation.names), dealt.table and len(dealt.table.moments.counts)) == (
        ["b"],
        1,
    )
