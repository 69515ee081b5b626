#!/usr/bin/env python3
"""An adapter for Custody: a queue in memory, to be replaced by your system.

Print nothing: standard output belongs to the protocol, and standard error is the
log. `custody adapter check python3 adapter.py` says what is wrong.
"""
import base64
import platform

from protocol import answer, event, serve

NO_SERVER = "the queue is in the adapter's memory"

DESCRIPTION = {
    "protocol": 1,
    "system": "memory-queue",
    "versions": {"python": platform.python_version()},
    "profiles": [{
        "name": "default",
        "summary": "a queue in memory: whoever leaves gives back what he has not settled",
        "redelivers": "reconnect",
        "ackCounting": "per-message",
        "marksAgain": True,
        "ackConfirms": True,
        "keepsSubscribers": True,
        "limits": {"redeliveryPeriod": "500ms", "recoveryBound": "5s", "inFlightBound": "1s", "drainDeadline": "10s",
                   "expiryTolerance": "1s", "deleteBound": "1s"},
        "claims": [{"guarantee": g, "under": ["client-crash"], "source": "adapter.py"} for g in (
            "no-accepted-loss", "no-phantom", "ack-is-final", "stable-redelivery-id", "recovery-bounded", "rows-match-clients")],
        "abilities": ["rows", "nack", "answer", "acks", "redelivery", "competing", "headers", "window"],
        "lacks": {
            "links": NO_SERVER, "process": NO_SERVER, "clock": NO_SERVER, "survival": NO_SERVER,
            "child-consumer": NO_SERVER, "store-faults": NO_SERVER,
            "dead-letters": "a message is delivered until it is settled",
            "lookup": "messages are not found by business ID",
            "ttl": "messages do not expire",
            "modes": "there is one way of delivery",
            "decline": "a message waits for a consumer",
            "message-id": "the queue numbers its messages",
            "deduplication": "the queue numbers its messages",
            "fan-out": "a destination is one queue",
            "wildcards": "a queue is read by its name",
            "rewind": "what is settled is gone",
        },
    }],
}

sessions = {}  # by name: consumers have a destination and a window
waiting = []  # messages, the oldest first
held = {}  # (session, delivery): message
count = 0  # of messages and deliveries


def number():
    global count
    count += 1
    return str(count)


def deliver():
    """Hands out what consumers have room for."""
    for name, s in sessions.items():
        room = s.get("window", 0) - sum(1 for session, _ in held if session == name)
        for m in [m for m in waiting if m["message"]["destination"] == s.get("destination")][:max(room, 0)]:
            waiting.remove(m)
            m["attempt"] += 1
            delivery = number()
            held[name, delivery] = m
            event("delivery", session=name, delivery=delivery, message=m["message"], attempt=m["attempt"],
                  mark="first" if m["attempt"] == 1 else "redelivered")


def give_back(keys):
    waiting[:0] = [held.pop(k) for k in keys]


def producer(call):
    sessions[call["session"]] = {}
    return {}


def consumer(call):
    sessions[call["session"]] = call
    answer(call)  # before the first delivery
    deliver()


def close(call):
    sessions.pop(call["session"], None)
    give_back([k for k in held if k[0] == call["session"]])
    deliver()
    return {}


def send(call):
    base64.b64decode(call["message"]["payload"], validate=True)
    m = {"message": {**call["message"], "messageId": "m" + number()}, "attempt": 0}
    event("left", of=call["id"])  # from here on a cancelled send is unknown
    waiting.append(m)
    answer(call, acceptance="accepted", heldBy="broker-memory", messageId=m["message"]["messageId"])
    deliver()


def settle(call):
    key = call["session"], call["delivery"]
    if key not in held:
        return {"outcome": "refused", "reason": "not held by this session"}
    if call["op"] == "nack":
        give_back([key])
    else:
        del held[key]
    answer(call, outcome="confirmed")
    deliver()


def rows(call):
    return {"trust": "exact", "rows": [{"state": "pending", "message": m["message"], "attempts": m["attempt"]}
                                       for m in waiting + list(held.values())]}


if __name__ == "__main__":
    serve({
        "describe": lambda call: DESCRIPTION, "prepare": lambda call: {}, "ping": lambda call: {},
        "producer": producer, "consumer": consumer, "close": close, "send": send, "ack": settle, "nack": settle, "rows": rows,
    })
