"""The scheduler simulator: traces through the real C++ scheduler in virtual time, no device needed.

Knows traces, a clock and a model of how long a step takes; no tensors, no engine, no HTTP.
"""

from __future__ import annotations

from tokenspeed.simulator.figures import Figures
from tokenspeed.simulator.generate import generate_agentic
from tokenspeed.simulator.ideal import ideal_hit_rate
from tokenspeed.simulator.read import read_trace
from tokenspeed.simulator.replay import Clock, SimulatorSettings, replay
from tokenspeed.simulator.step_model import StepModel, load_step_model
from tokenspeed.simulator.trace import Conversation, Trace, Turn

__all__ = [
    "Clock",
    "Conversation",
    "Figures",
    "SimulatorSettings",
    "StepModel",
    "Trace",
    "Turn",
    "generate_agentic",
    "ideal_hit_rate",
    "load_step_model",
    "read_trace",
    "replay",
]
