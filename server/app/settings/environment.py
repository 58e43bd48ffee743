"""Reads settings from command-line flags and POLYREC_ environment variables, and writes them as variables.

Flags override variables, and variables override the plan. An unknown POLYREC_ variable is an error, so that a
misspelled one is not silently ignored; variables that Kubernetes sets for a Service are exempt
(server/app/settings/kubernetes.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import SecretStr, ValidationError

from polyrec.models.files import one_line
from polyrec.models.text import printable
from polyrec.server.app.settings.kubernetes import is_service_variable
from polyrec.server.app.settings.settings import SERVED, Settings, SettingsError

PREFIX = "POLYREC_"


def load_settings(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Merges flags (None if not given), POLYREC_ variables and defaults; earlier ones win.

    Raises SettingsError with one line that names the flag or variable.
    """
    known = Settings.model_fields
    values: dict[str, Any] = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or is_service_variable(variable, value):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in known:
            raise SettingsError(_unknown(variable, [PREFIX + key.upper() for key in known]))
        values[name] = value
    given = {name: value for name, value in flags.items() if value is not None}
    # they exclude each other, so a bundle on the command line also replaces a plan in the environment
    if given.keys() & set(SERVED):
        values = {k: v for k, v in values.items() if k not in SERVED}
    try:
        return Settings.model_validate(values | given)
    except ValidationError as e:
        key = str(e.errors()[0]["loc"][0]) if e.errors()[0]["loc"] else ""
        line = one_line(e)
        if key and key not in given:
            line = line.replace(key, PREFIX + key.upper(), 1)
        elif key:
            # the flag for several models is --plan, repeated
            flag = "plan" if key == "plans" else key.replace("_", "-")
            line = "--" + line.replace(key, flag, 1)
        raise SettingsError(line) from None


def variables_of(settings: Settings) -> dict[str, str]:
    """Returns the POLYREC_ variables that give the same settings, secrets included."""
    return {
        PREFIX + name.upper(): _written(value)
        for name in settings.model_fields_set
        if (value := getattr(settings, name)) is not None
    }


def _written(value: object) -> str:
    """Formats a value for its environment variable."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _unknown(variable: str, known: Sequence[str]) -> str:
    """Returns the message for an unknown variable, with the most similar one or a list of all."""
    named = f"unknown environment variable {printable(variable, 80)}"
    similar = get_close_matches(variable.upper(), known, n=1, cutoff=0.8)
    return f"{named}; did you mean {similar[0]}?" if similar else f"{named}; known: {', '.join(known)}"
