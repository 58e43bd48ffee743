#!/usr/bin/env bash
# The device tier on a GPU by one command: equality first, then times. Prints tables, writes
# docs/results/gpu-lookup.json (or $JSON). Needs a CUDA build of torch, which brings Triton; numpy, onnx, pyarrow,
# pydantic, pyyaml, safetensors, tqdm and any onnxruntime; pytest and hypothesis. It ends within eight minutes.
# Without a GPU: DEVICE=cpu goes through the same steps on small tables (no figures).
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
[ -x "$python" ] || command -v "$python" >/dev/null || python=python3
device="${DEVICE:-cuda}"
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1

if [ "$device" = cuda ]; then
	nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv
	which=gpu size=
	json="${JSON:-docs/results/gpu-lookup.json}"
else
	which="not gpu" size=--small
	json="${JSON:-/dev/null}"
fi
"$python" -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__)'

# warnings of other releases than the tried ones are shown, and stop nothing here
failed=0
timeout 240 "$python" -m pytest -q -W default -p no:cacheprovider -m "$which" --durations=5 \
	tests/models/tiers/device/test_kernels.py tests/models/tiers/device/test_fused.py \
	tests/models/tiers/device/test_ways.py tests/models/runtimes || failed=1

# times nothing that gives other numbers: it compares all ways before
timeout 230 "$python" -m benchmarks.gpu.lookup --device "$device" $size --json "$json" || failed=1
exit "$failed"
