"""What a stranger needs to read a report: its title, what was measured, and what the words mean."""

from __future__ import annotations

from polyrec.report.comparison.document import Document

GLOSSARY: tuple[tuple[str, str], ...] = (
    (
        "AUC",
        "the chance that a positive row (a click) is scored above another; 0.5 is guessing, 1 is perfect.",
    ),
    ("log-loss", "the mean negative log-likelihood of the labels, in nats; lower is better."),
    (
        "normalised entropy",
        "log-loss over that of always predicting the mean click rate; below 1 is better than that.",
    ),
    ("accuracy", "the share of rows on the right side of a probability of one half."),
    (
        "MRR, top-1",
        "per request, the mean of 1/rank of the best-ranked positive row, "
        "and how often that rank is the first.",
    ),
    (
        "size",
        "bytes of the model's numbers: what embeds ids (rows, decoders) and the dense net, "
        "without the vocabulary.",
    ),
    (
        "MFLOP a row",
        "millions of floating point operations to score one row, a multiply-add being two; "
        "look-ups move data and count nothing.",
    ),
    (
        "better, worse",
        "the confidence interval of the difference excludes zero. No difference shown: it does not, "
        "which is not a proof that there is none.",
    ),
    ("Pareto front", "models that no other model beats in both the metric and the cost of a picture."),
)


def title(document: Document) -> str:
    """The first line."""
    n = len(document.entries)
    return "Quality and cost of one model" if n == 1 else f"Quality and cost of {n} models on the same rows"


def what(document: Document) -> str:
    """What was measured, in a paragraph."""
    q = document.entries[0].quality
    which = "All rows" if document.split == "all" else f"The {document.split} rows"
    rate = 100 * q.positives / q.rows
    requests = "" if q.groups is None else f" {q.groups:,} requests have a positive row."
    against = ""
    if len(document.entries) > 1:
        against = f" Differences are to the baseline, {document.baseline}."
    return (
        f"{which} of {document.data}: {q.rows:,} rows, {q.positives:,} of them positive ({rate:.2f}%)."
        f"{requests}{against}"
    )


def method(document: Document) -> str:
    """How the figures came about, in a paragraph."""
    unit = "requests" if document.grouped else "rows"
    percent = f"{100 * document.level:g}%"
    return (
        f"Intervals are {percent} percentile intervals of a bootstrap of {document.resamples:,} resamples of "
        f"{unit} (seed {document.seed}), paired: each resample draws the same {unit} for every model. They "
        "speak of these models on other rows of the same kind; another training run of the same recipe adds "
        f"its own spread. Among many comparisons some differences look real by chance: one in "
        f"{round(1 / (1 - document.level))} where there is none. Runtime {document.runtime}, Polyrec "
        f"{document.code_version}, {document.made}."
    )
