# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernels in which GPUs of one host sum small tensors by writing into each other's memory.

Every program writes its piece into each rank's inbox, raises a flag there, waits for everybody's
flag in its own inbox, and sums what came, in the order of the ranks and in float32. One trip over
the link, where a ring takes several.

    inbox of a rank: [flags: P x PROGRAMS int32] [2 parities][P senders][PROGRAMS] slots

A program's calls are numbered by its epoch, kept in device memory: a captured graph counts on. Two
slots a program are enough: who writes call e has seen everybody's flag of e - 1, and a rank raises
that one after it has read all of e - 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

PROGRAMS = 128
"""Most programs of a call: all run at once on any GPU that this is for."""
SLOT_BYTES = 16384
FLAG_BYTES = 4
NUM_PROGRAMS = tl.constexpr(PROGRAMS)
NUM_SLOT_BYTES = tl.constexpr(SLOT_BYTES)


def inbox_bytes(size: int) -> int:
    """Return the bytes of one rank's inbox."""
    return size * PROGRAMS * (FLAG_BYTES + 2 * SLOT_BYTES)


@triton.jit
def _slot(base, epoch, sender, program, SIZE: tl.constexpr):
    """Return the address of a slot in an inbox."""
    index = ((epoch & 1) * SIZE + sender) * NUM_PROGRAMS + program
    return base + SIZE * NUM_PROGRAMS * 4 + index.to(tl.int64) * NUM_SLOT_BYTES


@triton.jit
def _raise_flag(address, epoch):
    tl.inline_asm_elementwise(
        "{ st.release.sys.global.u32 [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r",
        [address, epoch],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _await_flag(address, epoch, stop, timeout_us):
    """Return 0 once the flag is there, 1 after the timeout, 2 when the host says stop."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .pred %p<4>;
            .reg .u32 %v<4>;
            .reg .u64 %t<3>;
            mov.u32 $0, 0;
            mov.u32 %v2, 0;
            mov.u64 %t0, %globaltimer;
            again:
            ld.acquire.sys.global.u32 %v0, [$1];
            sub.s32 %v1, %v0, $2;
            setp.ge.s32 %p0, %v1, 0;
            @%p0 bra done;
            add.u32 %v2, %v2, 1;
            and.b32 %v3, %v2, 1023;
            setp.ne.u32 %p1, %v3, 0;
            @%p1 bra again;
            ld.relaxed.sys.global.u32 %v3, [$3];
            setp.ne.u32 %p2, %v3, 0;
            @%p2 bra stopped;
            mov.u64 %t1, %globaltimer;
            sub.u64 %t2, %t1, %t0;
            setp.lt.u64 %p3, %t2, $4;
            @%p3 bra again;
            mov.u32 $0, 1;
            bra done;
            stopped:
            mov.u32 $0, 2;
            done:
        }
        """,
        "=&r,l,r,l,l",
        [address, epoch, stop.to(tl.int64), timeout_us.to(tl.int64) * 1000],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _exchange(
    x, inside, offsets, inboxes, epochs, words, timeout_us, RANK: tl.constexpr, SIZE: tl.constexpr
):
    """Give everybody this program's piece, and return the sum of all pieces in float32."""
    program = tl.program_id(0)
    epoch = tl.load(epochs + program) + 1
    for other in tl.static_range(SIZE):
        inbox = tl.load(inboxes + other)
        slot = _slot(inbox, epoch, RANK, program, SIZE).to(tl.pointer_type(x.dtype))
        slot = tl.multiple_of(slot, 16)
        tl.store(slot + offsets, x, mask=inside)
    tl.debug_barrier()
    for other in tl.static_range(SIZE):
        inbox = tl.load(inboxes + other)
        _raise_flag(inbox + (RANK * NUM_PROGRAMS + program) * 4, epoch)
    own = tl.load(inboxes + RANK)
    for other in tl.static_range(SIZE):
        late = _await_flag(own + (other * NUM_PROGRAMS + program) * 4, epoch, words, timeout_us)
        stuck = (words + 4).to(tl.pointer_type(tl.int32))
        tl.store(stuck, other + 1, mask=late == 1)
    tl.debug_barrier()
    total = tl.zeros_like(x).to(tl.float32)
    for sender in tl.static_range(SIZE):
        slot = _slot(own, epoch, sender, program, SIZE).to(tl.pointer_type(x.dtype))
        slot = tl.multiple_of(slot, 16)
        piece = tl.load(slot + offsets, mask=inside, other=0.0, volatile=True)
        total += piece.to(tl.float32)
    tl.store(epochs + program, epoch)
    return total


@triton.jit
def all_reduce_one_shot(
    x_ptr,
    y_ptr,
    inboxes,
    epochs,
    words,
    timeout_us,
    numel,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum a flat tensor; a program has BLOCK elements."""
    offsets = tl.arange(0, BLOCK)
    start = tl.program_id(0) * BLOCK
    inside = start + offsets < numel
    x = tl.load(x_ptr + start + offsets, mask=inside, other=0.0)
    total = _exchange(x, inside, offsets, inboxes, epochs, words, timeout_us, RANK, SIZE)
    tl.store(y_ptr + start + offsets, total.to(x.dtype), mask=inside)


@triton.jit
def all_reduce_add_rms_norm_one_shot(
    x_ptr,
    residual_ptr,
    weight_ptr,
    normed_ptr,
    total_ptr,
    inboxes,
    epochs,
    words,
    timeout_us,
    features,
    eps,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum rows, add the residual, and normalise; a program has one row."""
    offsets = tl.arange(0, BLOCK)
    row = tl.program_id(0) * features
    inside = offsets < features
    x = tl.load(x_ptr + row + offsets, mask=inside, other=0.0)
    reduced = _exchange(x, inside, offsets, inboxes, epochs, words, timeout_us, RANK, SIZE)
    residual = tl.load(residual_ptr + row + offsets, mask=inside, other=0.0).to(tl.float32)
    total = (reduced.to(x.dtype).to(tl.float32) + residual).to(x.dtype)
    tl.store(total_ptr + row + offsets, total, mask=inside)
    wide = tl.where(inside, total.to(tl.float32), 0.0)
    scale = 1.0 / tl.sqrt_rn(tl.sum(wide * wide) / features + eps)
    weight = tl.load(weight_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed_ptr + row + offsets, (wide * scale * weight).to(x.dtype), mask=inside)
