from __future__ import annotations

import argparse
import io

import pytest

from polyrec.loadtest.parser import BOLD, CYAN, Parser, colored, did_you_mean


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="program")
    verb = parser.add_subparsers(dest="verb", parser_class=Parser).add_parser("train", help="train it")
    verb.add_argument("--data", required=True, help="the data")
    verb.add_argument("--seed", type=int)
    verb.add_argument("--split", choices=["train", "test"])
    verb.add_argument("rest", nargs="*")
    return parser


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trainn"], "program: error: argument verb: there is no 'trainn'; did you mean train?"),
        (["x"], "there is no 'x'; it is one of train"),
        (
            ["train", "--sede", "3"],
            "program train: error: unrecognized argument: --sede; did you mean --seed?",
        ),
        (["train", "--dta=x"], "unrecognized argument: --dta; did you mean --data?"),
        (["train", "--zzzz"], "unrecognized argument: --zzzz; program train --help"),
        (["train"], "the following arguments are required: --data"),
        (["train", "--data", "d", "--split", "tset"], "there is no 'tset'; did you mean test?"),
        (["train", "--data", "d", "-q"], "program train: error: unrecognized arguments: -q"),
    ],
)
def test_messages_suggest_the_intended_name(
    parser: Parser, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        parser.parse_args(arguments)
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "seed", "rest"),
    [
        (["--data", "d", "--see", "3"], 3, []),
        (["--data=--odd name", "--seed=4", "a", "b"], 4, ["a", "b"]),
        (["--data", "d", "--", "--sede"], None, ["--sede"]),
    ],
)
def test_what_argparse_takes_is_taken(
    parser: Parser, arguments: list[str], seed: int | None, rest: list[str]
) -> None:
    args = parser.parse_args(["train", *arguments])
    assert (args.seed, args.rest) == (seed, rest)


def test_colors_are_for_terminals_only(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        parser.print_help(stream)
    assert BOLD + "options:" in terminal.getvalue()
    assert CYAN + "--help" in terminal.getvalue()
    assert "\x1b" not in file.getvalue() == parser.format_help()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colored(terminal)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not colored(terminal)


def test_usage_spells_out_what_is_required_and_few_options(parser: Parser) -> None:
    assert parser.format_usage() == "usage: program [-h] {train} ...\n"
    many = Parser(prog="many")
    many.add_argument("file")
    many.add_argument("--out", required=True)
    either = many.add_mutually_exclusive_group(required=True)
    either.add_argument("--rate", type=float)
    either.add_argument("--traffic")
    for i in range(9):
        many.add_argument(f"--option-{i}")
    assert many.format_usage() == "usage: many --out OUT (--rate RATE | --traffic TRAFFIC) file [options]\n"


def test_only_similar_names_are_suggested() -> None:
    assert did_you_mean("servr", ["serve", "train"]) == "; did you mean serve?"
    assert did_you_mean("xyz", ["serve", "train"]) == ""


def test_plain_argparse_parsers_are_not_changed() -> None:
    assert argparse.ArgumentParser(prog="p").parse_known_args(["--x"])[1] == ["--x"]
