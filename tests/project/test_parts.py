"""The engine and the loop know no part by name, and a part's numbers reach the clients.

A setting is described once, by the parameter of `simulate` and a field of `Protocol`.
"""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import fedprox as fp
from fedprox.algorithms.base import Algorithm, ClientContext, Solution
from fedprox.experiment.schema import descriptions_of
from fedprox.parts.part import Columns, Part, Setting
from fedprox.protocol.protocol import Protocol
from tests.quadratics import one_run, quadratic_federation, quadratic_model

SOURCE = Path(fp.__file__).parent
ENGINE = SOURCE / "engine"

STEMS = (
    *("asynchron", "attack", "codec", "compress", "coding", "dishonest", "fault", "hidden"),
    *("hide", "hiding", "noised", "population", "priva", "robust", "stale"),
)
NAMES = {"adapter", "adapters", "dropout", "lies", "product", "products", "rank", "ranks", "ranked"}


def words_of_parts(text: str) -> list[str]:
    """The words of a text that begin as those of parts, also within names of the code."""
    words = re.findall(r"[a-z]+", text.lower())
    return [word for word in words if word.startswith(STEMS) or word in NAMES]


def test_words_are_found_within_names() -> None:
    text = "is_private, Attack(hides_clients), MOST_STALENESS of `ranks`, by default"
    assert words_of_parts(text) == ["private", "attack", "hides", "staleness", "ranks"]


def test_the_engine_names_no_part() -> None:
    for path in ENGINE.rglob("*.py"):
        assert not words_of_parts(path.read_text()), path


def test_the_loop_names_no_part() -> None:
    for path in (SOURCE / "loop").glob("*.py"):
        text = path.read_text()
        if path.name == "simulate.py":  # which describes the settings
            text = text.replace(inspect.getsource(inspect.unwrap(fp.simulate)), "")
            text = re.sub(r"from fedprox\.parts\..*", "", text)
        assert set(words_of_parts(text)) <= {"faulty"}, path  # a measure that all records may have


NAMED_BY = {
    "attack": 0,
    "faults": 2,  # nodes screen always
    "compression": 5,  # nodes code what they send, and say how; sites are told
    "aggregation": 2,  # nodes send factors or products
    "asynchronous": 1,  # a deployment's clock is real
}
"""Settings that are parts, and how many other files outside of `parts` read them by name."""


@pytest.mark.parametrize("setting", NAMED_BY)
def test_a_setting_is_described_once(setting: str) -> None:
    described = {SOURCE / "loop/simulate.py", SOURCE / "protocol/protocol.py"}
    naming = {
        path
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] not in ("parts", "algorithms")
        and re.search(rf"\b{setting}\b(?! rounds)", code_of(path))
    }
    assert described <= naming
    assert len(naming - described) == NAMED_BY[setting], naming - described


def code_of(path: Path) -> str:
    """The code of a file, without its docstrings, comments and imports of other names."""
    code = re.sub(r'r?"""[\s\S]*?"""', "", path.read_text())
    return re.sub(r"#.*|^(from|import) .*", "", code, flags=re.MULTILINE)


def test_the_fields_of_a_protocol_are_parameters_of_simulate() -> None:
    parameters = inspect.signature(fp.simulate).parameters
    fields = {each.name: each for each in dataclasses.fields(Protocol)}
    of_one_call = {"methods", "seed", "devices", "checkpoints", "callbacks", "on_progress"}
    assert parameters.keys() - {"progress"} - of_one_call == fields.keys() - {"seeds"}
    hints, described = get_type_hints(fp.simulate), descriptions_of(fp.simulate)
    for name in fields.keys() - {"seeds"}:
        missing = fields[name].default is dataclasses.MISSING
        default = inspect.Parameter.empty if missing else fields[name].default
        assert parameters[name].default == default, name
        assert hints[name] in (get_type_hints(Protocol)[name], Any | None), name
        assert described[name]


def test_what_users_set_cannot_change() -> None:
    """Runs share settings, and programs are kept by them."""
    mutable = {"Run", "Checkpoints"}  # a result, and where one is stored
    for name in fp.__all__:
        each: Any = getattr(fp, name)
        if inspect.isclass(each) and dataclasses.is_dataclass(each):
            assert vars(each)["__dataclass_params__"].frozen == (name not in mutable), name


class Numbered(Part):
    """Clients know their number, and send it."""

    def columns(self, clients: NDArray[Any], federation: fp.Federation) -> Columns:
        return {"share": clients / len(federation)}

    def known(self, numbers: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
        del key
        return {"share": numbers["share"]}

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        del setting

        def message(state: Any, hparams: Any, context: ClientContext, solution: Solution) -> Any:
            del state, hparams
            share = context.columns["share"]
            return jax.tree.map(lambda a: jnp.full_like(a, share), solution.params), context.state

        return method._replace(client=method.client._replace(message=message))


@pytest.mark.slow
def test_a_number_of_a_part_reaches_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Protocol.__dict__["parts"].func
    monkeypatch.setattr(Protocol, "parts", property(lambda self: (*parts(self), Numbered())))
    federation = quadratic_federation([np.eye(2)] * 4, list(np.ones((4, 2))), [1, 2, 3, 4])
    run = one_run(
        federation,
        quadratic_model(np.zeros(2)),
        fp.fedavg(average="clients"),
        fp.Solver(0.1, 1, steps=1),
        rounds=2,
    )
    np.testing.assert_allclose(run.params, 2 * np.mean([0, 1, 2, 3]) / 4, rtol=1e-6)
