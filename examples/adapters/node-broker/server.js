// A small broker over TCP, to be tested by the adapter beside it: JSON lines, a
// log on disk that is synced before every answer, and work queues.
//
//   node server.js PORT LOG [volatile]
'use strict';
const fs = require('fs');
const net = require('net');
const readline = require('readline');

const [port, path, volatile] = process.argv.slice(2);
const messages = new Map(); // by ID, the oldest first: queue, body, key, headers, attempt, and by whom it is held
const takers = []; // subscriptions, served in turn
let last = 0;

// The log is read, then appended to.
if (fs.existsSync(path)) {
  for (const line of fs.readFileSync(path, 'utf8').split('\n').slice(0, -1)) { // the last may be torn
    const entry = JSON.parse(line);
    if (entry.put) messages.set(entry.put, { ...entry.message, attempt: 0 });
    else messages.delete(entry.gone);
    last = Math.max(last, Number((entry.put ?? entry.gone).slice(1)));
  }
}
const log = fs.openSync(path, 'a');

function keep(entry) {
  if (volatile) return; // the defect: answered before it is stored
  fs.writeSync(log, JSON.stringify(entry) + '\n');
  fs.fsyncSync(log);
}

function deliver() {
  for (const [id, m] of messages) {
    if (m.holder) continue;
    const i = takers.findIndex((t) => t.queue === m.queue && t.held < t.credit);
    if (i < 0) continue;
    const [taker] = takers.splice(i, 1);
    takers.push(taker);
    taker.held++;
    m.holder = taker;
    m.attempt++;
    const { queue, body, key, headers, attempt } = m;
    taker.say({ deliver: id, attempt, queue, key, headers, body });
  }
}

// release returns the message if the taker holds it.
function release(taker, id) {
  const m = messages.get(id);
  if (!taker || m?.holder !== taker) return undefined;
  taker.held--;
  m.holder = undefined;
  return m;
}

net.createServer((socket) => {
  const say = (line) => socket.write(JSON.stringify(line) + '\n');
  let taker;
  socket.setNoDelay(true);
  socket.on('error', () => {}); // close follows
  socket.on('close', () => {
    if (!taker) return;
    takers.splice(takers.indexOf(taker), 1);
    for (const id of messages.keys()) release(taker, id);
    deliver();
  });
  readline.createInterface({ input: socket }).on('error', () => {}).on('line', (line) => {
    const r = JSON.parse(line);
    if (r.hello) {
      say({ welcome: r.hello });
    } else if (r.put) {
      const id = `m${++last}`;
      const message = { queue: r.queue, body: r.body, key: r.key, headers: r.headers };
      keep({ put: id, message });
      messages.set(id, { ...message, attempt: 0 });
      say({ stored: r.put, message: id });
    } else if (r.take) {
      taker = { queue: r.queue, credit: r.credit, held: 0, say };
      takers.push(taker);
      say({ taking: r.take });
    } else if (r.done) {
      if (release(taker, r.message)) {
        keep({ gone: r.message });
        messages.delete(r.message);
        say({ settled: r.done });
      } else {
        say({ refused: r.done });
      }
    } else if (r.back) {
      say(release(taker, r.message) ? { returned: r.back } : { unreturned: r.back });
    } else if (r.list) {
      say({ rows: r.list, messages: [...messages].map(([id, { holder, ...m }]) => ({ id, ...m })) });
    }
    deliver();
  });
}).listen({ port: Number(port), host: '127.0.0.1' });

process.on('SIGTERM', () => process.exit(0));
