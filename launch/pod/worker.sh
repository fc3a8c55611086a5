#!/usr/bin/env bash
# What launch/pod/*.sh call on each TPU VM; nobody needs to call it by hand.
#
#   bash worker.sh setup | start MODULE ARGUMENTS | status | tail | follow | stop | idle
#
#   setup   makes or reuses .venv with the tpu extra
#   start   runs python -m MODULE ARGUMENTS in the background, unless the same command is already running
#   status  one line: worker HOST running | exit CODE | none
#   idle    succeeds where nothing runs
#
# It lives in searchjax_pod/source/launch/pod/; searchjax_pod/ holds env (secrets), worker.log, command, pid, exit_code.
#
# Costs          nothing of its own.
# Leaves behind  those files, until the TPU VM is deleted.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"
POD="$(dirname "$REPO")"
umask 077

is_running() { [ -f "$POD/pid" ] && [ ! -f "$POD/exit_code" ] && kill -0 "$(cat "$POD/pid")" 2>/dev/null; }

setup() {
  # TPU VM images of 2025 bring Python 3.10; uv fetches a newer one without root.
  if ! find_python >/dev/null && [ ! -x "$PY" ]; then
    python3 -m pip install --user --quiet uv || fail "no Python 3.11 here, and pip could not install uv to fetch one"
    SEARCHJAX_PYTHON="$(python3 -m uv python find 3.11 2>/dev/null)" \
      || { python3 -m uv python install 3.11 && SEARCHJAX_PYTHON="$(python3 -m uv python find 3.11)"; } \
      || fail "no Python 3.11 here, and uv could not fetch one"
    export SEARCHJAX_PYTHON
  fi
  prepare_environment tpu
}

start() {
  local command
  printf -v command '%q ' "$@"
  if is_running; then
    [ "$command" = "$(cat "$POD/command")" ] || fail "another run is going on: $(cat "$POD/command")"
    echo "$(hostname): already running"
    return
  fi
  rm -f "$POD/exit_code"
  printf '%s' "$command" > "$POD/command"
  echo "== $(date -u '+%Y-%m-%d %H:%M:%S') UTC, $(hostname): $command" >> "$POD/worker.log"
  setsid nohup bash "$0" supervise "$@" >> "$POD/worker.log" 2>&1 </dev/null &
  echo $! > "$POD/pid"
}

supervise() {
  local line code=0
  if [ -f "$POD/env" ]; then
    while IFS= read -r line; do export "${line?}"; done < "$POD/env"
  fi
  cd "$REPO"
  # A TPU that cannot be had is an error, not a run on the CPU.
  export JAX_PLATFORMS="${JAX_PLATFORMS:-tpu,cpu}"
  export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$REPO/.jax_cache}"
  export PYTHONUNBUFFERED=1
  "$PY" -m "$@" || code=$?
  echo "== exit code $code"
  echo "$code" > "$POD/exit_code.new"
  mv "$POD/exit_code.new" "$POD/exit_code"
}

status() {
  local state=none
  if is_running; then
    state=running
  elif [ -f "$POD/exit_code" ]; then
    state="exit $(cat "$POD/exit_code")"
  elif [ -f "$POD/pid" ]; then
    state="exit 137"  # gone without a word: killed, or the machine was restarted
  fi
  echo "worker $(hostname) $state"
}

stop() {
  is_running || return 0
  local pid tries
  pid="$(cat "$POD/pid")"
  kill -TERM -- "-$pid" 2>/dev/null || true
  for tries in $(seq 50); do
    kill -0 -- "-$pid" 2>/dev/null || break
    [ "$tries" != 50 ] || kill -KILL -- "-$pid" 2>/dev/null || true
    sleep 0.2
  done
  [ -f "$POD/exit_code" ] || echo 143 > "$POD/exit_code"
  echo "$(hostname): stopped"
}

case "${1:-}" in
  setup|status|stop) "$1" ;;
  start|supervise) "$@" ;;
  idle) ! is_running || fail "$(hostname): a run is going on (launch/pod/stop.sh ends it)" ;;
  tail)
    if [ -f "$POD/worker.log" ]; then
      tail -n 20 "$POD/worker.log" | sed "s/^/$(hostname): /"
    else
      echo "$(hostname): no log yet"
    fi ;;
  follow)
    [ -f "$POD/pid" ] || fail "$(hostname): no run was started here"
    tail -n +1 -F --pid="$(cat "$POD/pid")" "$POD/worker.log" ;;
  *) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
