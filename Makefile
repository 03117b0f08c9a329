# trace_ros: `make demo` and `make test` set everything up by themselves. `make help` lists the rest.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LISTS := requirements.txt requirements-train.txt requirements-policy.txt requirements-test.txt requirements-ros.txt constraints.txt
# Tests run two at a time; each of their nodes and each torch call has one thread. Benchmarks only show that they run.
# They start some hundreds of processes, each of which would compile the package anew where that is not kept.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --benchmark-disable

.PHONY: help setup demo test lint clean

help:
	@echo "make demo   simulate a Go2, run the node on it over ROS topics, and write out/demo/report.html"
	@echo "make test   ruff, mypy and the whole test suite"
	@echo "make setup  only the environment in $(VENV)"
	@echo "make lint   only ruff and mypy"
	@echo "make clean  remove what was built and written (not $(VENV))"

$(READY): $(LISTS) setup.py setup.cfg pyproject.toml tools/setup_environment.sh tools/build_interfaces.sh
	@tools/setup_environment.sh $(VENV)
	@touch $(READY)

setup: $(READY)

demo: $(READY)
	@$(BIN)/python tools/demo.py --output out/demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(PYTEST) --ignore test/ros test benchmarks
# Live nodes by themselves: what computes beside them would starve them of the time that they are measured by. Where
# other programs do, messages are lost that nobody else lost: a test may try again, twice, and the summary says which
# did (RERUN). What is wrong in the nodes fails three times.
	$(PYTEST) -raR --reruns 2 --reruns-delay 2 test/ros

clean:
	rm -rf out build install log *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
