#!/usr/bin/env bash
# Table 1: GRPO on public-format questions and on as many synthetic ones, from one SFT policy and one preference
# model, and both evaluated on the same held-out questions.
#
#   bash launch/table1.sh [--smoke] [--workdir DIR] [--seed N] [--size N] [--baseline "FILE ..."]
#                         [--synthetic "FILE ..."] [--config.KEY=VALUE ...]
#
#   --workdir DIR  a quickstart run with sft/ and rm/, made if missing (default runs/quickstart, or runs/smoke);
#                  writes DIR/table1/
#   --size N       questions of each set (default 300; both are cut to the smaller one)
#   --baseline     public sets of your own, in their publishers' layouts (docs/data.md)
#   --synthetic    what searchjax.synthesize wrote; made if not given
#   --config.KEY=VALUE  for both arms' GRPO
#
# A run that was stopped goes on when the same command is given again.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

usage() { fail "$1 (bash launch/table1.sh --help shows the arguments)" 2; }

smoke="" workdir="" seed=0 size="" baseline="" synthetic="" more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --smoke) smoke=":smoke" ;;
    --config.?*=*) more+=("$1") ;;
    --workdir|--seed|--size|--baseline|--synthetic)
      { [ $# -ge 2 ] && [ -n "$2" ] && [ "${2#--}" = "$2" ]; } || usage "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift ;;
    --workdir=?*|--seed=?*|--size=?*|--baseline=?*|--synthetic=?*)
      name="${1%%=*}"
      printf -v "${name#--}" '%s' "${1#*=}" ;;
    --workdir=|--seed=|--size=|--baseline=|--synthetic=) usage "${1%=} needs a value" ;;
    -h|--help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d'; exit 0 ;;
    *) usage "unknown argument \"$1\"" ;;
  esac
  shift
done
: "${size:=$([ -n "$smoke" ] && echo 24 || echo 300)}"
[[ "$seed" =~ ^[0-9]{1,9}$ ]] || usage "--seed expects a whole number from 0, got \"$seed\""
[[ "$size" =~ ^[1-9][0-9]{0,6}$ ]] || usage "--size expects a whole number from 1, got \"$size\""
absolute() {  # absolute OPTION FILES: the files' absolute paths, one a line
  local file files
  read -ra files <<< "$2"
  for file in "${files[@]}"; do
    case "$file" in
      hf:*) echo "$file" ;;
      *) [ -f "$file" ] || usage "$1 $file: no such file"; realpath "$file" ;;
    esac
  done
}
baseline="$(absolute --baseline "$baseline")"
synthetic="$(absolute --synthetic "$synthetic")"
: "${workdir:=$REPO/runs/$([ -n "$smoke" ] && echo smoke || echo quickstart)}"
asked="$workdir"
[ ! -e "$workdir" ] || [ -d "$workdir" ] || usage "--workdir $workdir is a file; give a folder"
workdir="$(mkdir -p "$asked" 2>/dev/null && cd "$asked" 2>/dev/null && pwd)" || usage "cannot make --workdir $asked"

started=$SECONDS
prepare_environment ""
run_on_cpu

for one in sft rm; do
  # Made here only where there is none: a finished stage may have other settings than the quickstart's.
  if [ ! -d "$workdir/$one/policy" ]; then
    stage "$one: none in $workdir yet" "searchjax.train_$one" --config "configs/${one}_tiny.py$smoke" \
      --workdir "$workdir/$one" "--config.seed=$seed"
  fi
done
table="$workdir/table1"
if [ -z "$synthetic" ]; then
  stage "synthesis" searchjax.synthesize --config configs/synthesize.py:tiny --workdir "$table/synthesis" \
    "--config.seed=$seed" "--config.count=$((2 * size))"
  synthetic="$table/synthesis/questions.jsonl"
fi
mapfile -t baselines <<< "$baseline"
mapfile -t synthetics <<< "$synthetic"
variant="${smoke:-:ablation}"
stage "questions" searchjax.table1 questions --workdir "$table" --seed "$seed" --size "$size" \
  --config "configs/grpo_tiny.py$variant" ${more[@]+"${more[@]}"} \
  ${baseline:+--baseline "${baselines[@]}"} --synthetic "${synthetics[@]}"
for arm in baseline synthetic; do
  stage "$arm: GRPO" searchjax.train_grpo --config "configs/grpo_tiny.py$variant" --workdir "$table/$arm/grpo" \
    "--config.seed=$seed" "--config.data.questions_file=$table/$arm.jsonl" ${more[@]+"${more[@]}"}
  # The sweep over budgets is not part of the table.
  stage "$arm: evaluation" searchjax.evaluate --config "configs/evaluate_tiny.py$smoke" \
    --workdir "$table/$arm/eval" "--config.seed=$seed" --config.budgets=5
done
stage "table 1" searchjax.table1 table --workdir "$table"
echo "finished in $(((SECONDS - started) / 60)) min $(((SECONDS - started) % 60)) s"
