# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Programmatic dependent launch: a kernel's programs start while the one before it still runs.

Source: the PTX manual's griddepcontrol; devices from compute capability 9.0 on.
"""

from __future__ import annotations

import torch
import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tokenspeed_sdk.portable import launch
from tokenspeed_sdk.portable.launch import Overlap

LEAST_CAPABILITY = (9, 0)


@triton.jit
def order():
    """Let the next kernel start, and wait for all work before this one."""
    gdc_launch_dependents()
    gdc_wait()


def overlap_launches(device: torch.device) -> bool:
    """Let portable kernels start early where the device can; say whether they do."""
    can = torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY
    launch.overlap_launches(Overlap(order, {"launch_pdl": True}) if can else None)
    return can
