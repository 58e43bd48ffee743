#!/usr/bin/env bash
# The CUDA code on a GPU by one command: tests marked gpu, servers, MP-Rec's representations on CPU and GPU, rows
# in tiers, training, lookups. Writes gpu-{serving,paths,bench,tiers,training,lookup}.json into $OUT (default
# docs/results), each as soon as a part of it is measured; docs/results/gpu.md has what an H100 gave, and
# CONTRIBUTING.md says how to run this on a borrowed machine. Needs a CUDA build of torch, which brings Triton,
# any onnxruntime, and what `make setup` installs else but for Ray, Locust and OpenVINO. Takes about nine minutes;
# STEPS="tests tiers" chooses, and LIMIT_S=300 ends it after so many seconds.
# Without a GPU: DEVICE=cpu goes through the same steps on small models (no figures; $OUT is optional).
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
[ -x "$python" ] || command -v "$python" >/dev/null || python=python3
device="${DEVICE:-cuda:0}"
steps="${STEPS:-tests serving representations tiers training lookup}"
limit_s="${LIMIT_S:-900}"
# tiers need a real disk, and /tmp may be memory
work="$(mktemp -d -p "${TMPDIR:-/var/tmp}")"
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

if [ "$device" = cpu ]; then
	which="not gpu" small=--small devices=cpu cores=1 slo_ms=2000 rate=10 rates=5,10 policies=static
	out="${OUT:-$work}" serving="--rows 23 2048 --seconds 0.2 --trials 2" seconds=0.2 run_s=2 patience=4
else
	which=gpu small= devices=cpu,gpu0 cores=4 slo_ms=10 rate=1000 rates=500,1000,2000,3000 policies=all
	out="${OUT:-docs/results}" serving="--rows 23 2048 270" seconds=1 run_s=1 patience=1
	nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv
fi
mkdir -p "$out"
"$python" -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__)'

# runs a command for at most $1 seconds (on a CPU more), and not beyond LIMIT_S; kills what ignores SIGTERM
within() {
	local most=$(($1 * patience)) left=$((limit_s - SECONDS)) status=0
	shift
	most=$((left < most ? left : most))
	((most > 0)) || { echo "no time is left" >&2 && return 124; }
	timeout -k 5 "$most" "$@" || status=$?
	[ "$status" -ne 124 ] || echo "ended after its $most s: $*" >&2
	return "$status"
}

# profiles the four representations on each device, plans, and offers rising loads under every policy
mprec() {
	local folder="$1" quality status=0
	quality="$(within 60 "$python" -m benchmarks.gpu.representations --folder "$folder" $small)" || return 1
	within 170 "$python" -m polyrec profile "$folder"/{table,hybrid,dhe,select} --devices "$devices" \
		--metric accuracy $quality --precisions fp32 --seconds "$seconds" --max-rows 1024 --fresh \
		--out "$folder/profile.json" || return 1
	cp "$folder/profile.json" "$out/gpu-paths.json"
	within 60 "$python" -m polyrec plan --profile "$folder/profile.json" --slo-ms "$slo_ms" --cores "$cores" --swing 8 \
		--traffic "rate=$rate,sizes=lognormal:128" --out "$folder/plan.json" || return 1
	within 150 "$python" -m polyrec bench --plan "$folder/plan.json" --policies "$policies" --slo-ms "$slo_ms" \
		--sizes lognormal:128 --rates "$rates" --seconds "$run_s" --warmup 0.5 --no-search --no-step \
		--out "$folder/bench" || status=1
	# has the rates that were measured before a failure
	[ ! -s "$folder/bench/bench.json" ] || cp "$folder/bench/bench.json" "$out/gpu-bench.json"
	return "$status"
}

step() {
	case "$1" in
	tests)
		# warnings of other releases than the tried ones are shown, and stop nothing here
		within 150 "$python" -m pytest -q -W default -p no:cacheprovider -m "$which" --durations=5 \
			tests/models/tiers/device tests/models/runtimes tests/models/embeddings \
			tests/models/training/test_stepper.py tests/measure/machine
		;;
	serving)
		within 200 "$python" -m benchmarks.gpu.serving --device "$device" --folder "$work/peers" $serving \
			--out "$out/gpu-serving.json"
		;;
	representations)
		mprec "$work/mprec"
		;;
	tiers)
		within 120 "$python" -m benchmarks.gpu.tiers --device "$device" --folder "$work/tiers" $small \
			--seconds "$seconds" --out "$out/gpu-tiers.json"
		;;
	training)
		within 120 "$python" -m benchmarks.gpu.training --device "$device" $small --seconds "$seconds" \
			--out "$out/gpu-training.json"
		;;
	lookup) # times nothing that gives other numbers: it compares all ways before
		within 120 "$python" -m benchmarks.gpu.lookup --device "$device" $small --json "$out/gpu-lookup.json"
		;;
	*)
		echo "no step '$1'"
		return 1
		;;
	esac
}

results=
for each in $steps; do
	begun=$SECONDS status=0
	echo "== $each"
	step "$each" || status=$?
	results+="$each: status $status after $((SECONDS - begun)) s"$'\n'
done
echo "== $(date -u +%FT%TZ), $SECONDS s"
echo -n "$results"
[[ "$results" != *"status "[1-9]* ]]
