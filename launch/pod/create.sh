#!/usr/bin/env bash
# Asks Google Cloud for a TPU slice (a queued resource) and waits until it is there.
#
#   bash launch/pod/create.sh --name NAME --zone ZONE --type TYPE [--project ID] [--spot]
#                             [--runtime-version V] [--create-flag=--FLAG=VALUE ...] [--dry-run]
#
#   --name NAME         the queued resource and its TPU VM get this name
#   --type TYPE         v5litepod-CHIPS, v6e-CHIPS, or v5p-CORES (two cores a chip: v5p-512 is 256 chips)
#   --spot              cheaper, and may be taken away at any time: then launch/pod/resume.sh
#   --runtime-version V the VM's software (default by type: v2-alpha-tpuv5, -tpuv5-lite, -tpuv6e)
#   --create-flag=FLAG  one more flag for gcloud, e.g. --create-flag=--network=my-network; may be repeated
#   --dry-run           prints the commands and runs none
#
# A request that is already there is waited for. Ctrl-C ends the waiting, not the request.
#
# Costs          chips x hours x your price of one chip-hour (spot and on-demand differ; see your contract or
#                Google's price list), from ACTIVE until delete.sh, whether anything trains or not. Waiting is free,
#                but the slice may come, and cost, while nobody looks.
# Leaves behind  the queued resource, its TPU VMs and their disks, until launch/pod/delete.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/command_line.sh"

parse_arguments "name zone type project runtime-version create-flag" "spot" "$@"
require name zone type
tpu_type

request() {
  execute gcloud compute tpus queued-resources create "$name" --node-id="$name" "${where[@]}" \
    --accelerator-type="$type" --runtime-version="${runtime_version:-$default_runtime}" \
    ${spot:+--spot} ${create_flags[@]+"${create_flags[@]}"}
}

say_cost "bash launch/pod/delete.sh --name $name --zone $zone"
if [ -n "$dry_run" ]; then
  request
  say "then, every $POLL s until it says ACTIVE:"
  list_field state.state
  exit 0
fi
state="$(resource_state)"
if [ "$state" = NONE ]; then
  request
else
  there="$(list_field "tpu.nodeSpec[0].node.acceleratorType.basename()")"
  [ "$there" = "$type" ] || usage "--type $type, but $name is there already and is ${there:-of an unknown type}"
fi
before=""
while :; do
  state="$(resource_state)"
  [ "$state" = "$before" ] || echo "$name: $state"
  before="$state"
  case "$state" in
    ACTIVE) break ;;
    FAILED|SUSPENDING|SUSPENDED|DELETING|NONE)
      fail "$name is $state and will not become ACTIVE; bash launch/pod/delete.sh, then create.sh again" ;;
  esac
  sleep "$POLL"
done
