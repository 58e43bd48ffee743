"""Validates the settings of several models: NAME=FILE, NAME=NUMBER, and a folder of models.

All functions raise ValueError for invalid input, with a message that says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from pathlib import Path

from polyrec.models.fetching.url import ModelUrl, model_place
from polyrec.server.app.served_model import RESERVED


def valid_name(name: str) -> str:
    """Validates the name of a model."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) or name == RESERVED:
        raise ValueError(f"it has letters, digits, '.', '_' and '-', 100 at most, and is not '{RESERVED}'")
    return name


def named_files(files: tuple[str, ...]) -> tuple[str, ...]:
    """Validates NAME=FILE of each model."""
    names: set[str] = set()
    for file in files:
        _add_name(file, names)
    return files


def _add_name(file: str, names: set[str]) -> None:
    """Validates one NAME=FILE, and adds its name to those before it."""
    name, equals, path = file.partition("=")
    if not equals or not path:
        raise ValueError(f"'{file}' is not NAME=FILE")
    valid_name(name)
    model_place(path)
    if name in names:
        raise ValueError(f"model '{name}' is given twice")
    names.add(name)


def files_of(named: Sequence[str]) -> dict[str, Path | ModelUrl]:
    """Returns the file of each model by name, from valid NAME=FILE."""
    return {name: model_place(path) for name, _, path in (file.partition("=") for file in named)}


def models_in(folder: Path, invalid: dict[str, str] | None = None) -> tuple[str, ...]:
    """Returns NAME=FILE of each plan (NAME.json) and bundle (NAME/) in a folder, in the order of names.

    invalid: if given, files of invalid names are left out and added to it, with the reason.
    """
    found = [p for p in folder.glob("[!.]*") if p.suffix == ".json" or p.is_dir()]
    if not found:
        raise ValueError("no model is there, NAME.json or the folder of a bundle")
    named: list[str] = []
    names: set[str] = set()
    for file in sorted(found):
        name_and_file = f"{file.name.removesuffix('.json')}={file}"
        try:
            _add_name(name_and_file, names)
        except ValueError as e:
            if invalid is None:
                raise
            invalid[file.name] = str(e)
        else:
            named.append(name_and_file)
    return tuple(named)


def named_numbers(given: tuple[str, ...]) -> tuple[str, ...]:
    """Validates NAME=NUMBER of some models, numbers of at least 0."""
    for one in given:
        name, _, number = one.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not 0 <= value < inf:
            raise ValueError(f"'{one}' is not NAME=NUMBER, a number of at least 0")
        if sum(other.partition("=")[0] == name for other in given) > 1:
            raise ValueError(f"model '{name}' is given twice")
    return given


def numbers_of(named: Sequence[str]) -> dict[str, float]:
    """Returns the number of each model by name, from valid NAME=NUMBER."""
    return {name: float(number) for name, _, number in (one.partition("=") for one in named)}
