"""What an import of the package costs: a name's modules are imported when it is first used."""

import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedprox as fp

SLOW = ("flax", "jax", "jinja2", "matplotlib", "numpy", "optax", "pydantic", "rich", "scipy")
OPTIONAL = (
    *("cryptography", "datasets", "dp_accounting", "flwr", "jax_privacy"),
    *("mlflow", "tensorboardX", "tokenizers", "wandb"),
)


WITHOUT_KEY = """
import contextlib, sys
from fedprox.deployment.heartbeat import keep_connected
from fedprox.errors import InputError
sys.argv[1:] = "localhost:1", "no certificate", "no key", "1"
with contextlib.suppress(InputError):
    keep_connected()
"""


def loaded(program: str) -> set[str]:
    """The packages among those above that a program has imported in a new process."""
    asked = f"{program}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    return {*SLOW, *OPTIONAL} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("program", "needed"),
    [
        ("import fedprox", set()),
        (
            "import fedprox as fp; fp.Federation, fp.Model, fp.Solver, fp.fedprox",
            {"jax", "numpy", "optax"},
        ),
        pytest.param(
            "from fedprox import models",
            {"flax", "jax", "numpy", "optax", "rich"},
            marks=pytest.mark.slow,
        ),
        # help, and the commands that look at a run or a file
        ("import fedprox.cli, fedprox.commands.keys, fedprox.commands.examples", {"rich"}),
        ("import fedprox.commands.following", {"rich"}),
        # what only results need is imported when there are some
        pytest.param(
            "import fedprox.commands.run",
            {"flax", "jax", "numpy", "optax", "pydantic", "rich"},
            marks=pytest.mark.slow,
        ),
        # checkpoints, progress and the page of a run
        pytest.param(
            "from fedprox import *",
            {"flax", "jax", "numpy", "optax", "pydantic", "rich"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_import_loads_what_it_needs(program: str, needed: set[str]) -> None:
    assert loaded(program) == needed


@pytest.mark.slow
@pytest.mark.parametrize("program", ["import fedprox.commands.federation", WITHOUT_KEY])
def test_what_computes_nothing_in_a_federation_loads_no_jax(program: str) -> None:
    """Keys and a SuperLink, and the process that sends a node's heartbeats."""
    pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")
    found = loaded(program)
    assert found >= {"cryptography", "flwr"}
    assert "jax" not in found


@pytest.mark.slow
def test_the_folder_tests_of_another_package_does_not_hide_this_one() -> None:
    """jax-privacy's wheel installs one, which has no `__init__.py` and so comes after packages."""
    asked = (
        "import jax_privacy, sys; sys.path.append(sys.argv[1]); import tests; print(tests.__file__)"
    )
    here = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-P", "-c", asked, here], capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == here / "tests" / "__init__.py"


def test_unknown_and_missing_arguments_are_named() -> None:
    untyped: Any = fp
    for call, message in (
        (
            lambda: untyped.Solver(lr=0.1),
            "Solver: no argument 'lr'; did you mean 'learning_rate'? all",
        ),
        (
            lambda: untyped.Cohort(),
            "Cohort: missing a required argument: 'clients_per_round'; its argu",
        ),
        (
            lambda: untyped.fedprox(1.0, muu=1.0),
            "fedprox: no argument 'muu'; did you mean 'mu'? allow",
        ),
        (
            lambda: untyped.table([], None, 1),
            "table: too many positional arguments; its arguments: ru",
        ),
    ):
        with pytest.raises(fp.InputError) as raised:
            call()
        assert str(raised.value).startswith(message)


def test_public_functions_can_be_pickled() -> None:
    for name in fp.__all__:
        value = getattr(fp, name)
        assert isinstance(value, ModuleType) or pickle.loads(pickle.dumps(value)) is value


def test_every_public_name_is_found_and_others_are_not() -> None:
    assert dir(fp) == fp.__all__
    for name in fp.__all__:
        # an import of a submodule would put it in the place of a function of its name
        assert isinstance(getattr(fp, name), ModuleType) or f"fedprox.{name}" not in sys.modules
    with pytest.raises(AttributeError, match="module 'fedprox' has no attribute 'nothing'"):
        getattr(fp, "nothing")  # noqa: B009
