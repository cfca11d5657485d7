#!/usr/bin/env bash
# What happens on a machine that trains. The other scripts call it there; a person rarely has to.
#
#   launch/worker.sh setup EXTRA           .venv with a pinned Python and .[EXTRA] in the pinned versions (EXTRA: tpu, cuda12, cuda13)
#   launch/worker.sh start RUN COMMAND...  starts COMMAND in the background; refuses while RUN is running
#   launch/worker.sh state RUN             prints absent, running, stopped (by a signal) or the exit status
#   launch/worker.sh log RUN               follows what COMMAND prints
#   launch/worker.sh stop RUN              asks COMMAND to save and stop (SIGTERM); waits up to 10 minutes
#   launch/worker.sh exec COMMAND...       runs COMMAND here; status 143 where a signal stopped it, although it saved and ended well
#
#   --dry-run      print the commands and run none; only before the sub-command
#   --help         this text
#
# A run's log, process id and exit status lie in ~/remem-runs/RUN (elsewhere: REMEM_RUNS).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launch/common.sh
source launch/common.sh
runs=${REMEM_RUNS:-$HOME/remem-runs}

set_up() {
  local minor=${worker_python//./} uv=$HOME/.local/bin/uv
  case ${1:-} in
  tpu | cuda12 | cuda13) ;;
  *) fail "expected the extra tpu, cuda12 or cuda13, found '${1:-}'" ;;
  esac
  # Debian and Ubuntu 24.04 let pip install nothing, not even for one user, unless told so; older pips ignore the variable.
  run env PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user "uv==$uv_version"
  run "$uv" venv --quiet --allow-existing --python "$worker_python" .venv
  run "$uv" pip install --quiet --python .venv/bin/python --constraint "constraints/py$minor.txt" \
    --editable ".[$1]" --requirement launch/gcs.txt
}

# A trainer that a signal stops saves and ends with status 0. Whoever restarts it must be able to tell that from the end.
execute() {
  local child stopped=no status=0
  [ $# -gt 0 ] || fail "expected a command, found nothing"
  if [ "$dry" = yes ]; then
    run "$@"
    return
  fi
  "$@" &
  child=$!
  trap 'stopped=yes; kill -TERM "$child" 2>/dev/null || true' TERM INT
  while true; do
    status=0
    wait "$child" || status=$?
    kill -0 "$child" 2>/dev/null || break
  done
  if [ "$stopped" = yes ]; then status=143; fi
  return "$status"
}

# A process id may belong to something else after a restart of the machine, so its command is looked at.
state_of() {
  local at=$runs/$1
  if [ -s "$at/exit" ]; then
    cat "$at/exit"
  elif [ -s "$at/pid" ] && grep -qs worker.sh "/proc/$(cat "$at/pid")/cmdline"; then
    echo running
  elif [ -s "$at/pid" ]; then
    echo stopped
  else
    echo absent
  fi
}

# The part of `start` that stays in the background.
record() {
  local at=$1 status=0
  shift
  execute "$@" || status=$?
  if [ "$status" = 143 ]; then status=stopped; fi
  echo "$status" >"$at/exit"
}

start() {
  local at=$runs/$1
  [ $# -gt 1 ] || fail "expected a command after the run's name, found nothing"
  if [ "$dry" = yes ]; then
    run "${@:2}"
    return
  fi
  [ "$(state_of "$1")" != running ] || fail "run '$1' is running here; follow it with log, end it with stop"
  mkdir -p "$at"
  rm -f "$at/exit"
  # A session of its own: the run outlives the connection that started it.
  setsid nohup bash launch/worker.sh --record "$at" "${@:2}" >>"$at/log" 2>&1 </dev/null &
  echo $! >"$at/pid"
}

stop() {
  local at=$runs/$1
  if [ "$(state_of "$1")" = running ]; then
    run kill -TERM "$(cat "$at/pid")"
    [ "$dry" = yes ] && return
    for ((i = 0; i < 600; i++)); do
      [ "$(state_of "$1")" = running ] || break
      sleep 1
    done
  fi
  state_of "$1"
}

main() {
  if [ "${1:-}" = --dry-run ]; then
    dry=yes
    shift
  fi
  local command=${1:-}
  case $command in
  --help | -h) show_help launch/worker.sh ;;
  setup) set_up "${2:-}" ;;
  exec) execute "${@:2}" ;;
  --record) record "${@:2}" ;;
  start | state | log | stop)
    [ -n "${2:-}" ] || fail "expected the name of a run after $command, found none"
    check_run "$2"
    case $command in
    start) start "${@:2}" ;;
    state) state_of "$2" ;;
    log) run tail -n 200 -F "$runs/$2/log" ;;
    stop) stop "$2" ;;
    esac
    ;;
  *) fail "expected setup, start, state, log, stop or exec, found '$command'; --help explains them" ;;
  esac
}

main "$@"
