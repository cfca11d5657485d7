#!/usr/bin/env bash
# One machine with NVIDIA GPUs: install jax for CUDA 12 or 13, then train on all its GPUs in one process.
#
#   launch/gpu.sh setup [--cuda 12 | 13]
#   launch/gpu.sh run --run RUN [--bucket gs://BUCKET] [--memory-fraction 0.9] CONFIG [key=value ...]
#
#   --cuda N             12 (default) or 13; the wheels bring CUDA and cuDNN, the machine only its driver
#                        (CUDA 12: 525 or newer; CUDA 13: 580 or newer; `nvidia-smi` shows it)
#   --run RUN            the run's id; the same id goes on where the run stopped
#   --bucket BUCKET      compilation cache and run directory in a bucket; without it in ~/.cache/remem_jax and runs/RUN
#   --memory-fraction F  the share of GPU memory that JAX takes at the start (its own default is 0.75)
#   --dry-run            print every command and run none
#   --help               this text
#
# CUDA_VISIBLE_DEVICES=0,1 before the command selects GPUs. Ctrl-C saves and stops; the same command goes on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launch/common.sh
source launch/common.sh

parse 'cuda run bucket memory-fraction' '' "$@"
command=${rest[0]:-}
settings=(${rest[@]+"${rest[@]:1}"})
case $command in
setup)
  [ "$opt_cuda" = 12 ] || [ "$opt_cuda" = 13 ] || fail "expected --cuda 12 or 13, found '$opt_cuda'"
  [ -z "${rest[1]:-}" ] || fail "expected nothing after setup, found '${rest[1]}'"
  flags=()
  [ "$dry" = no ] || flags+=(--dry-run)
  bash launch/worker.sh ${flags[@]+"${flags[@]}"} setup "cuda$opt_cuda"
  ;;
run)
  need --run "$opt_run" relay-1
  check_run "$opt_run"
  [[ $opt_memory_fraction =~ ^0?\.[0-9]+$ ]] || fail "expected --memory-fraction between 0 and 1, found '$opt_memory_fraction'"
  check_settings ${settings[@]+"${settings[@]}"}
  run_in "$opt_run" "$opt_bucket" "${settings[@]}"
  run env "XLA_CLIENT_MEM_FRACTION=$opt_memory_fraction" "JAX_COMPILATION_CACHE_DIR=$cache" "${train[@]}"
  ;;
*) fail "expected setup or run, found '$command'; --help explains them" ;;
esac
