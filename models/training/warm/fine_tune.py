"""Fine-tunes a model derived from a bundle, such as a distilled one, on the bundle's own data."""

from __future__ import annotations

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import DataReader
from polyrec.models.data.split import TRAIN, VALIDATION, fit_splitter
from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.progress import Phase
from polyrec.models.training.objective import unsampling
from polyrec.models.training.recipe import Recipe
from polyrec.models.training.source import Rows
from polyrec.models.training.trainer import Progress, fine_tune
from polyrec.models.training.unseen import lookups_to_hide, recipe_id_dropout


def fine_tune_bundle(
    model: DLRM,
    bundle: Bundle,
    reader: DataReader,
    recipe: Recipe,
    phase: Phase,
    progress: Progress | None = None,
) -> None:
    """Fine-tunes a model derived from `bundle`, on the rows that the bundle was trained on.

    These are the training rows, plus the validation rows if it was refitted. The schedule is fixed, without
    model selection, because a refitted model has seen the validation rows.
    """
    refitted = bundle.manifest.training.get("recipe", {}).get("refit", False)
    which = (TRAIN, VALIDATION) if refitted else (TRAIN,)
    encoder = bundle.encoder
    splitter = fit_splitter(reader, encoder.schema, phase("split", reader.rows_hint))
    with encode(reader, encoder, splitter, which, progress=phase("encode", reader.rows_hint)) as data:
        rows, unseen = Rows(data, data.select(*which)), bundle.manifest.training.get("unseen", {})
        hide = recipe_id_dropout(recipe, encoder, lookups_to_hide(recipe, encoder, rows), unseen)
        kept = encoder.schema.label.negatives_kept
        for head in model.net.heads:
            unsampling(1 / kept).apply(head)
        fine_tune(model, rows, recipe, hide, progress)
        for head in model.net.heads:
            unsampling(kept).apply(head)
