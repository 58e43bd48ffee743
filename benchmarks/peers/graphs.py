"""Writes a model for peers: rows in the order of ids, and the dense net as ONNX files.

    rows.npy         float32 [all rows, width], one table after the other; row `first` + id
    tables.npy       int64 [2, tables]: `first` row of each table, and its rows
    dense.onnx       dense_candidate [rows, features], candidate [rows, tables, width] -> probability
    dense.int8.onnx  the same with products in int8, as Polyrec serves it

The graph is Polyrec's own for a model without contexts, so that peers execute the same operations as Polyrec.
Rows are written once; graphs are written every time, because they change with the code.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.dlrm import DenseNet
from polyrec.models.embeddings.stage import PerBlock
from polyrec.models.files import atomic_path
from polyrec.models.runtimes.onnx_graph import plain_graph
from polyrec.models.schema.batch import F32, I64


def peer_files(bundle: Bundle, folder: Path) -> Path:
    """Returns the folder of a bundle's files for peers."""
    path = folder / f"{bundle.path.name}-{bundle.manifest.version}-peers"
    tables = _tables(bundle)
    if not path.exists():
        with atomic_path(path) as partial:
            partial.mkdir()
            np.save(partial / "tables.npy", tables)
            _write_rows(bundle, tables, partial / "rows.npy")
    net = without_contexts(bundle)
    onnx.save(plain_graph(net), path / "dense.onnx")
    onnx.save(plain_graph(net, "int8"), path / "dense.int8.onnx")
    return path


def _tables(bundle: Bundle) -> I64:
    vocabularies = bundle.encoder.vocabularies
    rows = [vocabularies[table].rows for table in bundle.manifest.schema_.tables]
    return np.array([np.cumsum([0, *rows[:-1]]), rows])


def _write_rows(bundle: Bundle, tables: I64, file: Path) -> None:
    """Writes rows in the order of ids, table by table."""
    stored = bundle.rows["store.weight"].numpy()[:, : bundle.shape.width]
    shape = (int(tables[1].sum()), bundle.shape.width)
    out: F32 = np.lib.format.open_memmap(file, "w+", np.float32, shape)
    names = bundle.manifest.schema_.tables
    for name, first, rows in zip(names, *tables.tolist(), strict=True):
        out[first : first + rows] = stored[first + bundle.encoder.vocabularies[name].rank_of_id]


def without_contexts(bundle: Bundle) -> DenseNet:
    """Returns the dense net of a bundle with all features in the candidate's role.

    The context's features must come first in the schema, so that the order of vectors is unchanged.
    """
    net = bundle.net()
    plain = DenseNet(bundle.shape, PerBlock(0, sum(net.dense)), PerBlock(0, sum(net.slots)))
    plain.load_state_dict(net.state_dict())
    return plain.eval()
