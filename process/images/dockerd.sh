#!/usr/bin/env bash
# Starts a Docker engine if none answers, and returns when it does. For machines
# without an init that would start it: it stays until it is killed.
set -euo pipefail

LOG=${DOCKERD_LOG:-${TMPDIR:-/tmp}/dockerd.log}
LIMIT=${LIMIT:-60} # seconds until it must answer

answers() { timeout 10 docker info >/dev/null 2>&1; }

if answers; then
	echo "a Docker engine answers"
	exit 0
fi
if [[ -n ${DOCKER_HOST:-} ]]; then
	echo "dockerd.sh: no Docker engine answers on DOCKER_HOST, $DOCKER_HOST" >&2
	exit 1
fi
for program in docker dockerd iptables; do
	command -v "$program" >/dev/null || {
		echo "dockerd.sh: no $program: apt-get install docker.io iptables" >&2
		exit 1
	}
done
setsid dockerd >"$LOG" 2>&1 </dev/null &
engine=$!
until answers; do
	if ! kill -0 "$engine" 2>/dev/null || ((SECONDS > LIMIT)); then
		echo "dockerd.sh: the Docker engine does not come up; the end of $LOG:" >&2
		tail -n 20 "$LOG" >&2
		kill "$engine" 2>/dev/null || true
		exit 1
	fi
	sleep 0.2
done
echo "a Docker engine answers (process $engine, log $LOG)"
