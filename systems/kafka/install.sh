#!/usr/bin/env bash
# Fetch the Kafka broker that systems/kafka runs, with Maven and at the versions
# of server/pom.xml, and prepare what makes its start fast. Does nothing when it
# is there already. Needs Java 17 or newer and Maven.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${CUSTODY_KAFKA_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/custody/kafka-4.4.0}

[[ -e $home/format/meta.properties ]] && exit 0
for tool in java mvn; do
	command -v "$tool" >/dev/null || { echo "$tool is missing: apt-get install openjdk-17-jre-headless maven" >&2; exit 1; }
done

mkdir -p "$home"
work=$(mktemp -d "$home/install.XXXXXX")
trap 'rm -rf "$work"' EXIT

rm -rf "$home/libs"
mvn -q -B -f "$here/server/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/libs"
mv "$work/libs" "$home/libs"

# Class data sharing asks for the very same class path each time: in byte order.
classpath=$(printf '%s\n' "$home"/libs/*.jar | LC_ALL=C sort | paste -sd:)
jvm=(-Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xlog:disable -cp "$classpath")

free_port() { # upwards from $1
	local port=$1
	while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
	echo "$port"
}
broker=$(free_port 29092)
controller=$(free_port 29493)
cat >"$work/server.properties" <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$broker,CONTROLLER://127.0.0.1:$controller
log.dirs=$work/data
END
java "${jvm[@]}" kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qg -c "$work/server.properties" >/dev/null
cp -R "$work/data" "$work/format"

# One start and stop of the broker writes the archive of its classes. Without it
# the broker starts all the same, only slower.
rm -f "$home/kafka.jsa"
java -XX:ArchiveClassesAtExit="$home/kafka.jsa" "${jvm[@]}" kafka.Kafka "$work/server.properties" >/dev/null 2>&1 &
training=$!
for ((i = 0; i < 600; i++)); do
	(exec 3<>"/dev/tcp/127.0.0.1/$broker") 2>/dev/null && break
	read -rt 0.1 <> <(:) || true
done
kill "$training" && wait "$training" || true

rm -rf "$home/format"
mv "$work/format" "$home/format" # last: it says that all is there
echo "Kafka 4.4.0 is in $home"
