FROM custody/trixie
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-21-jre-headless && rm -rf /var/lib/apt/lists/*
COPY libs /opt/kafka/libs
# An empty store, which every broker begins with a copy of.
RUN printf '%s\n' process.roles=broker,controller node.id=1 controller.quorum.voters=1@127.0.0.1:9093 \
		controller.listener.names=CONTROLLER listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093 \
		log.dirs=/opt/kafka/format >/opt/kafka/format.properties \
	&& java -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qg -c /opt/kafka/format.properties \
	&& chmod -R a+rX /opt/kafka
