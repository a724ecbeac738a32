"""Block and page tables on the device, for steps whose description stays there.

Each line is a slot's; one more is all sentinel, for rows that a step does not use. What a plan
changes is patched; a line that gets a new owner is not cleared, since nobody reads entries behind a
row's last. Legend: L lines, M entries of a line, U updates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tokenspeed.executor.tables import GroupTables

    PatchTables = Callable[..., None]
    Upload = Callable[..., tuple[torch.Tensor, ...]]


class DeviceTables:
    """The tables of some cache groups.

    Args:
        groups: (index in the plan, host tables) of each; the host tables are patched first.
        patch: kernel of `step.patch_tables`.
        upload: brings an array to the device.
    """

    def __init__(
        self,
        groups: Sequence[tuple[int, GroupTables]],
        *,
        patch: PatchTables,
        upload: Upload,
        device: torch.device,
    ) -> None:
        self._groups = groups
        self._patch = patch
        self._upload = upload
        self._tables = {
            index: torch.from_numpy(tables.sentinel_lines(tables.num_slots + 1)).to(device)
            for index, tables in groups
        }

    def of(self, group: int) -> torch.Tensor:
        """Return (L, M) int32, the same memory for good: page ids where a backend reads pages."""
        return self._tables[group]

    def patch(self, block_updates: NDArray[np.int32]) -> None:
        """Write what a plan changed.

        Args:
            block_updates: of the plan, see StepPlan; the host tables have them already.
        """
        if len(block_updates) == 0:
            return
        changed = [
            (index, tables, tables.changed(*block_updates[block_updates[:, 1] == index][:, ::2].T))
            for index, tables in self._groups
        ]
        (on_device,) = self._upload(np.concatenate([updates for *_, updates in changed]))
        start = 0
        for index, tables, updates in changed:
            if len(updates):
                own = on_device[start : start + len(updates)]
                self._patch(self._tables[index], own, **tables.page_arguments)
            start += len(updates)
