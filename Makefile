# Every target does the set-up it needs in .venv; a second run installs nothing. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
# Demo, tests and benchmarks are made for the CPU; with libtpu installed JAX would first search for a TPU.
export JAX_PLATFORMS ?= cpu
PINS := pyproject.toml $(wildcard constraints/*.txt)

# Chosen for a 135M model: it writes no tags, so its whole reply is the memory and the question itself calls memories back.
# The lengths let it finish within three minutes on two cores.
DEMO_TRACE := runs/demo/trace.jsonl
DEMO_ARGS ?= --agent rule_callback --memory-tag none --prompt-order question_last --temperature 0.3 \
  --chunk-tokens 1024 --memory-tokens 64 --max-reply-tokens 64

.DEFAULT_GOAL := help
.PHONY: help demo answer install test test-fast lint format bench clean

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: .venv/.core ## install the core, then SmolLM2-135M answers two questions over examples/dossier
	@mkdir -p $(dir $(DEMO_TRACE)) && rm -f $(DEMO_TRACE)
	$(BIN)/remem answer --model smollm2 --questions examples/questions.txt --documents examples/dossier \
	  $(DEMO_ARGS) --trace $(DEMO_TRACE)
	@$(BIN)/python examples/show_trace.py $(DEMO_TRACE)

answer: demo ## the same as demo

install: .venv/.dev ## everything for work on the code: .[dev,tpu] and the small real model

test: .venv/.dev ## install, then run the whole suite
	$(BIN)/python -m pytest $(ARGS)

test-fast: .venv/.dev ## install, then run the suite without what takes minutes
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

lint: .venv/.dev ## ruff (rules and format) and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/.dev ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev ## speed against transformers + torch, look-up and memory of reading; writes runs/bench/*.json
	$(BIN)/python benchmarks/generate.py --out runs/bench/generate.json $(ARGS)
	$(BIN)/python benchmarks/reading.py --out runs/bench/reading.json

clean: ## remove the environment, what runs wrote and caches
	rm -rf .venv runs build dist *.egg-info .pytest_cache .ruff_cache .hypothesis

.venv/.core .venv/.dev: .venv/.%: $(PINS) tools/setup.sh
	@PYTHON="$(PYTHON)" bash tools/setup.sh $*
