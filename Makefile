# Scout. `make` alone lists the targets. Each target does the set-up that it needs; nothing it starts outlives it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup quickstart real serve-tools index data sft train-grpo train-dapo eval report view doctor serve-reward bench-reward \
        test test-slow check check-base bench-learning constraints clean

RUNS   ?= runs
RUN    ?= $(RUNS)/quickstart
HOST   ?= 127.0.0.1
PORT   ?= 5000
WORKERS ?= 1
TOPK   ?= 3
INDEX  ?= $(RUN)/index
SEEDS  ?= 0 1 2
# where the stages of a run leave their files
TOOLS  ?= http://127.0.0.1:$(PORT)
CORPUS ?= $(RUN)/world/corpus.jsonl
TRAIN  ?= $(RUN)/world/train.parquet
DEMOS  ?= $(RUN)/world/sft.parquet
ROWS   ?= $(RUN)/world/held_out.parquet
MODEL  ?= $(RUN)/sft/hf
SFT_STEPS ?= 500
STEPS  ?= 20
STAGE  ?= sft
REWARD_PORT ?= 5001
ARGS   ?=
export TORCH_INDEX PYTHON

STAMP  := .venv/.scout-stamp
BIN    := .venv/bin
SCOUT  := $(BIN)/scout
FITS   := $(BIN)/python -m scout_cli.machine  # refuses a machine that is too small

help: ## list the targets
	@awk -F ":.*## " '/^[a-z-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml requirements/constraints.txt requirements/setup.sh
	@requirements/setup.sh

setup: $(STAMP) ## make .venv with the pinned packages (TORCH_INDEX, PYTHON); does nothing when done

quickstart: $(STAMP) ## the whole job on a CPU: world, index, warm-up, GRPO, DAPO, evaluation, report
	@$(FITS)
	@exec $(SCOUT) quickstart $(ARGS)

real: ## the whole path on real questions: HOTPOT=hotpot_dev_500.jsonl
	@[ -n "$(HOTPOT)" ] || { echo "real: HOTPOT is not set: name a HotpotQA file, e.g. make real HOTPOT=path/to/hotpot_dev_500.jsonl" >&2; exit 2; }
	@[ -r "$(HOTPOT)" ] || { echo "real: HOTPOT: $(HOTPOT): no such file: name a HotpotQA file" >&2; exit 2; }
	@$(MAKE) --no-print-directory setup
	@$(FITS)
	@exec $(SCOUT) real --hotpot "$(HOTPOT)" $(ARGS)

serve-tools: $(STAMP) ## the tool server: HOST PORT WORKERS INDEX TOPK
	@exec $(SCOUT) serve --host $(HOST) --port $(PORT) --workers $(WORKERS) --index $(INDEX) --topk $(TOPK) --exit-with $$PPID $(ARGS)

index: $(STAMP) ## a BM25 index: CORPUS INDEX
	@exec $(SCOUT) index build "$(CORPUS)" --index "$(INDEX)" $(ARGS)

data: $(STAMP) ## the made-up world's files; with SOURCE and OUT: RL rows of a HotpotQA or Search-R1 file
	@if [ -z "$(SOURCE)" ]; then exec $(SCOUT) world make --out "$(RUN)/world" $(ARGS); fi; \
	[ -n "$(OUT)" ] || { echo "data: OUT is not set: e.g. make data SOURCE=hotpot_dev.json OUT=runs/rows.parquet" >&2; exit 2; }; \
	exec $(SCOUT) data rows "$(SOURCE)" --output "$(OUT)" $(ARGS)

sft: $(STAMP) ## model, demonstrations and warm-up, against a running server: TOOLS DEMOS SFT_STEPS RUN
	@$(FITS)
	@[ -d "$(RUN)/base" ] || $(SCOUT) sft init --corpus "$(CORPUS)" --rows "$(DEMOS)" --out "$(RUN)/base" --max-positions 1024
	@[ -f "$(RUN)/demos.parquet" ] || $(SCOUT) sft harvest --rows "$(DEMOS)" --server $(TOOLS) --out "$(RUN)/demos.parquet"
	@exec $(SCOUT) sft train --model "$(RUN)/base" --demos "$(RUN)/demos.parquet" --steps $(SFT_STEPS) --out "$(RUN)/sft" $(ARGS)

train-grpo: $(STAMP) ## GRPO alone, against a running server: TOOLS MODEL TRAIN STEPS RUN
	@$(FITS)
	@exec $(SCOUT) train --algo grpo --model "$(MODEL)" --train "$(TRAIN)" --tools $(TOOLS) --steps $(STEPS) --out "$(RUN)/train-grpo" $(ARGS)

train-dapo: $(STAMP) ## DAPO alone, against a running server: TOOLS MODEL TRAIN STEPS RUN
	@$(FITS)
	@exec $(SCOUT) train --algo dapo --model "$(MODEL)" --train "$(TRAIN)" --tools $(TOOLS) --steps $(STEPS) --out "$(RUN)/train-dapo" $(ARGS)

eval: $(STAMP) ## held-out questions, against a running server: TOOLS MODEL ROWS STAGE RUN
	@exec $(SCOUT) eval run --rows "$(ROWS)" --policy "hf:$(MODEL)" --tools $(TOOLS) --stage $(STAGE) --out "$(RUN)/eval/$(STAGE)" $(ARGS)

report: $(STAMP) ## draw the report of a run: RUN
	@exec $(SCOUT) report --run "$(RUN)" $(ARGS)

view: $(STAMP) ## read trajectories, coloured by who wrote what: RUN; e.g. ARGS="--where wrong --seed 1"
	@exec $(SCOUT) view "$(RUN)" $(ARGS)

serve-reward: $(STAMP) ## the scoring service: HOST REWARD_PORT; e.g. ARGS="--set step_penalty=0.02"
	@exec $(SCOUT) reward serve --host $(HOST) --port $(REWARD_PORT) --exit-with $$PPID $(ARGS)

bench-reward: $(STAMP) ## time the reward: 100,000 trajectories of 4 kB must take 20 s or less on one core
	@OMP_NUM_THREADS=1 exec $(SCOUT) reward bench $(ARGS)

doctor: ## say what this machine has and what is missing; works before set-up, too
	@if [ -x $(SCOUT) ]; then exec $(SCOUT) doctor $(ARGS); fi; \
	PYTHONPATH=protocol:cli exec python3 -c 'import sys; from scout_cli.main import main; sys.exit(main(sys.argv[1:]))' doctor $(ARGS)

test: $(STAMP) ## all tests but the slow ones
	@exec $(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: $(STAMP) ## the slow tests
	@exec $(BIN)/python -m pytest -m slow $(ARGS)

check: $(STAMP) ## lint, format, types, imports between rooms, secrets
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	git ls-files -z -- ':!verl-tool' | xargs -0 $(BIN)/detect-secrets-hook --disable-plugin HexHighEntropyString --exclude-lines api_key_env

check-base: $(STAMP) ## install the base alone: the tool server must run without torch, ray and verl
	@requirements/check_base.sh

bench-learning: $(STAMP) ## the quickstart once for each of SEEDS, under runs/bench; hours, not minutes
	@requirements/bench_learning.sh "$(RUNS)/bench" $(SEEDS)

constraints: $(STAMP) ## write requirements/constraints.txt from what is installed in .venv
	@requirements/freeze.sh

clean: ## remove caches and build output; .venv and runs/ stay
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
