#!/usr/bin/env bash
# Shows how a run on GKE is doing: its pods and the end of their logs, or one log as it grows.
#
#   bash launch/gke/logs.sh --name NAME [--namespace NS] [--worker N|all] [--follow] [--dry-run]
#
#   --worker N  one host only (default all; with --follow 0)
#   --follow    until the pod ends or Ctrl-C (which does not touch the run)
#   --dry-run   prints the commands and runs none
#
# Costs          nothing of its own; the node pool costs chips x hours x your price of one chip-hour.
# Leaves behind  nothing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pod/command_line.sh"

parse_arguments "name namespace worker" "follow" "$@"
require name
pods="jobset.sigs.k8s.io/jobset-name=$name"
if [ -n "$follow" ]; then
  [ "$worker" != all ] || usage "--follow shows one host; give --worker N"
  : "${worker:=0}"
fi
[ "${worker:-all}" = all ] || pods+=",batch.kubernetes.io/job-completion-index=$worker"
execute kubectl get pods --namespace="$namespace" --selector="$pods" --output=wide
if [ -n "$follow" ]; then
  execute kubectl logs --namespace="$namespace" --selector="$pods" --container=searchjax --follow --tail=-1
else
  execute kubectl logs --namespace="$namespace" --selector="$pods" --container=searchjax --prefix --tail=20 \
    --max-log-requests=1024
fi
