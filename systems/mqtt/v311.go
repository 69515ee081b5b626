package mqtt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/eclipse/paho.golang/packets"
	v311 "github.com/eclipse/paho.mqtt.golang/packets"
)

// Sessions use packets of MQTT 5. With MQTT 3.1.1, which has all that they need
// but properties and reason codes, packets are translated here.

// toV311 translates a packet to MQTT 3.1.1.
func toV311(packet io.WriterTo) (v311.ControlPacket, error) {
	switch p := packet.(type) {
	case *packets.Connect:
		c := v311.NewControlPacket(v311.Connect).(*v311.ConnectPacket)
		c.ProtocolName, c.ProtocolVersion = "MQTT", 4
		c.ClientIdentifier, c.CleanSession, c.Keepalive = p.ClientID, p.CleanStart, p.KeepAlive
		c.UsernameFlag, c.Username, c.PasswordFlag, c.Password = p.UsernameFlag, p.Username, p.PasswordFlag, p.Password
		return c, nil
	case *packets.Publish:
		m := v311.NewControlPacket(v311.Publish).(*v311.PublishPacket)
		m.TopicName, m.MessageID, m.Qos = p.Topic, p.PacketID, p.QoS
		var err error
		m.Payload, err = prependProperties(p)
		return m, err
	case *packets.Puback:
		a := v311.NewControlPacket(v311.Puback).(*v311.PubackPacket)
		a.MessageID = p.PacketID
		return a, nil
	case *packets.Subscribe:
		s := v311.NewControlPacket(v311.Subscribe).(*v311.SubscribePacket)
		s.MessageID = p.PacketID
		for _, o := range p.Subscriptions {
			s.Topics, s.Qoss = append(s.Topics, o.Topic), append(s.Qoss, o.QoS)
		}
		return s, nil
	case *packets.Pingreq:
		return v311.NewControlPacket(v311.Pingreq), nil
	case *packets.Disconnect:
		return v311.NewControlPacket(v311.Disconnect), nil
	}
	return nil, fmt.Errorf("mqtt: no counterpart in MQTT 3.1.1 of %T", packet)
}

// toV5 translates a packet to MQTT 5.
func toV5(packet v311.ControlPacket) (*packets.ControlPacket, error) {
	switch p := packet.(type) {
	case *v311.ConnackPacket:
		c := packets.NewControlPacket(packets.CONNACK)
		c.Content.(*packets.Connack).ReasonCode = refusals311[p.ReturnCode]
		if p.ReturnCode != v311.Accepted && refusals311[p.ReturnCode] == 0 {
			return nil, fmt.Errorf("mqtt: CONNACK with return code %d", p.ReturnCode)
		}
		return c, nil
	case *v311.PublishPacket:
		c := packets.NewControlPacket(packets.PUBLISH)
		m := c.Content.(*packets.Publish)
		m.Topic, m.PacketID, m.QoS, m.Duplicate = p.TopicName, p.MessageID, p.Qos, p.Dup
		return c, cutProperties(p.Payload, m)
	case *v311.PubackPacket:
		c := packets.NewControlPacket(packets.PUBACK)
		c.Content.(*packets.Puback).PacketID = p.MessageID
		return c, nil
	case *v311.SubackPacket:
		c := packets.NewControlPacket(packets.SUBACK)
		s := c.Content.(*packets.Suback)
		s.PacketID, s.Reasons = p.MessageID, p.ReturnCodes
		return c, nil
	case *v311.PingrespPacket:
		return packets.NewControlPacket(packets.PINGRESP), nil
	}
	return nil, fmt.Errorf("mqtt: the server sent %T", packet)
}

// refusals311 maps CONNACK return codes (MQTT 3.1.1, section 3.2.2.3) to reason
// codes.
var refusals311 = map[byte]byte{
	v311.ErrRefusedBadProtocolVersion:    0x84,
	v311.ErrRefusedIDRejected:            0x85,
	v311.ErrRefusedServerUnavailable:     serverUnavailable,
	v311.ErrRefusedBadUsernameOrPassword: 0x86,
	v311.ErrRefusedNotAuthorised:         0x87,
}

// prependProperties prepends the user properties to a payload as a line of
// JSON, for which MQTT 3.1.1 has no other place.
func prependProperties(p *packets.Publish) ([]byte, error) {
	line, err := json.Marshal(p.Properties.User)
	if err != nil {
		return nil, fmt.Errorf("mqtt: key and headers of a message: %w", err)
	}
	return append(append(line, '\n'), p.Payload...), nil
}

// cutProperties is the inverse of prependProperties.
func cutProperties(raw []byte, p *packets.Publish) error {
	line, payload, ok := bytes.Cut(raw, []byte("\n"))
	if err := json.Unmarshal(line, &p.Properties.User); err != nil || !ok {
		return errors.Join(errors.New("mqtt: a message on this topic that this adapter did not publish"), err)
	}
	p.Payload = payload
	return nil
}
