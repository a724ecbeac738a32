"""Embeddings: what is asked of the engine for one, and a hidden state as a vector of length 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.errors import RequestError
from tokenspeed.sampling.params import SamplingParams

if TYPE_CHECKING:
    from numpy.typing import NDArray

EMBED = SamplingParams(temperature=0.0, max_tokens=1, embeds=True)
"""Greedy: nobody sees the token."""


def unit_vector(state: bytes, dimensions: int | None = None) -> NDArray[np.float32]:
    """Return a hidden state as a vector of length 1.

    Args:
        state: float32 little-endian bytes.
        dimensions: how many of its first elements; None: all.
    Raises:
        RequestError: it has fewer.
    """
    vector = np.frombuffer(state, dtype="<f4")
    if dimensions is not None and dimensions > vector.size:
        raise RequestError(
            f"dimensions is {dimensions}, this model's vectors have {vector.size}, so that 1 to "
            f"{vector.size} are allowed; lower or omit it",
            param="dimensions",
        )
    vector = vector[:dimensions]
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / (length or 1.0)).astype("<f4")
