#!/usr/bin/env bash
# Brings a run to its end on a slice that may be taken away: creates, pushes, runs, waits, and again after a preemption.
#
#   bash launch/pod/resume.sh --name NAME --zone ZONE --type TYPE [--project ID] [--spot] [--runtime-version V]
#                             [--create-flag=--FLAG=VALUE ...] [--secrets A,B] [--attempts N] [--dry-run]
#                             -- STAGE ARGUMENTS
#
#   --attempts N  how often the run is started at most (default 10)
#   --dry-run     prints the commands of one attempt and of a recreation, and runs none
#   The other arguments are those of create.sh, push.sh and run.sh. --workdir must be gs://BUCKET/FOLDER: a new slice
#   has empty disks, and the run goes on from the last checkpoint it finds in the bucket. The hosts of TYPE must form
#   one run: distributed.coordinator=auto and distributed.processes are set.
#
# It watches from this computer, so leave it running, in tmux for instance; stopped and started again, it joins the run.
# A slice in state SUSPENDED or FAILED is deleted and asked for again; one that is ACTIVE is never deleted. A run that
# ends with exit code 2 (bad input) is not started again. Exit code: 0 finished, 2 bad input, 1 gave up.
#
# Costs          chips x hours x your price of one chip-hour, over all attempts, plus every step since the last
#                checkpoint done twice per preemption. The slice stays, and costs, after the run: launch/pod/delete.sh.
# Leaves behind  the slice; the run in its bucket; runs/pods/NAME/ here.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/command_line.sh"

again=()
for word in "$@"; do [ "$word" = --dry-run ] || again+=("$word"); done
parse_arguments "name zone type project runtime-version create-flag secrets attempts --" "spot" "$@"
require name zone type
tpu_type
check_secrets
run_words=("${train[@]+"${train[@]}"}")
check_training
require_bucket "a new slice has empty disks"

here="$REPO/launch/pod"
base=(--name "$name" "${where[@]}" ${dry_run:+--dry-run})
create_words=(--type "$type" ${spot:+--spot} ${runtime_version:+--runtime-version="$runtime_version"})
for flag in ${create_flags[@]+"${create_flags[@]}"}; do create_words+=(--create-flag="$flag"); done

create() { bash "$here/create.sh" "${base[@]}" "${create_words[@]}"; }
push() { bash "$here/push.sh" "${base[@]}" ${secrets:+--secrets "$secrets"}; }
run() { bash "$here/run.sh" "${base[@]}" --type "$type" --wait -- "${run_words[@]}"; }
delete() { bash "$here/delete.sh" "${base[@]}"; }
is_running() {  # every worker is in the middle of a run
  local states
  states="$(on_workers all "$worker_script status" 2>/dev/null)" \
    && grep -q ' running$' <<<"$states" && ! grep -q ' exit ' <<<"$states"
}

attempt() {  # one time through; 0 finished, 2 bad input, else worth another attempt
  local state
  state="$(resource_state)" || return
  while [ "$state" = SUSPENDING ] || [ "$state" = DELETING ]; do
    sleep "$POLL"
    state="$(resource_state)" || return
  done
  case "$state" in
    SUSPENDED|FAILED)
      echo "$name: $state; deleting it and asking again"
      delete || return
      create || return ;;
    ACTIVE)
      if is_running; then run; return; fi
      # What is left of a failed run must not hold the chips; a fresh slice has nothing to stop.
      on_workers all "[ ! -f searchjax_pod/source/launch/pod/worker.sh ] || $worker_script stop" || return 1 ;;
    *) create || return ;;
  esac
  push || return
  run
}

if [ -n "$dry_run" ]; then
  create && push && run
  say "when the slice is SUSPENDED or FAILED, up to ${attempts:-10} times:"
  delete
  say "and again: $(quoted bash "$here/resume.sh" "${again[@]}")"
  exit 0
fi
for ((number = 1; number <= ${attempts:-10}; number++)); do
  echo "$name: attempt $number of ${attempts:-10}"
  code=0
  attempt || code=$?
  case "$code" in
    0) echo "$name: finished. bash launch/pod/delete.sh --name $name --zone $zone ends the costs"; exit 0 ;;
    2) fail "$name: bad input, see the message above or launch/pod/logs.sh; not tried again" 2 ;;
  esac
  echo "$name: attempt $number ended with exit code $code" >&2
  sleep "$POLL"
done
fail "$name: gave up after ${attempts:-10} attempts; the slice may still be there and cost (launch/pod/delete.sh)"
