"""Writing a report: a comparison in, a folder out.

report.html   the page: self-contained, light and dark
report.md     the same in text
report.json   every number
*.png         the pictures
"""

from __future__ import annotations

import json
from pathlib import Path

from polyrec.models.errors import PolyrecError
from polyrec.report.comparison.document import Document


def require_drawing() -> None:
    """Raises PolyrecError where matplotlib is not installed: said before hours of work, not after."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PolyrecError(
            "a report is drawn with matplotlib, which is not installed: pip install 'polyrec[report]'"
        ) from None


def make_folder(path: str | Path) -> Path:
    """The folder to write to, made if it is not there. Raises PolyrecError."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise PolyrecError(f"cannot make the folder '{path}': {e.strerror}") from None
    return folder


def write_report(document: Document, folder: Path) -> None:
    """Writes the report's files, replacing those of an earlier report. Raises PolyrecError."""
    from polyrec.report.comparison.axes import DARK, LIGHT
    from polyrec.report.comparison.markdown import markdown
    from polyrec.report.comparison.page import page
    from polyrec.report.comparison.plots import PLOTS, draw

    light = {plot: draw(document, plot, LIGHT) for plot in PLOTS}
    dark = {plot: draw(document, plot, DARK) for plot in PLOTS}
    try:
        for plot, png in light.items():
            (folder / plot.file).write_bytes(png)
        (folder / "report.json").write_text(json.dumps(document.as_dict(), indent=2) + "\n")
        (folder / "report.md").write_text(markdown(document), encoding="utf-8")
        (folder / "report.html").write_text(page(document, light, dark), encoding="utf-8")
    except OSError as e:
        raise PolyrecError(f"cannot write the report to '{folder}': {e.strerror}") from None
