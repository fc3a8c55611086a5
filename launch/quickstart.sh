#!/usr/bin/env bash
# Trains a small search agent on this machine, end to end, and shows what came of it.
#
#   bash launch/quickstart.sh [--smoke] [--seed N] [--workdir DIR]
#
#   --smoke        the whole chain, small: shows that everything works, not that it learns
#   --seed N       seed of every stage (default 0)
#   --workdir DIR  where the run goes (default runs/quickstart, or runs/smoke)
#
# The first run makes .venv; later ones reuse it.  A run that was stopped goes on when the same command is given
# again.  It ends with a table and the path of report.html.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

usage() { fail "$1 (bash launch/quickstart.sh --help shows the arguments)" 2; }

smoke="" seed=0 workdir=""
while [ $# -gt 0 ]; do
  case "$1" in
    --smoke) smoke=":smoke" ;;
    --seed|--workdir)
      { [ $# -ge 2 ] && [ -n "$2" ] && [ "${2#--}" = "$2" ]; } || usage "$1 needs a value"
      if [ "$1" = --seed ]; then seed="$2"; else workdir="$2"; fi
      shift ;;
    --seed=?*) seed="${1#*=}" ;;
    --workdir=?*) workdir="${1#*=}" ;;
    --seed=|--workdir=) usage "${1%=} needs a value" ;;
    -h|--help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) usage "unknown argument \"$1\"" ;;
  esac
  shift
done
[[ "$seed" =~ ^[0-9]{1,9}$ ]] || usage "--seed expects a whole number from 0, got \"$seed\""
: "${workdir:=$REPO/runs/$([ -n "$smoke" ] && echo smoke || echo quickstart)}"
[ ! -e "$workdir" ] || [ -d "$workdir" ] || usage "--workdir $workdir is a file; give a folder"
asked="$workdir"
workdir="$(mkdir -p "$asked" 2>/dev/null && cd "$asked" 2>/dev/null && pwd)" || usage "cannot make --workdir $asked"
[ -w "$workdir" ] || usage "--workdir $workdir may not be written; give another"

started=$SECONDS
prepare_environment ""
run_on_cpu

train() { stage "$1" "searchjax.$2" --config "configs/$3_tiny.py$smoke" --workdir "$workdir/$4" "--config.seed=$seed"; }

train "1/6 supervised fine-tuning" train_sft sft sft
train "2/6 preference model" train_rm rm rm
train "3/6 GRPO" train_grpo grpo grpo
"$PY" -m searchjax.check "$workdir/grpo" </dev/null || fail "the rollouts of GRPO are not as they should be; see above" 1
train "4/6 evaluation" evaluate evaluate eval
stage "5/6 figures" searchjax.figures --workdir "$workdir"
stage "6/6 report" searchjax.report --workdir "$workdir"
echo
echo "finished in $(((SECONDS - started) / 60)) min $(((SECONDS - started) % 60)) s"
