# `make demo` and `make test` need only Python >= 3.11 and make; they set up .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo
SOURCES := kvtrace kvreplay kvdistill engine_drivers tests docs bench examples hatch_build.py
# The library of the C files: made when .venv is, and again when they change.
NATIVE := kvtrace/core/native/libkvtrace.so
READY := $(VENV)/.ready $(NATIVE)

# `make test` in so many processes: tests that wait leave a third of two processors idle; `make fuzz` for so long, twice.
WORKERS ?= 3
KILLS ?= 20
FUZZ_SECONDS ?= 600
CLANG ?= clang
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

# The engines that `make engines` drives; ENGINES="lmcache vllm" takes others. vllm is asked for by name: it is large.
ENGINES ?= lmcache sglang mooncake

.PHONY: demo test bare check sanitize native engines fuzz lint fix bench bench-quiet bench-long soak validate docs notebooks man outputs published site site-version dist wheels bpf clean

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kvtrace needs Python 3.11 or later: make PYTHON=python3.x")'
	@echo "setting up $(VENV): this downloads about 400 MB once"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(NATIVE): $(shell find kvtrace kvreplay kvdistill -name '*.[ch]') hatch_build.py | $(VENV)/.ready
	@echo "building $@"
	@$(BIN)/python hatch_build.py

native: $(READY)

# The main job end to end: trace -> replay on a scratch file -> fio jobs and a report, all under demo/.
demo: $(READY)
	@BIN=$(BIN) DEMO=$(DEMO) sh docs/demo.sh

# The same in every run, and within minutes: without what is marked `full`.
test: $(READY)
	$(PYTEST)

# The same as on a machine that is not the developer's: another user, a checkout that cannot be written, no fio, no compiler. Needs root.
bare: $(READY)
	bash tests/project/bare_machine.sh

# The C files whose format is checked: all but the probes, whose object is kept in the repository.
C_FILES = $(filter-out kvreplay/probes/%,$(shell find kvtrace kvreplay kvdistill -name '*.[ch]'))

lint: $(READY)
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/mypy hatch_build.py
	MYPYPATH=docs:tests/support $(BIN)/mypy --no-warn-return-any --follow-imports=silent bench/*.py

fix: $(READY)
	$(BIN)/ruff check --fix --quiet $(SOURCES) || true
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/clang-format -i $(C_FILES)

# Everything, as CI runs it.
check: lint sanitize
	$(PYTEST) --full
	$(BIN)/python -m pytest --full -m alone

# All C by gcc's analyzer, and the tests of the engine and of fleets once more by gcc's sanitizers: up to seven minutes each.
sanitize: $(READY)
	$(BIN)/python tests/project/sanitize.py analyzer
	$(BIN)/python tests/project/sanitize.py address
	$(BIN)/python tests/project/sanitize.py thread

# The engines' own code beside our presets: each in an environment of its own below .engines (says what it downloads),
# driven, recorded and compared request by request; writes the table of docs/validation.md.
engines: $(READY)
	@$(BIN)/python tests/engines/environments.py $(ENGINES)
	$(BIN)/python -m pytest -m engines tests/engines

# A random search: commands killed at random moments, damaged and hostile input on every reader and command, then the property tests with other examples.
# What fails says how to repeat it: FUZZ_SEED=N FUZZ_CASE=M for input, FUZZ_SEED=N FUZZ_SECONDS=0 for a property.
fuzz: $(READY)
	$(BIN)/python tests/fuzz/kills.py --kills $(KILLS)
	$(BIN)/python tests/fuzz/fuzz.py --workers $(WORKERS) --seconds $(FUZZ_SECONDS) \
		$(if $(FUZZ_SEED),--seed $(FUZZ_SEED)) $(if $(FUZZ_CASE),--case $(FUZZ_CASE)) $(if $(FUZZ_CASES),--cases $(FUZZ_CASES))
ifeq ($(FUZZ_CASE)$(FUZZ_CASES),)
	@end=$$(($$(date +%s) + $(FUZZ_SECONDS))); while \
		seed=$(FUZZ_SEED); seed=$${seed:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; echo "FUZZ_SEED=$$seed"; \
		$(PYTEST) -q --full -m hypothesis --hypothesis-profile=fuzz --hypothesis-seed=$$seed || exit 1; \
		[ "$$(date +%s)" -lt "$$end" ]; do :; done
endif

bench: $(READY)
	@for b in bench/bench_*.py; do $(BIN)/python $$b || exit 1; done

# What has a peer, on a machine that does nothing else: refuses a busy one (waits for WAIT minutes), and writes
# docs/benchmarks.md, the one place for figures of speed. BENCHES="live study" takes those alone. About an hour.
# OFFICIAL=.../kv-cache.py has the MLPerf benchmark's own program, which is not in this repository, run beside ours.
WAIT ?= 0
bench-quiet: $(READY)
	@$(BIN)/python bench/quiet.py --wait $(WAIT) $(if $(OFFICIAL),--official $(OFFICIAL)) $(BENCHES)

# Long traces: rows a second, time to the first I/O and memory; ROWS=100 takes 100 million.
ROWS ?= 10
bench-long: $(READY)
	$(BIN)/python bench/bench_long.py $(ROWS)

# Memory of an open loop of so many MINUTES, in tens, which must be flat within 5 % from the second repeat of its trace on.
MINUTES ?= 60
soak: $(READY)
	$(BIN)/python bench/soak.py --minutes $(MINUTES)

# The probes' object, after a change of their C; needs clang, llvm and libbpf-dev. It is kept in the repository.
BPF := kvreplay/probes
bpf:
	$(CLANG) -O2 -g -Wall -Wno-unused-function -target bpf -mcpu=v3 -ffile-prefix-map=$(CURDIR)=. -I/usr/include/$(shell uname -m)-linux-gnu \
		-DSOURCES_SHA256="\"$$(cat $(BPF)/*.bpf.c $(BPF)/*.bpf.h | sha256sum | cut -d' ' -f1)\"" \
		-c $(BPF)/probes.bpf.c -o $(BPF)/probes.bpf.o
	llvm-strip --strip-debug $(BPF)/probes.bpf.o

docs: $(READY)
	$(BIN)/python docs/generate.py

# The tutorials, to run cell by cell: notebooks/*.ipynb.
notebooks: $(READY)
	$(BIN)/python docs/notebooks.py notebooks

# The manual pages, of the same help that the programs print: man man/kvreplay-run.1
man: $(READY)
	$(BIN)/python docs/generate.py --man man

# Runs the commands of the pages in docs/ and writes what they print into them: minutes, of a quiet machine.
outputs: $(READY)
	$(BIN)/python docs/outputs.py

# The tests that hold the claims of docs/validation.md, which then says when that was and on what: those not run for the
# longest first, for so many minutes. CLAIMS="fio bytes" takes those with such a word.
MINUTES ?= 20
validate: $(READY)
	@$(BIN)/python docs/validate.py --minutes $(MINUTES) $(CLAIMS)

# Our programs beside numbers that others published: writes docs/published.md, which says where its files are to be had.
DATA ?= published-data
published: $(READY)
	@$(BIN)/python docs/published.py $(DATA)

# The documentation as a site, in site/index.html.
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "made site/index.html"

# The site of this version beside those of others, on the branch gh-pages; VERSION=0.1 names it. Nothing is pushed.
site-version: $(READY)
	PATH="$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases $(VERSION) latest
	PATH="$(BIN):$$PATH" mike set-default latest

# What is published: the sdist, and of it a wheel for each machine by Zig's compiler (100 MB from PyPI), which makes them
# load with any glibc since 2.28 whatever is on this machine. Tried in an environment of its own.
dist: wheels
	@PYTHON=$(PYTHON) sh docs/try_dist.sh

wheels: $(READY) man
	rm -rf dist
	$(BIN)/python -m build --sdist
	@for machine in x86_64 aarch64; do KVTRACE_WHEEL_FOR=$$machine \
		$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist dist/*.tar.gz || exit 1; done
	@ls -l dist

clean:
	rm -rf $(VENV) $(NATIVE) $(DEMO) dist site man .pytest_cache .mypy_cache .ruff_cache .hypothesis
