"""Reads files as typed models, with one-line errors, and writes files atomically."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from polyrec.models.bounded_yaml import MAX_BYTES as YAML_BYTES
from polyrec.models.bounded_yaml import UnboundedYaml, parse_yaml
from polyrec.models.errors import PolyrecError
from polyrec.models.text import printable


class Strict(BaseModel):
    """Base class of every file format of Polyrec: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Model = TypeVar("Model", bound=BaseModel)


LONGEST_NAME = 64
"""Characters of an item's name that a message quotes."""
MAX_BYTES = 64 * 2**20
"""Maximum size of a document that a command reads."""
MAX_SERVED_BYTES = 4 * 2**20
"""Maximum size of a document that a server reads: requests wait while it is parsed."""


def read_json(file: Path, what: str, error: type[PolyrecError], max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Reads a JSON object.

    what: names the file in messages, like "plan 'plan.json'". Raises `error`, or FileNotFoundError.
    """
    return _read(file, what, error, "JSON", "an object", json.loads, max_bytes)


def parse_json(content: bytes, what: str, error: type[PolyrecError]) -> dict[str, Any]:
    """Parses a JSON object that was read otherwise, like `read_json`. Raises `error`."""
    return _parse(content, what, error, "JSON", "an object", json.loads)


def read_yaml(file: Path, what: str, error: type[PolyrecError]) -> dict[str, Any]:
    """Reads a YAML or JSON mapping like `read_json`, within the limits of models/bounded_yaml.py."""
    return _read(file, what, error, "YAML", "a mapping", parse_yaml, YAML_BYTES)


def read_described(kind: type[Model], file: str | Path, what: str, error: type[PolyrecError]) -> Model:
    """Reads and validates a YAML or JSON file that a user wrote. Raises `error`, also if it does not exist.

    what: names the kind of file in messages, like "fleet file".
    """
    named = f"{what} '{file}'"
    try:
        raw = read_yaml(Path(file), named, error)
    except FileNotFoundError:
        raise error(f"no {named}") from None
    return validate_as(kind, raw, named, error)


def read_shipped(
    kind: type[Model],
    name: str | Path,
    what: str,
    folder: Path,
    error: type[PolyrecError],
    prepare: Callable[[dict[str, Any], Path], dict[str, Any]] = lambda raw, _file: raw,
) -> Model:
    """Reads and validates a YAML or JSON file; a bare name selects one in `folder`, which ships with Polyrec.

    what: names the kind of file in messages, like "schema".
    prepare: changes the parsed data before validation, given the file; its errors get the name of the file.
    Raises `error`.
    """
    file = Path(name)
    if not file.suffix and file.parent == Path() and not file.exists():
        file = folder / f"{file.name}.yaml"
    named = f"{what} '{name}'"
    try:
        raw = read_yaml(file, named, error)
    except FileNotFoundError:
        shipped = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
        raise error(f"no {what} file '{name}'; shipped {what}s: {shipped}") from None
    try:
        prepared = prepare(raw, file)
    except error as e:
        raise error(f"{named}: {e}") from None
    return validate_as(kind, prepared, named, error)


def read_regular(file: Path, max_bytes: int) -> bytes:
    """Reads a whole regular file; pipes and devices are refused, as they may be endless or block.

    Raises OSError, also if the file has more than `max_bytes`.
    """
    # check before opening, because opening some devices has side effects
    require_regular(file)
    # the flags guard against a file replaced since the check
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    content = bytearray()
    try:
        while piece := os.read(descriptor, 2**20):
            content += piece
            if len(content) > max_bytes:
                raise OSError(f"it has more than {max_bytes} bytes")
    finally:
        os.close(descriptor)
    return bytes(content)


def require_regular(file: Path) -> os.stat_result:
    """Returns the status of a regular file, following links. Raises OSError if it is not one."""
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
    max_bytes: int,
) -> dict[str, Any]:
    try:
        content = read_regular(file, max_bytes)
    except FileNotFoundError:
        raise
    except OSError as e:
        raise error(f"cannot read {what}: {e}") from None
    return _parse(content, what, error, form, whole, parse)


def _parse(
    content: bytes,
    what: str,
    error: type[PolyrecError],
    form: str,
    whole: str,
    parse: Callable[[str], Any],
) -> dict[str, Any]:
    try:
        raw = parse(content.decode())
    except UnboundedYaml as e:
        raise error(f"cannot read {what}: {e}") from None
    except UnicodeDecodeError:
        raise error(f"{what} is not {form}: it is not text in UTF-8") from None
    except (ValueError, yaml.YAMLError, RecursionError) as e:
        raise error(f"{what} is not {form}: {' '.join(str(e).split())}") from None
    if not isinstance(raw, dict):
        raise error(f"{what}: the file must be {whole}, not {type(raw).__name__}")
    return raw


def refuse_newer(raw: dict[str, Any], newest: int, what: str, error: type[PolyrecError], remedy: str) -> None:
    """Raises `error` if a file's version is above the newest one that this code reads. remedy: what to do."""
    if isinstance(version := raw.get("version"), int) and version > newest:
        raise error(
            f"{what}: version {version} is of a newer Polyrec, this one reads 1 to {newest}; {remedy}"
        )


def validate_as(
    kind: type[Model], raw: object, what: str, error: type[PolyrecError], secret: bool = False
) -> Model:
    """Validates parsed data as a model. Raises `error` with one line.

    secret: quotes nothing of the data, whose names may be secrets put in the wrong place.
    """
    try:
        return kind.model_validate(raw)
    except ValidationError as e:
        raise error(f"{what}: {one_line(e, kind, None if secret else raw)}") from None


def one_line(error: ValidationError, kind: type[BaseModel] | None = None, raw: object = None) -> str:
    """Returns the first problem of a pydantic error as `key: message`.

    kind, raw: the model and the parsed data, if known: an item of a list is then called by its name, as in
    `dense['price'].role`, and an unknown key has the known ones beside it.
    """
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = _place(first["loc"], raw)
    if first["type"] == "extra_forbidden":
        known = _keys(kind, first["loc"][:-1])
        return printable(f"{where}: unknown key" + (f"; known: {', '.join(known)}" if known else ""))
    message = first["msg"].removeprefix("Value error, ").partition(" or instance of ")[0]
    message = message.replace("a valid tuple", "a list")  # what JSON and YAML call it
    return printable(f"{where}: {message}" if where else message)


def _place(location: tuple[int | str, ...], raw: object) -> str:
    """Returns a location in parsed data, with names for the indexes of items that have a name."""
    place = ""
    for part in location:
        found: object = None
        if isinstance(raw, list | tuple) and isinstance(part, int) and part < len(raw):
            found = raw[part]
        elif isinstance(raw, Mapping):
            found = raw.get(part)
        name = found.get("name") if isinstance(part, int) and isinstance(found, Mapping) else None
        place += f"[{name[:LONGEST_NAME]!r}]" if isinstance(name, str) else f".{part}" if place else str(part)
        raw = found
    return place


def _keys(kind: type[BaseModel] | None, location: tuple[int | str, ...]) -> list[str]:
    """Returns the keys of the model at a location within `kind`; none if it cannot be told, as in a union."""
    found: object = kind
    for part in location:
        if isinstance(found, type) and issubclass(found, BaseModel):
            fields = {f.alias or name: f.annotation for name, f in found.model_fields.items()}
            found = fields.get(str(part))
        else:
            found = next(iter(get_args(found)[-1:] if isinstance(part, str) else get_args(found)), None)
        options = [option for option in get_args(found) if option is not type(None)]
        if isinstance(found, UnionType) or get_origin(found) is Union:
            found = options[0] if len(options) == 1 else None
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        return []
    return [f.alias or name for name, f in found.model_fields.items()]


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yields a temporary path beside `target` that is renamed to `target` at the end of the block.

    Works for files and folders. Readers see the old or the new content, never a part, also after a loss of
    power. While a folder replaces another, for a moment there is none, which loading a bundle reports as
    missing. After an exception in the block, the old content stays and the temporary path is removed. A file
    never replaces a folder (IsADirectoryError), and nothing replaces a pipe or a device (FileExistsError).
    """
    if target.exists() and not target.is_file() and not target.is_dir():
        raise FileExistsError(errno.EEXIST, "is a pipe or a device", str(target))
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    _remove(partial)
    try:
        yield partial
        for written in (*partial.rglob("*"), partial):
            sync(written)  # a file system may rename before it writes, and then leave an empty file
        if target.is_dir():
            if not partial.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
            old = target.with_name(f".{target.name}.old-{os.getpid()}")
            target.rename(old)
            partial.rename(target)
            shutil.rmtree(old)
        else:
            partial.replace(target)
    finally:
        _remove(partial)


def create_whole(file: Path, content: bytes) -> None:
    """Creates a file readable only by its owner, atomically and on disk; an existing file stays."""
    partial = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(content)
        sync(partial)
        with suppress(FileExistsError):
            os.link(partial, file)
            sync(file.parent)
    finally:
        partial.unlink(missing_ok=True)


def require_target_file(path: str | Path, error: type[PolyrecError], flag: str = "--out") -> None:
    """Checks that a file can be written, and creates its folder; called ahead of long work.

    Raises `error`, which names the flag of the path.
    """
    target = Path(path)
    if target.is_dir():
        raise error(f"{flag} '{path}' is a folder; name a file")
    folder = target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            return  # a pipe or a device, which is written directly
        folder = target.resolve().parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        raise error(f"cannot write {flag} '{path}' in '{folder}': {e.strerror}") from None


def write_text(target: Path, text: str) -> None:
    """Writes a UTF-8 file atomically, following links; pipes and devices are written directly.

    Raises OSError.
    """
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    with atomic_path(target.resolve()) as partial:
        partial.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Waits until a file, or the entries of a folder, are on disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
