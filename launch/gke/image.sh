#!/usr/bin/env bash
# Builds the container image that launch/gke/run.sh and launch/gke/xpk.sh run, from this checkout, and pushes it.
#
#   bash launch/gke/image.sh --image IMAGE [--dry-run]
#
#   --image IMAGE  e.g. us-docker.pkg.dev/PROJECT/REPOSITORY/searchjax:1; docker must be logged in there
#                  (gcloud auth configure-docker us-docker.pkg.dev)
#   --dry-run      prints the commands and runs none
#
# What goes in: files git tracks and new files it does not ignore; no secrets.
#
# Costs          what your registry asks for storing some gigabytes.
# Leaves behind  the image, in the registry and in docker here, and runs/pods/image/source.tar.gz.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pod/command_line.sh"

parse_arguments "image" "" "$@"
require image
bundle="$REPO/runs/pods/image/source.tar.gz"

build() { docker build --platform=linux/amd64 --tag="$image" --file=launch/gke/Dockerfile - < "$bundle"; }

execute bash "$REPO/launch/pod/bundle.sh" "$bundle"
if [ -n "$dry_run" ]; then
  echo "docker build --platform=linux/amd64 --tag=$image --file=launch/gke/Dockerfile - < $(quoted "$bundle")"
else
  build
fi
execute docker push "$image"
