"""Hooks of mkdocs.yml: makes pages that are written for a repository's browser fit a site.

- README, CONTRIBUTING, SECURITY and CHANGELOG become pages, and every page of docs/results is listed.
- A link that leaves docs/ leads to such a page, or becomes the path of the file, which the site lacks.
- A list right after a paragraph gets the empty line that Python-Markdown needs.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files at the top of the repository -> pages of the site."""
CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s:]+?)(#[^)\s]*)?\)")
LIST = re.compile(r"^(?P<text>(?!\s|[-*|>#]|\d+\. ).+\n)(?=(?:[-*] |\d+\. ))", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the pages of docs/results."""
    results = sorted(Path(config.docs_dir, "results").glob("*.md"))
    config.nav.append({"Results": [f"results/{page.name}" for page in results]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are files at the top of the repository."""
    root = Path(config.docs_dir).parent
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(root / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Changes links and lists outside code."""
    source = next((s for s, p in PAGES.items() if p == page.file.src_uri), None)
    # where links of the file start: from the repository's root
    folder = "" if source else posixpath.dirname(f"docs/{page.file.src_uri}")
    parts, last = [], 0
    for code in CODE.finditer(markdown):
        parts += [_prose(markdown[last : code.start()], folder, page), code[0]]
        last = code.end()
    return "".join([*parts, _prose(markdown[last:], folder, page)])


def _prose(text: str, folder: str, page: Page) -> str:
    def link(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        if target.startswith("#"):
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        on_site = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if on_site is None or not on_site.endswith((".md", ".html", ".png", ".svg")):
            return f"{words} (`{path}`)" if path not in words else words
        here = posixpath.dirname(page.file.src_uri)
        return f"[{words}]({posixpath.relpath(on_site, here or '.')}{anchor})"

    return LIST.sub(r"\g<text>\n", LINK.sub(link, text))


def on_post_build(config: Any) -> None:
    """Says where the site is."""
    print(f"site: {config.site_dir}/index.html")
