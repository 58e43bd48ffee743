#!/usr/bin/env bash
# The device tier on a GPU, all of it by one command: equality first, then times. Writes docs/results/gpu-lookup.json.
# Needs a CUDA build of torch, which brings Triton. (Not yet run on a GPU: docs/tiers.md.)
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv
"$python" -m pytest -q -m gpu tests/models/embeddings/tiers
OMP_NUM_THREADS=1 "$python" -m benchmarks.gpu_lookup --json docs/results/gpu-lookup.json
