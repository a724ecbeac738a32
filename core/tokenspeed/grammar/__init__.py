"""Structured output: answers kept in a language, and the engine for it that ships with the core."""

from tokenspeed.grammar.answer import GuidedAnswer
from tokenspeed.grammar.masks import AnswerMasks, StepMasks

__all__ = ["AnswerMasks", "GuidedAnswer", "StepMasks"]
