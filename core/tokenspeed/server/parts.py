"""What the routes of an API process are made of; put together by `api_process.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenspeed.server.http.bodies import Bodies
from tokenspeed.server.http.unread import Unread
from tokenspeed.server.parsers import ChosenParsers

if TYPE_CHECKING:
    from tokenspeed.engine.clients import EngineClient
    from tokenspeed.engine.reports import StartReport
    from tokenspeed.server.conversation.chat_prompts import ChatPrompts
    from tokenspeed.server.conversation.prompts import PromptReader
    from tokenspeed.server.conversation.sessions import Sessions
    from tokenspeed.server.engine_health import EngineHealth
    from tokenspeed.server.fleet_health import FleetHealth
    from tokenspeed.server.host_memory import HostMemory
    from tokenspeed.server.http.api_keys import ApiKeys
    from tokenspeed.server.metrics import Metrics
    from tokenspeed.server.responses.store import ResponseStore
    from tokenspeed.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ApiParts:
    """What the routes need."""

    frontend: EngineClient
    tokenizer: Tokenizer
    prompts: PromptReader
    chats: ChatPrompts
    sessions: Sessions
    metrics: Metrics
    report: StartReport
    keys: ApiKeys
    health: EngineHealth | FleetHealth
    keep_alive_s: float = 10.0
    max_body_bytes: int = 64 << 20
    max_waiting: int = 4096
    parsers: ChosenParsers = field(default_factory=ChosenParsers)
    responses: ResponseStore | None = None
    unread: Unread = field(default_factory=Unread)
    bodies: Bodies = field(default_factory=Bodies)
    host_memory: HostMemory | None = None
