#!/usr/bin/env bash
# Makes or reuses .venv and runs the tests.
#
#   bash launch/tests.sh [--slow] [PYTEST ARGUMENTS]
#
# Leaves out the tests marked slow; --slow runs those alone.
# SEARCHJAX_TEST_WORKERS is the number of processes (default 2), SEARCHJAX_TEST_EXTRAS what setup.py's
# extras to install (default "test"; "test,parity,compile" adds PyTorch and libtpu to compare and compile with).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$REPO"

args=() marked="not slow"
for arg in "$@"; do
  case "$arg" in
    --slow) marked="slow" ;;
    -h|--help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) args+=("$arg") ;;
  esac
done

prepare_environment "${SEARCHJAX_TEST_EXTRAS:-test}"
exec "$PY" -m pytest -q -m "$marked" -n "${SEARCHJAX_TEST_WORKERS:-2}" --dist loadfile --durations=15 "${args[@]}"
