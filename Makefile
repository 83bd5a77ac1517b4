# `make run` and `make test` are enough to start. Each sets up its environment, once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS := tests/constraints.txt
INSTALL := $(BIN)/python -m pip --quiet --disable-pip-version-check install \
	--constraint $(CONSTRAINTS) --build-constraint $(CONSTRAINTS)
# As many workers as the number of test files asks for, see tests/support/lanes.py.
TESTS := $(BIN)/python -m pytest -n auto
PURE := tests/unit tests/incidents
PROCESS = tests/integration tests/browser tests/deploy tests/faults \
	$(shell grep -rlE --include='test_*.py' 'mark\.(process|host)' $(PURE))
MEASURED = $(shell grep -rl --include='test_*.py' 'mark\.measure' tests/unit tests/integration tests/browser tests/deploy tests/faults)
# A path in TEST_ARGS has tests of one lane only. `make` ends at the first command that fails, so pytest's 5, "no tests
# collected", is none then.
NONE_IN_THIS_LANE = [ $$? -eq 5 ] && [ -n "$(TEST_ARGS)" ]
RUN_ARGS ?=
# Options of `make test-hardware`, such as '--gpu 1'.
HARDWARE_ARGS ?=
# `make lint` checks the types for these versions, .ci/run for all five.
PYTHONS ?= 3.10 3.14
# Time for each target of `make fuzz`, and the targets; empty means all.
SECONDS ?= 600
TARGETS ?=
# A part of `make test-guardian`, such as 'run earlyoom'; empty means all.
GUARDIAN_ARGS ?=
# Number of generated machines of `make machines`, and of histories of `make alert-laws`.
COUNT ?= 100000
# The build for the CPU is enough: TORCH="torch==2.13.0+cpu", with PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS.
TORCH ?= torch
# `TOOLS=none make test` installs no programs, and runs the tests for which all programs are installed.
export TOOLS ?=

# Keep compiled modules in the virtual environment, even if PYTHONDONTWRITEBYTECODE is set. Without them each daemon
# started by a test compiles 300 files (1.1 s instead of 0.5 s).
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/pycache

.DEFAULT_GOAL := help
.PHONY: help run test test-pure test-process test-stress test-stress-files test-measure check test-long test-long-of-change coverage lint format bench bench-compare bench-alerts bench-pressure trace machine golden surface roads size mutants screenshots test-lowest test-oldest test-pins test-pythons test-install test-torch test-keras test-llama test-llama-server test-hardware hardware-result soak faults conformance crash machines alert-laws scale \
	reference docs verify-types test-image test-deploy test-neighbours build deb test-system test-incidents test-guardian test-arm64 audit fuzz clean lock release \
	tools release-tools bench-tools

help:
	@echo "make run          set up and start memwatchd at http://127.0.0.1:6360 (RUN_ARGS='--interval 2s')"
	@echo "make test         set up and run the tests (TOOLS=none: without the programs that are not installed)"
	@echo "make test-pure    run the tests that use no process, network, real time or file of this machine (two minutes)"
	@echo "make test-process run the tests of processes, browsers and this machine"
	@echo "make test-measure measure time and memory; above three times a budget it fails"
	@echo "make check        check the changed files and run the pure tests (two to three minutes)"
	@echo "make test-stress  run changed tests 20 times on half of a core beside four busy loops (STRESS_ARGS='TEST --times 20')"
	@echo "make test-stress-files  run each file of the process lane so, in parts, and write docs/quality/stress.md"
	@echo "                  (root; STRESS_ARGS='--minutes 60')"
	@echo "make test-long    run the long tests: every sample in a browser, a day and a half of ticks, faults by the hundred, overhead"
	@echo "make coverage     run all of these and report uncovered lines (a third slower)"
	@echo "make lint         check formatting, types (also of the tests), layers, language, pages and opens"
	@echo "make verify-types check that everything that \`import memwatch\` offers has a known type (pyright)"
	@echo "make format       fix lint findings and format the code"
	@echo "make bench        measure overhead, compared with bare reads of the same files and with peers"
	@echo "make bench-compare  compare the cost of this tree with the commit before the change (OLD=COMMIT NEW=COMMIT); above 1.25 times it fails"
	@echo "make bench-alerts measure alert latency, and lost alerts over a hundred kills"
	@echo "make bench-pressure  score memwatchd and common rules on tests/traces: collapses and healthy machines"
	@echo "make trace        turn a recording into a trace (RECORDING=FILE TRACE_ARGS='--name NAME --ends 90')"
	@echo "make machine      turn a report of memwatch doctor --report into a machine of the tests (FROM=FILE NAME=NAME)"
	@echo "make golden       rewrite the expected output of all simulated machines, with a summary (CHECK=1: only compare)"
	@echo "make surface      compare all pages, answers, commands and options with those of a commit (AGAINST=COMMIT)"
	@echo "make roads        count the files that a reading, a scrape, an alert, a plan and a page pass through"
	@echo "make size         count lines, modules, comments and docstrings of each package"
	@echo "make docs         build the site in out/site; fails on broken links and on pages missing in the navigation"
	@echo "make reference    generate docs/reference and systemd/memwatchd.toml from the code"
	@echo "make screenshots  take every page of every demo, light and dark, wide and narrow, to out/screenshots"
	@echo "make soak         accelerated run: memory and descriptors must stay constant (15 minutes, or HOURS=…)"
	@echo "make scale        500 machines for one Prometheus: scrapes, memory, rules (7 minutes)"
	@echo "make test-image   build deploy/Dockerfile and run it and docker-compose.yml with Podman (root, Debian; 3 minutes)"
	@echo "make test-deploy  check the Helm chart by Helm's code, and the Ansible role by Ansible and its linter"
	@echo "make conformance  measure monitors, this one too, by machines whose right figures are known (root; 25 minutes;"
	@echo "                  CONFORMANCE_ARGS='--tool nvtop --machine gb10')"
	@echo "make faults       inject faults and write docs/quality/faults.md (10 minutes)"
	@echo "make crash        SIGKILL under critical pressure, 200 times: at most one tick may be lost"
	@echo "make machines     check the laws of the accounting on generated machines, corrupt single figures of all committed"
	@echo "                  ones, and compare all surfaces (COUNT=1000000 MACHINES_ARGS='--processes 2' FIELDS_ARGS='--machines gb10')"
	@echo "make alert-laws   check the laws of alerts on generated histories (COUNT=1000000 LAWS_ARGS='--processes 2')"
	@echo "make mutants      change pure modules in 316 places, one at a time: a test has to fail (PART=3/10 for a part)"
	@echo "make test-pythons run the tests on every installed Python, 3.10 to 3.14"
	@echo "make test-pins    check that the pinned versions exist for each of these Pythons"
	@echo "make test-oldest  run a part of the tests on Python 3.10: no browser, other programs or measurements"
	@echo "make test-lowest  run the tests with the oldest allowed dependencies"
	@echo "make test-install install in every documented way, in clean places and fresh Debian roots (10 minutes)"
	@echo "make test-neighbours  kill, stop and disconnect neighbours, on lossy links too (N=100 of each; NEIGHBOUR_ARGS='-k cut')"
	@echo "make test-hardware  on a machine with a GPU: allocate known amounts, compare with the vendor's tool"
	@echo "make hardware-result  add its output to docs/quality/hardware.md (FROM=report.md NAME=dgx-spark-1)"
	@echo "make test-torch   install PyTorch, call the whole library in a training run, and compare plans with real models"
	@echo "make test-keras   install Keras with JAX, and follow a training run with the library's callback"
	@echo "make test-llama-server LLAMA_SERVER=PATH   compare the KV cache of a running server with its log (20 s)"
	@echo "make test-llama   build llama.cpp and compare plans with what it allocates (45 minutes)"
	@echo "make fuzz         coverage-guided fuzzing of every parser (TARGETS='psi kmsg' SECONDS=600 each)"
	@echo "make deb          build a Debian package and its SBOM in dist/ (DEB_ARGS='--arch arm64')"
	@echo "make test-system  test the package in systemd containers: install, kill, hang, upgrade, purge, protocols (root)"
	@echo "make test-incidents  cause OOM kills, kills by services and power cuts in an emulated machine, and follow it (root)"
	@echo "make test-guardian  let memory run out in an emulated machine, under memwatch-guardian, earlyoom, systemd-oomd and"
	@echo "                  nothing, and write docs/quality/guardian.md (root; goes on where it ended; GUARDIAN_ARGS='run earlyoom')"
	@echo "make test-arm64   test the arm64 package on an emulated processor"
	@echo "make audit        check licences and known vulnerabilities of dependencies (ADVISORIES=FILE: by another list)"
	@echo "make release      build all files of a release twice, compare and sign them (KEY=FILE_OR_GPG_ID)"
	@echo "make lock         write deploy/package/*lock.txt: versions and hashes of the dependencies of package and image"
	@echo "make build        build the wheels and source distributions of memwatch and memwatchd in dist/"

run: $(VENV)/.run
	@$(BIN)/memwatchd $(RUN_ARGS)

test: test-pure test-process

test-pure: $(VENV)/.test
	$(TESTS) -m pure --cpu-seconds=out/ci/cpu-pure.json $(or $(TEST_ARGS),$(PURE)) || { $(NONE_IN_THIS_LANE); }

test-process: $(VENV)/.test tools
	PYTHONPATH=tests $(BIN)/python -m scripts.process_lane -n auto -m "(process or host) and not long" \
		$(or $(TEST_ARGS),$(PROCESS)) || { $(NONE_IN_THIS_LANE); }

test-measure: $(VENV)/.test tools
	PYTHONPATH=tests $(BIN)/python -m scripts.process_lane --folder out/ci/measure -m measure \
		$(or $(TEST_ARGS),$(MEASURED)) || { $(NONE_IN_THIS_LANE); }

test-stress: $(VENV)/.test tools
	@PYTHONPATH=tests $(BIN)/python -m scripts.stress $(STRESS_ARGS)

test-stress-files: $(VENV)/.test tools
	PYTHONPATH=tests $(BIN)/python -m scripts.stress_files $(STRESS_ARGS)

test-long: $(VENV)/.test tools release-tools
	$(TESTS) -m long -o faulthandler_timeout=1800 $(TEST_ARGS)

# The long samples of a change to pages: every sample of every page in a browser.
test-long-of-change: $(VENV)/.test tools release-tools
	PYTHONPATH=tests $(BIN)/python -m scripts.long_of_change

check: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m scripts.lint_of_change
	$(TESTS) -m pure $(PURE)

coverage: $(VENV)/.test tools release-tools
	COVERAGE_FILE="$(abspath $(VENV))/coverage" $(BIN)/python -m pytest -n 4 --cov --cov-report=term:skip-covered $(TEST_ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	for version in $(PYTHONS); do $(BIN)/mypy --python-version $$version || exit 1; done
	MYPYPATH=tests:tests/bench:tests/faults $(BIN)/mypy --exclude '^tests/(machines|system)/' tests
	MYPYPATH=tests:tests/system $(BIN)/mypy tests/system/*.py tests/system/guest/*.py
	$(BIN)/lint-imports
	PYTHONPATH=tests $(BIN)/python -m scripts.check_language
	PYTHONPATH=tests $(BIN)/python -m scripts.check_disturbed
	PYTHONPATH=tests $(BIN)/python -m scripts.check_opens
	PYTHONPATH=tests $(BIN)/python -m scripts.check_pages

# pyright runs in the Node.js of a wheel (61 MB), without another download. It finds the packages in the PATH's venv.
verify-types: $(VENV)/.types
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pyright --verifytypes memwatch

golden: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m scripts.make_golden $(if $(CHECK),--check)

surface: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m scripts.surface --against $(or $(AGAINST),HEAD)

roads: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m scripts.roads

size: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m scripts.size

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test bench-tools
	PYTHONPATH=tests $(BIN)/python tests/bench/bench.py $(BENCH_ARGS)

bench-compare: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python tests/bench/compare.py $(if $(OLD),--old $(OLD)) $(if $(NEW),--new $(NEW))

bench-alerts: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python tests/bench/alerts.py $(BENCH_ARGS)

bench-pressure: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m scripts.pressure_benchmark $(BENCH_ARGS)

trace: $(VENV)/.test
	@test -n "$(RECORDING)" || { echo "make trace: name the recording: make trace RECORDING=FILE"; exit 2; }
	@PYTHONPATH=tests $(BIN)/python -m scripts.trace_from_recording $(RECORDING) $(TRACE_ARGS)

machine: $(VENV)/.test
	@test -n "$(FROM)" || { echo "make machine: name the report: make machine FROM=FILE.tar.gz [NAME=NAME]"; exit 2; }
	@PYTHONPATH=tests $(BIN)/python -m scripts.machine_from_report "$(FROM)" $(if $(NAME),--name "$(NAME)")

# Results are kept in out/mutants.json, so a run goes on where an earlier one ended.
mutants: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m scripts.mutants $(if $(PART),--part $(PART)) $(MUTANTS_ARGS)

reference: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m scripts.reference

docs: $(VENV)/.docs
	PYTHONPATH=tests $(BIN)/python -m scripts.build_site
	$(BIN)/python -m pytest -q -o python_files='check_*.py' -p no:cacheprovider tests/deploy/check_site.py

screenshots: $(VENV)/.test tools
	PYTHONPATH=tests $(BIN)/python -m scripts.screenshots

soak: $(VENV)/.test
	PYTHONPATH=tests sh tests/tools/alone.sh $(BIN)/python -m scripts.soak $(if $(HOURS),--hours $(HOURS)) $(SOAK_ARGS)

scale: $(VENV)/.test
	@sh tests/tools/need.sh prometheus
	PYTHONPATH=tests $(BIN)/python -m scripts.scale $(SCALE_ARGS)

# No registry is needed: debootstrap makes the base image, once.
test-image: deb $(VENV)/.test $(VENV)-deploy/.made
	@sh tests/tools/need.sh debootstrap podman runc netavark aardvark-dns iptables skopeo docker-registry
	PODMAN_COMPOSE=$(abspath $(VENV))-deploy/bin/podman-compose $(BIN)/python -m pytest -o python_files='check_*.py' -p no:cacheprovider \
		--confcutdir=tests/containers tests/containers $(IMAGE_ARGS)

# Helm's code and Ansible's programs, without root and without a cluster.
test-deploy: $(VENV)/.test $(VENV)-deploy/.made
	@sh tests/tools/need.sh kubernetes-client
	DEPLOY_PYTHON=$(abspath $(VENV))-deploy/bin/python $(BIN)/python -m pytest -o python_files='check_*.py' -p no:cacheprovider tests/provision

$(VENV)-deploy/.made: pyproject.toml
	@sh tests/tools/make_venv.sh $(PYTHON) $(VENV)-deploy
	$(VENV)-deploy/bin/python -m pip --quiet --disable-pip-version-check install --group deploy
	@touch $@

# The monitors of Debian are in a root folder of its newest release, which debootstrap makes once (2 minutes).
conformance: $(VENV)/.test $(VENV)-conformance/.made
	@sh tests/tools/need.sh debootstrap gcc libc6-dev iproute2 netdata-core
	@mkdir -p out/conformance
	PYTHONPATH=tests $(BIN)/python -m conformance --python $(VENV)-conformance/bin/python \
		--root $(abspath out/conformance/debian) $(or $(CONFORMANCE_ARGS),--results out/conformance/results.json \
		--page docs/quality/conformance.md)

$(VENV)-conformance/.made: pyproject.toml $(CONSTRAINTS)
	@sh tests/tools/make_venv.sh $(PYTHON) $(VENV)-conformance
	$(VENV)-conformance/bin/python -m pip --quiet --disable-pip-version-check install --constraint $(CONSTRAINTS) \
		--build-constraint $(CONSTRAINTS) --group conformance
	@touch $@

faults: $(VENV)/.test tools
	PYTHONPATH=tests $(BIN)/python tests/faults/fault_table.py $(CASES)

machines: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m scripts.machines --count $(COUNT) $(MACHINES_ARGS)
	PYTHONPATH=tests $(BIN)/python -m scripts.field_law --count $(COUNT) $(FIELDS_ARGS)
	PYTHONPATH=tests $(BIN)/python -m scripts.one_answer $(ANSWERS_ARGS)

alert-laws: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m scripts.alert_laws --count $(COUNT) $(LAWS_ARGS)

crash: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m scripts.crash_loop $(CRASH_ARGS)

test-pythons:
	@sh tests/tools/each_python.sh

test-pins:
	@sh tests/tools/pins.sh $(CONSTRAINTS)

test-oldest: tools
	@sh tests/tools/oldest.sh $(TEST_ARGS)

test-lowest:
	@sh tests/tools/lowest.sh

test-install: build deb $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m scripts.install_ways $(INSTALL_ARGS)

test-neighbours: $(VENV)/.test
	@sh tests/tools/need.sh iptables openssl
	PYTHONPATH=tests sh tests/tools/own_network.sh $(BIN)/python -m pytest -s tests/neighbours/check_faults.py $(NEIGHBOUR_ARGS)

test-hardware: $(VENV)/.hardware
	@PYTHONPATH=tests $(BIN)/python -m hardware $(HARDWARE_ARGS)

hardware-result: $(VENV)/.hardware
	@PYTHONPATH=tests $(BIN)/python -m scripts.hardware_results $(FROM) $(if $(NAME),--name "$(NAME)")

test-torch:
	@test -d $(VENV)-torch || $(PYTHON) -m venv $(VENV)-torch
	$(VENV)-torch/bin/python -m pip --quiet --disable-pip-version-check install --editable . $(TORCH) jax cupy-cuda12x "mlx[cpu]" \
		transformers diffusers gguf safetensors accelerate lightning keras
	PYTHONPATH=tests $(VENV)-torch/bin/python -m scripts.torch_run
	@PYTHONPATH=tests $(VENV)-torch/bin/python -m hardware.torch_checks || test $$? = 2  # without a GPU
	PYTHONPATH=tests $(VENV)-torch/bin/python -m scripts.library_run
	PYTHONPATH=tests $(VENV)-torch/bin/python -m scripts.callbacks_run
	PYTHONPATH=tests $(VENV)-torch/bin/python -m scripts.model_run
	PYTHONPATH=tests $(VENV)-torch/bin/python -m scripts.image_run

# The part of test-torch that installs in a minute: 0.4 GB, as PyPI's PyTorch alone brings 3 GB of CUDA.
test-keras:
	@test -d $(VENV)-keras || $(PYTHON) -m venv $(VENV)-keras
	$(VENV)-keras/bin/python -m pip --quiet --disable-pip-version-check install --editable . jax keras
	PYTHONPATH=tests $(VENV)-keras/bin/python -m scripts.callbacks_run keras

test-llama:
	@test -d $(VENV)-llama || $(PYTHON) -m venv $(VENV)-llama
	$(VENV)-llama/bin/python -m pip --quiet --disable-pip-version-check install --editable . gguf safetensors llama-cpp-python
	PYTHONPATH=tests $(VENV)-llama/bin/python -m scripts.llama_run

test-llama-server: $(VENV)/.test
	PYTHONPATH=tests:daemon $(BIN)/python -m scripts.engine_run $(LLAMA_SERVER)

build: $(VENV)/.package
	$(BIN)/python -m build --no-isolation --outdir dist daemon
	$(BIN)/python -m build --no-isolation --outdir dist

deb: $(VENV)/.package
	PYTHONPATH=$(abspath daemon) $(BIN)/python deploy/package/deb.py $(DEB_ARGS)

# The kernel that runs out of memory mostly waits, so it runs beside the checks of systemd.
test-system: deb $(VENV)/.test
	@sh tests/tools/need.sh systemd-container debootstrap user-mode-linux
	$(BIN)/python tests/system/vm.py disk
	@$(BIN)/python tests/system/vm.py boot >out/system/vm-output.txt 2>&1 & \
	$(BIN)/python -m pytest -o python_files='check_*.py' -p no:cacheprovider --confcutdir=tests/system tests/system \
		--junitxml=out/system/checks.xml $(SYSTEM_ARGS); checks=$$?; \
	wait $$!; machine=$$?; cat out/system/vm-output.txt; \
	[ $$machine -eq 77 ] && machine=0; [ $$checks -eq 0 ] && exit $$machine; exit $$checks

test-incidents: deb $(VENV)/.test
	@sh tests/tools/need.sh debootstrap qemu-system-x86 iproute2
	$(BIN)/python tests/system/incidents.py || [ $$? -eq 77 ]
	PYTHONPATH=tests sh tests/tools/own_network.sh $(BIN)/python tests/system/switch_offs.py || [ $$? -eq 77 ]

fuzz: $(VENV)-fuzz/.made
	PYTHONPATH=tests $(VENV)-fuzz/bin/python -m fuzz.run --seconds $(SECONDS) --docs docs/quality/fuzz.md $(TARGETS)

$(VENV)-fuzz/.made: pyproject.toml daemon/pyproject.toml $(CONSTRAINTS)
	@sh tests/tools/make_venv.sh $(PYTHON) $(VENV)-fuzz
	$(VENV)-fuzz/bin/python -m pip --quiet --disable-pip-version-check install --constraint $(CONSTRAINTS) \
		--build-constraint $(CONSTRAINTS) --editable .
	@$(VENV)-fuzz/bin/python -m pip --quiet --disable-pip-version-check install --constraint $(CONSTRAINTS) \
		--only-binary atheris --group fuzz || { echo "atheris, the fuzzer, cannot be installed for this Python:" \
		"it has wheels for Python 3.11 to 3.14 on x86-64 Linux. Try: make fuzz PYTHON=python3.11" >&2; exit 1; }
	@touch $@

# Results are kept in out/system/collapses, so a run goes on where an earlier one ended. Those of the guardian are for
# one state of the files that it and its figures depend on.
test-guardian: deb $(VENV)/.test
	@sh tests/tools/need.sh debootstrap qemu-system-x86 qemu-utils
	$(BIN)/python tests/system/collapses.py $(GUARDIAN_ARGS) || [ $$? -eq 77 ]
	PYTHONPATH=tests $(BIN)/python -m scripts.collapse_page

test-arm64: $(VENV)/.test
	@sh tests/tools/need.sh debootstrap qemu-user
	$(BIN)/python deploy/package/deb.py --arch arm64
	$(BIN)/python tests/system/arm64.py "$$(ls -t dist/memwatchd_*_arm64.deb | head -n 1)"

audit: $(VENV)/.test
	@$(if $(ADVISORIES),,$(BIN)/python -m pip --quiet --disable-pip-version-check install --group audit || \
		echo "pip-audit cannot be installed; only tests/advisories.json is used")
	$(BIN)/python deploy/package/runtime.py dist
	PYTHONPATH=tests $(BIN)/python -m scripts.licences dist/runtime.txt
	PYTHONPATH=tests $(BIN)/python -m scripts.audit dist/runtime.txt $(if $(ADVISORIES),--advisories "$(ADVISORIES)",--pip-audit $(BIN)/pip-audit)

release: $(VENV)/.test
	@$(BIN)/python deploy/package/release.py $(if $(KEY),--key "$(KEY)") $(RELEASE_ARGS)

lock: $(VENV)/.test
	$(INSTALL) --group lock
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python deploy/package/lock.py

tools:
	@[ "$(TOOLS)" = none ] || sh tests/tools/need.sh chromium chromium-headless-shell prometheus prometheus-alertmanager victoria-metrics kubernetes-client openssl systemd iproute2 \
		procps gcc libc6-dev pocl-opencl-icd tinyproxy-bin

release-tools:
	@sh tests/tools/need.sh lintian openssh-client gnupg mosquitto

bench-tools:
	@[ "$(TOOLS)" = none ] || sh tests/tools/need.sh prometheus-node-exporter wrk collectd-core libmicrohttpd12 libprotobuf-c1 netdata-core glances python3-bottle

clean:
	rm -rf $(VENV) .venv-* dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage*

$(VENV)/.made:
	@sh tests/tools/make_venv.sh $(PYTHON) $(VENV)
	@touch $@

# Enough for `make build` and `make deb`.
$(VENV)/.package: $(VENV)/.made pyproject.toml $(CONSTRAINTS)
	@echo "installing build and hatchling in $(VENV)"
	@$(INSTALL) --group package
	@touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml daemon/pyproject.toml $(CONSTRAINTS)
	@echo "installing memwatchd and its dependencies in $(VENV)"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@echo "installing the tools of tests and lint in $(VENV)"
	@$(INSTALL) --group test --group lint
	@touch $@

$(VENV)/.hardware: $(VENV)/.run
	@$(INSTALL) --group hardware
	@touch $@

$(VENV)/.types: $(VENV)/.run
	$(INSTALL) --group types
	@touch $@

$(VENV)/.docs: $(VENV)/.test
	$(INSTALL) --group docs
	@touch $@
