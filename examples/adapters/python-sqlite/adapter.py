#!/usr/bin/env python3
"""An adapter for a job queue on SQLite, as many applications have one: a worker
takes a job on a lease, and deletes it when it is done."""
import base64
import os
import platform
import sqlite3
import sys
import threading
import time
import uuid

from protocol import answer, event, serve

# --defect takes-for-good is what this adapter is tested with: a job is gone as
# soon as a worker takes it.
TAKES_FOR_GOOD = sys.argv[1:] == ["--defect", "takes-for-good"]
LEASE = 1.0  # seconds, before scaling
POLL = 0.02
ATTEMPTS = 5

CRASH, NONE = ["client-crash"], []
NO_SERVER = "SQLite is a library in the process of its application: there is no server"

DESCRIPTION = {
    "protocol": 1,
    "system": "sqlite-jobs",
    "versions": {"sqlite": sqlite3.sqlite_version, "python": platform.python_version()},
    "profiles": [{
        "name": "default",
        "summary": "a table of jobs: taken on a lease of a second, deleted when done, set aside after five attempts",
        "settings": {"journal_mode": "WAL", "synchronous": "FULL", "lease": f"{LEASE:g}s"},
        "redelivers": "timeout",
        "ackCounting": "per-message",
        "marksAgain": True,
        "ackConfirms": True,
        "confirmIsDurable": True,
        "keepsSubscribers": True,
        "limits": {"redeliveryPeriod": "1s", "recoveryBound": "8s", "inFlightBound": "1s", "drainDeadline": "12s",
                   "expiryTolerance": "1s", "deleteBound": "1s", "maxAttempts": ATTEMPTS, "orderScope": "connection"},
        "claims": [{"guarantee": g, "under": under, "source": "SQLite: Atomic Commit In SQLite"} for g, under in [
            ("no-accepted-loss", CRASH), ("no-phantom", CRASH), ("ack-is-final", CRASH), ("stable-redelivery-id", CRASH),
            ("recovery-bounded", CRASH), ("rows-match-clients", CRASH), ("bounded-retry", CRASH), ("order", NONE)]],
        "abilities": ["rows", "dead-letters", "nack", "answer", "acks", "redelivery", "competing", "headers", "window",
                      "survival", "child-consumer"],
        "lacks": {
            "links": NO_SERVER, "process": NO_SERVER, "store-faults": NO_SERVER,
            "clock": "leases follow the machine's clock",
            "lookup": "jobs are not found by business ID",
            "ttl": "jobs do not expire",
            "modes": "every job is taken on a lease",
            "decline": "a job waits for a worker",
            "message-id": "the table numbers its jobs",
            "deduplication": "the table numbers its jobs",
            "fan-out": "a job is for one worker",
            "wildcards": "a queue is read by its name",
            "rewind": "what is done is deleted",
        },
    }],
}

SCHEMA = """CREATE TABLE IF NOT EXISTS jobs (id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, payload BLOB NOT NULL,
  key TEXT, headers TEXT, attempts INTEGER NOT NULL DEFAULT 0, lease TEXT, until REAL NOT NULL DEFAULT 0)"""
FREE = f"queue = ? AND until <= ? AND attempts < {ATTEMPTS}"

local = threading.local()  # a connection for each thread
file, lease = None, LEASE
consumers = {}  # by session


def db():
    if not hasattr(local, "db"):
        local.db = sqlite3.connect(file, timeout=20, isolation_level=None)
        local.db.execute("PRAGMA synchronous = FULL")
    return local.db


def prepare(call):  # and connect, in the process of a consumer of its own
    global file, lease
    file, lease = os.path.join(call["dir"], "jobs.db"), LEASE * call["scale"]
    db().executescript("PRAGMA journal_mode = WAL; " + SCHEMA)
    return {}


def message(row):
    number, queue, payload, key, headers = row
    m = {"destination": queue, "messageId": str(number), "payload": base64.b64encode(payload).decode()}
    if key:
        m["key"] = key
    if headers:
        m["headers"] = dict(pair.split("\0") for pair in headers.split("\1"))
    return m


def send(call):
    m = call["message"]
    headers = "\1".join(f"{k}\0{v}" for k, v in m.get("headers", {}).items())
    event("left", of=call["id"])
    job = db().execute("INSERT INTO jobs (queue, payload, key, headers) VALUES (?, ?, ?, ?)",
                       (m["destination"], base64.b64decode(m["payload"]), m.get("key"), headers))
    return {"acceptance": "accepted", "heldBy": "store", "messageId": str(job.lastrowid)}


class Consumer(threading.Thread):
    """Takes jobs until it is closed; knows the leases that it holds."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.session, self.queue, self.window = call["session"], call["destination"], call["window"]
        self.lock, self.leases, self.closed = threading.Lock(), {}, threading.Event()

    def run(self):
        while not self.closed.wait(POLL / 10 if self.take() else POLL):
            pass

    def take(self):
        now, mine = time.time(), str(uuid.uuid4())
        with self.lock:
            self.leases = {d: until for d, until in self.leases.items() if until > now}  # the rest may be anybody's
            if len(self.leases) >= self.window or self.closed.is_set():
                return False
            rows = db().execute(f"""UPDATE jobs SET attempts = attempts + 1, lease = ?, until = ? WHERE id =
                (SELECT id FROM jobs WHERE {FREE} ORDER BY id LIMIT 1) RETURNING id, queue, payload, key, headers, attempts""",
                                (mine, now + lease, self.queue, now)).fetchall()
            if not rows:
                return False
            if TAKES_FOR_GOOD:
                db().execute("DELETE FROM jobs WHERE lease = ?", (mine,))
            self.leases[mine] = now + lease
        attempts = rows[0][5]
        event("delivery", session=self.session, delivery=mine, message=message(rows[0][:5]), attempt=attempts,
              mark="first" if attempts == 1 else "redelivered")
        return True

    def settle(self, call):
        sql = "DELETE FROM jobs WHERE lease = ?" if call["op"] == "ack" else "UPDATE jobs SET until = 0, lease = NULL WHERE lease = ?"
        with self.lock:
            self.leases.pop(call["delivery"], None)
            done = db().execute(sql, (call["delivery"],)).rowcount or TAKES_FOR_GOOD
        return {"outcome": "confirmed"} if done else {"outcome": "refused", "reason": "the lease is another's by now"}


def consumer(call):
    c = consumers[call["session"]] = Consumer(call)
    answer(call)  # before the first delivery
    c.start()


def close(call):
    c = consumers.pop(call["session"], None)
    if c:
        with c.lock:  # not amid a take
            c.closed.set()
    return {}


def stored(where):
    rows = db().execute(f"SELECT id, queue, payload, key, headers, attempts, until FROM jobs WHERE {where} ORDER BY id", ()).fetchall()
    for *job, attempts, until in rows:
        dead = attempts >= ATTEMPTS and until <= time.time()
        yield {"state": "dead" if dead else "pending", "message": message(job), "attempts": attempts,
               **({"cause": "attempts"} if dead else {})}


def rows(call):
    return {"trust": "exact", "rows": list(stored("TRUE"))}


def dead_letters(call):
    return {"rows": [r for r in stored(f"attempts >= {ATTEMPTS}") if r["state"] == "dead"]}


def redrive(call):
    db().execute("UPDATE jobs SET attempts = 0, until = 0 WHERE id = ?", (call["messageId"],))
    return {}


def discard(call):
    db().execute("DELETE FROM jobs WHERE id = ?", (call["messageId"],))
    return {}


if __name__ == "__main__":
    nothing = lambda call: {}
    settle = lambda call: consumers[call["session"]].settle(call)
    serve({"describe": lambda call: DESCRIPTION, "prepare": prepare, "connect": prepare, "ping": nothing, "producer": nothing,
           "consumer": consumer, "close": close, "send": send, "ack": settle, "nack": settle, "rows": rows,
           "dead-letters": dead_letters, "redrive": redrive, "discard": discard})
