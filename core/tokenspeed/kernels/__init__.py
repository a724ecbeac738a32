"""Kernels: chosen once while an engine is built, with the reason printed."""

from tokenspeed.contracts.binding import Decision
from tokenspeed.kernels.explain import explain
from tokenspeed.kernels.registry import Binder, KernelRegistry
from tokenspeed.kernels.selection import select

__all__ = ["Binder", "Decision", "KernelRegistry", "explain", "select"]
