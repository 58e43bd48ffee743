"""Files: read as typed models, each mistake one line that names the file, the key and the offence, whatever
the file turns out to be; and written whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from polyrec.models.bounded_yaml import MOST_BYTES as YAML_BYTES
from polyrec.models.bounded_yaml import UnboundedYaml, parse_yaml
from polyrec.models.errors import PolyrecError
from polyrec.models.text import printable


class Strict(BaseModel):
    """Base of every file format of Polyrec: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Model = TypeVar("Model", bound=BaseModel)


MOST_BYTES = 64 * 2**20
"""Of a document that a command reads."""
MOST_SERVED_BYTES = 4 * 2**20
"""Of one that a server may be told to read: its parsing keeps requests waiting."""


def read_json(
    file: Path, what: str, error: type[PolyrecError], most_bytes: int = MOST_BYTES
) -> dict[str, Any]:
    """A JSON object. what: in messages, like "plan 'plan.json'". Raises `error`, or FileNotFoundError."""
    return _read(file, what, error, "JSON", "an object", json.loads, most_bytes)


def read_yaml(file: Path, what: str, error: type[PolyrecError]) -> dict[str, Any]:
    """As `read_json`, of a YAML file, which may be JSON; bounded as models/bounded_yaml.py says."""
    return _read(file, what, error, "YAML", "a mapping", parse_yaml, YAML_BYTES)


def read_regular(file: Path, most_bytes: int) -> bytes:
    """All of a file, which must be a regular one: others may have no end, or make whoever reads them wait.

    Raises OSError, also for one that has more bytes.
    """
    # asked before it is opened: some devices do something when they are
    require_regular(file)
    # and again by the way of reading, as another may stand there by now
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    content = bytearray()
    try:
        while piece := os.read(descriptor, 2**20):
            content += piece
            if len(content) > most_bytes:
                raise OSError(f"it has more than {most_bytes} bytes")
    finally:
        os.close(descriptor)
    return bytes(content)


def require_regular(file: Path) -> os.stat_result:
    """What the system says of a regular file, or of what a link leads to. Raises OSError if it is none."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is not a regular file")
    return found


def _read(
    file: Path,
    what: str,
    error: type[PolyrecError],
    form: str,
    whole: str,
    parse: Callable[[str], Any],
    most_bytes: int,
) -> dict[str, Any]:
    try:
        raw = parse(read_regular(file, most_bytes).decode())
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError, UnboundedYaml) as e:
        raise error(f"cannot read {what}: {e}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as e:
        raise error(f"{what} is not {form}: {' '.join(str(e).split())}") from None
    if not isinstance(raw, dict):
        raise error(f"{what}: the file must be {whole}, not {type(raw).__name__}")
    return raw


def validated(kind: type[Model], raw: object, what: str, error: type[PolyrecError]) -> Model:
    """What was read, as its model. Raises `error`."""
    try:
        return kind.model_validate(raw)
    except ValidationError as e:
        raise error(f"{what}: {one_line(e)}") from None


def one_line(error: ValidationError) -> str:
    """The first offence of a pydantic error as `key: message`, for people."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ").partition(" or instance of ")[0]
    return printable(f"{where}: {message}" if where else message)


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A place beside `target` for a file or a folder, which takes its name at the end; readers see all of it
    or nothing of it. What stood there is replaced. On an error it stays, and what was written goes."""
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    _remove(partial)
    try:
        yield partial
        if target.is_dir():
            old = target.with_name(f".{target.name}.old-{os.getpid()}")
            target.rename(old)
            partial.rename(target)
            shutil.rmtree(old)
        else:
            partial.replace(target)
    finally:
        _remove(partial)


def write_text(target: Path, text: str) -> None:
    """A file of UTF-8, `whole`; a link stays one, and a pipe or a device is just written. Raises OSError."""
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    with whole(target.resolve()) as partial:
        partial.write_text(text, encoding="utf-8")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
