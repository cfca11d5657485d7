#!/usr/bin/env bash
# A Cloud TPU slice with SSH: make it, set it up, train on all its workers, follow the log, delete it.
#
#   launch/tpu_vm.sh create NAME --zone ZONE --type TYPE [--spot] [--runtime VERSION]
#   launch/tpu_vm.sh setup  NAME --zone ZONE [--commit HEAD] [--prepare LINE]   sends a commit to all workers, installs it
#   launch/tpu_vm.sh run    NAME --zone ZONE --bucket gs://BUCKET --run RUN CONFIG [key=value ...]
#   launch/tpu_vm.sh logs   NAME --zone ZONE --run RUN [--worker N]      follows; Ctrl-C ends the following only
#   launch/tpu_vm.sh state  NAME --zone ZONE --run RUN                   absent, running, stopped or the exit status, of worker 0
#   launch/tpu_vm.sh stop   NAME --zone ZONE --run RUN                   asks the run to save and end, on all workers
#   launch/tpu_vm.sh delete NAME --zone ZONE
#
#   --type TYPE        v5litepod-8, v6e-8, v5p-8, v4-8, ...; v4 and v5p count two cores a chip: v5p-128 has 64 chips
#   --runtime VERSION  the image; by default the one that belongs to the type
#   --prepare LINE     a shell line for every worker after that, in the clone there, such as copying data out of a bucket
#   --project PROJECT  by default the project of `gcloud config`
#   --bucket BUCKET    holds the compilation cache (BUCKET/cache) and the run directory (BUCKET/runs/RUN)
#   --run RUN          the run's id; the same id goes on where the run stopped
#   --dry-run          print every command and run none
#   --help             this text
#
# The same command runs on every worker. Settings go to `remem train` as they are; run_dir=DIR among them replaces the
# directory in the bucket. What works today and what does not yet: launch/README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launch/common.sh
source launch/common.sh

tpu() {
  need_tool gcloud "install the Google Cloud CLI, or look at the commands with --dry-run"
  run gcloud compute tpus tpu-vm "$@"
}

# on WORKER COMMAND: the same line on one or all workers.
on() {
  tpu ssh "$name" "${place[@]}" --worker="$1" --command="$2"
}

# Committed files only, so that a run can be told from its commit.
set_up() {
  local archive
  if [ -n "$(git --no-optional-locks status --porcelain)" ]; then
    echo "Files that are not committed stay here: what is sent is commit $(git rev-parse --short "$opt_commit")." >&2
  fi
  archive=${TMPDIR:-/tmp}/remem_jax-$name.tar.gz
  run git archive --format=tar.gz --output="$archive" "$opt_commit"
  tpu scp "$archive" "$name:remem_jax.tar.gz" "${place[@]}" --worker=all
  on all "mkdir -p remem_jax && tar -xzf remem_jax.tar.gz -C remem_jax && bash remem_jax/launch/worker.sh setup tpu"
  # shellcheck disable=SC2016 # the worker's own variables
  [ -z "$opt_prepare" ] || on all 'cd remem_jax && export PATH="$PWD/.venv/bin:$PATH" && '"$opt_prepare"
}

start() {
  [[ $1 == gs://* ]] || git ls-files --error-unmatch "$1" >/dev/null 2>&1 ||
    fail "expected a committed CONFIG, as only those are sent, '$1' is not"
  run_in "$opt_run" "$opt_bucket" "$@"
  on all "$(line bash remem_jax/launch/worker.sh start "$opt_run" env "JAX_COMPILATION_CACHE_DIR=$cache" "${train[@]}")"
}

parse 'zone type runtime project bucket run worker commit prepare' spot "$@"
command=${rest[0]:-}
name=${rest[1]:-}
settings=(${rest[@]+"${rest[@]:2}"})

case $command in
create | setup | run | logs | state | stop | delete) ;;
*) fail "expected create, setup, run, logs, state, stop or delete, found '$command'; --help explains them" ;;
esac
[ -n "$name" ] || fail "expected the name of the slice after $command, found none"
need --zone "$opt_zone" us-east5-b
[ "$command" = run ] || [ -z "${rest[2]:-}" ] || fail "expected nothing after $command $name, found '${rest[2]}'"
place=(--zone="$opt_zone")
if [ -n "$opt_project" ]; then place+=(--project="$opt_project"); fi
case $command in
run | logs | state | stop)
  need --run "$opt_run" relay-1
  check_run "$opt_run"
  ;;
esac

case $command in
create)
  need --type "$opt_type" v5litepod-8
  if [ -z "$opt_runtime" ]; then opt_runtime=$(runtime_of "$opt_type") || exit 2; fi
  more=()
  if [ "$opt_spot" = yes ]; then more+=(--spot); fi
  tpu create "$name" "${place[@]}" --accelerator-type="$opt_type" --version="$opt_runtime" ${more[@]+"${more[@]}"}
  ;;
setup) set_up ;;
run)
  need --bucket "$opt_bucket" gs://my-bucket
  check_bucket "$opt_bucket"
  check_settings ${settings[@]+"${settings[@]}"}
  start "${settings[@]}"
  ;;
logs) on "$opt_worker" "bash remem_jax/launch/worker.sh log $opt_run" ;;
state) on 0 "if [ -f remem_jax/launch/worker.sh ]; then bash remem_jax/launch/worker.sh state $opt_run; else echo absent; fi" ;;
stop) on all "bash remem_jax/launch/worker.sh stop $opt_run" ;;
delete) tpu delete "$name" "${place[@]}" --quiet ;;
esac
