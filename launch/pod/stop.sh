#!/usr/bin/env bash
# Ends the run on all workers of a TPU slice; the slice stays.
#
#   bash launch/pod/stop.sh --name NAME --zone ZONE [--project ID] [--dry-run]
#
# The run's checkpoints stay in its --workdir; launch/pod/run.sh with the same arguments goes on from the last one.
#
# Costs          nothing of its own; the slice goes on costing chips x hours x your price of one chip-hour until
#                launch/pod/delete.sh.
# Leaves behind  the slice with everything on it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/command_line.sh"

parse_arguments "name zone project" "" "$@"
require name zone
on_workers all "$worker_script stop"
