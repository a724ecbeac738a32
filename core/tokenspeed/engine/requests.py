"""The engine's table of live requests: who asked, under which key the planes know them."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenspeed.contracts.sampler import TokenLogprobs
    from tokenspeed.engine.channel import Client
    from tokenspeed.engine.messages import CacheReport, Submit


def number_of(name: str, *, owner: str = "") -> int:
    """Return the number by which the scheduler knows a tenant or session; 0: the nameless one.

    Args:
        owner: who gave the name: two owners' sessions of one name are different ones.
    """
    key = hashlib.blake2b(owner.encode()).digest() if owner else b""
    digest = hashlib.blake2b(name.encode(), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "little") >> 1 or 1 if name else 0


@dataclass(slots=True)
class LiveRequest:
    """One request that has not ended.

    Args:
        key: integer id towards scheduler and executor.
        outputs: output tokens so far, those from before a resume included.
        message: as it was submitted; None: it is not tried again after a step that failed.
        num_prompt: tokens of the prompt.
        tenant, session: as the client named them.
        parent, root: of the session; "": it has no parent, it is its own root.
        session_number: what the scheduler calls the session.
        deadline_us: end of its time; 0: none.
        is_resumed: it ran in an engine before this one.
        arrived_s: monotonic time of the arrival at this engine.
        refusal: why it ends although it was taken; "": it does not.
        cached_tokens: prompt tokens taken from the cache; None before the first token.
        cache: the rest of what the cache did; None before the first token.
        embedding: the hidden state behind the prompt, from its step until the first token.
        prompt_logprobs: scored prompt tokens, gathered chunk by chunk until the first token.
    """

    key: int
    request_id: str
    client: Client
    outputs: array[int] = field(default_factory=lambda: array("i"))
    message: Submit | None = None
    num_prompt: int = 0
    arrived_s: float = 0.0
    tenant: str = ""
    session: str = ""
    parent: str = ""
    root: str = ""
    session_number: int = 0
    deadline_us: int = 0
    is_resumed: bool = False
    refusal: str = ""
    cached_tokens: int | None = None
    cache: CacheReport | None = None
    embedding: bytes | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def num_outputs(self) -> int:
        """Number of its output tokens."""
        return len(self.outputs)


class RequestTable:
    """Live requests by id and by key. Thread: the engine's only."""

    def __init__(self) -> None:
        self._keys = itertools.count(1)
        self._by_id: dict[str, LiveRequest] = {}
        self._by_key: dict[int, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def new_key(self) -> int:
        """Return a key never used before."""
        return next(self._keys)

    def add(self, request: LiveRequest) -> None:
        """Enter a request."""
        self._by_id[request.request_id] = request
        self._by_key[request.key] = request

    def by_id(self, request_id: str) -> LiveRequest | None:
        """Find a live request by its public id."""
        return self._by_id.get(request_id)

    def by_key(self, key: int) -> LiveRequest | None:
        """Find a live request by its key."""
        return self._by_key.get(key)

    def remove(self, request: LiveRequest) -> None:
        """Take out a request that ended."""
        del self._by_id[request.request_id]
        del self._by_key[request.key]

    def keys_of_session(self, session_number: int) -> list[int]:
        """Return the keys of a session's live requests."""
        return [item.key for item in self._by_key.values() if item.session_number == session_number]

    def of_client(self, client: Client) -> Iterator[LiveRequest]:
        """Iterate over a copy of one client's requests."""
        return iter([item for item in self._by_key.values() if item.client == client])
