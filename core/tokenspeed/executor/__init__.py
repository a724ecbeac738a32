"""The execution plane: carries out step plans with a model, and decides nothing."""

from tokenspeed.executor.executor import Executor
from tokenspeed.executor.host_link import InlineLink
from tokenspeed.executor.weights import load_weights

__all__ = ["Executor", "InlineLink", "load_weights"]
