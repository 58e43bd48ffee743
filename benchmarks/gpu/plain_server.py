"""Serves a model with plain FastAPI and torch on a device: parses, gathers once, computes the net, answers.

    python -m benchmarks.gpu.plain_server BUNDLE DEVICE PORT

Shows what a few dozen lines reach without queue, merging or graphs. To give the bundle's answers, the handler
uses the net of Polyrec's own export.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Request, Response

from benchmarks.peers.graphs import without_contexts
from benchmarks.peers.servers.peer_session import BadRequest, decode, encode
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.dlrm.dlrm import Inputs


class PlainModel:
    """A bundle's rows in the order of ids, and its net, on one device."""

    def __init__(self, path: Path, device: str) -> None:
        bundle = load_bundle(path)
        tables = bundle.manifest.schema_.tables
        vocabularies = [bundle.encoder.vocabularies[table] for table in tables]
        first = np.cumsum([0, *(v.rows for v in vocabularies[:-1])])
        order = np.concatenate([f + v.rank_of_id for f, v in zip(first, vocabularies, strict=True)])
        self.device = torch.device(device)
        self.weight = bundle.rows["store.weight"][torch.from_numpy(order.astype(np.int64))].to(self.device)
        self.first = torch.from_numpy(first).to(self.device)
        self.net = without_contexts(bundle).to(self.device)

    @torch.inference_mode()
    def __call__(self, dense: Any, sparse: Any) -> Any:
        """Probabilities, float32 [rows]."""
        ids = torch.from_numpy(sparse).to(self.device) + self.first
        numbers = torch.from_numpy(dense).to(self.device)
        vectors = self.weight[ids]
        inputs = Inputs(numbers[:, :0], numbers, vectors[:, :0], vectors, None)
        return self.net(inputs).sigmoid().cpu().numpy()


def create_app(model: PlainModel) -> FastAPI:
    """The application; the inference protocol's infer."""
    app = FastAPI()

    @app.post("/v2/models/dlrm/infer")
    async def infer(request: Request) -> Response:
        try:
            answer = encode(model(*decode(await request.body())))
        except BadRequest as e:
            return Response(str(e), 400)
        return Response(answer, media_type="application/json")

    return app


if __name__ == "__main__":
    bundle, device, port = sys.argv[1:]
    torch.set_num_threads(1)
    model = PlainModel(Path(bundle), device)
    options: dict[str, Any] = {"access_log": False, "log_level": "warning"}
    uvicorn.run(
        create_app(model), host="127.0.0.1", port=int(port), loop="uvloop", http="httptools", **options
    )
