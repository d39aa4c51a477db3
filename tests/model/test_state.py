"""A model's state that is not trained: beside NumPy by hand and beside flax's own loops."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import fedprox as fp
from tests.methods import batches_of
from tests.model import batch_norm
from tests.model.batch_norm import MODEL, START, federated
from tests.objectives import CLASSES, FEATURES, HIDDEN
from tests.settings import BASE, CLIENTS, FEDERATION

SOLVER = fp.Solver(0.1, 3, epochs=2, weight_decay=0.01)
EVERYONE: dict[str, Any] = {
    "model": MODEL,
    "cohort": fp.Cohort(CLIENTS),
    "rounds": 3,
    "solver": SOLVER,
    "initial": START,
}


def everyone(methods: Any, **changes: Any) -> list[fp.Run]:
    """Runs in which all clients take part."""
    return fp.simulate(**BASE | EVERYONE | {"methods": methods} | changes)


def require_close(found: Any, expected: Any, rtol: float = 1e-4) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol / 5), found, expected
    )


def require_like(run: fp.Run, server: batch_norm.Client) -> None:
    """The server's parameters and statistics are those of the oracle, and so is its loss."""
    statistics = batch_norm.flat(run.params.state).values()
    require_close(batch_norm.Client(batch_norm.flat(run.params.params), *statistics), server)
    expected = batch_norm.loss(server, FEDERATION.train.x, FEDERATION.train.y)
    assert run.history[-1].train_loss == pytest.approx(expected, rel=1e-4)


OWN = {"mean": (), "own": ("state",), "own layers": ("state", "scale", "shift")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN)
def test_statistics_are_averaged_or_the_clients_own(kind: Any) -> None:
    test, kept = FEDERATION.test, OWN[kind]
    methods = [fp.fedprox(mu=mu).with_model_state(kind) for mu in (0.0, 0.5)]
    for run, mu in zip(everyone(methods), (0.0, 0.5), strict=True):
        server, clients = federated(FEDERATION, SOLVER, 3, kept=kept, mu=mu)
        require_like(run, server)
        if kept:  # a client evaluates the server's other parameters
            own = [
                each._replace(params=server.params | {n: each.params[n] for n in kept[1:]})
                for each in clients.values()
            ]
            losses = [batch_norm.loss(each, *test.client(k)) for k, each in enumerate(own)]
            expected = np.average(losses, weights=test.sizes)
            assert run.history[-1].personal_loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "own layers"])
def test_what_clients_keep_waits_until_they_take_part_again(kind: Any) -> None:
    """In cohorts of two; others have the server's model."""
    test, kept, cohort = FEDERATION.test, OWN[kind], fp.Cohort(2)
    (run,) = everyone(fp.fedavg().with_model_state(kind), cohort=cohort)
    server, clients = federated(FEDERATION, SOLVER, 3, kept=kept, cohort=cohort)
    require_like(run, server)
    assert 2 < len(clients) < CLIENTS
    models = {
        k: each._replace(params=server.params | {n: each.params[n] for n in kept[1:]})
        for k, each in clients.items()
    }
    newcomers = dict.fromkeys(range(CLIENTS), server)
    for name, of in (
        ("personal_loss", models),
        ("newcomer_loss", {k: newcomers[k] for k in newcomers.keys() - models.keys()}),
    ):
        losses = [batch_norm.loss(each, *test.client(k)) for k, each in of.items()]
        expected = np.average(losses, weights=test.sizes[list(of)])
        assert getattr(run.history[-1], name) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "steps"),
    [(fp.fedprox(mu=0.5), None), (fp.ditto(lam=0.5), 2)],
)
def test_the_servers_statistics_stay_and_are_used_by_all(method: Any, steps: int | None) -> None:
    """As with them as constants of a model without state, also in models of the clients' own."""

    def apply(params: Any, x: Any) -> Any:
        return batch_norm.apply(params, START.state, x)

    tuned = {"evaluation": fp.Evaluation(gradients=False, fine_tune=steps)}
    (run,) = everyone(method.with_model_state("server"), **tuned)
    without = fp.Model(batch_norm.first, apply)
    (expected,) = everyone(method, model=without, initial=START.params, **tuned)
    require_close(run.params, fp.Variables(expected.params, START.state), 1e-6)
    if steps:
        own = expected.final.personal_loss
        assert run.final.personal_loss == pytest.approx(own, rel=1e-5)


class Nnx(nnx.Module):
    """The network of `batch_norm` with layers of nnx."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.body = nnx.Linear(FEATURES, HIDDEN, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, momentum=0.9, rngs=rngs)
        self.head = nnx.Linear(HIDDEN, CLASSES, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(jnp.tanh(self.norm(self.body(x))))


class Linen(linen.Module):
    """The same with layers of linen."""

    @linen.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = linen.Dense(HIDDEN, use_bias=False)(x)
        x = linen.BatchNorm(momentum=0.9, use_running_average=not train)(x)
        return linen.Dense(CLASSES, use_bias=False)(jnp.tanh(x))


NNX = fp.Model.from_nnx(Nnx)
LINEN = fp.Model.from_linen(Linen(), jnp.zeros((1, FEATURES)))


@pytest.mark.parametrize("model", [NNX, LINEN, MODEL], ids=["nnx", "linen", "functions"])
def test_padding_changes_neither_outputs_nor_statistics(model: Any) -> None:
    whole = model.init(jax.random.key(0))
    train = jax.jit(model.train)
    x = np.random.default_rng(0).normal(size=(5, FEATURES)).astype(np.float32)
    mask, key = np.arange(5) < 3, jax.random.key(1)
    some, moved = train(*whole, x, key, mask)
    alone, expected = train(*whole, x[:3], key, mask[:3])
    require_close((some[:3], moved), (alone, expected), 1e-5)
    _, others = train(*whole, x, key, np.ones(5, bool))
    assert not np.allclose(jax.tree.leaves(others)[0], jax.tree.leaves(moved)[0])


def nnx_loop(batches: list[Any], x: Any, y: Any) -> tuple[Any, Any]:
    """Parameters and statistics after nnx's own loop on some mini-batches."""
    module = Nnx(nnx.Rngs(jax.random.key(0)))
    optimizer = nnx.Optimizer(module, optax.sgd(0.1), wrt=nnx.Param)

    def loss(module: Nnx, x: Any, y: Any) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(module(x), y).mean()

    @nnx.jit  # type: ignore[untyped-decorator]
    def step(module: Nnx, optimizer: Any, x: Any, y: Any) -> None:
        optimizer.update(module, nnx.grad(loss)(module, x, y))

    for batch in batches:
        step(module, optimizer, x[batch], y[batch])
    kinds = nnx.Param, nnx.BatchStat
    params, statistics = (nnx.to_pure_dict(nnx.state(module, kind)) for kind in kinds)
    return params, statistics


def linen_loop(batches: list[Any], x: Any, y: Any) -> tuple[Any, Any]:
    """The same of linen's."""
    variables = Linen().init(jax.random.key(0), x[:1])

    @jax.jit
    def step(variables: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            whole = {**variables, "params": params}
            z, moved = Linen().apply(whole, x, train=True, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(z, y).mean(), moved

        gradient, moved = jax.grad(loss, has_aux=True)(variables["params"])
        stepped = jax.tree.map(lambda w, g: w - 0.1 * g, variables["params"], gradient)
        return {"params": stepped, **moved}

    for batch in batches:
        variables = step(variables, x[batch], y[batch])
    return variables["params"], {"batch_stats": variables["batch_stats"]}


@pytest.mark.parametrize(
    ("model", "loop"),
    [(NNX, nnx_loop), pytest.param(LINEN, linen_loop, marks=pytest.mark.slow)],
)
def test_one_client_trains_as_flaxs_own_loop(model: fp.Model, loop: Any) -> None:
    """Alone in a federation, and as central training of the same rows."""
    k = int(np.argmax(FEDERATION.train.sizes))
    alone = FEDERATION.of_clients(np.array([k]))
    (x, y), solver = alone.train.client(0), fp.Solver(0.1, 5, epochs=2)
    start = model.init(jax.random.key(0))
    here = {"federation": alone, "cohort": fp.Cohort(1), "solver": solver, "rounds": 2}
    runs = everyone([fp.fedavg(), fp.centralised()], model=model, initial=start, **here)
    count, steps = len(y), solver.steps_for(len(y))
    for run, number in zip(runs, (0, len(alone)), strict=True):
        batches = [b for t in range(2) for b in batches_of(0, t, number, count, solver, steps)]
        expected = loop(batches, np.asarray(x, np.float32), np.asarray(y))
        require_close(tuple(run.params), expected, 1e-6)


@pytest.mark.slow
def test_a_mini_batch_wider_than_a_tick_is_read_in_one_piece() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=200)
    rows = rng.normal(size=(200, FEATURES)) + labels[:, None], labels
    federation, solver = fp.Federation.from_arrays([rows, rows]), fp.Solver(0.1, "all", steps=2)
    here: dict[str, Any] = {"federation": federation, "cohort": fp.Cohort(2), "solver": solver}
    (run,) = everyone(fp.fedavg(), rounds=1, **here)
    server, _ = federated(federation, solver, 1)
    require_close(list(batch_norm.flat(run.params.state).values()), [server.mean, server.var])


def constant(params: Any, state: Any, x: Any, key: Any) -> Any:
    """A state that is the first number of a row, and how often it has moved."""
    del key
    return apply(params, state, x), {"row": x[0, 0], "steps": state["steps"] + 1}


def apply(params: Any, state: Any, x: Any) -> Any:
    del state
    return x @ params


CONSTANT = fp.Model(
    lambda key: 0.1 * jax.random.normal(key, (FEATURES, CLASSES)),
    apply,
    train=constant,
    state=lambda _: {"row": jnp.float32(0), "steps": jnp.int32(0)},
)
NUMBERED = fp.Federation.from_arrays(
    [
        (np.full((k % 3 + 1, FEATURES), float(k)), np.full(k % 3 + 1, k % CLASSES))
        for k in range(CLIENTS)
    ]
)
"""Clients whose rows are their numbers."""


def states(**changes: Any) -> Any:
    here = {"model": CONSTANT, "federation": NUMBERED, "initial": None, "rounds": 1}
    (run,) = everyone(fp.fedavg(), **here | changes)
    return run.params.state


@pytest.mark.slow
def test_a_rule_reads_states_as_it_reads_messages() -> None:
    assert states(aggregation=fp.Aggregation("median"))["row"] == np.median(np.arange(CLIENTS))


def test_a_whole_number_is_the_rounded_mean() -> None:
    sizes = NUMBERED.train.sizes
    taken = SOLVER.steps_for(sizes)
    found = states()
    assert found["steps"].dtype == np.int32
    assert found["steps"] == round(np.average(taken, weights=sizes))
    assert found["row"] == pytest.approx(np.average(np.arange(CLIENTS), weights=sizes), rel=1e-6)


@pytest.mark.slow
def test_without_a_barrier_a_state_is_a_mean_of_states() -> None:
    """Not the sum of changes from old ones, by which a variance could become negative."""
    seconds = fp.Population(step_seconds=[1.0, 9.0, 1.0, 5.0, 2.0, 7.0])
    options = {"asynchronous": fp.Asynchronous(1, "constant"), "population": seconds}
    found = [states(rounds=t, cohort=fp.Cohort(4), **options)["row"] for t in range(1, 7)]
    assert set(np.round(found, 5)) < set(range(CLIENTS))  # each step has the state of one client


@pytest.mark.parametrize(
    ("method", "model", "line"),
    [
        (fp.silobn(), None, 'silobn: model_state = "own"; the model has no state'),
        (fp.fedbn(), CONSTANT, "own layers.: no layer of the model has both parameters and a"),
        (
            fp.ditto(0.1).with_model_state("own"),
            MODEL,
            'ditto: model_state = "own"; its clients have whole models of their own',
        ),
        (
            fp.ifca(2).with_model_state("own"),
            MODEL,
            "ifca: local: fedavg does not fit: its clients have models of their own",
        ),
        (fp.scaffold(option=1), MODEL, "so a model whose state moves with mini-batches does not"),
    ],
)
def test_what_does_not_fit_is_refused(method: Any, model: Any, line: str) -> None:
    with pytest.raises(fp.InputError, match=line):
        everyone(method, model=model or BASE["model"], initial=None)


def wrong(result: Any) -> fp.Model:
    return fp.Model(CONSTANT.init.params, apply, train=lambda *_: result, state=CONSTANT.state)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda: fp.Model(batch_norm.first, apply, state=CONSTANT.state), "needs it, since it"),
        (lambda: wrong(jnp.zeros((2, 3))), "it must return the outputs and the next state"),
        (lambda: wrong((jnp.zeros((2, 3)), 1.0)), "the next state is float.*; it must be like the"),
    ],
)
def test_functions_that_do_not_fit_are_refused(build: Any, line: str) -> None:
    with pytest.raises(fp.InputError, match=line):
        everyone(fp.fedavg(), model=build(), initial=None)
