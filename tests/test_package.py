"""The wheel and the sdist, each installed in an environment of its own, beside files that could shadow it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.metadata import distribution, distributions
from pathlib import Path

import httpx
import pytest

from benchmarks.operations.dependencies import closure, requirements
from polyrec.cli.extras import NEEDS

ROOT = Path(__file__).parent.parent
CLEAN = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("POLYREC_")}
ROOMS = {
    "cli",
    "client",
    "cluster",
    "feed",
    "loadtest",
    "loop",
    "measure",
    "models",
    "planner",
    "report",
    "server",
}
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an sdist of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_wheel_has_one_package_with_types_and_data(built: Path) -> None:
    names = zipfile.ZipFile(only(built, "*.whl")).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"polyrec"}
    assert {name.split("/")[1] for name in names if name.count("/") > 1 and "dist-info" not in name} == ROOMS
    assert "polyrec/py.typed" in names
    data = [name for name in names if name.endswith((".yaml", ".html", ".js"))]
    assert len(data) >= 9, data
    assert "polyrec/server/grpc/inference.binpb" in names


def test_sdist_builds_the_same_files_as_the_checkout(built: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as sdist:
        inside = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    wheel = zipfile.ZipFile(only(built, "*.whl")).namelist()
    assert {name for name in wheel if "dist-info" not in name} <= inside


def environment(folder: Path, archive: Path) -> Path:
    """A virtual environment with the archive installed; the other packages are this interpreter's."""
    there = installed_alone(folder, archive)
    # a path in a .pth file is searched, but its own .pth files (an editable polyrec) are not read
    (there / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin"


def base_environment(folder: Path, archive: Path) -> Path:
    """A virtual environment as `pip install polyrec` makes it: no package that only an extra brings.

    The packages are links to this interpreter's, because installing them takes a gigabyte and a minute.
    """
    there = installed_alone(folder, archive)
    (own,) = distributions(name="polyrec", path=[str(there)])
    for name in set().union(*(closure(requirement) for requirement in requirements(own, set()))):
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            if not (there / top).exists():
                (there / top).symlink_to(str(package.locate_file(top)))
    return folder / "bin"


def installed_alone(folder: Path, archive: Path) -> Path:
    """Installs the archive into a new virtual environment; returns its site-packages."""
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    # --no-build-isolation: an sdist is built with this interpreter's hatchling
    backend = CLEAN | {"PYTHONPATH": sysconfig.get_paths()["purelib"]}
    subprocess.run([*pip, "--no-build-isolation", str(archive)], env=backend, check=True)
    return only(folder / "lib", "python*") / "site-packages"


@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"])
def test_installed_polyrec_trains_and_serves_beside_a_hostile_folder(
    pattern: str, built: Path, clicks: Path, tmp_path: Path
) -> None:
    programs = environment(tmp_path / "venv", only(built, pattern))
    work = tmp_path / "work"
    for hostile in ("models/__init__.py", "planner/__init__.py", "server.py", "report.py"):
        (work / hostile).parent.mkdir(parents=True, exist_ok=True)
        (work / hostile).write_text("raise RuntimeError('the wrong module was imported')\n")

    def polyrec(*arguments: str) -> str:
        command = [str(programs / "polyrec"), *arguments]
        return subprocess.run(command, cwd=work, env=CLEAN, check=True, capture_output=True, text=True).stdout

    assert polyrec("--version").strip() in only(built, pattern).name
    where = "import polyrec.models.errors as e; print(e.__file__)"
    found = subprocess.run(
        [str(programs / "python"), "-c", where],
        cwd=work,
        env=CLEAN,
        check=True,
        capture_output=True,
        text=True,
    )
    assert str(tmp_path / "venv") in found.stdout
    shutil.copy(clicks, work / "clicks.parquet")
    polyrec("train", "--data", "clicks.parquet", "--schema", "trivago", "--out", "table", "--seed", "0")
    serve = [str(programs / "polyrec"), "serve", "--bundle", "table", "--port", "0", "--json"]
    with subprocess.Popen(serve, cwd=work, env=CLEAN, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            answer = httpx.post(f"{url}/v1/predict", json={"instances": [{}, {}]}, timeout=30)
            assert len(answer.json()["predictions"]) == 2
        finally:
            server.terminate()


def test_base_set_serves_answers_and_says_which_extra_a_verb_needs(
    built: Path, bundle_dir: Path, tmp_path: Path
) -> None:
    programs = base_environment(tmp_path / "venv", only(built, "*.whl"))

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        program = [str(programs / command[0]), *command[1:]]
        return subprocess.run(program, cwd=tmp_path, env=CLEAN, capture_output=True, text=True)

    absent = "from importlib.util import find_spec as f; print([n for n in {} if f(n)])"
    left_out = ("locust", "scipy", "tqdm", "matplotlib", "pytest", "mypy")
    assert run("python", "-c", absent.format(left_out)).stdout == "[]\n"
    serve = [str(programs / "polyrec"), "serve", "--bundle", str(bundle_dir), "--port", "0", "--json"]
    with subprocess.Popen(serve, cwd=tmp_path, env=CLEAN, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            rows = "[{'price': 1.0}, {'price': 2.0}]"
            ask = f"import polyrec; print(len(polyrec.Client('{url}').predict({rows}).probabilities))"
            asked = run("python", "-c", ask)
            assert asked.stdout == "2\n", asked.stderr
            for page in ("/", "/metrics", "/v1/paths"):
                assert httpx.get(f"{url}{page}", timeout=30).status_code == 200, page
        finally:
            server.terminate()
    for verb, arguments in (
        ("train", ("--data", "clicks.parquet", "--out", "table")),
        ("plan", ("--profile", "profile.json", "--slo-ms", "10", "--traffic", "rate=1")),
    ):
        done = run("polyrec", verb, *arguments)
        (extra,) = NEEDS[verb]
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1, done.stderr
        assert f"pip install 'polyrec[{extra}]'" in done.stderr
    assert run("polyrec", "inspect", str(bundle_dir)).returncode == 0
