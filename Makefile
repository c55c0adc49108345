# Scout. `make` alone lists the targets. Each target does the set-up that it needs; nothing it starts outlives it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-verl-tool quickstart real serve-tools index data sft-data sft readiness train-grpo train-drgrpo \
        train-dapo train-dapo-drgrpo train-gspo train-ppo eval eval-controls \
        eval-card eval-compare eval-suite eval-export report view doctor serve-reward bench-reward \
        explain preflight plan \
        test test-slow test-vllm check check-base bench-learning compare-algos compare-strategies bench-data bench-server \
        bench-bm25 constraints clean

RUNS   ?= runs
RUN    ?= $(RUNS)/quickstart
HOST   ?= 127.0.0.1
PORT   ?= 5000
WORKERS ?= 1
TOPK   ?= 3
INDEX  ?= $(RUN)/index
BACKEND ?= bm25
SEEDS  ?= 0 1 2
# where the stages of a run leave their files
TOOLS  ?= http://127.0.0.1:$(PORT)
CORPUS ?= $(RUN)/world/corpus.jsonl
TRAIN  ?= $(RUN)/world/train.parquet
DEMOS  ?= $(RUN)/world/sft.parquet
ROWS   ?= $(RUN)/world/held_out.parquet
MODEL  ?= $(RUN)/sft/hf
SFT_STEPS ?= 500
HOTPOT_RUN ?= $(RUNS)/demos
STEPS  ?= 20
STAGE  ?= sft
POLICY ?= hf:$(MODEL)
CONTROL ?= none
SETS   ?= nq triviaqa popqa hotpotqa 2wikimultihopqa musique bamboogle
SOURCE ?=
OUT    ?=
# questions for bench-data; the made-up world's where there are none
BENCH_FILES ?=
VERL_TOOL ?= verl-tool
REWARD_PORT ?= 5001
ARGS   ?=
export TORCH_INDEX PYTHON
ifneq ($(VERL_TOOL),verl-tool)
export SCOUT_VERL_TOOL := $(abspath $(VERL_TOOL))  # for training and tests, too
endif

STAMP  := .venv/.scout-stamp
VLLM_STAMP := .venv-vllm/.scout-stamp
BIN    := .venv/bin
SCOUT  := $(BIN)/scout
FITS   := $(BIN)/python -m scout_cli.machine  # refuses a machine that is too small

help: ## list the targets
	@awk -F ":.*## " '/^[a-z0-9-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml requirements/constraints.txt requirements/setup.sh requirements/venv.sh
	@requirements/setup.sh

$(VLLM_STAMP): pyproject.toml requirements/vllm_cpu.txt requirements/setup_vllm.sh requirements/venv.sh
	@requirements/setup_vllm.sh

setup: $(STAMP) ## make .venv with the pinned packages (TORCH_INDEX, PYTHON); does nothing when done

setup-verl-tool: ## make .venv-verl-tool for ENGINE=verl_tool: VERL_TOOL (a checkout), TORCH_INDEX, PYTHON
	@VERL_TOOL="$(VERL_TOOL)" requirements/setup_verl_tool.sh

quickstart: $(STAMP) ## the whole job on a CPU: world, index, warm-up, GRPO, DAPO, evaluation, report
	@$(FITS)
	@exec $(SCOUT) quickstart $(ARGS)

real: ## the whole path on real questions: HOTPOT=hotpot_dev_500.jsonl
	@[ -n "$(HOTPOT)" ] || { echo "real: HOTPOT is not set: name a HotpotQA file, e.g. make real HOTPOT=path/to/hotpot_dev_500.jsonl" >&2; exit 2; }
	@[ -f "$(HOTPOT)" ] && [ -r "$(HOTPOT)" ] || { echo "real: HOTPOT: $(HOTPOT): no such file: name a HotpotQA file" >&2; exit 2; }
	@$(MAKE) --no-print-directory setup
	@$(FITS)
	@exec $(SCOUT) real --hotpot "$(HOTPOT)" $(ARGS)

serve-tools: $(STAMP) ## the tool server: BACKEND (bm25, wikipedia) HOST PORT WORKERS INDEX TOPK
	@exec $(SCOUT) serve --backend $(BACKEND) --host $(HOST) --port $(PORT) --workers $(WORKERS) --index "$(INDEX)" --topk $(TOPK) --exit-with $$PPID $(ARGS)

index: $(STAMP) ## a BM25 index: CORPUS INDEX
	@exec $(SCOUT) index build "$(CORPUS)" --index "$(INDEX)" $(ARGS)

data: $(STAMP) ## the made-up world's files; with SOURCE (files, names) and OUT: split, mixed, audited RL rows
ifeq ($(strip $(SOURCE)),)
	@exec $(SCOUT) world make --out "$(RUN)/world" $(ARGS)
else
	@[ -n "$(OUT)" ] || { echo "data: OUT is not set: e.g. make data SOURCE=hotpot_dev.json OUT=runs/data" >&2; exit 2; }
	@exec $(SCOUT) data make $(foreach source,$(SOURCE),--source "$(source)") --out "$(OUT)" $(ARGS)
endif

sft-data: $(STAMP) ## demonstrations: from a running server (TOOLS DEMOS RUN), or HOTPOT=file with a server of its own
ifeq ($(strip $(HOTPOT)),)
	@exec $(SCOUT) sft harvest --rows "$(DEMOS)" --server $(TOOLS) --out "$(RUN)/demos.parquet" $(ARGS)
else
	@exec $(SCOUT) demos --hotpot "$(HOTPOT)" --run "$(HOTPOT_RUN)" $(if $(filter-out file,$(origin TOOLS)),--server $(TOOLS)) $(ARGS)
endif

sft: $(STAMP) ## model, demonstrations, warm-up, against a running server: TOOLS DEMOS SFT_STEPS (0: auto) RUN
	@$(FITS)
	@[ -d "$(RUN)/base" ] || $(SCOUT) sft init --corpus "$(CORPUS)" --rows "$(DEMOS)" --out "$(RUN)/base" --max-positions 1024
	@[ -f "$(RUN)/demos.parquet" ] || $(SCOUT) sft harvest --rows "$(DEMOS)" --server $(TOOLS) --out "$(RUN)/demos.parquet"
	@exec $(SCOUT) sft train --model "$(RUN)/base" --demos "$(RUN)/demos.parquet" --steps $(SFT_STEPS) --out "$(RUN)/sft" $(ARGS)

readiness: $(STAMP) ## is the warmed-up MODEL ready for RL? rollouts against a running server: TOOLS MODEL TRAIN
	@exec $(SCOUT) sft readiness --model "$(MODEL)" --rows "$(TRAIN)" --server $(TOOLS) $(ARGS)

# the words of a recipe, for the targets below
WORDS = --algo $(or $(ALGO),$(1),dapo) $(if $(SIZE),--size $(SIZE)) $(if $(CLUSTER),--cluster $(CLUSTER)) \
  $(if $(ENGINE),--engine $(ENGINE)) $(if $(PLACEMENT),--placement $(PLACEMENT)) $(if $(WITH),--with $(WITH))
PLANNED = $(WORDS) $(if $(filter tiny,$(or $(SIZE),tiny)),--model "$(MODEL)")
train = exec $(SCOUT) train $(WORDS) --model "$(MODEL)" --train "$(TRAIN)" --tools $(TOOLS) --steps $(STEPS) \
  --out "$(RUN)/train-$(or $(ALGO),$(1))" $(ARGS)

train-grpo: $(STAMP) ## GRPO, against a running server: TOOLS MODEL TRAIN STEPS RUN SIZE CLUSTER ENGINE PLACEMENT WITH
	@$(FITS)
	@$(call train,grpo)

train-drgrpo: $(STAMP) ## Dr. GRPO, the same way; WITH="kl clip_03" adds words of recipes/options.yaml
	@$(FITS)
	@$(call train,dr_grpo)

train-dapo: $(STAMP) ## DAPO, the same way; ALGO=… trains another algorithm by any of these names
	@$(FITS)
	@$(call train,dapo)

train-dapo-drgrpo: $(STAMP) ## DAPO's data with Dr. GRPO's scaling, the same way
	@$(FITS)
	@$(call train,dapo_dr_grpo)

train-gspo: $(STAMP) ## GSPO, the same way
	@$(FITS)
	@$(call train,gspo)

train-ppo: $(STAMP) ## PPO with a critic, the same way
	@$(FITS)
	@$(call train,ppo)

explain: $(STAMP) ## what a recipe changes in verl, and why: ALGO SIZE CLUSTER ENGINE PLACEMENT WITH
	@exec $(SCOUT) explain $(WORDS) $(ARGS)

preflight: $(STAMP) ## check what a training run needs, start nothing: TOOLS MODEL TRAIN STEPS RUN, words as explain
	@exec $(SCOUT) preflight $(WORDS) --model "$(MODEL)" --train "$(TRAIN)" --tools $(TOOLS) --steps $(STEPS) --out "$(RUN)/train-$(or $(ALGO),dapo)" $(ARGS)

plan: $(STAMP) ## time of a step, then memory of one card by part: words as explain; SIZE=tiny reads MODEL
	@$(SCOUT) plan time $(PLANNED) $(ARGS) || exit; \
	exec $(SCOUT) plan memory $(PLANNED) $(ARGS)

eval: $(STAMP) ## held-out questions, against a running server: TOOLS POLICY or MODEL, ROWS STAGE CONTROL RUN
	@out="$(RUN)/eval/$(STAGE)"; [ "$(CONTROL)" = none ] || out="$$out.$(CONTROL)"; \
	exec $(SCOUT) eval run --rows "$(ROWS)" --policy "$(POLICY)" --tools $(TOOLS) --stage $(STAGE) --control $(CONTROL) --out "$$out" $(ARGS)

eval-controls: $(STAMP) ## eval, the same with each control (blank, shuffled, random), and the card with its ceiling
	@for control in none blank shuffled random; do \
	  $(MAKE) --no-print-directory eval CONTROL=$$control || exit; done
	@exec $(SCOUT) eval card "$(RUN)/eval/$(STAGE)" --tools $(TOOLS)

eval-card: $(STAMP) ## all numbers of one evaluation, as card.json, card.md and card.html: STAGE RUN
	@exec $(SCOUT) eval card "$(RUN)/eval/$(STAGE)" $(ARGS)

eval-compare: $(STAMP) ## two evaluations on the same questions: A B (folders); OUT for the files
	@[ -n "$(A)" ] && [ -n "$(B)" ] || { echo "eval-compare: A or B is not set: e.g. make eval-compare A=$(RUN)/eval/sft B=$(RUN)/eval/dapo" >&2; exit 2; }
	@exec $(SCOUT) eval compare "$(A)" "$(B)" $(if $(OUT),--out "$(OUT)") $(ARGS)

eval-suite: $(STAMP) ## the field's seven sets, against a running server: SETS DATA (FlashRAG's folder; else the hub)
	@for set in $(SETS); do \
	  rows="$(RUN)/suite/rows/$$set.parquet"; \
	  [ -f "$$rows" ] || $(SCOUT) eval suite rows $$set --output "$$rows" $(if $(DATA),--input "$(DATA)") $(if $(LIMIT),--limit $(LIMIT) --seed 0) || exit; \
	  $(SCOUT) eval run --rows "$$rows" --policy "$(POLICY)" --tools $(TOOLS) --stage $$set --out "$(RUN)/suite/$$set" $(ARGS) || exit; done
	@exec $(SCOUT) eval suite card "$(RUN)/suite"

eval-export: $(STAMP) ## verl checkpoint -> Hugging Face folder, reloaded and checked: CKPT OUT; MODEL it started from
	@[ -n "$(CKPT)" ] && [ -n "$(OUT)" ] || { echo "eval-export: CKPT or OUT is not set: e.g. make eval-export CKPT=$(RUN)/dapo OUT=$(RUN)/dapo/hf" >&2; exit 2; }
	@exec $(SCOUT) eval export --checkpoint "$(CKPT)" --model "$(MODEL)" --out "$(OUT)" $(ARGS)

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

test-vllm: $(VLLM_STAMP) ## GRPO with vLLM's CPU build as rollout, in .venv-vllm: PYTHON TORCH_INDEX; 4 GB of disk
	@exec .venv-vllm/bin/python -m pytest -m slow tests/train_scripts/test_vllm.py $(ARGS)

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

compare-strategies: $(STAMP) ## every way to demonstrate, up to EM after GRPO, under runs/strategies; half an hour
	@$(FITS)
	@exec $(BIN)/python -m scout_cli.compare_strategies --run "$(RUNS)/strategies" $(ARGS)

compare-algos: $(STAMP) ## four algorithms (ALGOS) from one warm-up, for each of SEEDS: table and curves; hours
	@$(FITS)
	@exec $(SCOUT) compare-algos --out "$(RUNS)/compare" --seeds $(SEEDS) $(if $(ALGOS),--algos $(ALGOS)) $(ARGS)

bench-data: $(STAMP) ## split, mix and audit of 169,615 rows, timed: BENCH_FILES, to take questions from
	@exec $(BIN)/python -m scout_data.bench $(BENCH_FILES) $(ARGS)

bench-server: $(STAMP) ## the tool server under wrk, beside verl-tool's: VERL_TOOL VERL_TOOL_PYTHON
	@exec $(BIN)/python -m scout_tools.bench.server --out "$(RUNS)/bench-server" --verl-tool "$(VERL_TOOL)" \
	  $(if $(VERL_TOOL_PYTHON),--verl-tool-python "$(VERL_TOOL_PYTHON)") $(ARGS)

bench-bm25: $(STAMP) ## an index of a million passages, built and searched: HOTPOT, for real text
	@exec $(BIN)/python -m scout_tools.bench.bm25 --out "$(RUNS)/bench-bm25" $(if $(HOTPOT),--hotpot "$(HOTPOT)") $(ARGS)

constraints: $(STAMP) ## write requirements/constraints.txt from what is installed in .venv
	@requirements/freeze.sh

clean: ## remove caches and build output; .venv and runs/ stay
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
