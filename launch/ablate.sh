#!/usr/bin/env bash
# The tool-penalty ablation: GRPO with the anchored and with the unconditional penalty, over several seeds, from
# one SFT policy and one preference model.
#
#   bash launch/ablate.sh [--smoke] [--workdir DIR] [--seeds "0 1 2"] [--arms "anchored unconditional"]
#
#   --workdir DIR  a quickstart run with sft/ and rm/ (default runs/quickstart); writes DIR/ablation/ARM/seed_N/
#   --arms         values of config.reward.tool_penalty: anchored, unconditional, off
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

usage() { fail "$1 (bash launch/ablate.sh --help shows the arguments)" 2; }

variant=":ablation" workdir="" seeds="0 1 2" arms="anchored unconditional"
while [ $# -gt 0 ]; do
  case "$1" in
    --smoke) variant=":smoke" ;;
    --workdir|--seeds|--arms)
      { [ $# -ge 2 ] && [ -n "$2" ] && [ "${2#--}" = "$2" ]; } || usage "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift ;;
    --workdir=?*|--seeds=?*|--arms=?*)
      name="${1%%=*}"
      printf -v "${name#--}" '%s' "${1#*=}" ;;
    --workdir=|--seeds=|--arms=) usage "${1%=} needs a value" ;;
    -h|--help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) usage "unknown argument \"$1\"" ;;
  esac
  shift
done
for seed in $seeds; do [[ "$seed" =~ ^[0-9]{1,9}$ ]] || usage "--seeds expects whole numbers, got \"$seed\""; done
for arm in $arms; do
  case "$arm" in
    anchored|unconditional|off) ;;
    *) usage "--arms expects anchored, unconditional or off, got \"$arm\"" ;;
  esac
done
[[ "$seeds" = *[0-9]* ]] || usage "--seeds needs a value"
[[ "$arms" = *[a-z]* ]] || usage "--arms needs a value"
: "${workdir:=$REPO/runs/quickstart}"
for stage in sft rm; do
  [ -d "$workdir/$stage" ] || fail "no $workdir/$stage; run bash launch/quickstart.sh --workdir $workdir first" 2
done
workdir="$(cd "$workdir" && pwd)"

prepare_environment ""
run_on_cpu

for arm in $arms; do
  for seed in $seeds; do
    run="$workdir/ablation/$arm/seed_$seed"
    echo "== tool penalty $arm, seed $seed"
    "$PY" -m searchjax.train_grpo --config "configs/grpo_tiny.py$variant" --workdir "$run" \
      "--config.seed=$seed" "--config.reward.tool_penalty=$arm" </dev/null \
      || fail "$arm, seed $seed failed (exit code $?); its message is above" 1
  done
done
"$PY" -m searchjax.figures --workdir "$workdir"
"$PY" -m searchjax.report --workdir "$workdir"
