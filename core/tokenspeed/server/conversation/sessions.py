"""The sessions of an API process: which one a request is a turn of, and whose child that one is.

A session is named by its agent's headers or `prompt_cache_key` (`identity.py`); else a chat is
known by how it began: its cache salt and its messages up to the first of the user, which every
later turn repeats. A plain completion without a name is no turn.

Clients compact under the session's own name, or name nothing at all. `compaction.py` tells such a
chat from the next turn; it is a child of the session that it sums up. A chat that nobody names, and
that goes on from a session under another head, is a child of that one too (a sub-agent).

Bounded; each API process knows the turns that it has seen. Thread: the event loop's only.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.server.conversation.compaction import (
    asks_for_summary,
    compacted_by,
    compaction_of,
    quotable,
    quotes,
)
from tokenspeed.server.conversation.fingerprint import digest
from tokenspeed.server.conversation.identity import Identity, by_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.server.conversation.cleaned import Chat
    from tokenspeed.server.conversation.term_fields import TermFields

MAX_SESSIONS = 4096
_Key = tuple[str, str]
"""Who names sessions, and a session's name."""


@dataclass(slots=True)
class _Known:
    """What is remembered of a session.

    Args:
        said: digest of its last turn, system prompt and request for a summary left out; b"": it
            had no answer in it yet.
        has_tools: its last turn had some.
        is_answered: its last turn was answered to the end.
        quotable: texts of its last turn that a summary of it would quote, and the salt that alone
            may meet them.
    """

    root: str
    said: bytes = b""
    has_tools: bool = False
    is_answered: bool = False
    quotable: tuple[str, ...] = ()
    salt: str = ""


class Sessions:
    """Names the session of each request, with its parent and root."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._last: dict[tuple[str, bytes], str] = {}

    def __len__(self) -> int:
        return len(self._known)

    def identify(
        self, body: TermFields, headers: Mapping[str, str], owner: str, chat: Chat | None = None
    ) -> Identity:
        """Return the session of a request.

        Args:
            owner: who names sessions: those of two owners never meet.
            chat: None: a plain completion.
        """
        given = by_headers(headers)
        if body.prompt_cache_key and not given.parent:
            given = Identity(body.prompt_cache_key, root=given.root)
        found = given
        if chat is not None:
            name = given.session or head_name(chat, body.cache_salt)
            named = Identity(name, given.parent, given.root)
            found = self._with_parent(named, given, (owner, body.cache_salt), chat)
        if not found.session:
            return found
        root = found.root or self._root_of(owner, found)
        self._remember((owner, found.session), root, chat, body.cache_salt)
        return Identity(found.session, found.parent, root if root != found.session else "")

    def note_answer(self, owner: str, session: str) -> None:
        """Note that a session's last turn has its whole answer."""
        known = self._known.get((owner, session))
        if known is not None:
            known.is_answered = True

    def _with_parent(
        self, found: Identity, given: Identity, scope: tuple[str, str], chat: Chat
    ) -> Identity:
        """Look for the session that a chat without a known parent goes on from or sums up."""
        if found.parent or not found.session:
            return found
        owner, salt = scope
        beginnings = _beginnings(chat, salt)
        ancestor = self._ancestor(owner, beginnings)
        if asks_for_summary(chat):
            summed_up = found.session if given.session or not ancestor else compacted_by(ancestor)
            return Identity(compaction_of(summed_up), summed_up, found.root)
        known = self._known.get((owner, found.session))
        if known is not None and (
            (ancestor == found.session and _compacts(chat, beginnings, known))
            or (known.has_tools and known.salt == salt and quotes(chat, known.quotable))
        ):
            return Identity(compaction_of(found.session), found.session, found.root)
        if given.session or compacted_by(ancestor) == found.session:
            return found
        return Identity(found.session, ancestor)

    def _ancestor(self, owner: str, beginnings: Iterable[bytes]) -> str:
        """Return the session whose last turn is the longest of a chat's beginnings."""
        found = ""
        for said in beginnings:
            found = self._last.get((owner, said), found)
        return found

    def _root_of(self, owner: str, identity: Identity) -> str:
        known = self._known.get((owner, identity.session))
        if known is not None:
            return known.root
        parent = self._known.get((owner, identity.parent)) if identity.parent else None
        return parent.root if parent is not None else identity.parent or identity.session

    def _remember(self, key: _Key, root: str, chat: Chat | None, salt: str) -> None:
        known = self._known.setdefault(key, _Known(root))
        self._known.move_to_end(key)
        if chat is not None and chat.has_answer:
            self._forget_turn(key, known)
            # Asked for a summary in other words, the same chat is to be known again.
            told = list(_beginnings(chat, salt))
            known.said = told[-2 if asks_for_summary(chat) else -1]
            known.is_answered = False
            known.has_tools = bool(chat.conversation.tools)
            known.quotable, known.salt = quotable(chat), salt
            self._last[key[0], known.said] = key[1]
        if len(self._known) > MAX_SESSIONS:
            self._forget_turn(*self._known.popitem(last=False))

    def _forget_turn(self, key: _Key, known: _Known) -> None:
        owner, name = key
        if self._last.get((owner, known.said)) == name:
            del self._last[owner, known.said]


def head_name(chat: Chat, salt: str) -> str:
    """Name a chat by its beginning; "" where no user spoke.

    The salt belongs to it: a session may tell that it was there under another salt, and a name
    made of texts would then tell one salt what another one holds.
    """
    parts = [salt.encode()]
    for message, printed in zip(chat.conversation.messages, chat.prints, strict=True):
        parts.append(printed.body)
        if message.role == "user":
            return f"chat:{digest(*parts)[:8].hex()}"
    return ""


def _compacts(chat: Chat, beginnings: Mapping[bytes, bool | None], known: _Known) -> bool:
    """Whether a chat that begins with a session's last turn is asked beside it."""
    if known.has_tools and not chat.conversation.tools:
        return True
    return known.is_answered and beginnings[known.said] is False


def _beginnings(chat: Chat, salt: str) -> dict[bytes, bool | None]:
    """Digest each beginning that has an answer in it, the system prompt left out.

    Returns:
        whether an answer of the model follows, by digest, the shortest first; None: nothing does.
    """
    said, found, has_answer = digest(salt.encode()), dict[bytes, bool | None](), False
    for message, printed in zip(chat.conversation.messages, chat.prints, strict=True):
        if message.role == "system":
            continue
        if has_answer:
            found[said] = printed.is_assistant
        said = digest(said, printed.body)
        has_answer = has_answer or printed.is_assistant
        if has_answer:
            found[said] = None
    return found
