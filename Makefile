# Every target does the set-up it needs in .venv; a second run installs nothing. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
# Demo, tests and benchmarks are made for the CPU; with libtpu installed JAX would first search for a TPU.
export JAX_PLATFORMS ?= cpu
PINS := pyproject.toml $(wildcard constraints/*.txt)

# Chosen for a 135M model: it writes no tags, so its whole reply is the memory and the question itself calls memories back.
# The lengths let it finish within three minutes on two cores.
ANSWER_TRACE := runs/answer/trace.jsonl
ANSWER_ARGS ?= --agent rule_callback --memory-tag none --prompt-order question_last --temperature 0.3 \
  --chunk-tokens 1024 --memory-tokens 64 --max-reply-tokens 64

.DEFAULT_GOAL := help
.PHONY: help demo answer warm relay install test test-fast lint format bench plans notebooks docs clean

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: .venv/.core ## train a tiny agent with callbacks and its twin without, compare them; 12 minutes, writes runs/demo
	$(BIN)/python examples/relay.py --out runs/demo $(ARGS)

answer: .venv/.core ## SmolLM2-135M answers two questions over examples/dossier
	@mkdir -p $(dir $(ANSWER_TRACE)) && rm -f $(ANSWER_TRACE)
	$(BIN)/remem answer --model smollm2 --questions examples/questions.txt --documents examples/dossier \
	  $(ANSWER_ARGS) --trace $(ANSWER_TRACE)
	@$(BIN)/python examples/show_trace.py $(ANSWER_TRACE)

warm: .venv/.core ## a model of the relay task that training can start from; 3 minutes, writes runs/relay
	$(BIN)/python -m remem_jax.data.relay --out runs/relay/data
	$(BIN)/remem train configs/relay_practice.yaml
	$(BIN)/remem train configs/relay_warm.yaml

relay: .venv/.core ## the demo's experiment in full: three seeds, 500 questions a cell; writes runs/relay
	$(BIN)/python examples/relay.py --out runs/relay --budget full $(ARGS)

install: .venv/.dev ## everything for work on the code: .[dev,notebook,tpu] and the small real model

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

bench: .venv/.dev ## speed, memory and the compiler's view, against peers where they can be had; writes runs/bench
	$(BIN)/python benchmarks/generate.py --out runs/bench/generate.json $(ARGS)
	$(BIN)/python benchmarks/reading.py --out runs/bench/reading.json
	$(BIN)/python benchmarks/data.py --out runs/bench/data.json
	$(BIN)/python benchmarks/train.py --out runs/bench/train.json
	$(BIN)/python benchmarks/compiler_view.py

plans: .venv/.dev ## plan the 7B model on v5e:8x8, v5p:4x4x4 and v5e:2x2, without a TPU; writes runs/plans
	$(BIN)/python benchmarks/plans.py --out runs/plans $(ARGS)

notebooks: .venv/.notebook ## run every notebook on the CPU, each in a fresh kernel; 8 minutes, writes runs/relay and runs/notebooks
	$(BIN)/python tools/run_notebooks.py $(ARGS)

docs: .venv/.docs ## build the site of the documents into build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir build/site

clean: ## remove the environment, what runs wrote and caches
	rm -rf .venv runs build dist *.egg-info .pytest_cache .ruff_cache .hypothesis

.venv/.core .venv/.dev .venv/.notebook .venv/.docs: .venv/.%: $(PINS) tools/setup.sh
	@PYTHON="$(PYTHON)" bash tools/setup.sh $*
