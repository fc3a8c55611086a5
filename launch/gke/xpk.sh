#!/usr/bin/env bash
# Runs one training run on a cluster that XPK made, through xpk workload create.
#
#   bash launch/gke/xpk.sh --name NAME --cluster C --zone ZONE --type TYPE --image IMAGE [--project ID]
#                          [--max-restarts N] [--dry-run] -- STAGE ARGUMENTS
#
#   --cluster C      made by: xpk cluster create --cluster=C --tpu-type=TYPE --num-slices=1 ... [--spot]
#   --type TYPE      XPK's name: v5litepod-16, v6e-256, v5p-512 and tpu7x-512 (both count cores), or tpu7x-4x8x8
#   --image IMAGE    built by launch/gke/image.sh
#   --max-restarts N how often the whole run may be started again (default 10)
#   --dry-run        prints the command and runs none
#   STAGE ARGUMENTS  sft, rm, grpo or evaluate, then --config FILE.py[:VARIANT] --workdir gs://BUCKET/FOLDER
#                    [--config.KEY=VALUE ...]
#
# The hosts of the slice must form one run: distributed.coordinator=auto and distributed.processes are set.
# A run that needs search API keys goes through launch/gke/run.sh: XPK would write them in clear into the JobSet.
# launch/gke/logs.sh is for run.sh; here: kubectl logs --selector=xpk.google.com/workload=NAME --prefix
#
# Costs          chips x hours x your price of one chip-hour while the cluster has its nodes, whether the run is
#                there or not, and what GKE asks for the cluster.
# Leaves behind  the workload, until xpk workload delete --workload=NAME --cluster=C or 12 hours after its end; the
#                cluster with its nodes, until xpk cluster delete --cluster=C.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pod/command_line.sh"

parse_arguments "name cluster zone type project image max-restarts --" "" "$@"
require name cluster zone type image
[[ "$type" =~ ^(v5litepod|v5p|v6e|tpu7x)-([0-9]+|[0-9]+x[0-9]+(x[0-9]+)?)$ ]] \
  || usage "--type expects an XPK name such as v5litepod-16, v6e-256, v5p-512 or tpu7x-4x8x8, got \"$type\""
check_training
require_bucket "a pod's disk goes with the pod"
shape="${type#*-}"
chips=$((${shape//x/ * }))
case "$type" in v5p-[0-9]*|tpu7x-[0-9]*) [[ "$shape" == *x* ]] || chips=$((chips / 2)) ;; esac
hosts=$(((chips + 3) / 4))  # XPK's machines have four chips
form_of_hosts "$hosts"

# XPK restarts on exit codes 42 and 127-255 by itself; 1 is a process that failed, 2 is bad input and stays final.
# One process a host drives all its chips, on tpu7x too, where XPK would start two.
execute xpk workload create --workload="$name" --cluster="$cluster" "${where[@]}" --tpu-type="$type" --num-slices=1 \
  --docker-image="$image" --max-restarts="${max_restarts:-10}" --restart-on-exit-codes=1 \
  --no-use-parallel-containers \
  --command="cd /searchjax && .venv/bin/python -m $(quoted "$module" "${train[@]}")"
say "the cluster's nodes cost chips x hours x your price of one chip-hour until xpk cluster delete --cluster=$cluster"
