#!/usr/bin/env node
// An adapter for Custody: a queue in memory, to be replaced by your system.
//
// Print nothing: standard output belongs to the protocol, and standard error is
// the log. `custody adapter check node adapter.js` says what is wrong.
'use strict';
const { answer, event, serve } = require('./protocol.js');

const noServer = "the queue is in the adapter's memory";

const description = {
  protocol: 1,
  system: 'memory-queue',
  versions: { node: process.versions.node },
  profiles: [{
    name: 'default',
    summary: 'a queue in memory: whoever leaves gives back what he has not settled',
    redelivers: 'reconnect',
    ackCounting: 'per-message',
    marksAgain: true,
    ackConfirms: true,
    keepsSubscribers: true,
    limits: {
      redeliveryPeriod: '500ms', recoveryBound: '5s', inFlightBound: '1s', drainDeadline: '10s', expiryTolerance: '1s', deleteBound: '1s',
    },
    claims: ['no-accepted-loss', 'no-phantom', 'ack-is-final', 'stable-redelivery-id', 'recovery-bounded', 'rows-match-clients']
      .map((guarantee) => ({ guarantee, under: ['client-crash'], source: 'adapter.js' })),
    abilities: ['rows', 'nack', 'answer', 'acks', 'redelivery', 'competing', 'headers', 'window'],
    lacks: {
      links: noServer, process: noServer, clock: noServer, survival: noServer, 'child-consumer': noServer, 'store-faults': noServer,
      'dead-letters': 'a message is delivered until it is settled',
      lookup: 'messages are not found by business ID',
      ttl: 'messages do not expire',
      modes: 'there is one way of delivery',
      decline: 'a message waits for a consumer',
      'message-id': 'the queue numbers its messages',
      deduplication: 'the queue numbers its messages',
      'fan-out': 'a destination is one queue',
      wildcards: 'a queue is read by its name',
      rewind: 'what is settled is gone',
    },
  }],
};

const sessions = new Map(); // by name: consumers have a destination and a window
let waiting = []; // messages, the oldest first
const held = new Map(); // by delivery: session and message
let count = 0; // of messages and deliveries

// deliver hands out what consumers have room for.
function deliver() {
  for (const [session, s] of sessions) {
    let room = (s.window ?? 0) - [...held.values()].filter((h) => h.session === session).length;
    for (const m of waiting.filter((w) => w.message.destination === s.destination)) {
      if (room-- <= 0) break;
      waiting = waiting.filter((w) => w !== m);
      m.attempt++;
      const delivery = String(++count);
      held.set(delivery, { session, m });
      event('delivery', { session, delivery, message: m.message, attempt: m.attempt, mark: m.attempt === 1 ? 'first' : 'redelivered' });
    }
  }
}

function giveBack(deliveries) {
  waiting.unshift(...deliveries.map((d) => held.get(d).m));
  deliveries.forEach((d) => held.delete(d));
}

function settle(call) {
  if (held.get(call.delivery)?.session !== call.session) return { outcome: 'refused', reason: 'not held by this session' };
  if (call.op === 'nack') giveBack([call.delivery]);
  else held.delete(call.delivery);
  answer(call, { outcome: 'confirmed' });
  deliver();
}

serve({
  describe: () => description,
  prepare: () => ({}),
  ping: () => ({}),
  producer: (call) => { sessions.set(call.session, {}); return {}; },
  consumer: (call) => {
    sessions.set(call.session, call);
    answer(call); // before the first delivery
    deliver();
  },
  close: (call) => {
    sessions.delete(call.session);
    giveBack([...held].filter(([, h]) => h.session === call.session).map(([d]) => d));
    deliver();
    return {};
  },
  send: (call) => {
    const m = { message: { ...call.message, messageId: `m${++count}` }, attempt: 0 };
    event('left', { of: call.id }); // from here on a cancelled send is unknown
    waiting.push(m);
    answer(call, { acceptance: 'accepted', heldBy: 'broker-memory', messageId: m.message.messageId });
    deliver();
  },
  ack: settle,
  nack: settle,
  rows: () => ({
    trust: 'exact',
    rows: [...waiting, ...[...held.values()].map((h) => h.m)].map((m) => ({ state: 'pending', message: m.message, attempts: m.attempt })),
  }),
});
