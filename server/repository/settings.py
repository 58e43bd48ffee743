"""Validates the settings of several models: NAME=FILE, NAME=NUMBER, and a folder of models.

All functions raise ValueError for invalid input, with a message that says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from polyrec.models.fetching.url import ModelUrl, model_place
from polyrec.server.app.served_model import RESERVED


def valid_name(name: str) -> str:
    """Validates the name of a model."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) or name == RESERVED:
        raise ValueError(
            f"'{name}' is no name of a model: use letters, digits, '.', '_' and '-', 100 at most, "
            f"and not '{RESERVED}'"
        )
    return name


def named_files(files: tuple[str, ...]) -> tuple[str, ...]:
    """Validates NAME=FILE of each model."""
    names: set[str] = set()
    for file in files:
        name, equals, path = file.partition("=")
        if not equals or not path:
            raise ValueError(f"'{file}' is not NAME=FILE")
        valid_name(name)
        model_place(path)
        if name in names:
            raise ValueError(f"model '{name}' is given twice")
        names.add(name)
    return files


def files_of(named: Sequence[str]) -> dict[str, Path | ModelUrl]:
    """Returns the file of each model by name, from valid NAME=FILE."""
    return {name: model_place(path) for name, _, path in (file.partition("=") for file in named)}


class ModelFiles(NamedTuple):
    """The operator's models.

    by_name: the plan or bundle of each model, the default first.
    invalid: why other files of the models folder cannot be served, by file name.
    """

    by_name: dict[str, Path | ModelUrl]
    invalid: dict[str, str]


def models_in(folder: Path) -> ModelFiles:
    """Returns the plans (NAME.json) and bundles (NAME/) in a folder, in the order of names."""
    found = [p for p in folder.glob("[!.]*") if p.suffix == ".json" or p.is_dir()]
    if not found:
        raise ValueError("no model is there, NAME.json or the folder of a bundle")
    files = ModelFiles({}, {})
    for file in sorted(found):
        name = file.name.removesuffix(".json")
        try:
            valid_name(name)
            if name in files.by_name:
                raise ValueError(f"model '{name}' is given twice")
        except ValueError as e:
            files.invalid[file.name] = str(e)
        else:
            files.by_name[name] = file
    return files


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
