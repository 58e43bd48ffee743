"""The house as a whole: what no single room can promise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from polyrec.cli.main import VERBS, build_parser

ROOT = Path(__file__).parent.parent
HEAVY = {"fastapi", "locust", "numpy", "onnxruntime", "pyarrow", "pydantic", "starlette", "torch", "uvicorn"}
HELP = """
import sys
from polyrec.cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], *([verb, "--help"] for verb in VERBS)], ids=" ".join)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    command = [sys.executable, "-c", HELP, *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("usage: ")
    assert HEAVY & set(shown.stderr.split()) == set()


def test_tried_set_pins_every_dependency_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tried = [Requirement(line) for line in lines if not line.startswith("#")]
    pins = {canonicalize_name(pin.name): pin.specifier for pin in tried}
    for line in chain(project["dependencies"], *project["optional-dependencies"].values()):
        requirement = Requirement(line)
        (pin,) = pins[canonicalize_name(requirement.name)]
        assert pin.operator == "=="
        assert pin.version in requirement.specifier, line


def test_container_starts_the_server_with_arguments_that_it_takes() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    program, defaults = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", dockerfile, re.MULTILINE)
    assert json.loads(program) == ["polyrec"]
    assert build_parser().parse_args(json.loads(defaults)).verb == "serve"
