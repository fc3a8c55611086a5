#!/usr/bin/env bash
# Ends a run on GKE and deletes its JobSet and its Secret.
#
#   bash launch/gke/delete.sh --name NAME [--namespace NS] [--dry-run]
#
# There is no question: a run that is going on ends; launch/gke/run.sh with the same arguments goes on from the last
# checkpoint in its bucket.
#
# Costs          the node pool goes on costing chips x hours x your price of one chip-hour until its nodes are gone:
#                gcloud container node-pools delete, or an autoscaler that may go to zero.
# Leaves behind  the node pool, the cluster, the image, and what is in the bucket.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pod/command_line.sh"

parse_arguments "name namespace" "" "$@"
require name
execute kubectl delete jobset "$name" --namespace="$namespace" --ignore-not-found
execute kubectl delete secret "$name-env" --namespace="$namespace" --ignore-not-found
say "the node pool is still there, and costs while it has nodes"
