"""Communicator of GPUs of one host: small tensors are reduced over peer memory, others by NCCL."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch

from tokenspeed_nvidia.nccl import WATCH_S, NcclCommunicator
from tokenspeed_nvidia.peer_memory import PeerMemory
from tokenspeed_sdk import EngineError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

SMALL_PIECE_BYTES = 4096
"""A program's piece while there are programs enough."""
MOST_BYTES = 1 << 20
"""Largest tensor that goes over peer memory; a measured table usually ends it earlier."""
MOST_MICROSECONDS = 2**31 - 16
"""Of a kernel's patience: a number of one width, whatever the timeout."""
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class PeerCommunicator(NcclCommunicator):
    """One rank's end; satisfies tokenspeed_sdk.Communicator."""

    features: frozenset[str] = NcclCommunicator.features | {"all_reduce_add_rms_norm"}

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (normalised sum, sum) of the residual and everybody's x, as `norm.add_rms` does.

        Args:
            x: (T, D) float, one shape and dtype on every rank, device; may be overwritten.
            residual: (T, D) same dtype, the same numbers on every rank; read only.
            weight: (D,) same dtype.
            eps: added to the mean square.
        """
        features = x.shape[-1]
        if residual.shape != x.shape or weight.shape != (features,) or x.dim() != 2:
            raise ValueError(
                f"all_reduce_add_rms_norm: x {tuple(x.shape)}, residual {tuple(residual.shape)}, "
                f"weight {tuple(weight.shape)}; two of (T, D) and one of (D,) are needed"
            )
        call = self._call("all_reduce_add_rms_norm", x.shape, x.dtype)
        if self.size > 1 and self._fits_rows(x):
            self._line.begin(call)
            return self._fused(x, residual, weight, eps)
        return _add_rms_norm(self.all_reduce(x), residual, weight, eps)

    def check(self) -> None:
        """Raise if the group broke: what its calls gave since the last check is worth nothing.

        Raises:
            EngineError: it did; names the rank and the reason.
        """
        if self.size > 1:
            self._look_at_words()  # the watch may come later than the end of the step
        super().check()

    def _connect(self, store: Store, address: str) -> None:
        from tokenspeed_nvidia import one_shot

        super()._connect(store, address)
        self._kernels = one_shot
        words = torch.zeros(2, dtype=torch.int32, pin_memory=True)
        self._words = words
        """The host says stop in the first; a kernel says in the second whom it waits for."""
        self._epochs = torch.zeros(one_shot.PROGRAMS, dtype=torch.int32, device=self._device)
        # Given back by the end of the process: others may still write into it.
        self._memory = PeerMemory(
            store, rank=self.rank, size=self.size, num_bytes=one_shot.inbox_bytes(self.size)
        )
        self._inboxes = torch.tensor(self._memory.addresses, dtype=torch.int64, device=self._device)
        torch.cuda.synchronize(self._device)
        self._fixed = (
            self._inboxes,
            self._epochs,
            words.data_ptr(),
            min(int(self._timeout_s * 1e6), MOST_MICROSECONDS),
        )
        threading.Thread(target=self._watch_kernels, name="peer-watch", daemon=True).start()

    def _warm_up(self) -> None:
        super()._warm_up()
        for dtype in _FLOATS:  # compiles, or reads what was compiled before
            self._all_reduce("warm-up", torch.zeros(16, dtype=dtype, device=self._device), "sum")
        torch.cuda.synchronize(self._device)

    def _all_reduce(self, call: str, x: torch.Tensor, reduction: str) -> torch.Tensor:
        num_bytes = x.numel() * x.element_size()
        if reduction != "sum" or not 0 < num_bytes <= MOST_BYTES or x.dtype not in _FLOATS:
            return super()._all_reduce(call, x, reduction)
        self._line.begin(call)
        x = x.contiguous()
        y = torch.empty_like(x)
        piece = SMALL_PIECE_BYTES
        if num_bytes > piece * self._kernels.PROGRAMS:
            piece = self._kernels.SLOT_BYTES
        block = piece // x.element_size()
        self._kernels.all_reduce_one_shot[(-(-x.numel() // block),)](
            x,
            y,
            *self._fixed,
            x.numel(),
            RANK=self.rank,
            SIZE=self.size,
            BLOCK=block,
            num_warps=8,
        )
        return y

    def _fits_rows(self, x: torch.Tensor) -> bool:
        rows, features = x.shape
        return (
            0 < rows <= self._kernels.PROGRAMS
            and 0 < features * x.element_size() <= self._kernels.SLOT_BYTES
            and x.dtype in _FLOATS
        )

    def _fused(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, features = x.shape
        x, residual = x.contiguous(), residual.contiguous()
        normed, total = torch.empty_like(x), torch.empty_like(x)
        self._kernels.all_reduce_add_rms_norm_one_shot[(rows,)](
            x,
            residual,
            weight.contiguous(),
            normed,
            total,
            *self._fixed,
            features,
            eps,
            RANK=self.rank,
            SIZE=self.size,
            BLOCK=1 << (features - 1).bit_length(),
            num_warps=8,
        )
        return normed, total

    def _watch_kernels(self) -> None:
        """Break the group when a kernel gave a rank up."""
        while not self._done_watching.wait(WATCH_S):
            with contextlib.suppress(EngineError):
                self._look_at_words()
                continue
            return

    def _look_at_words(self) -> None:
        """Break the group when a kernel gave a rank up.

        Raises:
            EngineError: it did.
        """
        if waited_for := int(self._words[1]):
            self._line.give_up(f"rank {waited_for - 1} sent nothing", waited_s=self._timeout_s)

    def _broken(self) -> None:
        words: Any = getattr(self, "_words", None)
        if words is not None:
            words[0] = 1
        super()._broken()


def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = residual + x
    wide = total.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
    return normed.to(x.dtype), total
