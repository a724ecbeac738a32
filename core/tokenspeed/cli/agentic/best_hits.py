"""The hit rate that a cache could reach on a workload: what was sent before, prefix by prefix."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tokenspeed.cli.agentic.workload import History

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenspeed.cli.agentic.workload import Part, Session, Workload


def shared_chars(workload: Workload) -> dict[tuple[str, int], tuple[int, int]]:
    """Return for each request, by session and turn, how much of its prompt was sent before.

    Sessions are taken one after another: with several at once, a prefix that they share may not be
    ready in time, which a server cannot help.

    Returns:
        (characters of the longest prefix of parts that was sent before, of the whole prompt).
    """
    seen: set[bytes] = set()
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for name, turn, prompt in requests_of(workload):
        shared = total = 0
        is_shared = True
        for digest, part in zip(_chain(prompt), prompt, strict=True):
            is_shared = is_shared and digest in seen
            shared += len(part.text) if is_shared else 0
            total += len(part.text)
            seen.add(digest)
        found[name, turn] = (shared, total)
    return found


def requests_of(workload: Workload) -> Iterator[tuple[str, int, tuple[Part, ...]]]:
    """Yield (session, turn, prompt) of all requests, with the script's replies in the history."""
    for session in workload.sessions:
        yield from _requests_of(session)


def _requests_of(session: Session) -> Iterator[tuple[str, int, tuple[Part, ...]]]:
    history = History()
    for index, turn in enumerate(session.turns):
        yield session.name, index, history.prompt(turn)
        history.answered(turn.reply)
        for child in session.children.get(index, ()):
            yield from _requests_of(child)


def _chain(prompt: tuple[Part, ...]) -> Iterator[bytes]:
    """Yield a digest of each prefix of parts."""
    digest = hashlib.blake2b(digest_size=16)
    for part in prompt:
        text = part.text.encode()
        digest.update(f"{part.role}/{len(text)}/".encode() + text)
        yield digest.digest()
