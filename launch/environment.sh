# shellcheck shell=bash
# Sourced by the launch scripts: makes or reuses REPO/.venv, sets PY to its python, and runs stages with it.
# The stamp in .venv holds a hash of setup.py, requirements.lock and the extras asked for; another hash installs again.
#
#   SEARCHJAX_PYTHON=python3.12   the interpreter that makes the environment (default: the first that is 3.11 or newer)
#   SEARCHJAX_UNLOCKED=1          let pip choose versions instead of requirements.lock

# XLA takes a CPU run's buffers from malloc anew at every step; large pages spare a training step a third of its time.
export GLIBC_TUNABLES="${GLIBC_TUNABLES-glibc.malloc.hugetlb=1}"

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
PY="$REPO/.venv/bin/python"

fail() { echo "error: $1" >&2; exit "${2:-1}"; }

python_is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${SEARCHJAX_PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
    if python_is_new_enough "$candidate"; then command -v "$candidate"; return 0; fi
  done
  return 1
}

prepare_environment() {  # prepare_environment [EXTRAS], e.g. "test"; without, what running needs
  local extras="${1:-}" python wanted stamp="$REPO/.venv/searchjax-stamp" constraint=(-c "$REPO/requirements.lock")
  [ -n "${SEARCHJAX_UNLOCKED:-}" ] && constraint=()
  wanted="$(cat "$REPO/setup.py" "$REPO/requirements.lock" | cksum) $REPO ${SEARCHJAX_UNLOCKED:-locked}"
  # One process at a time makes the environment; the others wait for it.
  if command -v flock >/dev/null; then exec 9>"$REPO/.venv.lock"; flock 9; fi
  # Every extra brings what running needs, so any line of the stamp will do for no extras.
  if [ -x "$PY" ] && python_is_new_enough "$PY" \
    && grep -qF "$wanted ${extras:+[$extras]}" "$stamp" 2>/dev/null; then
    echo "environment: reusing .venv"
  else
    if ! { [ -x "$PY" ] && python_is_new_enough "$PY" && "$PY" -m pip --version >/dev/null 2>&1; }; then
      python="$(find_python)" || fail "no Python 3.11 or newer found; install one, or name it in SEARCHJAX_PYTHON"
      "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 \
        || fail "$python cannot make environments; install its venv module (Debian, Ubuntu: apt-get install python3-venv)"
      echo "environment: making .venv with $("$python" --version)"
      "$python" -m venv --clear "$REPO/.venv" || fail "could not make $REPO/.venv"
    fi
    echo "environment: installing searchjax${extras:+[$extras]} (a few minutes the first time)"
    "$PY" -m pip install --quiet --disable-pip-version-check "${constraint[@]}" -e "$REPO${extras:+[$extras]}" </dev/null \
      || fail "pip could not install searchjax${extras:+[$extras]}; see its message above (SEARCHJAX_UNLOCKED=1 lets it choose versions)"
    # Another version of the sources starts a new stamp; further extras add a line to it.
    grep -qF "$wanted " "$stamp" 2>/dev/null || : > "$stamp"
    echo "$wanted ${extras:+[$extras]}" >> "$stamp"
  fi
  if command -v flock >/dev/null; then exec 9>&-; fi
}

run_on_cpu() {  # for stages on this machine; what the environment sets already stays
  cd "$REPO" || fail "cannot enter $REPO"
  export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"
  # Two virtual CPU devices, one a core: batches and conversations are split over them.
  export XLA_FLAGS="${XLA_FLAGS:---xla_force_host_platform_device_count=2}"
  # Compiled programs are kept, so that a stage or a second run does not compile them again.
  export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$REPO/.jax_cache}"
}

stage() {  # stage TITLE MODULE ARGUMENTS...
  local before=$SECONDS title="$1" module="$2" code=0
  shift 2
  echo
  echo "== $title"
  "$PY" -m "$module" "$@" </dev/null || code=$?
  [ "$code" = 0 ] || fail "$title failed (exit code $code); its message is above" "$code"
  echo "   $((SECONDS - before)) s"
}
