"""Random tensors for case generators: every draw is a function of the domain's seed and dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from tokenspeed.contracts.kernel import Domain


class Draw:
    """Draws tensors on the host, of the domain's dtype unless said otherwise."""

    def __init__(self, domain: Domain) -> None:
        import torch

        self.dtype: torch.dtype = getattr(torch, domain.dtype)
        self.random = torch.Generator().manual_seed(domain.seed)

    def floats(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Return normal numbers."""
        return self.wide(*shape, scale=scale).to(self.dtype)

    def wide(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Return normal numbers in float32, whatever the dtype."""
        import torch

        return torch.randn(shape, generator=self.random) * scale

    def uniform(self, *shape: int) -> torch.Tensor:
        """Return float32 numbers in [0, 1), whatever the dtype."""
        import torch

        return torch.rand(shape, generator=self.random)

    def beside(self, *shape: int, axis: int = -1, scale: float = 1.0) -> torch.Tensor:
        """Return normal numbers that lie in a tensor that is wider by three along `axis`."""
        wider = list(shape)
        wider[axis] += 3
        return self.floats(*wider, scale=scale).narrow(axis, 1, shape[axis])

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return int64 numbers in [low, high)."""
        import torch

        return torch.randint(low, high, shape, generator=self.random)

    def distinct(self, high: int, *shape: int) -> torch.Tensor:
        """Return int64 numbers in [0, high) that differ along the last axis."""
        order = self.uniform(*shape[:-1], high).argsort(dim=-1)
        return order[..., : shape[-1]].contiguous()
