#!/usr/bin/env bash
# A Cloud TPU slice from the queue, and a run on it that survives preemption: asks for the slice, waits, sets it up, starts
# the run; a slice that was taken away is deleted and asked for again, and the run goes on under the same id.
#
#   launch/tpu_queued.sh run NAME --zone ZONE --type TYPE --bucket gs://BUCKET --run RUN [--spot | --reserved]
#                        [--prepare LINE] [--keep] [--every 60] CONFIG [key=value ...]
#   launch/tpu_queued.sh state  NAME --zone ZONE       the state of the request
#   launch/tpu_queued.sh delete NAME --zone ZONE       the request and its slice; suspended and failed ones use up quota too
#
#   --type TYPE        v5litepod-64, v6e-64, v5p-128, ...; v4 and v5p count two cores a chip: v5p-128 has 64 chips
#   --runtime VERSION  the image; by default the one that belongs to the type
#   --project PROJECT  by default the project of `gcloud config`
#   --bucket BUCKET    holds the compilation cache (BUCKET/cache) and the run directory (BUCKET/runs/RUN)
#   --run RUN          the run's id
#   --prepare LINE     a shell line for every worker of a new slice, in the clone there, such as copying data out of a bucket
#   --spot             cheaper, can be taken away;  --reserved: from a reservation
#   --keep             leave the slice when the run has ended; else it is deleted
#   --every SECONDS    how often to look
#   --dry-run          print every command and run none
#   --help             this text
#
# `run` stays in the foreground (take tmux, or a small machine that stays on) and may be ended and started again at any time.
# End it before you stop the run by hand: it would start it again. Log: launch/tpu_vm.sh logs NAME --zone ZONE --run RUN.
# A preempted run goes on from the checkpoints in the bucket: docs/launching.md, 'Buckets'.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launch/common.sh
source launch/common.sh

note() {
  echo "$(date +%H:%M:%S) $1" >&2
}

queued() {
  need_tool gcloud "install the Google Cloud CLI, or look at the commands with --dry-run"
  run gcloud compute tpus queued-resources "$@"
}

vm() {
  local flags=()
  [ "$dry" = no ] || flags+=(--dry-run)
  bash launch/tpu_vm.sh ${flags[@]+"${flags[@]}"} "$1" "$name" "${place[@]}" "${@:2}"
}

create() {
  local more=()
  if [ "$opt_spot" = yes ]; then more+=(--spot); fi
  if [ "$opt_reserved" = yes ]; then more+=(--reserved); fi
  queued create "$name" --node-id="$name" "${place[@]}" --accelerator-type="$opt_type" --runtime-version="$opt_runtime" \
    ${more[@]+"${more[@]}"}
}

delete() {
  queued delete "$name" "${place[@]}" --force --quiet
}

# The state of the request: absent, unknown (nobody could be asked) or what Cloud TPU says.
request() {
  local answer
  if answer=$(gcloud compute tpus queued-resources describe "$name" "${place[@]}" '--format=value(state.state)' 2>&1); then
    echo "${answer##*$'\n'}"
  elif [[ $answer == *NOT_FOUND* || $answer == *"not found"* ]]; then
    echo absent
  else
    note "$answer"
    echo unknown
  fi
}

begin() {
  local more=()
  if [ -n "$opt_prepare" ]; then more+=("--prepare=$opt_prepare"); fi
  vm setup --commit "$commit" ${more[@]+"${more[@]}"} && vm run --bucket "$opt_bucket" --run "$opt_run" "$@"
}

# One look at an active slice. Sets ended to the exit status once the run has ended by itself.
look() {
  local node progress
  node=$(gcloud compute tpus tpu-vm describe "$name" "${place[@]}" '--format=value(state)' 2>/dev/null) || return 0
  case $node in
  READY) ;;
  PREEMPTED | TERMINATED)
    note "the slice was taken away ($node)"
    delete || note "deleting failed; trying again"
    return 0
    ;;
  *) return 0 ;;
  esac
  # SSH fails while a slice is being taken away; the next look tells.
  progress=$(vm state --run "$opt_run") || return 0
  progress=${progress##*$'\n'}
  case $progress in
  running) ;;
  absent | stopped)
    note "run $opt_run is $progress here: setting up and starting it"
    begin "$@" || note "starting failed; trying again"
    ;;
  *) ended=$progress ;;
  esac
}

supervise() {
  local state before='' refused=0
  need_tool gcloud "install the Google Cloud CLI, or look at the commands with --dry-run"
  ended=
  while [ -z "$ended" ]; do
    state=$(request)
    if [ "$state" != "$before" ]; then note "$name: $state"; fi
    before=$state
    case $state in
    absent) create || refused=$((refused + 1)) ;;
    ACTIVE)
      refused=0
      look "$@"
      ;;
    SUSPENDED) delete || note "deleting failed; trying again" ;;
    FAILED)
      refused=$((refused + 1))
      delete || note "deleting failed; trying again"
      ;;
    esac
    if [ "$refused" -ge 3 ]; then
      echo "remem: error: the slice was refused three times in a row; read the messages above, then the quota and the zone's types" >&2
      exit 1
    fi
    [ -n "$ended" ] || sleep "$opt_every"
  done
  if [ "$ended" != 0 ]; then
    echo "remem: error: run $opt_run ended with status $ended; its log: launch/tpu_vm.sh logs $name $(line "${place[@]}") --run $opt_run" >&2
    exit 1
  fi
  note "run $opt_run is complete"
  [ "$opt_keep" = yes ] || delete
}

rehearse() {
  echo "# ask for the slice; then, every $opt_every seconds, is it there?"
  create
  queued describe "$name" "${place[@]}" '--format=value(state.state)'
  echo "# once it is ACTIVE: set up and start"
  begin "$@"
  echo "# then, every $opt_every seconds: is the slice still there, does the run go on?"
  run gcloud compute tpus tpu-vm describe "$name" "${place[@]}" '--format=value(state)'
  vm state --run "$opt_run"
  echo "# when it was taken away: delete it and begin again at the top; the same at the end, unless --keep is given"
  delete
}

parse 'zone type runtime project bucket run every prepare' 'spot reserved keep' "$@"
command=${rest[0]:-}
name=${rest[1]:-}
settings=(${rest[@]+"${rest[@]:2}"})
case $command in
run | state | delete) ;;
*) fail "expected run, state or delete, found '$command'; --help explains them" ;;
esac
[ -n "$name" ] || fail "expected the name of the slice after $command, found none"
need --zone "$opt_zone" us-east5-b
[ "$command" = run ] || [ -z "${rest[2]:-}" ] || fail "expected nothing after $command $name, found '${rest[2]}'"
[[ $opt_every =~ ^[0-9]+$ ]] || fail "expected --every as a number of seconds, found '$opt_every'"
place=(--zone="$opt_zone")
if [ -n "$opt_project" ]; then place+=(--project="$opt_project"); fi

case $command in
state) queued describe "$name" "${place[@]}" '--format=value(state.state)' ;;
delete) delete ;;
run)
  need --type "$opt_type" v6e-8
  need --bucket "$opt_bucket" gs://my-bucket
  need --run "$opt_run" relay-1
  check_bucket "$opt_bucket"
  check_run "$opt_run"
  if [ "$opt_spot$opt_reserved" = yesyes ]; then fail "expected --spot or --reserved, found both"; fi
  if [ -z "$opt_runtime" ]; then opt_runtime=$(runtime_of "$opt_type") || exit 2; fi
  check_settings ${settings[@]+"${settings[@]}"}
  # A slice that comes back gets the code that the run began with, whatever is committed here meanwhile.
  commit=$(git rev-parse HEAD)
  if [ "$dry" = yes ]; then rehearse "${settings[@]}"; else supervise "${settings[@]}"; fi
  ;;
esac
