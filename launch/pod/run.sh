#!/usr/bin/env bash
# Starts a training run on all workers of a TPU slice; it goes on when this computer is switched off.
#
#   bash launch/pod/run.sh --name NAME --zone ZONE [--type TYPE] [--project ID] [--wait] [--dry-run]
#                          -- STAGE ARGUMENTS
#
#   --type TYPE  as for create.sh: its hosts must then form one run, or it is an error (sets distributed.coordinator=auto
#                and distributed.processes); needed where the config does not say how many there are
#   STAGE      sft, rm, grpo or evaluate
#   ARGUMENTS  --config FILE.py[:VARIANT] --workdir DIR [--config.KEY=VALUE ...], as on a laptop
#              DIR is gs://BUCKET/FOLDER (every worker and the next slice can read it) or a folder on the workers' own
#              disks, relative to the checkout there (one host only, and lost with the slice)
#   --wait     stays until the run ends; its exit code is the run's: 0 finished, 2 bad input, 75 the slice went away,
#              else that of a worker that failed
#   --dry-run  prints the commands and runs none
#
# On each worker the output goes to searchjax_pod/worker.log and the exit code to searchjax_pod/exit_code. The same
# command given again resumes a run that ended, from its last checkpoint, and joins one that is still going on.
#
# Costs          nothing of its own; the slice costs chips x hours x your price of one chip-hour while it is there,
#                also after the run has ended: launch/pod/delete.sh.
# Leaves behind  what the run writes in --workdir; log and exit code on the workers, until launch/pod/delete.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/command_line.sh"

parse_arguments "name zone type project --" "wait" "$@"
require name zone
check_training
if [ -n "$type" ]; then
  tpu_type
  [ "$hosts" = 1 ] || require_bucket "the hosts of $type do not see each other's disks"
  form_of_hosts "$hosts"
fi

wait_for_run() {  # until no worker runs; the exit code says how it ended
  local states codes unreachable=0 failed=""
  mkdir -p "$staging"
  while :; do
    sleep "$POLL"
    if ! states="$(on_workers all "$worker_script status" 2>"$staging/status.err")"; then
      unreachable=$((unreachable + 1))
      echo "$name: workers do not answer ($(tail -n 1 "$staging/status.err"))" >&2
      [ "$unreachable" -lt 5 ] && [ "$(resource_state)" = ACTIVE ] || return "$GONE"
      continue
    fi
    unreachable=0
    codes="$(sed -n 's/^worker .* exit \([0-9]*\)$/\1/p' <<<"$states" | grep -vx 0 || true)"
    if ! grep -q '^worker .* running$' <<<"$states"; then
      grep '^worker ' <<<"$states" || true
      if grep -qx 2 <<<"$codes"; then return 2; fi
      # 143 is a worker that was ended because of another one.
      return "$({ grep -vx 143 <<<"${codes:-0}" || echo 143; } | head -n 1)"
    fi
    # A run cannot go on without one of its processes: the others end by themselves, or are ended at the next look.
    if [ -n "$codes" ]; then
      [ -z "$failed" ] || on_workers all "$worker_script stop"
      failed=1
    fi
  done
}

on_workers all "$worker_script start $(quoted "$module" ${train[@]+"${train[@]}"})"
if [ -n "$wait" ] && [ -n "$dry_run" ]; then
  say "then, every $POLL s until no worker says running:"
  on_workers all "$worker_script status"
elif [ -n "$wait" ]; then
  code=0
  wait_for_run || code=$?
  echo "$name: the run ended with exit code $code; the slice is still there and costs (launch/pod/delete.sh)"
  exit "$code"
else
  say "started; bash launch/pod/logs.sh --name $name --zone $zone --follow shows its output"
fi
