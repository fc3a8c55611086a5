#!/usr/bin/env bash
# Shows how a run on a TPU slice is doing: each worker's state and the end of its log, or one log as it grows.
#
#   bash launch/pod/logs.sh --name NAME --zone ZONE [--project ID] [--worker N|all] [--follow] [--dry-run]
#
#   --worker N  one worker only (default all; with --follow 0)
#   --follow    from the log's start, until the run ends or Ctrl-C (which does not touch the run)
#   --dry-run   prints the commands and runs none
#
# Costs          nothing of its own; the slice costs chips x hours x your price of one chip-hour while it is there.
# Leaves behind  nothing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/command_line.sh"

parse_arguments "name zone project worker" "follow" "$@"
require name zone
if [ -n "$follow" ]; then
  [ "$worker" != all ] || usage "--follow shows one worker; give --worker N"
  on_workers "${worker:-0}" "$worker_script follow"
else
  on_workers "${worker:-all}" "$worker_script status && $worker_script tail"
fi
