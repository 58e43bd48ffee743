"""The documentation tells the truth about what can be checked: links, targets, commands, dependencies."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from polyrec.cli.main import build_parser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROOMS = "models|planner|server|cluster|loadtest|measure|report|polyrec|deploy|benchmarks"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


def prose(page: Path) -> str:
    """A page without its code blocks, where brackets mean other things."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Returns the name of a heading in a link: lower case, punctuation gone, hyphens for spaces."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> Iterator[str]:
    """The lines of the page's bash blocks that call polyrec, continuations joined, prompts gone."""
    for language, block in FENCE.findall(page.read_text()):
        if language == "bash":
            for line in block.replace("\\\n", " ").splitlines():
                command = line.strip().removeprefix("$ ")
                if re.match(r"(\S*/)?polyrec\b", command):
                    yield command


def arguments(line: str) -> list[str]:
    """The words after the command's name, up to a pipe, redirection or comment."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;<>()"):
            break
        words.append(word)
    return words[1:]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_resolves(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name(page)} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{name(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    code = "".join(block for _, block in FENCE.findall(text))
    code += "\n".join(line.strip() for line in text.splitlines() if line.startswith("    "))
    named = re.findall(r"`make ([a-z][a-z -]*)", text) + re.findall(r"^make ([a-z][a-z -]*)", code, re.M)
    for target in " ".join(named).split():
        assert target in targets, f"{name(page)} names make {target}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_polyrec_command_is_one_that_the_parser_takes(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = build_parser()
    for line in commands(page):
        try:
            parser.parse_args(arguments(line))
        except SystemExit as e:
            if e.code:
                pytest.fail(f"{name(page)}: {line}\n{capsys.readouterr().err}", pytrace=False)


def test_every_runtime_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "dependencies.md").read_text()
    explained = set(re.findall(r"^\| ([a-z\d-]+)", page, re.MULTILINE))
    assert {Requirement(line).name for line in project["dependencies"]} <= explained


def test_every_test_that_the_findings_name_exists() -> None:
    text = (ROOT / "docs" / "findings.md").read_text()
    named = re.findall(r"((?:[a-z_]+/)+test_\w+\.py)(?:::(test_\w+))?", text.replace("`tests/", "`"))
    assert len(named) > 30
    for file, test in named:
        source = (ROOT / "tests" / file).read_text()
        assert not test or f"def {test}(" in source, f"{file} has no {test}"


def test_every_script_and_test_that_a_source_or_page_names_exists() -> None:
    folders = [*ROOMS.split("|"), "tests"]
    sources = [file for folder in folders for file in (ROOT / folder).rglob("*.[ps][yh]")]
    # the findings leave out `tests/`, and have a test of their own
    pages = [page for page in PAGES if page.name != "findings.md"]
    missing = []
    for file in [*sources, *pages, ROOT / "Makefile", ROOT / ".ci" / "run"]:
        text = file.read_text()
        named = re.findall(rf"(?<![\w./-])((?:{ROOMS}|tests)/[a-z\d_/]+\.(?:py|sh))\b", text)
        for module in re.findall(r"-m (benchmarks(?:\.\w+)+)", text):
            place = module.replace(".", "/")
            named.append(f"{place}/__main__.py" if (ROOT / place).is_dir() else f"{place}.py")
        missing += [f"{name(file)} names {one}" for one in named if not (ROOT / one).exists()]
    assert missing == []


def test_every_part_of_a_path_that_a_page_quotes_exists() -> None:
    files = [
        f"/{name(file)}" for folder in [*ROOMS.split("|"), "tests"] for file in (ROOT / folder).rglob("*.py")
    ]
    missing = [
        f"{name(page)} names {quoted}"
        for page in PAGES
        if page.name != "findings.md"
        for quoted in re.findall(r"`([a-z_\d]+(?:/[a-z_\d]+)+\.py)`", page.read_text())
        if not any(file.endswith(f"/{quoted}") for file in files)
    ]
    assert missing == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/glossary.md"])
def test_every_place_that_the_map_names_exists(page: str) -> None:
    named = re.findall(rf"(?<![\w/])((?:{ROOMS})/[\w/{{}},.*]*)", (ROOT / page).read_text())
    assert len(named) > 15
    for place in named:
        braces = re.search(r"\{([^}]*)\}", place)
        each = (
            [place]
            if braces is None
            else [place[: braces.start()] + one + place[braces.end() :] for one in braces.group(1).split(",")]
        )
        for one in each:
            assert list(ROOT.glob(one.rstrip(".,"))), f"{page} names {one}"
