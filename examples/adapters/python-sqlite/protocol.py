"""Custody's adapter protocol: JSON lines on standard input and output.

Nothing here knows the system; leave it as it is.
"""
import json
import sys
import threading

writing = threading.Lock()  # answers and events may come from any thread
unanswered = set()


class Failure(Exception):
    """kind: unavailable (nothing was done), disconnected (it may have been), failed."""

    def __init__(self, kind, text):
        super().__init__(text)
        self.kind, self.text = kind, text


def write(line):
    with writing:
        print(json.dumps(line), flush=True)


def event(name, **fields):
    write({"event": name, **fields})


def answer(call, **ok):
    finish(call["id"], ok=ok)


def finish(number, **line):
    """Answers a call, once: what was cancelled has been answered already."""
    with writing:
        if number in unanswered:
            unanswered.remove(number)
            print(json.dumps({"id": number, **line}), flush=True)


def serve(ops):
    """Begins calls in the order of their lines. An op that returns None answers later."""
    for line in sys.stdin:
        call = json.loads(line)
        if call["op"] == "cancel":
            finish(call["of"], error={"kind": "cancelled", "text": "cancelled"})
            continue
        unanswered.add(call["id"])
        try:
            if call["op"] not in ops:
                raise Failure("unknown-op", f"no operation {call['op']}")
            ok = ops[call["op"]](call)
            if ok is not None:
                answer(call, **ok)
        except Failure as e:
            finish(call["id"], error={"kind": e.kind, "text": e.text})
        except Exception as e:  # a fault of this adapter: the run cannot measure
            finish(call["id"], error={"kind": "failed", "text": repr(e)})
