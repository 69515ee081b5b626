// Custody's adapter protocol: JSON lines on standard input and output. Nothing
// here knows the system; leave it as it is.
'use strict';
const readline = require('readline');

// kind: unavailable (nothing was done), disconnected (it may have been), failed.
class Failure extends Error {
  constructor(kind, text) {
    super(text);
    this.kind = kind;
  }
}

const unanswered = new Set();
const write = (line) => process.stdout.write(JSON.stringify(line) + '\n');
const event = (name, fields) => write({ event: name, ...fields });
const answer = (call, ok = {}) => finish(call.id, { ok });

// finish answers a call, once: what was cancelled has been answered already.
function finish(id, line) {
  if (unanswered.delete(id)) write({ id, ...line });
}

// serve begins calls in the order of their lines. An op that returns undefined,
// or a promise of it, answers by itself.
function serve(ops) {
  const lines = readline.createInterface({ input: process.stdin, crlfDelay: Infinity });
  lines.on('line', async (line) => {
    const call = JSON.parse(line);
    if (call.op === 'cancel') {
      finish(call.of, { error: { kind: 'cancelled', text: 'cancelled' } });
      return;
    }
    unanswered.add(call.id);
    try {
      if (!Object.hasOwn(ops, call.op)) throw new Failure('unknown-op', `no operation ${call.op}`);
      const ok = await ops[call.op](call);
      if (ok !== undefined) answer(call, ok);
    } catch (e) { // anything but a Failure is a fault of this adapter: the run cannot measure
      finish(call.id, { error: { kind: e.kind ?? 'failed', text: e.kind ? e.message : String(e.stack) } });
    }
  });
  lines.on('close', () => process.exit(0));
}

module.exports = { Failure, event, answer, serve, unanswered };
