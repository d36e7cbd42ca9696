# The targets are short and the same ones run in CI (.ci/run).
GO      ?= go
BIN     := bin
FUZZ    ?= 5s
SEEDS   ?= 60
FIRST   ?= 1
HOSTS   ?= 50
VERSION ?= 0.1.0-dev
LDFLAGS := -s -w -X github.com/muster-config/muster/cmd/internal/cli.Version=$(VERSION)
export CGO_ENABLED ?= 0

.DEFAULT_GOAL := demo
.PHONY: help demo test build cross race lint fuzz bench rates cases sim mutants vectors fmt vet tidy check clean tools

help:              ## these targets
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{printf "  %-8s %s\n", $$1, $$2}'

demo: build        ## the whole system on this machine, with a story (ARGS=--exit ends after it)
	$(BIN)/muster demo $(ARGS)

test:              ## all tests; the few that need more than Go, git and make say so loudly when they skip
	sh .ci/test

build:             ## bin/muster, bin/muster-agent, bin/muster-collector, bin/muster-fleet: static binaries
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/muster ./cmd/muster-agent ./cmd/muster-collector ./cmd/muster-fleet

cross:             ## what builds for other systems: the CLI for macOS and Windows, the agent for arm64
	sh .ci/cross

race:              ## all tests under the race detector (needs gcc)
	sh .ci/test race

lint:              ## import rules and the rest of .golangci.yml
	sh .ci/lint

fuzz:              ## every fuzz target for FUZZ each (5s)
	sh .ci/fuzz $(FUZZ)

bench: build       ## figures beside a peer, in one run
	$(GO) run ./cmd/internal/bench $(ARGS)

rates:             ## docs/rates.md: how often gates are wrong, over 10,000 simulated rollouts a case (ARGS="-n 500": fewer)
	$(GO) run ./cmd/internal/rates -o docs/rates.md $(ARGS)

cases:             ## which known fault is covered by which test, with its result (CASES=dir of the list)
	$(GO) run ./testdata/cases $(CASES)

sim:               ## a simulated fleet in which everything goes wrong (SEEDS=60 FIRST=1 HOSTS=50; RACE=-race)
	CGO_ENABLED=$(if $(RACE),1,$(CGO_ENABLED)) $(GO) test -c -tags simulation $(RACE) -o $(BIN)/sim.test ./cmd/internal/sim
	$(BIN)/sim.test -test.run '^TestSeeds$$' -test.timeout 24h -sim.seeds=$(SEEDS) -sim.first=$(FIRST) -sim.hosts=$(HOSTS)

mutants:           ## break the rollout's rules one by one, each must be noticed (ARGS=-only=NAME)
	$(GO) run ./testdata/mutants $(ARGS)

vectors:           ## write the golden vectors anew; read the diff
	MUSTER_UPDATE=1 $(GO) test ./distributor/...

fmt:               ## gofmt of all files
	gofmt -w $$(git ls-files '*.go')

vet:               ## go vet
	$(GO) vet ./...

tidy:              ## go.mod and go.sum of both modules
	$(GO) mod tidy && cd testdata/tools && $(GO) mod tidy

check: vet lint test race fuzz ## all that CI runs
	test -z "$$(gofmt -l $$(git ls-files '*.go'))"

clean:             ## remove bin/
	rm -rf $(BIN)
