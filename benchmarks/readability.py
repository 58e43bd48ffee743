"""Counts what makes the repository easy or hard to read: sizes, duplicate names, import cycles, words.

    python -m benchmarks.readability                # the working tree
    python -m benchmarks.readability bd14473        # a revision

tests/test_repository_layout.py checks the limits; this prints the figures, for comparison between revisions.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.command import ROOT, command_parser

FOLDERS = (
    "models",
    "planner",
    "server",
    "cluster",
    "loadtest",
    "measure",
    "report",
    "polyrec",
    "benchmarks",
    "tests",
)
MAX_SUBJECT = 72


def modules(root: Path) -> dict[str, Path]:
    """Returns every Python file of the top-level folders by its path; does not follow symbolic links."""
    found = {}
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            path = file.relative_to(root)
            if not any((root / parent).is_symlink() for parent in path.parents):
                found[str(path)] = file
    return found


def folder_sizes(files: Mapping[str, Path]) -> Counter[str]:
    """Returns the number of modules in each folder, without `__init__` and `__main__`."""
    return Counter(str(Path(path).parent) for path in files if not Path(path).name.startswith("__"))


def duplicate_classes(files: Mapping[str, Path]) -> dict[str, list[str]]:
    """Returns public classes of equal name in a folder at the top, without tests: `folder:Name` -> paths."""
    places: dict[str, list[str]] = {}
    for path, file in files.items():
        folder = path.split("/")[0]
        if folder != "tests":
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(f"{folder}:{node.name}", []).append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def import_cycles(files: Mapping[str, Path]) -> list[list[str]]:
    """Returns groups of modules that import one another at load time."""
    names = {path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path for path in files}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        graph[name] = set()
        for node in ast.parse(files[path].read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                module = node.module.removeprefix("polyrec.") if node.module not in names else node.module
                targets = [module, *(f"{module}.{alias.name}" for alias in node.names)]
                graph[name] |= {t for t in targets if t in names and t != name}
    return [sorted(group) for group in _components(graph) if len(group) > 1]


def _components(graph: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Yields strongly connected components (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = set()
            while node not in group:
                group.add(stack.pop())
            groups.append(group)

    for node in graph:
        if node not in index:
            visit(node)
    yield from groups


def unmirrored_tests(files: Mapping[str, Path]) -> list[str]:
    """Returns test files whose folder below tests/ has no counterpart in the source."""
    folders = {str(Path(path).parent) for path in files if not path.startswith("tests/")}
    lost = []
    for path in files:
        if path.startswith("tests/") and Path(path).name.startswith("test_"):
            mirrored = str(Path(path).parent)[len("tests/") :]
            if mirrored and mirrored != "deploy" and mirrored not in folders:
                lost.append(path)
    return lost


def relative_docstrings(files: Mapping[str, Path]) -> list[str]:
    """Docstrings, also of constants, that begin like a relative clause ("What it gives") instead of saying
    what the thing does or is: `path:line: first words`.
    """
    found = []
    for path, file in files.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text = node.value.value
                if isinstance(text, str) and text.split(None, 1)[:1] in (["Of"], ["What"], ["Who"]):
                    found.append(f"{path}:{node.lineno}: {text.strip()[:60]}")
    return found


def words(root: Path) -> dict[str, int]:
    """Returns the number of words of README and of every page of docs/, except results."""
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    return {str(page.relative_to(root)): len(page.read_text().split()) for page in pages}


def long_subjects(revision: str) -> tuple[int, int]:
    """Returns numbers of commits up to the revision: with a subject over MAX_SUBJECT characters, and all."""
    log = subprocess.run(
        ["git", "log", "--format=%s", revision], cwd=ROOT, capture_output=True, text=True, check=True
    )
    subjects = log.stdout.splitlines()
    return sum(len(subject) > MAX_SUBJECT for subject in subjects), len(subjects)


@contextmanager
def tree_of(revision: str | None) -> Iterator[Path]:
    """Yields the working tree, or a temporary copy of a revision."""
    if revision is None:
        yield ROOT
        return
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
        yield Path(folder)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("revision", nargs="?", help="default: the working tree")
    revision = parser.parse_args().revision
    with tree_of(revision) as root:
        files = modules(root)
        print("| folder | files | lines |\n|---|---|---|")
        for folder in FOLDERS:
            inside = [file for path, file in files.items() if path.startswith(f"{folder}/")]
            print(f"| {folder} | {len(inside)} | {sum(len(f.read_text().splitlines()) for f in inside):,} |")
        large = {folder: n for folder, n in folder_sizes(files).most_common() if n > 15}
        print(f"\nfolders with more than 15 modules: {large or 'none'}")
        double = duplicate_classes(files)
        print(f"public class names twice in a folder: {len(double)} {sorted(double)}")
        print(f"import cycles: {import_cycles(files) or 'none'}")
        print(f"test files without a mirrored folder: {len(unmirrored_tests(files))}")
        counted = words(root)
        over = {page: n for page, n in counted.items() if n > 1200}
        print(f"words: README {counted['README.md']:,}, docs {sum(counted.values()):,}; over 1,200: {over}")
    over_long, commits = long_subjects(revision or "HEAD")
    print(f"commits with a subject over {MAX_SUBJECT} characters: {over_long} of {commits}")


if __name__ == "__main__":
    main()
