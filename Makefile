# Two targets do everything: `make accept` and `make test`. Both need Go and
# nothing else. Make reports a failure as its own exit code 2 and prints the
# command's code; run the command itself where the code matters.

SYSTEM   ?= zeromq
N        ?= 20
FUZZTIME ?= 10s
BENCH    ?= .
GOLANGCI := v2.15.0
GREMLINS := v0.6.0
VULNCHECK := v1.9.0
SEED     ?= 1
MIN      ?= 0

REPORT   := $(CURDIR)/report
CUSTODY  := bin/custody

# No C compiler is needed; only the race detector has to have one.
export CGO_ENABLED := 0

# The same bytes wherever they are built: no paths of this machine in them, and
# the version that of the commit. BUILDVCS=false builds where git refuses.
BUILDVCS ?= auto
GOBUILD  := go build -trimpath -buildvcs=$(BUILDVCS)

.PHONY: build reproducible brokers accept test race bench torture defects siege mutants sweep matrix docs record lint vulns fuzz soak images clean

## build: bin/custody
build:
	@$(GOBUILD) -o $(CUSTODY) ./cmd/custody

## reproducible: build the last commit in two folders, and compare the bytes
reproducible:
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
	for copy in a another/folder; do \
		git clone --quiet --no-hardlinks . "$$scratch/$$copy" && $(MAKE) --no-print-directory -C "$$scratch/$$copy" build || exit 1; \
	done && \
	cmp "$$scratch/a/$(CUSTODY)" "$$scratch/another/folder/$(CUSTODY)" && \
	"$$scratch/a/$(CUSTODY)" version | grep "$$(git rev-parse HEAD)" && \
	sha256sum < "$$scratch/a/$(CUSTODY)"

## brokers: install the servers that are run as child processes (Debian, root)
brokers: build
	process/brokers.sh

## accept: run the checklist on SYSTEM, and leave report/report.html and report/junit.xml
accept: build
	@rm -rf "$(REPORT)/accept" "$(REPORT)/report.html" "$(REPORT)/junit.xml" && mkdir -p "$(REPORT)"
	@code=0; $(CUSTODY) run --system "$(SYSTEM)" --out report/accept || code=$$?; \
	$(CUSTODY) report report/accept --format html --out report/report.html && \
	$(CUSTODY) report report/accept --format junit --out report/junit.xml && \
	echo "report:   report/report.html" && \
	echo "junit:    report/junit.xml" && \
	echo "evidence: report/accept"; \
	made=$$?; [ $$code -ne 0 ] && exit $$code; exit $$made

## test: go vet and every test; the suite's evidence and its page go to report/test
test: build
	@rm -rf "$(REPORT)/test" && mkdir -p "$(REPORT)/test"
	go vet ./...
	@code=0; CUSTODY_OUT="$(REPORT)/test" go test -count=1 ./... || code=$$?; \
	if $(CUSTODY) report report/test/*/ --format html --out report/test/report.html; then \
		echo "report:   report/test/report.html"; fi; \
	echo "evidence: report/test"; exit $$code

## race: every test under the race detector (needs a C compiler)
race:
	CGO_ENABLED=1 go test -race -count=1 -timeout 30m ./...

## bench: every benchmark, or those that match BENCH
bench:
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./...

## torture: the reference broker's store under 500 kills, 1,000 power cuts and 1,000 random
## damages to its files; on a RAM disk (TMPDIR) in minutes; then 100 kills of each database
## server that it may lie in
torture:
	CUSTODY_TORTURE=1 go test -count=1 -timeout 60m -v ./broker/store/sqlite -run 'IsLostBy|NeverDelivered'
	CUSTODY_TORTURE=1 go test -count=1 -timeout 60m -v ./broker/store/relational ./broker/store/redisstore -run IsLostBy

## siege: the reference broker among honest clients, attackers, kills and restarts for TIME,
## in a cgroup of MEMORY (as root); 0 leaves it unlimited, and says so
siege: TIME ?= 30m
siege: MEMORY ?= 1GiB
siege: build
	@rm -rf "$(REPORT)/siege" && go build -o bin/siege ./siege
	bin/siege -for $(TIME) -memory $(MEMORY) -seed $(SEED) -out report/siege

## defects: switch on each seeded defect of the reference broker; all must be caught
defects: build
	@rm -rf "$(REPORT)/defects" && mkdir -p "$(REPORT)"
	$(CUSTODY) defects --out report/defects

## mutants: which small changes to the broker the checklist and exploring notice: all, or
## N of them drawn by SEED; fails below a score of MIN percent; goes on where it was broken off
mutants: N = 0
mutants: bin/gremlins-$(GREMLINS)
	@go build -o bin/mutants ./mutants
	bin/mutants -gremlins bin/gremlins-$(GREMLINS) -n $(N) -seed $(SEED) -min $(MIN) -out report/mutants -resume

bin/gremlins-$(GREMLINS):
	@mkdir -p bin
	GOFLAGS= GOBIN="$(CURDIR)/bin" go install github.com/go-gremlins/gremlins/cmd/gremlins@$(GREMLINS)
	@mv bin/gremlins $@

## sweep: strike every hand-over of SYSTEM with every fault that applies
sweep: build
	@rm -rf "$(REPORT)/sweep" && mkdir -p "$(REPORT)"
	$(CUSTODY) sweep --system "$(SYSTEM)" --out report/sweep

## matrix: claims against evidence for every profile; goes on where it was broken off
matrix: build
	@mkdir -p "$(REPORT)"
	$(CUSTODY) matrix --out report/matrix --resume

## docs: write the generated parts of the documentation anew
docs:
	go test -count=1 ./docs -update

## record: run the cases of docs/track-record.md and write what was measured anew
record:
	go test -count=1 ./scenarios -run TestScenarios -ginkgo.label-filter=record -update

## lint: golangci-lint, at the version that this file names
lint: bin/golangci-lint-$(GOLANGCI)
	bin/golangci-lint-$(GOLANGCI) run ./...

bin/golangci-lint-$(GOLANGCI):
	@mkdir -p bin
	GOFLAGS= GOBIN="$(CURDIR)/bin" go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI)
	@mv bin/golangci-lint $@

## vulns: known vulnerabilities in what is called; skipped where their database cannot be reached
vulns: bin/govulncheck-$(VULNCHECK)
	@said=$$(bin/govulncheck-$(VULNCHECK) ./... 2>&1); code=$$?; \
	case "$$said" in *"fetching vulnerabilities"*) \
		echo "SKIPPED: govulncheck: its database cannot be reached from here" >&2; exit 0;; esac; \
	printf '%s\n' "$$said"; exit $$code

bin/govulncheck-$(VULNCHECK):
	@mkdir -p bin
	GOFLAGS= GOBIN="$(CURDIR)/bin" go install golang.org/x/vuln/cmd/govulncheck@$(VULNCHECK)
	@mv bin/govulncheck $@

## fuzz: every fuzz target, each for FUZZTIME
fuzz:
	@grep -rn --include='*_test.go' -oE '^func Fuzz[A-Za-z0-9_]+' . | sort | while IFS=: read -r file line func; do \
		dir=$$(dirname "$$file"); name=$${func#func }; \
		echo "$$dir $$name"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$dir" || exit 1; \
	done

## soak: the checklist N times over; goes on where it was broken off
soak: build
	@mkdir -p "$(REPORT)"
	$(CUSTODY) run --system "$(SYSTEM)" --repeat $(N) --out "report/soak-$(SYSTEM)" --resume

## images: the servers as Docker images, from packages and no image registry (as root, on Debian)
images:
	process/images/dockerd.sh
	process/images/build.sh

clean:
	rm -rf bin report
