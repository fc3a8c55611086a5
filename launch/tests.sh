#!/usr/bin/env bash
# Makes or reuses .venv and runs the tests.
#
#   bash launch/tests.sh [--quick] [PYTEST ARGUMENTS]
#
# --quick leaves out the tests marked slow.  SEARCHJAX_TEST_WORKERS sets the number of processes (default 2).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$REPO"

args=()
for arg in "$@"; do
  case "$arg" in
    --quick) args+=(-m "not slow") ;;
    -h|--help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) args+=("$arg") ;;
  esac
done

prepare_environment test
exec "$PY" -m pytest -q -n "${SEARCHJAX_TEST_WORKERS:-2}" --dist loadfile --durations=15 "${args[@]}"
