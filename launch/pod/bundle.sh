#!/usr/bin/env bash
# Packs this checkout: files git tracks and new files it does not ignore.
#
#   bash launch/pod/bundle.sh OUT.tar.gz
#
# Costs          nothing.
# Leaves behind  OUT.tar.gz, and its folder.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

case "${1:-}" in
  -h|--help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *.tar.gz) ;;
  *) fail "bundle.sh expects one file name that ends in .tar.gz, got \"${1:-}\"" 2 ;;
esac
mkdir -p "$(dirname "$1")"
out="$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"
cd "$REPO"
git rev-parse --is-inside-work-tree >/dev/null 2>&1 || fail "$REPO is not a git checkout, so what to copy is not known" 2
git ls-files -coz --exclude-standard \
  | while IFS= read -r -d '' file; do if [ -e "$file" ]; then printf '%s\0' "$file"; fi; done \
  | tar -czf "$out" --null -T -
