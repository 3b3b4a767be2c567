# Everything that people and CI run. `make` alone prints this help.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export GOTOOLCHAIN ?= go1.27.3

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BIN     := bin
LDFLAGS := -s -w -X main.version=$(VERSION)
# The controller and the CLI are built as the tests are, so that both share what was compiled.
GOBUILD := go build -ldflags '$(LDFLAGS)'
SHIM    := CGO_ENABLED=0 go build $(shell grep -v '^\#' packaging/shim.flags) -ldflags '$(LDFLAGS)'
# The whole of the real thing: root, real hosts, real control plane. It waits more than it computes: two packages, with a lab
# each, do not get into each other's way.
E2E_TIMEOUT ?= 40m
E2E_JOBS    ?= 2
FAULTS_TIMEOUT ?= 8h
E2E_PACKAGES = $(shell grep -rl --include='*_test.go' '^//go:build e2e' . | xargs -n1 dirname | sort -u)
# How long each target is fuzzed: in make test, and in make fuzz.
TEST_FUZZTIME ?= 60s
FUZZTIME    ?= 10m
GOVULNCHECK ?= v1.9.0
GOLANGCI    ?= v2.15.0
# Where make image-push puts the image, and what archives call it. The chart's default, so that what is loaded is found.
IMAGE       ?= $(shell awk '$$1 == "repository:" {print $$2}' charts/karpenter-provider-ssh/values.yaml):$(VERSION)
CRD_CHART   := charts/karpenter-provider-ssh-crds/templates
# Uninstalling the chart leaves its objects: with the kinds their objects would go.
KEPT := /^metadata:$$/{n;s|^  annotations:$$|&\n    helm.sh/resource-policy: keep|;t;s|^|  annotations:\n    helm.sh/resource-policy: keep\n|}

##@ The two commands of the README

.PHONY: demo
demo: root build ## A pending pod pulls a host into a real cluster, and gives it back. KEEP=1 leaves it up to play with.
	@$(call slow,building the demo,go build -o $(BIN)/demo ./test/demo)
	@$(BIN)/demo $(if $(KEEP),--keep) $(DEMO_FLAGS)

.PHONY: test
test: root test-unit ## Everything: unit tests, then end-to-end tests on real parts and fuzzing (root, ≤ 20 min warm)
	@$(MAKE) -j2 test-e2e test-fuzz

# Said before minutes of building, not after. `go` may be where sudo does not look.
.PHONY: root
root:
	@[ "$$(id -u)" = 0 ] || { echo 'This makes network namespaces, mounts and control groups, and so needs root:' \
	  'sudo env "PATH=$$PATH" make $(MAKECMDGOALS)' >&2; exit 1; }
	@command -v go >/dev/null || { echo 'There is no go in PATH: any Go from 1.21 on will do, https://go.dev/dl' >&2; exit 1; }

##@ Development

.PHONY: help
help: ## Print this help
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-zA-Z0-9_-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the controller, the CLI and the shim (amd64, arm64) into bin/
	@mkdir -p $(BIN)
	@echo "building into $(BIN)/: seconds, or minutes without a build cache"
	@$(call slow,building kpssh-shim for amd64,GOARCH=amd64 $(SHIM) -o $(BIN)/kpssh-shim-linux-amd64 ./cmd/kpssh-shim)
	@$(call slow,building kpssh-shim for arm64,GOARCH=arm64 $(SHIM) -o $(BIN)/kpssh-shim-linux-arm64 ./cmd/kpssh-shim)
	@$(call slow,building kpssh,$(GOBUILD) -o $(BIN)/kpssh ./cmd/kpssh)
	@$(call slow,building karpenter-provider-ssh,$(GOBUILD) -o $(BIN)/karpenter-provider-ssh ./cmd/controller)

# slow says what is being done, and every 20 s that it still is.
define slow
echo "$(1)"; \
  while sleep 20 >/dev/null 2>&1; do echo "  still $(1) (after $$SECONDS s)"; done & beat=$$!; \
  trap "kill $$beat" EXIT; $(2)
endef

.PHONY: test-unit
test-unit: vectors ## Tests that need neither root, nor network, nor a lab
	@$(call slow,vetting,go vet ./...)
	@$(call slow,testing units,go test ./...)

# Published data that is not in the repository. A folder that was promised must be there: a result that
# go test kept from a day when it was would not say so.
.PHONY: vectors
vectors:
	@if [ -z "$${KPSSH_VECTORS:-}" ]; then \
	  echo 'KPSSH_VECTORS is not set: the Ed25519 edge points (ed25519/ed25519vectors.json of C2SP/CCTV) are not run'; \
	elif [ ! -f "$$KPSSH_VECTORS/ed25519-cctv.json" ]; then \
	  echo "KPSSH_VECTORS is $$KPSSH_VECTORS, and there is no ed25519-cctv.json in it" >&2; exit 1; \
	fi

.PHONY: test-e2e
test-e2e: build ## End-to-end tests in the lab (root; installs what it misses with apt)
	@$(call slow,building kpssh-lab,go build -o $(BIN)/kpssh-lab ./test/lab/cmd/kpssh-lab)
	$(BIN)/kpssh-lab prepare
	@echo "the end-to-end tests take a quarter of an hour; E2E_FLAGS=-v shows each of them"
	@$(call slow,testing end to end,go test -tags e2e -count=1 -timeout $(E2E_TIMEOUT) -p $(E2E_JOBS) $(E2E_FLAGS) $(E2E_PACKAGES))

.PHONY: test-faults
test-faults: root build ## Break hosts, networks, control plane and controller, for hours; FAULTS_FLAGS='-run Killed -kills 10' picks
	go vet -tags faults ./test/faults ./pkg/pool
	go test -tags faults -count=1 -timeout 1h -run Interleavings -v ./pkg/pool
	go test -tags faults -count=1 -timeout $(FAULTS_TIMEOUT) -v ./test/faults $(FAULTS_FLAGS)

.PHONY: test-race
test-race: ## Unit tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 go test -race ./...

.PHONY: bench
bench: build ## Speed as ratios, both sides measured in this run
	go run ./test/bench $(BENCH_FLAGS)

.PHONY: fuzz
fuzz: ## Fuzz every target for FUZZTIME (10m), as many at a time as there are cores
	@go run ./test/fuzz -time $(FUZZTIME) $(FUZZ_FLAGS)

.PHONY: test-fuzz
test-fuzz: ## The same for a minute each, with what time of the processors others leave
	@nice -n 10 go run ./test/fuzz -time $(TEST_FUZZTIME) $(FUZZ_FLAGS)

.PHONY: generate
generate: ## Regenerate deepcopy code and CRDs, also those in the CRD chart
	go tool -modfile=go.tools.mod controller-gen object paths=./pkg/apis/...
	go tool -modfile=go.tools.mod controller-gen crd paths=./pkg/apis/... output:crd:dir=pkg/apis/crds
	@rm -f $(CRD_CHART)/*.yaml
	@for file in pkg/apis/crds/*.yaml pkg/apis/admission/*.yaml; do sed '$(KEPT)' "$$file" >"$(CRD_CHART)/$${file##*/}"; done

.PHONY: verify
verify: ## Fail when generated files, formatting or go.mod are not up to date
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	  git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$$tmp"; \
	  cd "$$tmp"; git init -q; git add -A; $(MAKE) generate; gofmt -w .; go mod tidy; \
	  git diff --exit-code

.PHONY: lint
lint: ## golangci-lint (built from its module on first use) and shellcheck
	go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI) run ./...
	git ls-files '*.sh' | xargs shellcheck
	shellcheck --shell=sh packaging/deb/p* packaging/rpm/p*

.PHONY: vulncheck
vulncheck: ## Known vulnerabilities in the code that is linked (fetches the database of vulnerabilities)
	go run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK) ./...

##@ Packages

.PHONY: packages
packages: ## deb and rpm of the shim for amd64, arm64 and armhf, with SBOMs and SHA256SUMS, into dist/
	@rm -rf dist/kpssh-shim* dist/SHA256SUMS
	@$(call slow,building packages,VERSION='$(VERSION)' packaging/build.sh dist)

##@ Container image

.PHONY: image
image: ## The controller's image for linux/amd64 and linux/arm64, with SBOMs, into dist/image/ (no container engine)
	@rm -rf dist/image
	@$(call slow,building the image,IMAGE='$(IMAGE)' VERSION='$(VERSION)' packaging/image/build.sh dist/image)

.PHONY: image-push
image-push: ## Push what `make image` made to IMAGE (registry/name:tag), with the login that `docker login` kept
	@go run ./packaging/image push -from dist/image -image '$(IMAGE)'

.PHONY: image-load
image-load: root ## Give what `make image` made to host or node NODE of a lab that is up (make demo KEEP=1); LAB is its id, if several are
	@[ -n '$(NODE)' ] || { echo 'NODE says which host gets it, such as make image-load NODE=host-a' >&2; exit 1; }
	@go run ./test/lab/cmd/kpssh-lab image-load -node '$(NODE)' -lab '$(LAB)' \
	  -archive "dist/image/karpenter-provider-ssh-linux-$$(go env GOARCH).tar"

##@ Cleaning

.PHONY: clean
clean: ## Remove what was built here (not the caches)
	rm -rf $(BIN) dist
