#!/usr/bin/env bash
# Deletes a TPU slice: the queued resource, its TPU VMs and their disks. This ends its costs.
#
#   bash launch/pod/delete.sh --name NAME --zone ZONE [--project ID] [--dry-run]
#
# There is no question and no way back: what lies only on the workers' disks is lost, logs and local run folders too.
#
# Costs          nothing; until it has ended, chips x hours x your price of one chip-hour.
# Leaves behind  what is in buckets (storage has its own price) and runs/pods/NAME/ here.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/command_line.sh"

parse_arguments "name zone project" "" "$@"
require name zone
if [ -z "$dry_run" ] && [ "$(resource_state)" = NONE ]; then
  echo "$name: there is no such queued resource in $zone"
  exit 0
fi
execute gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force --quiet
if [ -n "$dry_run" ]; then
  say "then, to see that nothing is left:"
  list_field state.state
else
  state="$(resource_state)"
  [ "$state" = NONE ] || fail "$name is still there ($state) and may cost; look again in a minute, and run this again"
  echo "$name: deleted"
fi
