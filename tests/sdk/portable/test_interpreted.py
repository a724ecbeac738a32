"""What the interpreter gets wrong is noticed: arithmetic in bfloat16."""

from __future__ import annotations

import pytest
import torch
from tests.support.triton_samples import add_unwidened, copy


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, nothing is interpreted")
def test_arithmetic_in_bfloat16_is_an_error() -> None:
    x, y = torch.ones(64, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)
    copy[(1,)](x, y, BLOCK=64)
    assert y.equal(x)
    with pytest.raises(Exception, match="cast what was loaded to float32 first"):
        add_unwidened[(1,)](x, y, BLOCK=64)
    halves = x.half()
    add_unwidened[(1,)](halves, halves, BLOCK=64)
    assert halves.equal(2 * x.half())
