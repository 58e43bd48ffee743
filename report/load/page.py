"""The page of a load test: a verdict, tables and charts in one HTML file; no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from polyrec.report.load.chart import Chart
from polyrec.report.load.svg import legend, svg

# Okabe and Ito's colours, which people with any colour vision tell apart, lightened for dark pages.
LIGHT = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#8a6d00",
    "#56b4e9",
    "#5b5bd6",
    "#7d8590",
    "#222222",
    "#b00020",
)
DARK = (
    "#4aa8e8",
    "#ff8a3d",
    "#2dc79b",
    "#e79cc6",
    "#e0c04a",
    "#8fd0f7",
    "#a3a3ff",
    "#9aa4b2",
    "#e6e8eb",
    "#ff7b72",
)
COLOURS = len(LIGHT)


def _variables(colours: Sequence[str]) -> str:
    return " ".join(f"--c{i}: {colour};" for i, colour in enumerate(colours))


STYLE = f"""
:root {{ color-scheme: light dark; --page: #ffffff; --text: #1f2328; --faint: #5f6771; --grid: #e6e9ed;
  --card: #f6f8fa; --good: #116329; --bad: #a40e26; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #14171c; --text: #e6e8eb; --faint: #9aa4b2;
  --grid: #2a3038; --card: #1b2027; --good: #56d364; --bad: #ff7b72; {_variables(DARK)} }} }}
"""
STYLE += """
body { background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 84rem; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; } h2 { font-size: 1.2rem;
  margin: 2.25rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0; } p { max-width: 52rem; margin: .4rem 0; } .faint { color: var(--faint); }
.good { color: var(--good); } .bad { color: var(--bad); }
.tiles { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr));
  margin: 1.25rem 0; }
.tiles div { background: var(--card); border-radius: 8px; padding: .7rem .9rem; }
.tiles b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; line-height: 1.3; }
.tiles span { color: var(--faint); font-size: .85rem; }
.charts { display: grid; gap: 2rem 1.75rem;
  grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); }
figure { margin: 0; } figcaption { color: var(--faint); font-size: .9rem; margin: .1rem 0 .4rem;
  min-height: 2.6em; }
svg { display: block; height: auto; width: 100%; } .grid { stroke: var(--grid); }
  .axis { stroke: var(--faint); fill: none; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
  .layer { opacity: .85; }
.mark { stroke: var(--faint); stroke-dasharray: 2 4; } .limit { stroke: var(--bad); stroke-dasharray: 6 4; }
text { font: 12px system-ui, sans-serif; fill: var(--faint); } .limit-name { fill: var(--bad); }
  .mark-name { fill: var(--text); } .limit-name, .mark-name { paint-order: stroke; stroke: var(--page);
  stroke-width: 3px; }
  .name { fill: var(--text); }
/* a chart shrinks to a phone's width, its words must not; what they name is in the caption as well */
@media (max-width: 40rem) { svg text { font-size: 20px; } .y-name { display: none; } figcaption {
  min-height: 0; } }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; margin: .35rem 0 0;
  padding: 0; font-size: .85rem; }
.legend i { border-radius: 2px; display: inline-block; height: .7em; margin-right: .4em; width: 1.1em; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--grid); padding: .4rem .6rem; text-align: right;
  white-space: nowrap; }
th { color: var(--faint); font-weight: 600; max-width: 9rem; vertical-align: bottom; white-space: normal; }
  th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; font-size: .9rem; }
  dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure that is seen first. good: None where it is neither good nor bad."""

    value: str
    words: str
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A heading, the names of columns, and rows of as many cells."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """title, then a verdict in one sentence; the tiles, the charts, the tables, and how it was made."""

    title: str
    verdict: str
    kept: bool | None
    tiles: tuple[Tile, ...]
    charts: tuple[tuple[str, tuple[Chart, ...]], ...]
    tables: tuple[Table, ...]
    made: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


def html(page: Page) -> str:
    """The text of the file."""
    tone = "" if page.kept is None else f' class="{_tone(page.kept)}"'
    body = [f"<h1>{escape(page.title)}</h1>", f"<p{tone}><strong>{escape(page.verdict)}</strong></p>"]
    if page.tiles:
        body.append(f'<div class="tiles">{"".join(map(_tile, page.tiles))}</div>')
    for table in page.tables[:1]:
        body.append(_table(table))
    for heading, charts in page.charts:
        body.append(f"<h2>{escape(heading)}</h2>")
        body.append(f'<div class="charts">{"".join(map(_figure, charts))}</div>')
    for table in page.tables[1:]:
        body.append(_table(table))
    body.append("<h2>How it was made</h2>")
    made = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in page.made)
    body.append(f"<dl>{made}</dl>")
    body += [f'<p class="faint">{escape(note)}</p>' for note in page.notes]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(page.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _tone(good: bool) -> str:
    return "good" if good else "bad"


def _tile(tile: Tile) -> str:
    tone = "" if tile.good is None else f' class="{_tone(tile.good)}"'
    return f"<div><b{tone}>{escape(tile.value)}</b><span>{escape(tile.words)}</span></div>"


def _figure(chart: Chart) -> str:
    return (
        f"<figure><h3>{escape(chart.title)}</h3><figcaption>{escape(chart.says)}</figcaption>"
        f"{svg(chart)}{legend(chart)}</figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.head)
    rows = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in table.rows)
    note = f'<p class="faint">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h2>{escape(table.title)}</h2>{note}<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
