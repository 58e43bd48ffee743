"""Serves a peer model with Triton, from the nvidia-pytriton wheel, as a model of its Python backend.

    python -m benchmarks.peers.servers.triton_server FOLDER PORT [PRECISION]

Writes a model repository, then replaces itself by `tritonserver`. The wheel contains only the Python backend;
the ONNX Runtime backend is distributed in NVIDIA's containers. The backend's own process executes the model,
without the additional hop of pytriton's proxy. Batching follows the initial advice of Triton's guide:
`dynamic_batching {}`, which merges waiting requests and never delays them.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.servers.peer_session import MAX_ROWS, PeerSession

ROOT = Path(__file__).parents[3]
CONFIG = """
name: "dlrm"
backend: "python"
max_batch_size: {rows}
input [
  {{ name: "dense" data_type: TYPE_FP32 dims: [ {dense} ] }},
  {{ name: "sparse" data_type: TYPE_INT64 dims: [ {sparse} ] }}
]
output [ {{ name: "probability" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ }}
"""
MODEL = """
import sys
sys.path[:0] = {path!r}
from benchmarks.peers.servers.triton_server import TritonPythonModel
"""
"""The backend's process ignores PYTHONPATH."""


class TritonPythonModel:
    """Implements the interface of Triton's Python backend."""

    def initialize(self, args: dict[str, str]) -> None:
        folder, *precision = os.environ["PEER_MODEL"].split(":")
        self.session = PeerSession(Path(folder), *precision)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Executes the requests of a batch at once."""
        import triton_python_backend_utils as triton  # of the backend's process

        given = [
            [triton.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            for name in ("dense", "sparse")
        ]
        dense, sparse = (parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in given)
        found = self.session(dense, sparse)[:, None]
        ends = np.cumsum([len(part) for part in given[0][:-1]])
        return [
            triton.InferenceResponse([triton.Tensor("probability", part)]) for part in np.split(found, ends)
        ]


def write_repository(path: Path, server: Path, dense: int, sparse: int) -> None:
    """Writes one model's repository, and the backend with this Python's stub. server: from the wheel."""
    model = path / "models" / "dlrm"
    (model / "1").mkdir(parents=True)
    packages = [str(ROOT), str(server.parents[1])]
    (model / "1" / "model.py").write_text(MODEL.format(path=packages))
    (model / "config.pbtxt").write_text(CONFIG.format(rows=MAX_ROWS, dense=dense, sparse=sparse))
    backend = shutil.copytree(server / "backends" / "python", path / "backends" / "python")
    stub = server / "python_backend_stubs" / sysconfig.get_python_version() / "triton_python_backend_stub"
    shutil.copy(stub, backend)


def main() -> None:
    folder, port, *precision = sys.argv[1:]
    found = find_spec("pytriton")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("nvidia-pytriton is not installed here")
    server = Path(found.submodule_search_locations[0]) / "tritonserver"
    session = PeerSession(Path(folder))
    features = next(i for i in session.session.get_inputs() if i.name == "dense_candidate").shape[1]
    repository = Path(folder).with_name("triton-repository")
    shutil.rmtree(repository, ignore_errors=True)
    write_repository(repository, server, features, session.first.size)
    program = str(server / "bin" / "tritonserver")
    libraries = [str(server.parents[1] / "nvidia_pytriton.libs"), os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ |= {
        "PEER_MODEL": ":".join((folder, *precision)),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
    }
    options = {
        "model-repository": repository / "models",
        "backend-directory": repository / "backends",
        "http-address": "127.0.0.1",
        "http-port": port,
        "allow-grpc": "false",
        "allow-metrics": "false",
        "log-info": "false",
    }
    os.execv(program, [program, *(f"--{name}={value}" for name, value in options.items())])


if __name__ == "__main__":
    main()
