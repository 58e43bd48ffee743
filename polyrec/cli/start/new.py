"""`polyrec new schema`: drafts a schema from a data file, with the reason for each line."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping

EXAMPLE = "polyrec new schema clicks.parquet --out schema.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    things = parser.add_subparsers(dest="thing", required=True, metavar="THING")
    schema = things.add_parser(
        "schema", help=parser.description, description=parser.description, epilog=f"example: {EXAMPLE}"
    )
    schema.add_argument("data", metavar="DATA", help="Parquet file or folder")
    schema.add_argument("--label", metavar="COLUMN", help="label column, if the guess is wrong")
    schema.add_argument("--group", metavar="COLUMN", help="column that identifies the request of a row")
    schema.add_argument("--name", help="name of the schema and model (default: the file's)")
    schema.add_argument("--out", metavar="FILE", help="schema file to write (default: standard output)")
    schema.add_argument("--replace", action="store_true", help="replace the file at --out")
    schema.add_argument("--json", action="store_true", help="print schema and reasons as JSON")


def run(args: argparse.Namespace) -> int:
    import json
    import sys
    from pathlib import Path

    from polyrec.models.data.guess.schema_guess import guess_schema
    from polyrec.models.errors import PolyrecError
    from polyrec.models.files import require_target_file, write_text

    out = None if args.out is None else Path(args.out)
    if out is not None:
        require_target_file(out, PolyrecError)
        if out.is_file() and not args.replace:
            raise PolyrecError(f"'{out}' exists; --replace replaces it")
    guess = guess_schema(args.data, args.label, args.group, args.name)
    text = guess.as_yaml(args.data)
    if out is not None:
        try:
            write_text(out, text)
        except OSError as e:
            raise PolyrecError(f"cannot write '{out}': {e.strerror}") from None
    if guess.renames:
        print(_how_to_rename(args.data, guess.renames), file=sys.stderr)
    if args.json:
        schema = guess.schema.model_dump(mode="json", exclude_defaults=True)
        why = {"reasons": guess.reasons, "left_out": guess.left_out, "renames": guess.renames}
        print(json.dumps({"schema": schema} | why))
    elif out is None:
        print(text, end="")
    else:
        print(f"wrote {out}; review it, then train:")
        then = ["polyrec", "train", "--data", args.data, "--schema", args.out, "--out", "runs/table"]
        print(f"  {shlex.join(then)}")
    return 0


def _how_to_rename(data: str, renames: Mapping[str, str]) -> str:
    """Lists the columns left out for their names, with a command that renames them in a copy."""
    from polyrec.models.data.guess.read_code import code_to_read
    from polyrec.models.text import python_command, python_literal

    code = f"{code_to_read(data)}; new = {python_literal(dict(renames))}; "
    code += 'p.write_table(t.rename_columns([new.get(c, c) for c in t.column_names]), "renamed.parquet")'
    return (
        f"omitted, as features cannot have such names: {', '.join(map(repr, renames))}; rename in a copy:\n"
        f"  {python_command(code)}"
    )
