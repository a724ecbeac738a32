"""What an API process talks to: one engine, or a fleet of replicas; both are asked alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.engine.frontend import Frontend
    from tokenspeed.engine.replicas.fleet import Fleet

    EngineClient = Frontend | Fleet
