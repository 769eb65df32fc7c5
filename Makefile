# Two commands do everything on a machine with Python 3.11 or 3.12: `make serve` and `make test`.
# Each installs first; that costs a fraction of a second once the lock file in use is installed.

VENV := .venv
# Not PYTHON: that is the interpreter which .ci/install may be told to use.
RUN := $(VENV)/bin/python
HOST ?= 127.0.0.1
PORT ?= 8000
ARGS ?=

.PHONY: serve test test-slow soak gpu-test gpu-bench check next-vllm install lock

serve: install
	$(RUN) -m uvicorn app:main --host $(HOST) --port $(PORT) $(ARGS)

# Whichever tests share an engine stay in one of the two workers (tests/conftest.py).
test: install
ifeq ($(strip $(ARGS)),)
	$(RUN) -m pytest -n 2 --dist loadscope
else
	$(RUN) -m pytest $(ARGS)
endif

test-slow: install
	$(RUN) -m pytest -m slow $(ARGS)

# Ten thousand mixed requests on two cores, in eight to fifteen minutes; with ARGS=--overload more than can be served.
soak: install
	$(RUN) -m benchmarks.soak --out bench-results/soak.json $(ARGS)

# Every test has an engine of its own, a small one: seven at once on one GPU, four minutes. What compiles begins first.
gpu-test: install
	OMP_NUM_THREADS=2 $(RUN) -m pytest -m gpu -n 7 --dist load --maxschedchunk 1 $(ARGS)

# What BENCHMARKS.md has of a GPU, on this one, in about three quarters of an hour. With OUT=benchmarks/results/h200.json,
# `python -m benchmarks.report` then writes it there.
OUT ?= gpu-results.json
gpu-bench: install
	$(RUN) -m benchmarks.attention --out $(OUT)
	$(RUN) -m benchmarks.engine --out $(OUT)
	$(RUN) -m benchmarks.engine.first_requests --out $(OUT)
	$(RUN) -m benchmarks.engine.long_prompts --out $(OUT)
	$(RUN) -m benchmarks.k_in_turns --full-size 4.0 --ks 0,3,7 --load problems --out $(OUT)
	$(RUN) -m benchmarks.gateway_cost --gpu --runs 2 --out $(OUT)
	$(RUN) -m benchmarks.engine.data_parallel --out $(OUT)
	$(RUN) -m benchmarks.training --out $(OUT)

check: install
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m vulture
	$(RUN) -m mypy
	$(VENV)/bin/hadolint Dockerfile

# What another vLLM changes of what is used of it: its wheel is downloaded once and read. ARGS=0.34.0 or a wheel's file.
next-vllm: install
	$(RUN) -m benchmarks.next_vllm $(ARGS)

# DEVICE=cpu or DEVICE=cuda overrules what nvidia-smi says.
install:
	@bash .ci/install

# Writes requirements-cpu.lock from what .venv holds and requirements-cuda.lock from a resolution on PyPI.
lock:
	$(RUN) .ci/lock.py
