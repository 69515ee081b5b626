#!/usr/bin/env bash
# Installs the servers that Custody runs as child processes, and a Docker engine
# for those that it runs as containers, as far as the package managers have
# them. Debian or a relative of it, as root; each server that the packages bring
# along is stopped, for Custody starts its own in private folders. What is there
# already is left as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

# program: its Debian package
declare -A packages=(
	[rabbitmq-server]=rabbitmq-server
	[mosquitto]=mosquitto
	[redis-server]=redis-server
	[mariadbd]=mariadb-server
	[dockerd]=docker.io
	[iptables]=iptables
)

missing=()
for program in "${!packages[@]}"; do
	PATH="$PATH:/usr/sbin" command -v "$program" >/dev/null || missing+=("${packages[$program]}")
done

# Its programs are in no PATH.
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)

if ((${#missing[@]})); then
	if ! command -v apt-get >/dev/null; then
		printf 'install these by hand: %s\n' "${missing[*]}" >&2
		exit 1
	fi
	# Without this the packages would start their servers at once.
	policy=/usr/sbin/policy-rc.d
	if [[ ! -e $policy ]]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod +x "$policy"
		trap 'rm -f "$policy"' EXIT
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

command -v mvn >/dev/null || printf 'no mvn: Kafka is left out (apt-get install maven default-jre-headless)\n' >&2
command -v mvn >/dev/null && systems/kafka/install.sh

bin/custody doctor
