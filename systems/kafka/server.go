package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
)

// broker is a Kafka broker with its directory. It may serve several runs in
// turn.
type broker struct {
	*process.Server
	address string
	dir     string
}

// serverName is the actor of the server's events and the name of its log.
const serverName = "broker"

// configText configures a single node whose internal topics have one partition
// and one replica, with periods short enough to notice a dead member or a
// killed broker within seconds, and without automatic topic creation.
const configText = `process.roles=broker,controller
node.id=1
controller.quorum.voters=1@%[2]s
controller.listener.names=CONTROLLER
listeners=CLIENT://%[1]s,CONTROLLER://%[2]s
listener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENT
log.dirs=%[3]s
message.max.bytes=4194304
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=%[10]d
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=100
group.share.heartbeat.interval.ms=%[4]d
group.share.min.heartbeat.interval.ms=100
group.share.assignment.interval.ms=0
group.share.initialize.retry.interval.ms=1000
group.share.session.timeout.ms=%[5]d
group.share.min.session.timeout.ms=100
group.share.record.lock.duration.ms=%[6]d
group.share.min.record.lock.duration.ms=1000
group.share.delivery.count.limit=%[7]d
group.share.max.delivery.count.limit=%[7]d
broker.session.timeout.ms=%[8]d
broker.heartbeat.interval.ms=%[9]d
`

// logText logs to standard output, bounded by the parent.
const logText = `rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %m (%c)%n
logger.server.name=kafka.server.KafkaRaftServer
logger.server.level=info
`

// newBroker prepares a broker in a private directory; it is not started yet.
func (p Profile) newBroker(sink evidence.Sink, log io.WriteCloser) (*broker, error) {
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	controller, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := process.Folder()
	if err != nil {
		return nil, err
	}
	millis := func(d time.Duration) int64 { return p.scaled(d).Milliseconds() }
	config := fmt.Sprintf(configText, port.Address, controller.Address, filepath.Join(dir, "data"),
		millis(heartbeat), millis(sessionTimeout), millis(lockDuration), maxAttempts, millis(brokerSession), millis(brokerHeartbeat), millis(transactionCheck))
	path, args, err := p.command(dir)
	err = errors.Join(err,
		os.WriteFile(filepath.Join(dir, "server.properties"), []byte(config), 0o600),
		os.WriteFile(filepath.Join(dir, "log4j2.properties"), []byte(logText), 0o600))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("kafka: folder of the server: %w", err), os.RemoveAll(dir))
	}
	b := &broker{address: port.Address, dir: dir}
	b.Server = process.NewServer(serverName, sink, log, func(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
		started, err := process.StartProgram(ctx, process.ProgramOptions{
			Image: p.image, Path: path, Args: args, Dir: dir, Log: log, Exited: exited,
			Ready: func(ctx context.Context) error { return p.ready(ctx, port.Address) },
		})
		return started, nil, err
	}, port, controller)
	return b, nil
}

// Close stops the server and removes its folder.
func (b *broker) Close(ctx context.Context) error {
	return errors.Join(b.Server.Close(ctx), os.RemoveAll(b.dir))
}

// readyGroup names neither group nor transactional ID; its coordinators are
// queried.
const readyGroup = "ready"

// ready reports whether the broker serves.
func (p Profile) ready(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	conn.Close()
	return p.administer(address, func(admin administrator) error { return admin.serves(ctx) })
}

// serves checks that the broker is registered, every partition has a leader,
// and the coordinators of groups and transactions are loaded and can assign
// producer IDs.
func (a administrator) serves(ctx context.Context) error {
	m, err := a.Metadata(ctx)
	if err != nil {
		return err
	}
	if len(m.Brokers) == 0 {
		return errors.New("kafka: the broker is not registered yet")
	}
	for _, topic := range m.Topics {
		for _, partition := range topic.Partitions {
			if partition.Leader < 0 {
				return fmt.Errorf("kafka: %s has no leader yet", topic.Topic)
			}
		}
	}
	if err := a.FindGroupCoordinators(ctx, readyGroup).Error(); err != nil {
		return err
	}
	if _, err := a.FetchOffsets(ctx, readyGroup); err != nil {
		return err
	}
	transactions, err := a.DescribeTransactions(ctx, readyGroup)
	if loading := transactions[readyGroup].Err; err == nil && !errors.Is(loading, kerr.TransactionalIDNotFound) {
		err = fmt.Errorf("kafka: transactions have no coordinator yet: %w", loading)
	}
	if err != nil {
		return err
	}
	given, err := kmsg.NewPtrInitProducerIDRequest().RequestWith(ctx, a.kafka)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(given.ErrorCode)
}

// administrator is an admin client, with kafka for requests that kadm lacks.
type administrator struct {
	*kadm.Client
	kafka *kgo.Client
}

// syncCommits makes the broker sync the transaction log before it answers a
// commit, on which the message depends.
func (a administrator) syncCommits(ctx context.Context) error {
	every := "1"
	altered, err := a.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "flush.messages", Value: &every}}, "__transaction_state")
	for _, topic := range altered {
		err = errors.Join(err, topic.Err)
	}
	if err != nil {
		return fmt.Errorf("kafka: sync the commits of transactions: %w", err)
	}
	return nil
}

// newAdministrator connects directly, bypassing all links; the caller closes
// it.
func (p Profile) newAdministrator(address string) (administrator, error) {
	client, err := kgo.NewClient(append(p.clientOptions(address), kgo.ClientID("administrator"), kgo.RequestRetries(3))...)
	if err != nil {
		return administrator{}, fmt.Errorf("kafka: administer %s: %w", address, err)
	}
	return administrator{kadm.NewClient(client), client}, nil
}

// administer runs do on connections of its own, bypassing all links.
func (p Profile) administer(address string, do func(administrator) error) error {
	admin, err := p.newAdministrator(address)
	if err != nil {
		return err
	}
	defer admin.Close()
	if err := do(admin); err != nil {
		return fmt.Errorf("kafka: administer %s: %w", address, err)
	}
	return nil
}
