#!/usr/bin/env node
// An adapter for the broker in server.js, which Custody starts, kills and pauses,
// and whose connections it cuts, frame by frame.
'use strict';
const net = require('net');
const path = require('path');
const readline = require('readline');
const { Failure, event, serve, unanswered } = require('./protocol.js');

// --defect volatile is what this adapter is tested with: the broker answers
// before it has stored.
const defect = process.argv[2] === '--defect' ? process.argv.slice(3) : [];

const any = ['client-crash', 'broker-restart', 'broker-crash', 'broker-pause', 'link'];
const id = '"(?P<message>m[0-9]+)"';
const request = '(?P<request>[0-9]+)';

const description = {
  protocol: 1,
  system: 'node-broker',
  versions: { node: process.versions.node },
  profiles: [{
    name: 'default',
    summary: 'work queues over TCP, synced before every answer; who leaves gives back what he holds',
    redelivers: 'reconnect',
    ackCounting: 'per-message',
    marksAgain: false,
    ackConfirms: true,
    confirmIsDurable: true,
    keepsSubscribers: true,
    limits: {
      redeliveryPeriod: '500ms', recoveryBound: '8s', inFlightBound: '1s', drainDeadline: '12s', expiryTolerance: '1s', deleteBound: '1s', orderScope: 'connection',
    },
    claims: [
      ...['no-accepted-loss', 'no-phantom', 'ack-is-final', 'stable-redelivery-id', 'recovery-bounded', 'rows-match-clients', 'unknown-resolved', 'survives']
        .map((guarantee) => ({ guarantee, under: any, source: 'server.js' })),
      { guarantee: 'order', under: [], source: 'server.js: the oldest first' },
    ],
    frames: {
      framing: 'lines',
      rules: [
        { kind: 'publish', to: 'broker', match: `^\\{"put":${request}` },
        { kind: 'accept', to: 'client', match: `^\\{"stored":${request},"message":${id}` },
        { kind: 'deliver', to: 'client', match: `^\\{"deliver":${id}` },
        { kind: 'ack', to: 'broker', match: `^\\{"done":${request},"message":${id}` },
        { kind: 'ack-confirm', to: 'client', match: `^\\{"(settled|(?P<no>refused))":${request}` },
        { kind: 'nack', to: 'broker', match: `^\\{"back":${request},"message":${id}` },
        { kind: 'nack-confirm', to: 'client', match: `^\\{"(returned|(?P<no>unreturned))":${request}` },
        { kind: 'subscribe', to: 'broker', match: '^\\{"take":' },
        { kind: 'subscribed', to: 'client', match: '^\\{"taking":' },
      ],
    },
    abilities: ['links', 'process', 'child-consumer', 'rows', 'nack', 'answer', 'acks', 'redelivery', 'competing', 'headers', 'window', 'survival'],
    lacks: {
      'dead-letters': 'a message is delivered until it is settled',
      'store-faults': 'the log is written by the broker, with no seam to strike it',
      clock: 'nothing depends on the clock',
      lookup: 'messages are not found by business ID',
      ttl: 'messages do not expire',
      modes: 'there is one way of delivery',
      decline: 'a message waits for a consumer',
      'message-id': 'the broker numbers its messages',
      deduplication: 'the broker numbers its messages',
      'fan-out': 'a queue is one work queue',
      wildcards: 'a queue is read by its name',
      rewind: 'what is settled is gone',
    },
  }],
};

const sessions = new Map();
let deliveries = 0; // also one that came twice over the wire has a name of its own
let server; // the broker's address, past all links

// Session is a connection and the requests on it that wait for their answer.
class Session {
  constructor(name, address, deliver) {
    Object.assign(this, { name, deliver, count: 0, waiting: new Map() });
    const [host, port] = address.split(':');
    this.socket = net.connect({ host, port: Number(port) }).setNoDelay(true);
    this.socket.on('error', (e) => { this.why = e.message; }); // close follows
    this.socket.on('close', () => this.end());
    readline.createInterface({ input: this.socket }).on('error', () => {}).on('line', (line) => this.take(JSON.parse(line)));
  }

  take(line) {
    if (line.deliver) {
      this.deliver(line);
      return;
    }
    const number = Object.values(line)[0]; // an answer repeats the request's
    this.waiting.get(number)?.resolve(line);
    this.waiting.delete(number);
  }

  // ask sends a request whose first field is its name.
  ask(name, fields = {}) {
    if (this.closed) throw new Failure('disconnected', this.why ?? 'the connection is closed');
    const number = ++this.count;
    this.socket.write(JSON.stringify({ [name]: number, ...fields }) + '\n');
    return new Promise((resolve, reject) => this.waiting.set(number, { resolve, reject }));
  }

  end() {
    this.closed = true;
    for (const w of this.waiting.values()) w.reject(new Failure('disconnected', this.why ?? 'the connection ended'));
    this.waiting.clear();
    if (sessions.get(this.name) === this && !this.left) event('gone', { session: this.name, reason: this.why ?? 'the connection ended' });
  }

  close() {
    this.left = true;
    this.socket.destroy();
    sessions.delete(this.name);
  }
}

// open connects, and makes sure that the broker itself answers.
async function open(call, address, deliver) {
  const s = new Session(call.session, address, deliver);
  try {
    await s.ask('hello');
  } catch (e) {
    throw new Failure('unavailable', e.message);
  }
  if (!unanswered.has(call.id)) s.socket.destroy(); // cancelled meanwhile
  return s;
}

// message is what Custody sees of the broker's.
const message = (m) => ({ destination: m.queue, payload: m.body, key: m.key, headers: m.headers, messageId: m.deliver ?? m.id });

const connect = (call) => { server = call.address; return {}; };

async function consumer(call) {
  const s = await open(call, call.address, (m) =>
    event('delivery', { session: call.session, delivery: `${m.deliver}/${++deliveries}`, message: message(m), attempt: m.attempt }));
  sessions.set(call.session, s);
  await s.ask('take', { queue: call.destination, credit: call.window });
  return {};
}

async function settle(call) {
  const s = sessions.get(call.session);
  if (!s) throw new Failure('disconnected', 'the session is closed');
  const a = await s.ask(call.op === 'ack' ? 'done' : 'back', { message: call.delivery.split('/')[0] });
  return a.settled || a.returned ? { outcome: 'confirmed' } : { outcome: 'refused', reason: 'not held by this session' };
}

async function rows(call) {
  const admin = await open({ ...call, session: 'admin' }, server);
  try {
    const { messages } = await admin.ask('list');
    return { trust: 'exact', rows: messages.map((m) => ({ state: 'pending', message: message(m), attempts: m.attempt })) };
  } finally {
    admin.close();
  }
}

serve({
  describe: () => description,
  prepare: (call) => {
    server = `127.0.0.1:${call.port}`;
    return { server: { command: ['node', path.join(__dirname, 'server.js'), String(call.port), path.join(call.dir, 'log'), ...defect] } };
  },
  connect,
  ready: async (call) => {
    (await open({ ...call, session: 'ready' }, call.address)).close();
    return {};
  },
  ping: () => ({}),
  producer: async (call) => {
    sessions.set(call.session, await open(call, call.address));
    return {};
  },
  consumer,
  close: (call) => {
    sessions.get(call.session)?.close();
    return {};
  },
  send: async (call) => {
    const { destination: queue, payload: body, key, headers } = call.message;
    const s = sessions.get(call.session);
    if (!s || s.closed) throw new Failure('unavailable', 'the session is gone');
    event('left', { of: call.id });
    const a = await s.ask('put', { queue, key, headers, body });
    return { acceptance: 'accepted', heldBy: 'store', messageId: a.message };
  },
  ack: settle,
  nack: settle,
  rows,
});
