"""Guesses that the last token comes again."""

from __future__ import annotations

from tokenspeed_sdk import Draft, SpeculatorFacts


class Drafter:
    facts = SpeculatorFacts()

    def __init__(self, *, max_drafts, max_running, vocab_size):
        self._last = {}

    def start(self, request_id, token_ids):
        self._last[request_id] = int(token_ids[-1])

    def extend(self, request_id, token_ids):
        self._last[request_id] = int(token_ids[-1])

    def propose(self, wanted):
        return {name: Draft([self._last[name]] * min(count, 2)) for name, count in wanted.items()}

    def end(self, request_id):
        self._last.pop(request_id, None)
