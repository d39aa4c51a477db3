"""Server rules: a method with a rule is the oracle's product of the two, or is refused."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.algorithms.base import Direction
from fedprox.algorithms.check import message_shape
from fedprox.experiment.resolved import method_named
from fedprox.protocol.method import label, sweep_points
from tests import methods
from tests.byhand import CASES, CLIENTS, START, beside_the_oracle
from tests.catalogue import VARIANTS
from tests.quadratics import one_run, quadratic_model, ragged_quadratics
from tests.variants import mostly_slow

Numbers = dict[str, float]

RULES: dict[str, tuple[fp.server.Rule, Callable[[Numbers], methods.Rule]]] = {
    "momentum": (
        fp.server.momentum([0.3, 1.0], momentum=0.8),
        lambda n: methods.Momentum(n["server_learning_rate"], 0.8),
    ),
    "adam": (fp.server.adam([0.03, 0.1]), lambda n: methods.Adam(n["server_learning_rate"])),
    "adagrad": (fp.server.adagrad(0.1), lambda n: methods.Adagrad(n["server_learning_rate"])),
    "extrapolate": (
        fp.server.extrapolate([1e-4, 0.1]),
        lambda n: methods.Extrapolation(n["epsilon"]),
    ),
}

METHODS = {name: each[:2] for name, each in CASES.items()} | {
    "scaffold": (fp.scaffold(), lambda *_: methods.Scaffold(START, CLIENTS))
}

PRODUCTS = [
    ("fedprox", "adam"),
    ("fedprox drop", "momentum"),
    ("fedavg", "extrapolate"),
    ("scaffold", "extrapolate"),
    ("feddc", "momentum"),
    ("fednova", "adagrad"),
    ("mime of whole gradients", "extrapolate"),
    ("mimelite", "adam"),
    ("fedcm", "extrapolate"),
]


@pytest.mark.parametrize(
    "product",
    mostly_slow(PRODUCTS, ("feddc", "momentum")),
    ids=str,
)
def test_a_method_with_a_rule_is_the_product_of_the_two(product: tuple[str, str]) -> None:
    """Every sweep point of both, with stragglers, and rounds in which nobody takes part."""
    (ours, theirs), (step, same) = METHODS[product[0]], RULES[product[1]]

    def both(numbers: Numbers, federation: fp.Federation) -> methods.Method:
        return methods.Ruled(theirs(numbers, federation), same(numbers))

    beside_the_oracle(ours.with_server(step), both)


PARAMS = {"body": np.array([1.0, -2.0, 0.5], "f"), "head": np.array([3.0, 0.25], "f")}


def updated(method: fp.Algorithm, rounds: int) -> list[Any]:
    """The model after some updates by messages of small whole numbers, whatever their types."""

    @jax.jit
    def compute() -> list[Any]:
        state, models = method.initial(*[PARAMS] * method.server.starts), []
        hparams = {name: jnp.float32(v[0]) for name, v in method.hparams.items()}  # type: ignore[index]
        hparams |= {"learning_rate": jnp.float32(0.1), "participation": jnp.float32(0.5)}
        sent = message_shape(method, PARAMS)
        for t in range(rounds):
            leaves, tree = jax.tree.flatten(sent)
            fill = [jnp.full(a.shape, (i + t) % 3 + 1, a.dtype) for i, a in enumerate(leaves)]
            if method.first.exchange is not None:
                state = method.first.exchange(state, PARAMS, hparams)
            state = method.server.update(state, jax.tree.unflatten(tree, fill), hparams)
            models.append(method.server.params(state))
        return models

    return list(jax.device_get(compute()))


FREE = {name: each.method for name, each in VARIANTS.items() if "server" not in each.method.fixed}


@pytest.mark.parametrize("name", FREE)
def test_a_rule_steps_along_the_direction_of_the_method(name: str) -> None:
    """After one round: w + eta (w' - w), w' being the method's own model."""
    own = FREE[name]._replace(adapt=None)
    ruled = own.with_server(fp.server.momentum(0.25))
    (plain,), (found, _) = updated(own, 1), updated(ruled, 2)
    for part, w in PARAMS.items():
        np.testing.assert_allclose(found[part], w + 0.25 * (plain[part] - w), rtol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_plain_rule_leaves_each_method_as_it_is(name: str) -> None:
    method = VARIANTS[name].method
    if "server" in method.fixed:
        with pytest.raises(fp.InputError, match="no server rule fits: "):
            method.with_server(fp.server.adam(0.1))
    else:
        assert method.with_server(fp.server.adam(0.1)).fixed["server"] == "it steps by adam already"
    assert method.with_server(fp.server.mean()) is method


def test_names_are_points_of_the_product() -> None:
    momentum = functools.partial(optax.sgd, momentum=0.9)
    fedopt = fp.fedopt(momentum, server_learning_rate=0.3)
    pairs = [
        (fedopt, fp.fedavg().with_server(fp.server.momentum(0.3))),
        (
            fp.fedexp(epsilon=0.01),
            fp.fedavg(average="clients").with_server(fp.server.extrapolate(0.01)),
        ),
    ]
    for one, other in pairs:
        jax.tree.map(np.testing.assert_array_equal, updated(one, 3), updated(other, 3))
        for field in ("hparams", "stragglers", "average", "communication"):
            assert getattr(one, field) == getattr(other, field)


def test_fedprox_without_mu_and_stragglers_is_fedavg_bit_for_bit() -> None:
    federation, model = ragged_quadratics(0, [1, 4, 2, 7]), quadratic_model(START)
    setting: dict[str, Any] = {"systems": fp.Systems(stragglers=0.5), "rounds": 6}
    one, other = (
        one_run(federation, model, method, fp.Solver(0.1, 2, epochs=2), **setting)
        for method in (fp.fedprox(mu=0.0).with_stragglers("drop"), fp.fedavg())
    )
    np.testing.assert_array_equal(one.params, other.params)


def test_layers_that_stay_on_clients_get_no_step_of_the_servers() -> None:
    """Also from a rule that moves alone; the state of the rule is that of the other layers."""
    params = {"body": jnp.ones(3), "head": jnp.ones(2)}
    rule = fp.server.optimizer(functools.partial(optax.adamw, weight_decay=0.5), learning_rate=0.1)
    method = fp.fedper(["head"]).with_server(rule)
    first = method.server.init(params)
    assert all(np.shape(leaf) in ((), (3,)) for leaf in jax.tree.leaves(first.rule))
    hparams = {"server_learning_rate": jnp.float32(0.1)}
    after = method.server.params(method.server.update(first, {"body": jnp.zeros(3)}, hparams))
    np.testing.assert_allclose(after["body"], 0.95)
    np.testing.assert_array_equal(after["head"], 1.0)


def test_what_clients_cannot_send_is_found() -> None:
    method = fp.fedcm(alpha=0.5).with_server(fp.server.extrapolate())
    assert method.client.possible is not None
    update = jnp.array([3.0, 4.0])
    for steps, squares, fits in ((2.0, 25.0, True), (2.0, 24.0, False), (5.0, 25.0, False)):
        mean = (update, jnp.float32(steps)), jnp.float32(squares)
        assert bool(method.client.possible({}, mean, jnp.int32(4))) == fits


def test_a_users_rule_and_a_users_direction_fit_each_other() -> None:
    def half(state: Any, params: Any, direction: Any, _: Any, hparams: Any) -> Any:
        moved = jax.tree.map(lambda w, d: w + hparams["part"] * d, params, direction)
        return moved, state + 1

    rule = fp.server.Rule("half", half, {"part": [0.5, 1.0]}, init=lambda _: jnp.int32(0))
    twice = fp.fedprox(mu=0.1)._replace(
        name="twice",
        server=fp.fedprox(mu=0.1).server._replace(
            update=Direction(lambda state, mean, _: (jax.tree.map(lambda d: 2 * d, mean), state))
        ),
    )
    half_of_twice = twice.with_server(rule)
    assert half_of_twice.variant == "half"
    found, plain = updated(half_of_twice, 2), updated(fp.fedprox(mu=0.1), 2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, plain)
    with pytest.raises(fp.InputError, match="twice: extrapolated compares the clients' updates"):
        twice.with_server(fp.server.extrapolate())
    with pytest.raises(fp.InputError, match="mine: no server rule fits: its update has no direct"):
        fp.fedavg()._replace(
            name="mine", server=fp.fedavg().server._replace(update=lambda s, m, _: s + m)
        ).with_server(rule)
    with pytest.raises(fp.InputError, match="fedprox: it has a hyperparameter 'mu', as half has"):
        fp.fedprox(mu=0.1).with_server(rule._replace(hparams={"mu": 1.0}))


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (fp.feddyn(alpha=0.1), "its model is the one that the clients' mean and h determine"),
        (fp.fedsplit(1.0), "its model is the mean of the z_k"),
        (fp.fedadmm(0.5), "its model follows the mean of all w_k"),
        (fp.scaffnew(p=0.5), "the h_k sum to zero only if"),
        (fp.centralised(), "it has no clients"),
        (fp.ifca(2), "these are its local method's"),
        (fp.fedopt(optax.adam), "it steps by adam already"),
        (fp.fedexp(), "it steps by extrapolated already"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_rule_that_does_not_fit_is_refused(method: fp.Algorithm, why: str) -> None:
    with pytest.raises(fp.InputError, match=f"^{method.name}: no server rule fits: {why}"):
        method.with_server(fp.server.extrapolate())


def test_the_own_rate_of_a_server_gives_way() -> None:
    method = fp.scaffold().with_server(fp.server.extrapolate())
    assert method.hparams == {"epsilon": (0.001,)}
    assert fp.pfedme(1.0, eta=0.5).with_server(fp.server.adam(0.1)).hparams.keys() == {
        "lam",
        "eta",
        "server_learning_rate",
    }
    with pytest.raises(fp.InputError, match="scaffold: server_learning_rate is the step of its ow"):
        fp.scaffold(server_learning_rate=0.5).with_server(fp.server.adam(0.1))


@pytest.mark.parametrize("rule", [fp.server.adam, optax.adam(0.1), "adam", fp.server.Rule, None])
def test_what_is_no_rule_is_refused(rule: Any) -> None:
    with pytest.raises(fp.InputError, match=r"^with_server: .*it must be a rule such as"):
        fp.fedavg().with_server(rule)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fp.server.adam(0.0), "server.adam: learning_rate = 0.0; it must be above 0"),
        (lambda: fp.server.adam(0.1, b1=1.0), "server.adam: b1 = 1.0; it must be below 1"),
        (lambda: fp.server.yogi(0.1, b2=-0.5), r"server.yogi: b2 = -0\.5; it must be at least 0"),
        (lambda: fp.server.yogi(0.1, eps=0.0), r"server.yogi: eps = 0\.0; it must be above 0"),
        (lambda: fp.server.momentum(momentum=1.5), "server.momentum: momentum = 1.5; it must be"),
        (
            lambda: fp.server.adagrad(0.1, initial_accumulator_value=-1.0),
            "server.adagrad: initial_accumulator_value = -1.0; it must be at least 0",
        ),
        (lambda: fp.server.extrapolate(0.0), "server.extrapolate: epsilon = 0.0; it must be above"),
        (
            lambda: fp.server.optimizer(optax.lbfgs),
            "server.optimizer: this optimizer searches along a line",
        ),
        (
            lambda: fp.scaffold().with_average("rows"),
            "scaffold: average = rows; it is fixed: c is the plain mean of the control variates",
        ),
        (
            lambda: fp.scaffnew(p=0.5).with_stragglers("keep"),
            "scaffnew: stragglers = keep; it is fixed: every client takes part",
        ),
    ],
)
def test_what_is_out_of_range_or_fixed_is_refused(make: Any, message: str) -> None:
    with pytest.raises(fp.InputError, match=f"^{message}"):
        make()


FILE: dict[str, Any] = {
    "name": "fedprox",
    "mu": [0.0, 0.1],
    "server": {"name": "adam", "learning_rate": [0.01, 0.03]},
    "stragglers": "drop",
    "average": "clients",
}


def test_a_file_composes_methods_and_shows_each_default() -> None:
    method, shown = method_named(FILE, "method.0")
    expected = (
        fp.fedprox(mu=[0.0, 0.1])
        .with_server(fp.server.adam([0.01, 0.03]))
        .with_stragglers("drop")
        .with_average("clients")
    )
    for each in ("variant", "hparams", "stragglers", "average"):
        assert getattr(method, each) == getattr(expected, each)
    assert method.variant == "adam drop plain mean"
    assert shown["server"] == FILE["server"] | {"b1": 0.9, "b2": 0.999, "eps": 1e-8}
    assert method_named(shown, "method.0")[1] == shown
    solver = fp.Solver(0.1, 2, epochs=1)
    assert label(method, solver, sweep_points(method, solver)[1]) == (
        "fedprox adam drop plain mean mu=0 server_learning_rate=0.03"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"server": "adam"}, "method.0.server = 'adam'; it must be a table"),
        ({"server": {"name": "adma"}}, "method.0.server.name = 'adma'; did you mean 'adam'?"),
        ({"server": {"name": "adam"}}, "method.0.server: the key 'learning_rate' is missing"),
        (
            {"server": {"name": "adam", "learning_rate": 0.1, "beta": 0.9}},
            "method.0.server: unknown key 'beta'; ",
        ),
        (
            {"server": {"name": "adam", "learning_rate": -1.0}},
            "method.0.server: server.adam: learning_rate = -1.0; it must be above 0",
        ),
        (
            {"straglers": "drop"},
            "method.0: unknown key 'straglers'; did you mean 'stragglers'? allowed: mu, adapt, ser",
        ),
        ({"stragglers": "wait"}, "method.0.stragglers: fedprox: stragglers = 'wait'; it must be"),
        ({"average": 1}, "method.0.average: fedprox: average = 1; it must be one of rows, clients"),
        (
            {"name": "feddyn", "alpha": 0.1, "mu": None},
            "method.0.server: feddyn: no server rule fits: its model is",
        ),
    ],
)
def test_a_mistake_in_a_file_has_one_line(change: dict[str, Any], message: str) -> None:
    table = {key: value for key, value in (FILE | change).items() if value is not None}
    with pytest.raises(fp.InputError) as error:
        method_named(table, "method.0")
    assert str(error.value).startswith(message)


def test_functions_of_users_keep_their_own_keys() -> None:
    method, shown = method_named(
        {"name": f"{__name__}:mine", "average": "some", "stragglers": "drop"}, "method.0"
    )
    assert (method.variant, method.stragglers) == ("some drop", "drop")
    assert shown["average"] == "some"


def mine(average: str = "all") -> fp.Algorithm:
    """A method with a key of a name that other methods have too."""
    return fp.fedprox(mu=0.1)._replace(variant=average)
