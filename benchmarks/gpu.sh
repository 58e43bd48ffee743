#!/usr/bin/env bash
# The CUDA code on a GPU by one command: tests marked gpu, lookups, a server, MP-Rec's representations. Writes
# gpu-{lookup,serving,bench}.json into $OUT (default docs/results); docs/results/gpu.md has what an H100
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
	which="not gpu" small=--small devices=cpu cores=1 slo_ms=2000 rate=10 rates=5,10 policies=static out="$work"
else
	which=gpu small= devices=cpu,gpu0 cores=4 slo_ms=10 rate=1000 rates=200,500,1000,2000,4000 policies=all
	nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv
fi
"$python" -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__)'

# profiles the four representations on each device, plans, and offers rising loads under every policy
mprec() {
	local folder="$1" quality polyrec="timeout 240 $python -m polyrec"
	quality="$("$python" -m benchmarks.gpu.representations --folder "$folder" $small)" || return 1
	$polyrec profile "$folder"/{table,dhe,select,hybrid} --devices "$devices" --metric accuracy $quality \
		--precisions fp32 --seconds 2 --max-rows 1024 --out "$folder/profile.json" --fresh &&
		$polyrec plan --profile "$folder/profile.json" --slo-ms "$slo_ms" --cores "$cores" --swing 8 \
			--traffic "rate=$rate,sizes=lognormal:128" --out "$folder/plan.json" &&
		$polyrec plan --explain "$folder/plan.json" &&
		$polyrec bench --plan "$folder/plan.json" --policies "$policies" --slo-ms "$slo_ms" --sizes lognormal:128 \
			--rates "$rates" --seconds 2 --warmup 0.5 --no-search --no-step --json >"$folder/bench.json" &&
		mv "$folder/bench.json" "$out/gpu-bench.json"
}

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
		mprec "$work/mprec" || failed=1
		;;
	esac
done
exit "$failed"
