#!/usr/bin/env bash
# The CUDA code on a GPU by one command: tests marked gpu, lookups, a server, MP-Rec's representations. Writes
# gpu-{lookup,serving,representations}.json into $OUT (default docs/results); docs/results/gpu.md has what an H100
# gave. Needs a CUDA build of torch, which brings Triton, any onnxruntime, and what `make setup` installs else
# but for Ray, Locust and OpenVINO. Eight minutes, most of them the last step; STEPS="tests lookup" chooses.
# Without a GPU: DEVICE=cpu goes through the same steps on small models (no figures).
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
[ -x "$python" ] || command -v "$python" >/dev/null || python=python3
device="${DEVICE:-cuda:0}"
steps="${STEPS:-tests lookup serving representations}"
out="${OUT:-docs/results}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1

if [ "$device" = cpu ]; then
	which="not gpu" small=--small slow="--slo-ms 2000 --rates 5 10 --policies static" out="$work"
else
	which=gpu small= slow=
	nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv
fi
"$python" -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__)'

failed=0
for step in $steps; do
	case "$step" in
	tests)
		# warnings of other releases than the tried ones are shown, and stop nothing here
		timeout 240 "$python" -m pytest -q -W default -p no:cacheprovider -m "$which" --durations=5 \
			tests/models/tiers/device tests/models/runtimes tests/models/embeddings \
			tests/models/training/test_stepper.py tests/measure/machine || failed=1
		;;
	lookup) # times nothing that gives other numbers: it compares all ways before
		timeout 240 "$python" -m benchmarks.gpu.lookup --device "$device" $small --json "$out/gpu-lookup.json" || failed=1
		;;
	serving)
		timeout 240 "$python" -m benchmarks.gpu.serving --device "$device" --folder "$work/peers" \
			--rows 23 270 --out "$out/gpu-serving.json" || failed=1
		;;
	representations)
		timeout 420 "$python" -m benchmarks.gpu.representations --device "$device" $small $slow --folder "$work/mprec" \
			--out "$out/gpu-representations.json" || failed=1
		;;
	esac
done
exit "$failed"
