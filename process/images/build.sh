#!/usr/bin/env bash
# Builds the images of the servers without any image registry: a base made by
# debootstrap from the Debian mirror that this machine's apt uses, and one
# package on top of it each, or Java and the jars that Maven fetches. What exists
# is left alone; FORCE=1 builds it anew.
#
#   process/images/build.sh [redis valkey rabbitmq mosquitto nats kafka broker]
#
# Needs a Docker engine (see dockerd.sh) and, for a first base, root on Debian;
# Maven for Kafka, which is left out without it.
set -euo pipefail
cd "$(dirname "$0")"

BASE=custody/trixie
KAFKA=4.1.2 # older than the one that systems/kafka/install.sh fetches
LIMIT=${LIMIT:-900} # seconds for one step
FORCE=${FORCE:-0}

scratch=$(mktemp -d)
trap 'rm -rf --one-file-system "$scratch"' EXIT

exists() { docker image inspect "$1" >/dev/null 2>&1; }
needed() { ((FORCE)) || ! exists "$1"; }

# mirror prints the archive that apt has its packages from.
mirror() {
	local found
	found=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | sort -u | sed -n 1p)
	if [[ -z $found ]]; then
		echo 'build.sh: apt knows no Debian archive; run apt-get update first' >&2
		return 1
	fi
	echo "$found"
}

base() {
	local root=$scratch/root site
	site=$(mirror)
	if ! command -v debootstrap >/dev/null; then
		timeout "$LIMIT" apt-get install -y --no-install-recommends debootstrap
	fi
	timeout "$LIMIT" debootstrap --variant=minbase trixie "$root" "$site"
	rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
	printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # no service is started by its installation
	chmod 755 "$root/usr/sbin/policy-rc.d"
	tar -C "$root" -c . | docker import - "$BASE"
}

# build IMAGE DOCKERFILE CONTEXT
build() { timeout "$LIMIT" docker build --network host --force-rm -t "$1" -f "$2" "$3"; }

broker() {
	mkdir "$scratch/broker"
	CGO_ENABLED=0 go build -o "$scratch/broker/custody" ../../cmd/custody
	build custody/broker:dev broker.Dockerfile "$scratch/broker"
}

kafka() {
	if ! command -v mvn >/dev/null; then
		echo 'build.sh: no mvn: Kafka is left out (apt-get install maven default-jre-headless)' >&2
		return
	fi
	mkdir "$scratch/kafka"
	timeout "$LIMIT" mvn -q -B -f ../../systems/kafka/server/pom.xml -Dkafka.version="$KAFKA" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$scratch/kafka/libs"
	build "custody/kafka:$KAFKA" kafka.Dockerfile "$scratch/kafka"
}

docker info >/dev/null 2>&1 || {
	echo 'build.sh: no Docker engine answers; dockerd.sh starts one' >&2
	exit 1
}
if (($# == 0)); then
	set -- redis valkey rabbitmq mosquitto nats kafka broker
fi
for name; do
	if [[ $name == broker ]]; then
		broker # of this source, so always
		continue
	fi
	image=custody/$name:trixie
	[[ $name == kafka ]] && image=custody/kafka:$KAFKA
	if ! needed "$image"; then
		echo "$image exists"
		continue
	fi
	exists "$BASE" || base
	if [[ $name == kafka ]]; then
		kafka
	else
		build "$image" "$name.Dockerfile" .
	fi
done
