"""What an API process talks to: one engine, or a fleet of replicas; both are asked alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.engine.fleet import Fleet
    from tokenspeed.engine.frontend import Frontend

    EngineClient = Frontend | Fleet
