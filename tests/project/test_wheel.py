"""The package as a user installs it: built, checked, and run from a fresh environment."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from fedprox import __version__

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def python(environment: Path, *arguments: str | Path, cwd: Path) -> str:
    """What a command of an environment's Python prints, without anything of this process's."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [environment / "bin" / "python", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=clean, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(environment: Path, *arguments: str | Path) -> None:
    """Run this environment's pip for another one, which has no pip."""
    target = ("--python", environment / "bin" / "python")
    python(Path(sys.prefix), "-m", "pip", *target, *arguments, cwd=environment)


def installed(folder: Path, *packages: str | Path) -> Path:
    """A new environment with some packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    # few of the modules are imported
    pip(folder, "install", "--quiet", "--no-compile", "--retries", "1", *packages)
    return folder


def test_the_wheel_runs_the_demo_without_the_lock(tmp_path: Path) -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    try:
        tools = installed(tmp_path / "tools", "build", "twine", *table["build-system"]["requires"])
    except AssertionError as error:
        if "No matching distribution" not in str(error):
            raise
        pytest.skip("pip finds no build and twine: is there a package registry?")
    # with what the build needs in this one environment, instead of two more
    build = ("-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", ROOT)
    python(tools, *build, cwd=tmp_path)
    (wheel,), (sdist,) = (list((tmp_path / "dist").glob(ends)) for ends in ("*.whl", "*.tar.gz"))
    assert wheel.name == f"fedprox-{__version__}-py3-none-any.whl"
    folders = r"/(papers|reproduce|experiments)/"
    with zipfile.ZipFile(wheel) as packed:
        assert not [name for name in packed.namelist() if re.search(folders, f"/{name}")]
    python(tools, "-m", "twine", "check", "--strict", wheel, sdist, cwd=tmp_path)

    user = installed(tmp_path / "user", wheel)
    pip(user, "check")
    demo = python(user, "-m", "fedprox", "examples", "demo", cwd=tmp_path)
    (tmp_path / "demo.toml").write_text(demo)
    printed = python(user, "-m", "fedprox", "run", "demo.toml", "--set", "rounds=5", cwd=tmp_path)
    assert "fedprox mu=1" in printed
    assert (tmp_path / "runs" / "demo" / "report.html").is_file()
