"""The report as one HTML file that needs nothing else: pictures inside, light and dark, no script."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape

from polyrec.report.comparison.document import Document
from polyrec.report.comparison.explanations import GLOSSARY, method, title, what
from polyrec.report.comparison.plots import PLOTS, Plot, front
from polyrec.report.comparison.words import columns, findings, listed

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --text: #1f2328; --faint: #5f6771; --line: #d8dde3;
  --better: #116329; --worse: #a40e26; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --page: #14171c; --text: #e6e8eb; --faint: #9aa4b2;
  --line: #333a44; --better: #56d364; --worse: #ff7b72; --card: #1b2027; } }
body { background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 76rem; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
p, li, dd { max-width: 46rem; } .faint, figcaption, dd { color: var(--faint); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums;
  font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .45rem .55rem; text-align: right;
  vertical-align: top; }
th { color: var(--faint); font-weight: 600; vertical-align: bottom; } td { white-space: nowrap; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--page); text-align: left;
  font-weight: 600; }
td.words, th.words { text-align: left; } td small { color: var(--faint);
  display: block; }
.better { color: var(--better); } .worse { color: var(--worse); }
figure { margin: 0; } .figures { display: grid; gap: 1.75rem 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(32rem, 100%), 1fr)); }
img { border: 1px solid var(--line); border-radius: 6px; display: block; height: auto; width: 100%; }
figcaption { font-size: .9rem; margin-top: .4rem; } dt { font-weight: 600; } dd { margin: 0 0 .5rem; }
code { background: var(--card); border-radius: 4px; font-size: .88em; padding: .1em .3em; }
"""


def page(document: Document, light: Mapping[Plot, bytes], dark: Mapping[Plot, bytes]) -> str:
    """The text of `report.html`. light, dark: each plot's PNG in both themes."""
    several = len(document.entries) > 1
    body = [f"<h1>{escape(title(document))}</h1>", f"<p>{escape(what(document))}</p>"]
    if several:
        items = "".join(f"<li>{escape(line)}</li>" for line in findings(document))
        body += ["<h2>What is real</h2>", f"<ul>{items}</ul>"]
    body += ["<h2>Figures</h2>", _table(document)]
    figures = "".join(_figure(document, plot, light[plot], dark[plot]) for plot in PLOTS)
    body += ["<h2>Quality against cost</h2>", f'<div class="figures">{figures}</div>']
    terms = "".join(f"<dt>{escape(word)}</dt><dd>{escape(means)}</dd>" for word, means in GLOSSARY)
    body += ["<h2>How to read this</h2>", f"<dl>{terms}</dl>"]
    body += ["<h2>How it was made</h2>", f"<p>{escape(method(document))}</p>", _bundles(document)]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title(document))}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _table(document: Document) -> str:
    table = columns(document)
    heads = "".join(f"<th{_class(c.wordy)}>{escape(c.head)}</th>" for c in table)
    rows = "".join(
        "<tr>" + "".join(_cell(cell, c.wordy) for cell, c in zip(cells, table, strict=True)) + "</tr>"
        for cells in zip(*(c.cells for c in table), strict=True)
    )
    return _scrolling(heads, rows)


def _scrolling(heads: str, rows: str) -> str:
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _class(wordy: bool) -> str:
    return ' class="words"' if wordy else ""


def _cell(text: str, wordy: bool) -> str:
    if not wordy:
        return f"<td>{escape(text)}</td>"
    said, _, detail = text.partition(" (")
    kind = said.split()[0]
    mark = f' class="{kind}"' if kind in ("better", "worse") else ""
    small = f"<small>{escape(detail.removesuffix(')'))}</small>" if detail else ""
    return f'<td class="words"><span{mark}>{escape(said)}</span>{small}</td>'


def _figure(document: Document, plot: Plot, light: bytes, dark: bytes) -> str:
    on = front(document, plot) if len(document.entries) > 1 else []
    caption = f"{plot.title}." + (f" On the Pareto front: {listed(on)}." if on else "")
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{_data(dark)}">'
        f'<img alt="{escape(plot.title)}" src="{_data(light)}"></picture>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _bundles(document: Document) -> str:
    rows = "".join(
        f'<tr><td>{escape(e.label)}</td><td class="words"><code>{escape(e.path)}</code></td>'
        f'<td class="words">{escape(e.representation)}</td>'
        f'<td class="words"><code>{escape(e.version)}</code></td></tr>'
        for e in document.entries
    )
    heads = "<th>model</th>"
    heads += "".join(f'<th class="words">{h}</th>' for h in ("bundle", "representation", "version"))
    return _scrolling(heads, rows)
