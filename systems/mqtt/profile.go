// Package mqtt is the adapter for two MQTT servers: Eclipse Mosquitto,
// installed or of an image, and mochi-mqtt, run by this binary in a child
// process (see Role); any external server can be used too. Clients speak MQTT 5
// with the packets of paho.golang, or MQTT 3.1.1 with those of
// paho.mqtt.golang.
//
// A logical subscriber is a shared subscription, whose consumers use its client
// identifiers in turn: see seats.
package mqtt

import (
	"maps"
	"math"
	"strconv"
	"time"

	"github.com/eclipse/paho.golang/packets"
	v311 "github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// Profile is one configuration of one server. For mochi-mqtt the binary's main
// (or TestMain) must pass Role to process.RunRole.
type Profile struct {
	server        server
	at            systems.Endpoint // of an external server; zero: start one
	image         string           // container image of the server; empty: the installed one
	name, summary string
	v311          bool // clients speak MQTT 3.1.1
	qos           byte
	clean         bool    // sessions end with their connection
	declines      bool    // answers say whether anybody subscribes
	windowless    bool    // consumers set no Receive Maximum: see Profile.window
	expires       bool    // messages may have a time to live
	scale         float64 // factor on every period and bound
	claims        claims
}

// Profiles lists the configurations of this adapter; the first of each server
// is its default. scale is the factor on every period and deadline of the run:
// 1 on an ordinary machine.
func Profiles(scale float64) []systems.System {
	saved := []evidence.Setting{{Name: "autosave_on_changes", Value: "true"}, {Name: "autosave_interval", Value: "1"}}
	few := append(saved, evidence.Setting{Name: "max_queued_messages", Value: "3"})
	profiles := []Profile{
		{name: "qos1", summary: "QoS 1, sessions that outlive their connection, saved after every change that Mosquitto counts",
			server: mosquitto{settings: saved}, qos: 1, declines: true, claims: atLeastOnce(unlessLeft, unlessLeft, unlessLeft)},
		{name: "qos1-default-autosave", summary: "as qos1, but saved every 30 minutes and at an orderly end only, which is Mosquitto's default",
			server: mosquitto{}, qos: 1, declines: true, claims: atLeastOnce(unlessLeft, unlessLeft, unlessLeft)},
		{name: "qos2", summary: "as qos1, with QoS 2: each message is handed over in four steps, and acknowledgements are confirmed",
			server: mosquitto{settings: saved}, qos: 2, claims: exactlyOnce},
		{name: "qos0", summary: "QoS 0: sent once, answered by nobody, kept for nobody",
			server: mosquitto{settings: saved}, qos: 0, clean: true, claims: atMostOnce},
		{name: "clean-session", summary: "as qos1, but sessions end with their connection",
			server: mosquitto{settings: saved}, qos: 1, clean: true, declines: true, claims: whileConnected},
		{name: "queue-limit", summary: "as qos1, but only 3 messages wait for a consumer: what is more is answered with success, and dropped",
			server: mosquitto{settings: few}, qos: 1, declines: true, claims: whileConnected},
		{name: "expiry", summary: "as qos1, with a time to live: a message that outlives it in flight holds up those behind it",
			server: mosquitto{settings: saved}, qos: 1, declines: true, expires: true, claims: expiring},
		{name: "qos1-v311", summary: "as qos1, with clients of MQTT 3.1.1: the answer is success, also to a message that is kept for nobody",
			server: mosquitto{settings: saved}, v311: true, qos: 1, windowless: true, claims: atLeastOnce311(whileRunning, whileRunning, unlessLeft)},

		{name: "qos1", summary: "QoS 1, sessions that outlive their connection, in a badger database; a consumer sets no window",
			server: mochi{persistent: true}, qos: 1, windowless: true, claims: atLeastOnce(untouched, unlessLeft, nil)},
		{name: "qos1-memory", summary: "as qos1, but in memory, which is mochi-mqtt's default",
			server: mochi{}, qos: 1, windowless: true, claims: atLeastOnce(untouched, whileRunning, nil)},
		{name: "qos1-window", summary: "as qos1, but a consumer sets its window: what waits behind it is sent once and forgotten, and the rest is stuck",
			server: mochi{persistent: true}, qos: 1, claims: whileConnected},
		{name: "qos0", summary: "QoS 0: sent once, answered by nobody, kept for nobody",
			server: mochi{}, qos: 0, clean: true, claims: atMostOnce},
		{name: "qos1-v311", summary: "as qos1, with clients of MQTT 3.1.1",
			server: mochi{persistent: true}, v311: true, qos: 1, windowless: true, claims: atLeastOnce311(untouched, unlessLeft, nil)},
	}
	all := make([]systems.System, len(profiles))
	for i, p := range profiles {
		p.scale = scale
		all[i] = p
	}
	return all
}

// Periods at scale 1.
const (
	heartbeat     = 2 * time.Second // two missed ones end the session
	writeTimeout  = 2 * time.Second // bounds a write to a stopped server
	dialTimeout   = 2 * time.Second // connection and handshake
	sessionExpiry = time.Hour       // longer than any run; the server's clock is not scaled
	quietPeriod   = time.Second     // there is no redelivery on a live connection; how long to watch for one
)

func (p Profile) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * p.scale)
}

// keepAlive in whole seconds. The server closes a silent connection after 1.5
// times that, later than its client does.
func (p Profile) keepAlive() uint16 {
	return uint16(math.Ceil(p.scaled(2 * heartbeat).Seconds()))
}

// anyFault is every fault class that applies to a child process behind a link.
var anyFault = []evidence.Class{
	evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerCrash, evidence.BrokerPause, evidence.Link,
}

// unlessLeft leaves out crashes. A server answers a publish before storing it,
// so a kill can lose it. And a message assigned to a member of a shared
// subscription waits for that member only: if the member dies and is not
// replaced, its share is never served.
var unlessLeft = under(evidence.BrokerRestart, evidence.BrokerPause, evidence.Link)

// whileRunning leaves out every stop of the server too.
var whileRunning = under(evidence.BrokerPause, evidence.Link)

// untouched leaves out whatever makes a client reconnect: mochi-mqtt can lose
// what is published while a session moves from one connection to the next.
var untouched = under(evidence.BrokerPause)

func under(classes ...evidence.Class) []evidence.Class { return classes }

// claims lists guarantees, each with the section that promises it.
type claims []struct {
	guarantee string
	under     []evidence.Class
	source    string
}

// Sections of MQTT Version 5.0.
const (
	qos0Section    = "MQTT Version 5.0, 4.3.1 QoS 0: At most once delivery"
	qos1Section    = "MQTT Version 5.0, 4.3.2 QoS 1: At least once delivery, 4.1 Session State"
	qos2Section    = "MQTT Version 5.0, 4.3.3 QoS 2: Exactly once delivery"
	retrySection   = "MQTT Version 5.0, 4.4 Message delivery retry"
	orderSection   = "MQTT Version 5.0, 4.6 Message ordering"
	dupSection     = "MQTT Version 5.0, 3.3.1.1 DUP"
	expirySection  = "MQTT Version 5.0, 3.3.2.3.3 Message Expiry Interval"
	reasonSection  = "MQTT Version 5.0, 3.4.2.1 PUBACK Reason Code"
	payloadSection = "MQTT Version 5.0, 3.3.3 PUBLISH Payload"
	errorsSection  = "MQTT Version 5.0, 4.13 Handling errors"
)

// atLeastOnce takes the classes under which a server keeps what it accepted,
// marks redeliveries, and delivers in order.
func atLeastOnce(kept, marked, ordered []evidence.Class) claims {
	return claims{
		{evidence.NoAcceptedLoss, kept, qos1Section},
		{evidence.NoPhantom, anyFault, payloadSection},
		{evidence.DeclinedMeansAbsent, anyFault, reasonSection},
		{evidence.StableRedeliveryID, marked, dupSection},
		{evidence.Order, ordered, orderSection},
		{evidence.RecoveryBounded, kept, retrySection},
		{evidence.Survives, anyFault, errorsSection},
	}
}

// atLeastOnce311 is the same for MQTT 3.1.1, whose PUBACK has no reason code:
// nothing is declined, and a dropped message is answered like a kept one.
func atLeastOnce311(kept, marked, ordered []evidence.Class) claims {
	return claims{
		{evidence.NoAcceptedLoss, kept, "MQTT Version 3.1.1, 4.3.2 QoS 1: At least once delivery, 4.1 Storing state"},
		{evidence.NoPhantom, anyFault, "MQTT Version 3.1.1, 3.3.3 Payload"},
		{evidence.StableRedeliveryID, marked, "MQTT Version 3.1.1, 3.3.1.1 DUP"},
		{evidence.Order, ordered, "MQTT Version 3.1.1, 4.6 Message ordering"},
		{evidence.RecoveryBounded, kept, "MQTT Version 3.1.1, 4.4 Message delivery retry"},
		{evidence.Survives, anyFault, "MQTT Version 3.1.1, 4.8 Handling errors"},
	}
}

// exactlyOnce holds within one session. When a consumer takes over a seat, what
// its predecessor held unacknowledged is redelivered.
//
// After a restart Mosquitto restores a shared subscription only when its client
// subscribes again. Until then it answers QoS 1 with "no matching subscribers",
// and QoS 2 with success while dropping the message.
var exactlyOnce = append(claims{{evidence.AckIsFinal, whileRunning, qos2Section}}, atLeastOnce(whileRunning, whileRunning, unlessLeft)...)

// expiring leaves out what a message expiring in flight does to others.
var expiring = append(claims{{evidence.ExpiryHonoured, unlessLeft, expirySection}}, whileConnected...)

var whileConnected = claims{
	{evidence.NoPhantom, anyFault, payloadSection},
	{evidence.DeclinedMeansAbsent, anyFault, reasonSection},
	{evidence.Order, nil, orderSection},
	{evidence.Survives, anyFault, errorsSection},
}

var atMostOnce = claims{
	{evidence.NoDuplicateDelivery, anyFault, qos0Section},
	{evidence.NoPhantom, anyFault, payloadSection},
	{evidence.Order, anyFault, orderSection},
	{evidence.Survives, anyFault, errorsSection},
}

func (table claims) bySystem() []evidence.Claim {
	made := make([]evidence.Claim, 0, len(table))
	for _, c := range table {
		made = append(made, evidence.Claim{Guarantee: c.guarantee, Under: c.under, Owner: evidence.OwnerSystem, Source: c.source})
	}
	return made
}

// In returns the profile with its server from an image.
func (p Profile) In(image string) (systems.System, error) {
	s, err := p.server.in(image)
	if err != nil {
		return nil, err
	}
	p.server, p.image = s, image
	return p, nil
}

// Installed reports what is missing on this machine.
func (p Profile) Installed() error {
	if p.at.Address != "" {
		return nil
	}
	return p.server.installed()
}

// Describe says what this profile promises and lacks.
func (p Profile) Describe() systems.Description {
	d := systems.Description{
		System: p.server.system(),
		Profile: evidence.Profile{
			Name:    p.name,
			Summary: p.summary,
			Settings: append([]evidence.Setting{
				{Name: "version", Value: p.version()},
				{Name: "qos", Value: strconv.Itoa(int(p.qos))},
				{Name: "clean_start", Value: strconv.FormatBool(p.clean)},
				{Name: "subscription", Value: "$share"},
			}, p.server.shown()...),
			Redelivers:  evidence.RedeliverReconnect,
			AckCounting: "per-message",
			MarksAgain:  p.qos > 0,
			AckConfirms: p.qos == 2,
			// Sessions outlive their connection.
			KeepsSubscribers: !p.clean,
			Limits: evidence.Limits{
				RedeliveryPeriod: p.scaled(quietPeriod),
				RecoveryBound:    p.scaled(15 * time.Second),
				InFlightBound:    p.scaled(time.Second),
				// Whole seconds, rounded up, whatever the scale.
				ExpiryTolerance: max(p.scaled(2*time.Second), 2*time.Second),
				DrainDeadline:   p.scaled(25 * time.Second),
				OrderScope:      "connection",
			},
		},
		Claims: p.claims.bySystem(),
		// Both servers pick a member of a shared subscription whether or not it
		// is connected: Mosquitto round-robin, mochi-mqtt at random.
		WaitsForAbsent: !p.clean,
		Versions:       map[string]string{},
		Oldest:         p.server.oldest(),
		Lacks: map[systems.Need]string{
			systems.NeedModes:       "the publisher chooses the quality of service, and a subscription only lowers it: nothing is declined for it",
			systems.NeedDedup:       "MQTT recognises no message as one that was published before",
			systems.NeedRewind:      "MQTT keeps no log: what is settled is forgotten",
			systems.NeedNack:        "MQTT has no negative acknowledgement",
			systems.NeedDeadLetters: "MQTT has no dead-letter queue, and no limit of attempts",
			systems.NeedLookup:      "MQTT has no look-up: an unknown publish is settled by its delivery alone",
			systems.NeedStoreFaults: "the store is inside the server, with no seam to strike it",
			systems.NeedClock:       "the server reads the machine's clock",
			systems.NeedIdentity:    "the data does not depend on the server's name or host",
			systems.NeedPlanting:    "MQTT payloads have no protocol version that the server would refuse",
		},
	}
	if _, ours := p.server.(mochi); ours && !p.clean {
		d.Known = []evidence.Known{{Guarantee: evidence.NoAcceptedLoss, Until: "2027-05-31",
			Reason: "mochi-mqtt loses what it accepts while a session moves to a new connection (docs/findings.md)"}}
	}
	if p.at.Address == "" { // otherwise reported by the server
		maps.Copy(d.Versions, p.server.versions())
	}
	if p.image != "" {
		d.Profile.Name += "@" + p.image
	}
	client, version := p.client()
	d.Versions[client] = version
	if why := p.server.hides(); why != "" {
		d.Lacks[systems.NeedRows] = why
	} else if p.at.Address != "" {
		d.Lacks[systems.NeedRows] = "only a server that this binary runs shows what it keeps"
	}
	if !p.declines {
		d.Lacks[systems.NeedDecline] = "the answer does not say whether anybody subscribes"
	}
	if !p.expires {
		d.Lacks[systems.NeedTTL] = "message expiry is tried in a profile of its own, because what expires in flight can hold up the rest"
	}
	if p.windowless {
		d.Lacks[systems.NeedWindow] = "this profile sets no Receive Maximum: a consumer is sent all there is"
	}
	if p.v311 {
		d.Lacks[systems.NeedDecline] = "MQTT 3.1.1 answers a publish with no reason: one that nobody subscribes to is a success"
		d.Lacks[systems.NeedTTL] = "MQTT 3.1.1 has no message expiry"
		d.Lacks[systems.NeedMessageID] = "MQTT 3.1.1 has no field for it: a packet identifier is one connection's, and used again"
	}
	if p.clean {
		d.Profile.Redelivers = evidence.RedeliverNever
		d.Lacks[systems.NeedRedelivery] = "the session ends with its connection, and nothing of it comes again"
	}
	if p.qos == 0 {
		d.Profile.AckCounting = "automatic"
		maps.Copy(d.Lacks, map[systems.Need]string{
			systems.NeedWindow:    "QoS 0 has no acknowledgements, and so nothing that a Receive Maximum counts",
			systems.NeedAnswer:    "QoS 0 has no answer to a publish",
			systems.NeedAcks:      "QoS 0 has no acknowledgements",
			systems.NeedDecline:   "QoS 0 has no answer to a publish",
			systems.NeedMessageID: "QoS 0 has no answer to a publish, so that nothing is tried again",
		})
	}
	return d
}

func (p Profile) version() string {
	if p.v311 {
		return "3.1.1"
	}
	return "5"
}

// client is the module that encodes the packets, with its version.
func (p Profile) client() (name, version string) {
	if p.v311 {
		return "paho.mqtt.golang", systems.LibraryVersion(v311.ReadPacket)
	}
	return "paho.golang", systems.LibraryVersion(packets.ReadPacket)
}
