# shellcheck shell=bash
# Sourced by launch/pod/*.sh and launch/gke/*.sh: their arguments, --dry-run, TPU types, secrets, calls to the workers.
#
# With --dry-run the commands go to stdout instead of being run: what is printed is itself a shell script.
# SEARCHJAX_POLL_SECONDS is the time between two looks at something that is waited for (default 30).

# The scripts that source this file read what is set here.
# shellcheck disable=SC2034

source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"

POLL="${SEARCHJAX_POLL_SECONDS:-30}"
GONE=75  # exit code: the TPU VMs went away (EX_TEMPFAIL); resume.sh goes on, run.sh --wait reports it

# One variable an option; - in the option is _ here.
name="" zone="" project="" type="" runtime_version="" spot="" secrets="" worker="" follow="" wait="" attempts="" dry_run=""
namespace="" accelerator="" topology="" chips_per_node="" image="" max_restarts="" queue="" cluster="" service_account=""
create_flags=() train=()

usage() { fail "$1 (bash ${0#"$PWD/"} --help shows the arguments)" 2; }

parse_arguments() {  # parse_arguments "OPTIONS" "SWITCHES" "$@"; what follows -- goes into train
  local options=" $1 " switches=" $2 dry-run " word option value
  shift 2
  while [ $# -gt 0 ]; do
    word="$1"
    shift
    option="${word#--}"
    option="${option%%=*}"
    case "$word" in
      -h|--help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
      --)
        [[ "$options" == *" -- "* ]] || usage "nothing may follow --"
        train=("$@")
        break ;;
    esac
    if [[ "$word" == --* && "$word" != *=* && "$switches" == *" $option "* ]]; then
      printf -v "${option//-/_}" '%s' 1
    elif [[ "$word" == --?* && "$options" == *" $option "* ]]; then
      if [[ "$word" == *=* ]]; then
        value="${word#*=}"
      else
        { [ $# -gt 0 ] && [[ "$1" != --* ]]; } || usage "$word needs a value"
        value="$1"
        shift
      fi
      [ -n "$value" ] || usage "--$option needs a value"
      if [ "$option" = create-flag ]; then
        create_flags+=("$value")
      else
        printf -v "${option//-/_}" '%s' "$value"
      fi
    else
      usage "unknown argument \"$word\""
    fi
  done
  check_values
}

require() {  # require OPTION...: each was given
  local option
  for option in "$@"; do
    local variable="${option//-/_}"
    [ -n "${!variable}" ] || usage "--$option is needed"
  done
}

check_values() {
  expect name '[a-z]([-a-z0-9]{0,38}[a-z0-9])?' "1 to 40 small letters, digits and -, a letter first"
  expect zone '[a-z]+-[a-z]+[0-9]+-([a-z]|ai[0-9]+[a-z])' "a zone such as us-west4-a"
  expect project '[a-z][-a-z0-9:.]{4,}[a-z0-9]' "a project id such as my-project"
  expect runtime-version '[a-z0-9][-a-z0-9.]*' "a TPU software version such as v2-alpha-tpuv5-lite"
  expect secrets '[A-Za-z_][A-Za-z0-9_]*(,[A-Za-z_][A-Za-z0-9_]*)*' \
    "names of environment variables, A,B, and never their values" hidden
  expect worker '[0-9]+|all' "a worker's number from 0, or all"
  expect attempts '[1-9][0-9]{0,3}' "a whole number from 1"
  expect namespace '[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?' "a Kubernetes namespace"
  expect queue '[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?' "the name of a Kueue LocalQueue"
  expect service-account '[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?' "the name of a Kubernetes service account"
  expect cluster '[a-z]([-a-z0-9]{0,38}[a-z0-9])?' "the name of a GKE cluster"
  expect image '[a-z0-9][-a-zA-Z0-9._/:@]*' "a container image such as us-docker.pkg.dev/my-project/my-repo/searchjax:1"
  expect max-restarts '[0-9]{1,4}' "a whole number from 0"
  [[ "$POLL" =~ ^[0-9]+([.][0-9]+)?$ ]] || usage "SEARCHJAX_POLL_SECONDS expects seconds, got \"$POLL\""
  where=(--zone="$zone")
  [ -z "$project" ] || where+=(--project="$project")
  : "${namespace:=default}"
  staging="$REPO/runs/pods/$name"
}

expect() {  # expect OPTION REGEX WHAT [hidden]: an option that was given looks like this
  local variable="${1//-/_}"
  local value="${!variable}"
  [ -z "$value" ] || [[ "$value" =~ ^($2)$ ]] || usage "--$1 expects $3${4:-, got \"$value\"}"
}

# ---- printing and running ------------------------------------------------------------------------

quoted() {  # the words as one line that a shell reads back as the same words
  local word option line="" one="'\\''"
  for word in "$@"; do
    option=""
    if [[ "$word" =~ ^(--[-a-z_.A-Z0-9]+=)(.*)$ ]]; then option="${BASH_REMATCH[1]}" word="${word#*=}"; fi
    [[ "$word" =~ ^[-A-Za-z0-9_./:=@%+,]+$ ]] || word="'${word//\'/$one}'"
    line+=" $option$word"
  done
  printf '%s' "${line# }"
}

execute() {
  if [ -n "$dry_run" ]; then quoted "$@"; echo; else "$@"; fi
}

say() {  # a comment in the script that --dry-run prints
  if [ -n "$dry_run" ]; then echo "# $1"; else echo "$1"; fi
}

# ---- what is trained -----------------------------------------------------------------------------

check_training() {  # sets module; train loses its first word and keeps the entry point's arguments
  local stage="${train[0]:-}" word config="" workdir="" wants=""
  case "$stage" in
    sft|rm|grpo) module="searchjax.train_$stage" ;;
    evaluate) module="searchjax.evaluate" ;;
    *) usage "after -- comes what to run: sft, rm, grpo or evaluate, then its arguments, got \"$stage\"" ;;
  esac
  train=("${train[@]:1}")
  for word in ${train[@]+"${train[@]}"}; do
    [[ "$word" != *$'\n'* ]] || usage "an argument of $stage has a line break"
    if [ -n "$wants" ]; then
      [[ -n "$word" && "$word" != --* ]] || usage "$stage: --$wants needs a value"
      printf -v "$wants" '%s' "$word"
      wants=""
      continue
    fi
    case "$word" in
      --config=*) config="${word#*=}" ;;
      --workdir=*) workdir="${word#*=}" ;;
      --config|--workdir) wants="${word#--}" ;;
      --config.*=*) ;;
      --config.*) usage "$stage: write $word=VALUE" ;;
      *) usage "$stage: unknown argument \"$word\"" ;;
    esac
  done
  [ -z "$wants" ] || usage "$stage: --$wants needs a value"
  [ -n "$config" ] || usage "$stage: --config is needed"
  [[ "$config" != /* ]] || usage "$stage: --config is a path in the repository, got \"$config\""
  [ -f "$REPO/${config%%:*}" ] || usage "$stage: no config file \"${config%%:*}\" in the repository"
  [ -n "$workdir" ] || usage "$stage: --workdir is needed"
  [[ "$workdir" != gs:* || "$workdir" =~ ^gs://[a-z0-9][-a-z0-9._]{1,61}[a-z0-9]/.+ ]] \
    || usage "$stage: --workdir expects gs://BUCKET/FOLDER, got \"$workdir\""
  train_workdir="$workdir"
}

form_of_hosts() {  # form_of_hosts HOSTS: the run is one of so many processes, found through the slice, or an error
  if [ "$module" = searchjax.evaluate ]; then
    [ "$1" = 1 ] || usage "evaluate runs on one host, in local folders: copy the run from its bucket"
    return
  fi
  # First, so that the user's own overrides win.
  train=("--config.distributed.coordinator=auto" "--config.distributed.processes=$1" "${train[@]}")
}

require_bucket() {  # require_bucket WHY
  [[ "$train_workdir" == gs://* ]] || usage "--workdir must be gs://BUCKET/FOLDER: $1, got \"$train_workdir\""
}

# ---- TPU types -----------------------------------------------------------------------------------

tpu_type() {  # reads $type; sets chips, hosts and default_runtime
  local count hint=""
  if [[ "$type" =~ ^(v5e|v5p|v6e|tpu7x):([0-9]+)x([0-9]+)(x([0-9]+))?$ ]]; then
    count=$((BASH_REMATCH[2] * BASH_REMATCH[3] * ${BASH_REMATCH[5]:-1}))
    case "${BASH_REMATCH[1]}" in
      v5e) hint="; write v5litepod-$count" ;;
      v5p) hint="; write v5p-$((2 * count)), which counts cores" ;;
      v6e) hint="; write v6e-$count" ;;
    esac
  fi
  case "$type" in
    v5e-*) hint="; write v5litepod-${type#v5e-}" ;;
    tpu7x*) usage "--type $type: Cloud TPU VMs end at v6e, tpu7x is had through GKE (launch/gke/)" ;;
  esac
  [[ "$type" =~ ^(v5litepod|v5p|v6e)-([1-9][0-9]{0,4})$ ]] \
    || usage "--type expects v5litepod-CHIPS, v6e-CHIPS or v5p-CORES, got \"$type\"$hint"
  count="${BASH_REMATCH[2]}"
  case "${BASH_REMATCH[1]}" in
    v5p)
      [ $((count % 8)) = 0 ] || usage "--type v5p-CORES expects a multiple of 8 (4 chips, 8 cores a host), got $count"
      chips=$((count / 2)) default_runtime=v2-alpha-tpuv5 ;;
    *)
      [[ " 1 4 8 16 32 64 128 256 " == *" $count "* ]] \
        || usage "--type ${BASH_REMATCH[1]}-CHIPS expects 1, 4, 8, 16, 32, 64, 128 or 256, got $count"
      chips="$count"
      if [ "${BASH_REMATCH[1]}" = v6e ]; then default_runtime=v2-alpha-tpuv6e; else default_runtime=v2-alpha-tpuv5-lite; fi ;;
  esac
  # Up to eight v5e or v6e chips are one host; else a host has four.
  if [ "$chips" -le 8 ] && [ "${BASH_REMATCH[1]}" != v5p ]; then hosts=1; else hosts=$(((chips + 3) / 4)); fi
}

gke_slice() {  # reads $accelerator, $topology, $chips_per_node; sets chips, hosts and node_label
  local sides=3 shape
  case "$accelerator" in
    v5e) node_label=tpu-v5-lite-podslice sides=2 ;;
    v6e) node_label=tpu-v6e-slice sides=2 ;;
    v5p) node_label=tpu-v5p-slice ;;
    tpu7x) node_label=tpu7x ;;
    *) usage "--accelerator expects v5e, v5p, v6e or tpu7x, got \"$accelerator\"" ;;
  esac
  shape='^[1-9][0-9]{0,2}x[1-9][0-9]{0,2}'
  if [ $sides = 3 ]; then shape+='x[1-9][0-9]{0,2}'; fi
  [[ "$topology" =~ $shape$ ]] \
    || usage "--topology of $accelerator has $sides sides, such as $([ $sides = 2 ] && echo 4x4 || echo 4x8x8), got \"$topology\""
  chips=$((${topology//x/ * }))
  [ -n "$chips_per_node" ] || chips_per_node=$((chips < 4 ? chips : 4))
  [[ "$chips_per_node" =~ ^[148]$ ]] || usage "--chips-per-node expects 1, 4 or 8, got \"$chips_per_node\""
  [ $((chips % chips_per_node)) = 0 ] \
    || usage "--topology $topology has $chips chips, not a multiple of $chips_per_node chips a node"
  hosts=$((chips / chips_per_node))
}

say_cost() {  # what the slice costs while it is there
  say "$chips chips: they cost $chips x hours x your price of one chip-hour, from when they are there until $1"
}

# ---- secrets -------------------------------------------------------------------------------------

check_secrets() {  # every name in $secrets is set here, on one line
  local variable
  for variable in ${secrets//,/ }; do
    [ -n "${!variable:-}" ] || usage "--secrets names $variable, which is not set in this shell"
    [[ "${!variable}" != *$'\n'* ]] || usage "--secrets names $variable, whose value has a line break"
  done
}

write_secrets() {  # writes NAME=value lines to $staging/env, mode 600; removed when the script ends
  [ -n "$secrets" ] || return 0
  say "$secrets: written to $(quoted "$staging/env") (mode 600), which is removed at the end; values are never shown"
  [ -z "$dry_run" ] || return 0
  local variable
  trap 'rm -f "$staging/env"' EXIT
  rm -f "$staging/env"
  for variable in ${secrets//,/ }; do
    (umask 077 && printf '%s=%s\n' "$variable" "${!variable}" >> "$staging/env")
  done
}

# ---- TPU VMs -------------------------------------------------------------------------------------

worker_script='bash searchjax_pod/source/launch/pod/worker.sh'  # on a worker, from its home folder

on_workers() {  # on_workers WORKER COMMAND: runs a command line there; non-zero if it fails on any of them
  execute gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker="$1" --command="$2" </dev/null
}

list_field() {  # list_field EXPRESSION: of the queued resource; nothing where there is none
  execute gcloud compute tpus queued-resources list "${where[@]}" \
    --filter="name~/queuedResources/$name\$" --format="value($1)"
}

resource_state() {  # prints the queued resource's state, or NONE; a few failed looks in a row are forgiven
  local state tries
  for tries in 1 2 3 4 5; do
    if state="$(list_field state.state)"; then echo "${state:-NONE}"; return 0; fi
    [ "$tries" = 5 ] || sleep "$POLL"
  done
  fail "gcloud cannot list queued resources; see its message above"
}
