#!/usr/bin/env bash
# Copies this checkout to every worker of a TPU slice and installs it there.
#
#   bash launch/pod/push.sh --name NAME --zone ZONE [--project ID] [--secrets A,B] [--dry-run]
#
#   --secrets A,B  environment variables of this shell that the run needs, such as search API keys. They travel in a
#                  file of mode 600, never on a command line; --dry-run shows their names only. A later push without
#                  --secrets leaves the earlier ones there.
#   --dry-run      prints the commands and runs none
#
# What is copied: files git tracks and new files it does not ignore. The workers keep .venv and runs/ from the push
# before. Refused while a run is going on (launch/pod/stop.sh ends it).
#
# Costs          nothing of its own; the slice costs chips x hours x your price of one chip-hour while it is there.
# Leaves behind  on each worker searchjax_pod/ (source, .venv, env with the secrets), until launch/pod/delete.sh; here
#                runs/pods/NAME/source.tar.gz.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/command_line.sh"

parse_arguments "name zone project secrets" "" "$@"
require name zone
check_secrets

files=("$staging/source.tar.gz")
[ -z "$secrets" ] || files+=("$staging/env")

on_workers all "umask 077 && mkdir -p searchjax_pod && chmod 700 searchjax_pod && \
{ [ ! -f searchjax_pod/source/launch/pod/worker.sh ] || $worker_script idle; }"
execute bash "$REPO/launch/pod/bundle.sh" "$staging/source.tar.gz"
write_secrets
execute gcloud compute tpus tpu-vm scp "${files[@]}" "$name:searchjax_pod/" "${where[@]}" --worker=all </dev/null
on_workers all "cd searchjax_pod && mkdir -p source && \
find source -mindepth 1 -maxdepth 1 ! -name '.venv*' ! -name runs ! -name .jax_cache ! -name '*.egg-info' -exec rm -rf {} + && \
tar -xzf source.tar.gz -C source && bash source/launch/pod/worker.sh setup"
