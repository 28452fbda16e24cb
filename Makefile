# Every command of the project. `make help` lists them; ./run does the work and needs no make.
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast coverage ci lint format types soak flips simulate torture programs record-programs day cluster mutants models benchmark notebooks docs site wheel clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: ## Run the main job: publish real flights, read them back
	./run demo

test: ## Run all tests (what CI runs last)
	./run test

test-fast: ## Run the tests that need no Java and no fresh environment
	./run test -m "not spark and not slow"

coverage: ## Run all tests, with branch coverage of the three folders
	./run test --cov --cov-report=term-missing:skip-covered

ci: ## Run what CI runs
	bash .ci/run

lint: ## Check style and types: ruff, ruff format, mypy
	./run lint

format: ## Rewrite the code in the project's format
	./run python -m ruff check --fix
	./run python -m ruff format

types: ## Check types alone
	./run python -m mypy

soak: ## Kill publishers, readers, brokers and consumers 2,200 times: every flight exactly once
	./run python -m tests.soak --kills 200
	./run python -m tests.soak.subscriptions --kills 1000
	./run python -m tests.soak.without_spark --kills 1000

flips: ## Flip every third bit, and cut every file everywhere: a named error or the same rows
	./run python -m tests.connector.topic_log.flips

simulate: ## Simulate a million schedules of the broker: make simulate SEED=1 SCHEDULES=250000
	./run python -m tests.simulation --schedules $(or $(SCHEDULES),1000000) $(if $(SEED),--seed $(SEED))

torture: ## Run 25,000 schedules of real readers, sinks, brokers and programs: make torture SEED=1
	./run python -m tests.torture --schedules 20000 $(if $(SEED),--seed $(SEED))
	./run python -m tests.client_torture --schedules 5000 $(if $(SEED),--seed $(SEED))

programs: ## Run the programs that were recorded on a real Pulsar, and print what differs here
	./run python -m tests.programs

record-programs: ## Record new and changed programs on a real Pulsar: make record-programs ALL=1
	./run python -m benchmarks.peers record-programs $(if $(ALL),--all)

verify-faults: ## Inject a thousand losses, doublings and swaps: topics verify has to find each
	./run python -m tests.connector.verification $(if $(SEED),--seed $(SEED))

day: ## Simulate a day: 10,000 publications, five subscriptions, policies; files by the hour
	./run python -m tests.day

cluster: ## A Spark cluster and a Connect server as processes: kill a worker, kill the broker
	./run test -m cluster tests/cluster

stores: ## Real servers of S3's and Azure's protocols: the whole way, races, a line that fails
	tests/stores/install
	./run test -m stores tests/stores

mutants: ## Break each promise on purpose: every test that holds it must fail
	./run python -m tests.mutants

models: ## Check the models of docs/models within their large bounds
	./run python -m docs.models.check --large

benchmark: ## Measure source and sink against Spark's own Parquet
	./run python -m benchmarks

notebooks: ## Run the notebooks and store their outputs: make notebooks NAMES="01 04"
	./run python -m tests.notebooks $(NAMES)

docs: ## Write the docs that are made from the code
	./run python -m docs.generate

site: ## Build the site into build/site, from docs/ and the notebooks; links are checked
	NO_MKDOCS_2_WARNING=1 ./run python -m mkdocs build --strict

wheel: ## Build wheel and sdist into dist/
	./run python -m build

clean: ## Remove what tools left behind; .venv stays
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
