"""Every test runs with two CPU devices, so that lanes are really spread over a mesh."""

import gc
import os
import signal
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import jax
import pytest
from hypothesis import settings

from fedprox import use_compilation_cache
from tests.commands import draw_nothing, shorten
from tests.costs import Costs

# a shell's background job or nohup, whose children would ignore the signals that tests send
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
jax.config.update("jax_num_cpu_devices", 2)
if "JAX_DISABLE_MOST_OPTIMIZATIONS" not in os.environ:
    # most tests compile for longer than they compute; processes that tests start inherit it
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    jax.config.update("jax_disable_most_optimizations", True)
    # nothing reads the places in lowered programs, which take a tenth of the time to trace
    jax.config.update("jax_traceback_in_locations_limit", 0)
    # fused kernels, and programs split for many cores, double the time of a compilation
    flags = "--xla_cpu_parallel_codegen_split_count=1"
    if jax.__version_info__ < (0, 11):  # XLA ends a process whose flags it does not know
        flags += " --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"
BESIDE = Path(__file__).parents[2] / "shared" / "data"
DATA = Path(os.environ.get("FEDPROX_DATA") or BESIDE).absolute()
"""The folder with real data, if there is one; absolute, since some tests change their folder."""
settings.register_profile("fedprox", deadline=None, derandomize=True)
settings.load_profile("fedprox")


def shard(text: str) -> tuple[int, int]:
    """The numbers of `--shard`."""
    k, of = map(int, text.split("/"))
    if not 1 <= k <= of:
        raise ValueError(f"{text} is no part of a whole")
    return k, of


def pytest_addoption(parser: pytest.Parser) -> None:
    """Bounds of what tests cost, 0 for none, and which part of the tests runs."""
    seconds, rounds = "processor seconds of a test that is not slow", "programs of rounds"
    parser.addoption("--most-seconds", type=float, default=0.0, metavar="SECONDS", help=seconds)
    parser.addoption(
        "--shard",
        type=shard,
        default=(1, 1),
        metavar="K/N",
        help="the K-th of N parts of the files",
    )
    parser.addoption("--most-rounds", type=int, default=0, metavar="COUNT", help=rounds)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m slow`, files that mark no test as slow are not even imported."""
    if config.getoption("markexpr") != "slow" or collection_path.suffix != ".py":
        return None
    return True if b"slow" not in collection_path.read_bytes() else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The examples of the documentation's pages are slow: each compiles its own programs.

    A shard has every N-th file, by its name, so that no list of folders can leave one out.
    """
    for item in items:
        if item.path.suffix == ".md":
            item.add_marker("slow")
    k, of = config.getoption("shard")
    ours, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        file = item.nodeid.split("::")[0].encode()
        (ours if zlib.crc32(file) % of == k - 1 else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = ours


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Tests read the data folder of `data_dir`, and doctests none, whatever FEDPROX_DATA names.

    A hook, since fixtures of this file do not reach doctests, and workers need the variable before.
    """
    os.environ.pop("FEDPROX_DATA", None)


def pytest_collection_finish() -> None:
    """Searches for garbage leave out the modules and the tests, which stay, and are seldom."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


KEPT_BYTES = 2**31
"""Most bytes of compiled programs that are kept for the next run of the tests."""


def pytest_configure(config: pytest.Config) -> None:
    """Measure costs, and remove the compiled programs of earlier runs that take too much room."""
    config.pluginmanager.register(Costs(config))
    cache = getattr(config, "cache", None)  # there is none with -p no:cacheprovider
    if "PYTEST_XDIST_WORKER" not in os.environ and cache is not None:
        programs = [path for path in cache.mkdir("xla").iterdir() if path.is_file()]
        if sum(path.stat().st_size for path in programs) > KEPT_BYTES:
            for path in programs:
                path.unlink()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[None]:
    """One cache for this run's tests, also of several workers, and nothing goes to the user's.

    Many tests need the same programs, which take longer to compile than to run. They are kept for
    the next run.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    programs = folder / "cache" / "xla"
    programs.parent.mkdir(exist_ok=True)
    cache = getattr(pytestconfig, "cache", None)
    with suppress(FileExistsError):  # another worker was first
        if cache is not None:
            programs.symlink_to(cache.mkdir("xla"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDPROX_CACHE", str(folder / "cache"))
        # what a test reads from stderr must not depend on how busy the machine is
        patch.setattr("fedprox.loop.following.FIRST_LINE", 3600.0)
        shorten(patch)
        use_compilation_cache(programs)
        yield


@pytest.fixture
def real_figures() -> None:
    """Run directories hold the figure of their runs."""


@pytest.fixture(autouse=True)
def _empty_figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Those of other tests hold an empty one."""
    with pytest.MonkeyPatch.context() as patch:
        if "real_figures" not in request.fixturenames:
            draw_nothing(patch)
        yield


@pytest.fixture
def optimized() -> Iterator[None]:
    """All of XLA's optimizations, for programs that run for longer than they compile."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    disabled = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] not in ("0", "false", "False", "")
    jax.config.update("jax_disable_most_optimizations", disabled)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real data; tests that need it are skipped where there is none."""
    if not (DATA / "mnist").is_dir():
        pytest.skip("no MNIST: set FEDPROX_DATA to a folder that has mnist/")
    return DATA
