from __future__ import annotations

import subprocess
import sys

import pytest

import polyrec
from polyrec.models.version import code_version

HEAVY = {"httpx", "numpy", "pyarrow", "torch", "pydantic", "uvicorn"}


def test_every_public_name_is_there() -> None:
    assert [name for name in polyrec.__all__ if not hasattr(polyrec, name)] == []
    assert set(polyrec.__all__) <= set(dir(polyrec))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        polyrec.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("statement", "light"),
    [
        ("import polyrec", HEAVY),
        ("import polyrec; polyrec.Client", {"torch", "pyarrow", "uvicorn"}),
        ("import polyrec; polyrec.serve", {"torch", "pyarrow", "uvicorn"}),
        # a server without a remote tier, a model by URL and reported labels
        ("import polyrec.server.app.run", {"httpx", "pandas", "pyarrow.dataset", "redis"}),
    ],
)
def test_imports_bring_only_what_they_need(statement: str, light: set[str]) -> None:
    program = f"{statement}; import sys; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert light & set(shown.stdout.split()) == set()


def test_the_version_is_printed_without_the_verbs() -> None:
    program = "import sys; from polyrec.cli.main import main; main(['--version']); print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    version, imported = shown.stdout.splitlines()
    assert version == code_version()
    assert "polyrec.cli.serve.serve" not in imported.split()
    assert HEAVY & set(imported.split()) == set()
