# shellcheck shell=bash disable=SC2034
# What the launch scripts share: one-line errors, commands that --dry-run prints, checks of arguments. It is sourced.

# Pinned here and nowhere else. Ubuntu 22.04 of the TPU images has Python 3.10, so uv brings a newer one.
uv_version=0.13.8
worker_python=3.12
dry=no

fail() {
  echo "remem: error: $1" >&2
  exit 2
}

# One word as a shell reads it back: bare where it can be, else in quotes.
quoted() {
  if [[ $1 =~ ^[A-Za-z0-9_@%+=:,./~-]+$ ]]; then
    printf '%s' "$1"
  else
    printf "'%s'" "${1//\'/\'\\\'\'}"
  fi
}

# Words as one line that a shell reads back.
line() {
  local text=
  for word in "$@"; do text+="$(quoted "$word") "; done
  printf '%s' "${text% }"
}

# Runs a command, or only prints it under --dry-run.
run() {
  if [ "$dry" = yes ]; then
    printf '%s\n' "$(line "$@")"
  else
    "$@"
  fi
}

# The comment at the top of a script is its help (`#SBATCH` lines are not).
show_help() {
  awk 'NR > 1 && !/^#/ { exit } NR > 1 && !/^#SBATCH/ { sub(/^# ?/, ""); print }' "$1"
}

# What `parse` finds: --name VALUE and --name as opt_name, the other words as rest.
opt_zone='' opt_type='' opt_runtime='' opt_project='' opt_bucket='' opt_run='' opt_worker=0 opt_commit=HEAD opt_every=60 opt_prepare=''
opt_cuda=12 opt_memory_fraction=0.9 opt_spot=no opt_reserved=no opt_keep=no
rest=()

# parse 'OPTIONS WITH A VALUE' 'SWITCHES' WORDS...
parse() {
  local values=" $1 " switches=" $2 " key given
  shift 2
  while [ $# -gt 0 ]; do
    key=${1#--}
    key=${key%%=*}
    if [ "$1" = --help ] || [ "$1" = -h ]; then
      show_help "launch/${0##*/}"
      exit
    elif [ "$1" = --dry-run ]; then
      dry=yes
    elif [[ $1 == -* && $switches == *" $key "* && $1 != *=* ]]; then
      printf -v "opt_${key//-/_}" yes
    elif [[ $1 == --* && $values == *" $key "* ]]; then
      given=${1#*=}
      if [[ $1 != *=* ]]; then
        [ $# -ge 2 ] && [[ $2 != --* ]] || fail "expected a value after $1, found ${2:-nothing}; --help shows the options"
        given=$2
        shift
      fi
      printf -v "opt_${key//-/_}" %s "$given"
    elif [[ $1 == -* ]]; then
      fail "option $1 is unknown here; --help shows the options"
    else
      rest+=("$1")
    fi
    shift
  done
}

# need NAME VALUE EXAMPLE: a required option was given.
need() {
  [ -n "$2" ] || fail "expected $1, found none; give one such as $1 $3"
}

# The TPU image that belongs to a type of slice.
runtime_of() {
  case $1 in
  v6e-*) echo v2-alpha-tpuv6e ;;
  v5p-*) echo v2-alpha-tpuv5 ;;
  v5litepod-*) echo v2-alpha-tpuv5-lite ;;
  v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
  v5e-*) fail "expected --type v5litepod-${1#v5e-}, as Cloud TPU calls v5e, found '$1'" ;;
  *) fail "expected --type such as v5litepod-8, v6e-8 or v5p-8, found '$1'; give --runtime too for another one" ;;
  esac
}

check_bucket() {
  [[ $1 =~ ^gs://[^/[:space:]]+ ]] || fail "expected --bucket as gs://NAME, found '$1'"
}

check_run() {
  [[ $1 =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || fail "expected --run of letters, digits, '.', '_' and '-', found '$1'"
}

# check_settings CONFIG KEY=VALUE...: what `remem train` will be given. A config outside a bucket must exist where it is sent from.
check_settings() {
  [ $# -gt 0 ] || fail "expected CONFIG [key=value ...] after the options, found nothing; for example configs/qwen2.5_7b_v6e_64.yaml"
  [[ $1 != *=* && $1 != -* ]] || fail "expected CONFIG before the settings, found '$1'"
  [[ $1 == gs://* ]] || [ -f "$1" ] || fail "expected CONFIG as a file of this repository, found no '$1'; configs/ holds examples"
  shift
  for setting in "$@"; do
    [[ $setting =~ ^[A-Za-z_][A-Za-z0-9_.]*= ]] || fail "expected a setting as key=value, found '$setting'"
  done
}

# Is the tool there that a script is about to use?
need_tool() {
  [ "$dry" = yes ] || command -v "$1" >/dev/null || fail "expected the command $1, found none; $2"
}

# run_dir goes last so that it wins, unless the settings name one themselves.
has_run_dir() {
  for setting in "$@"; do
    [[ $setting == run_dir=* ]] && return 0
  done
  return 1
}

# run_in RUN BUCKET CONFIG [key=value ...]: sets `train`, the command, and `cache`, its compilation cache.
run_in() {
  local directory=runs/$1
  cache=$HOME/.cache/remem_jax/xla
  if [ -n "$2" ]; then
    check_bucket "$2"
    directory=${2%/}/runs/$1
    cache=${2%/}/cache
  fi
  shift 2
  train=(.venv/bin/remem train "$@")
  has_run_dir "${@:2}" || train+=("run_dir=$directory")
}
