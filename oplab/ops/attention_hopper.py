"""attention's forward pass as one Pallas kernel for NVIDIA's Hopper (H100, H200), in Mosaic GPU.

    S = scale Q K^T     P = softmax(S)     O = P V     L = log-sum-exp(S)     for each batch entry and head

The order of the work is that of FlashAttention-2 (Dao, arXiv 2307.08691), the engines are those that
FlashAttention-3 uses (Shah and others, arXiv 2407.08608): see `matmul_hopper.py` for TMA, barriers and wgmma.
One warpgroup loads blocks of keys and values; two multiply, for 64 queries each. S never leaves the
registers: it comes out of one wgmma, becomes P there, and goes into the next, whose left operand may be in
registers. While one warpgroup takes exp, the other has the tensor core.

    m, l, O = -inf, 0, 0                            # for 64 queries
    for each block of keys that one of the 128 queries sees:
        S  = Q K^T                                  # wgmma, in float32
        m' = max(m, rowmax(S))
        P  = exp(scale (S - m'))                    # S - m' first: so the largest is exp(0), for any scores
        a  = exp(scale (m - m'))
        l, O, m = a l + rowsum(P),  a O + P V,  m'  # wgmma, with P in the dtype of V
    O, L = O / l,  scale m + log(l)

Which keys are seen: query t sees key s if s < source and, when causal, s <= t + offset. Blocks beyond the
last key that a block of queries sees are not even loaded; scores are masked, with -inf, only in blocks that
hold a hidden key. A query that sees no key has l = 0: it gets O = 0, L = -inf. Heads are grouped by index:
query head n reads kv head n // (heads // kv_heads), so that keys and values are never repeated in memory.

Cost: 4 time source features FLOPs a head, half of it if causal. Traffic: Q, O and L once, K and V once for
each 128 queries, of which most comes from the second-level cache.

What is known of it: it compiles to machine code for Hopper, with wgmma (HGMMA) and TMA (UTMALDG) instructions
and no spilled register, and the GPU interpreter of JAX 0.12 gives the right values on a CPU, without a race,
though P passes through shared memory there, since the interpreter looks for operands nowhere else. It has
never been run on a GPU: its speed is not known, nor what the interpreter does not model (the swizzle, wgmma
that is still running, approximate functions).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from .matmul_hopper import (
    GRID_LIMIT,
    LOADING,
    MULTIPLYING,
    WARPGROUPS,
    compiler_params,
    filled_up,
    mosaic_gpu,
    not_here,
    swizzled,
)
from .operator import Unsupported

QUERIES = 64  # of a warpgroup: wgmma is 64 rows high
KEYS = 128  # of a block: S takes 64 of a thread's registers, P 32, O and P V 64 each; more would not fit
STAGES = 2  # blocks of keys in flight, and of values: 128 KiB at 128 features. With Q and O 192 of 227 KiB
WIDEST = 128  # features of a head: with 256, O and P V alone would take 256 registers of 255


class Plan(NamedTuple):
    """Which blocks of keys are of use. `first`: the position of a block's first query in the whole array."""

    source: int  # keys, without the padding
    group: int  # query heads that share a kv head
    offset: int | None  # query t sees key s only if s <= t + offset; None: not causal
    scale: float  # positive

    def steps(self, first: Any) -> Any:
        """Blocks of keys that one of the 128 queries from `first` on sees."""
        if self.offset is None:
            return pl.cdiv(self.source, KEYS)
        end = lax.clamp(np.int32(0), first + (WARPGROUPS * QUERIES + self.offset), np.int32(self.source))
        return lax.div(end + np.int32(KEYS - 1), np.int32(KEYS))

    def unmasked(self, first: Any) -> Any:
        """Blocks of keys that each of the 64 queries from `first` on sees wholly: the leading ones."""
        whole = self.source // KEYS
        if self.offset is None:
            return whole
        end = lax.max(first + np.int32(self.offset + 1), np.int32(0))
        return lax.min(lax.div(end, np.int32(KEYS)), np.int32(whole))

    def visible(self, first: Any, step: Any) -> jax.Array:
        """(QUERIES, KEYS): does query `first` + i see key j of that block?"""
        s = step * KEYS + lax.broadcasted_iota(jnp.int32, (QUERIES, KEYS), 1)
        seen = s < self.source
        if self.offset is None:
            return seen
        t = first + lax.broadcasted_iota(jnp.int32, (QUERIES, KEYS), 0)
        return seen & (s <= t + self.offset)


# The kernel -------------------------------------------------------------------------------------------------


def _kernel(q_gmem, k_gmem, v_gmem, o_gmem, lse_gmem, *, plan, **shared):
    """One block of 128 queries of one head. *_gmem: whole arrays, in the order of `attention_hopper`.

    shared: *_smem, tiles for each warpgroup (q, o, lse) or slot (k, v); *_full and *_empty, their barriers.
    """
    plgpu = mosaic_gpu()
    batch, head, warpgroup = (lax.axis_index(name) for name in ("batch", "head", "warpgroup"))
    # Blocks start in the order of their index. If causal the last one has most to do: it goes first.
    block = lax.axis_size("block") - 1 - lax.axis_index("block")
    first = block * (WARPGROUPS * QUERIES)
    steps = plan.steps(first)

    @pl.when(warpgroup == WARPGROUPS)
    def _load():
        plgpu.set_max_registers(LOADING, action="decrease")
        kv_head = lax.div(head, np.int32(plan.group))
        keys = (k_gmem, shared["k_smem"], shared["k_full"], shared["k_empty"])
        values = (v_gmem, shared["v_smem"], shared["v_full"], shared["v_empty"])

        def step(i, _):
            slot = lax.rem(i, np.int32(STAGES))
            for gmem, smem, full, empty in (keys, values):

                @pl.when(i >= STAGES)  # before that, slots are empty from the start
                def _(empty=empty):
                    plgpu.barrier_wait(empty.at[slot])

                rows = gmem.at[batch, pl.ds(i * KEYS, KEYS), kv_head]
                plgpu.copy_gmem_to_smem(rows, smem.at[slot], full.at[slot])

        lax.fori_loop(0, steps, step, None)

    @pl.when(warpgroup < WARPGROUPS)
    def _multiply():
        plgpu.set_max_registers(MULTIPLYING, action="increase")
        mine = first + warpgroup * QUERIES
        q_smem, o_smem, lse_smem = (shared[name].at[warpgroup] for name in ("q_smem", "o_smem", "lse_smem"))
        q_full = shared["q_full"].at[warpgroup]
        plgpu.copy_gmem_to_smem(q_gmem.at[batch, pl.ds(mine, QUERIES), head], q_smem, q_full)
        plgpu.barrier_wait(q_full)

        one_block = functools.partial(_one_block, q_smem=q_smem, first=mine, plan=plan, shared=shared)
        state = (
            jnp.full((QUERIES,), -jnp.inf, jnp.float32),
            jnp.zeros((QUERIES,), jnp.float32),
            jnp.zeros((QUERIES, o_gmem.shape[3]), jnp.float32),
        )
        unmasked = plan.unmasked(mine)
        state = lax.fori_loop(0, unmasked, functools.partial(one_block, masked=False), state)
        if plan.offset is not None or plan.source % KEYS:
            state = lax.fori_loop(unmasked, steps, functools.partial(one_block, masked=True), state)

        m, l, o = state
        nothing = l == 0  # seen
        l = lax.select(nothing, jnp.ones_like(l), l)
        o_smem[...] = (o / _column(l, o.shape)).astype(o_gmem.dtype)
        lse_smem[...] = lax.select(nothing, jnp.full_like(l, -jnp.inf), m * plan.scale + lax.log(l))
        plgpu.commit_smem()  # shared memory as threads see it, and as the TMA sees it, are two views
        plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[batch, pl.ds(mine, QUERIES), head])
        plgpu.copy_smem_to_gmem(lse_smem, lse_gmem.at[batch, head, pl.ds(mine, QUERIES)])
        plgpu.wait_smem_to_gmem(0)


def _one_block(i, state, *, q_smem, first, plan, shared, masked):
    """m, l and O of a warpgroup's queries after block i of the keys."""
    plgpu = mosaic_gpu()
    m, l, o = state
    slot = lax.rem(i, np.int32(STAGES))
    k_smem, v_smem = shared["k_smem"].at[slot], shared["v_smem"].at[slot]

    plgpu.barrier_wait(shared["k_full"].at[slot])
    S = _product(q_smem, k_smem.transpose((1, 0)), KEYS)
    plgpu.barrier_arrive(shared["k_empty"].at[slot])
    if masked:
        S = lax.select(plan.visible(first, i), S, jnp.full_like(S, -jnp.inf))

    new_m = lax.max(m, jnp.max(S, axis=1))
    finite_m = lax.select(new_m == -jnp.inf, jnp.zeros_like(new_m), new_m)  # no key yet: -inf + inf is NaN
    in_bits = plan.scale * math.log2(math.e)  # the chip has exp2, not exp
    a = lax.exp2((m - finite_m) * in_bits)
    P = lax.exp2((S - _column(finite_m, S.shape)) * in_bits)
    l = a * l + jnp.sum(P, axis=1)
    P = P.astype(v_smem.dtype)
    if "p_smem" in shared:  # JAX's interpreter takes wgmma's operands from shared memory only
        shared["p_smem"][lax.axis_index("warpgroup")] = P
        P = shared["p_smem"].at[lax.axis_index("warpgroup")]

    plgpu.barrier_wait(shared["v_full"].at[slot])
    o = _column(a, o.shape) * o + _product(P, v_smem, o.shape[1])
    plgpu.barrier_arrive(shared["v_empty"].at[slot])
    return new_m, l, o


def _product(left, right, columns: int) -> jax.Array:
    """(QUERIES, columns) in float32: a wgmma, and the wait until it is done."""
    plgpu = mosaic_gpu()

    def summed(sums):
        plgpu.wgmma(sums, left, right)
        return sums[...]

    return pl.run_scoped(summed, plgpu.ACC((QUERIES, columns), jnp.float32))


def _column(x: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """A number for each query, repeated along its row."""
    return lax.broadcast_in_dim(x, shape, (0,))


# The launcher -----------------------------------------------------------------------------------------------


def attention_hopper(
    q: jax.Array, k: jax.Array, v: jax.Array, *, causal: str | None, scale: float, interpret: Any = None
) -> tuple[jax.Array, jax.Array]:
    """O and L of q (batch, time, heads, features), k (batch, source, kv_heads, features), v (batch, source,
    kv_heads, value_features).

    All three float16 or all bfloat16, with up to 128 features; time and source are free.
    causal: None, "top_left" (query t sees key s iff s <= t) or "bottom_right" (iff s <= t + source - time).
    Where time or source is not a multiple of 8, or features of 64, operands are copied once to pad them.
    interpret: a `plgpu.InterpretGPUParams` (JAX 0.12) runs the kernel on a CPU, step by step.

    Returns o (batch, time, heads, value_features) in q's dtype, and the log-sum-exp of the scores, lse
    (batch, heads, time) in float32. A query that sees no key: o = 0, lse = -inf. A key that no query sees is
    not read.
    Raises `Unsupported` with the sentence that `refusal` gives.
    """
    reason = refusal(q, k, v)
    if reason:
        raise Unsupported(reason)
    (_, time, heads, _), source, features = q.shape, k.shape[1], v.shape[3]
    offset = {None: None, "top_left": 0, "bottom_right": source - time}[causal]
    if offset == 0 and source > time:  # what nobody sees may hold NaN, and 0 * NaN is NaN
        source, k, v = time, k[:, :time], v[:, :time]
    if scale <= 0:  # the kernel takes the largest score before it scales
        q, scale = (-q, -scale) if scale else (0 * q, 1.0)
    q, k, v = (filled_up(filled_up(x, 1, 8), 3, 64) for x in (q, k, v))
    plan = Plan(source, heads // k.shape[2], offset, scale)
    o, lse = _launch(q, k, v, plan, interpret)
    return o[:, :time, :, :features], lse[:, :, :time]


def _launch(q: Any, k: Any, v: Any, plan: Plan, interpret: Any) -> tuple[jax.Array, jax.Array]:
    plgpu = mosaic_gpu()
    (batch, time, heads, features), value_features = q.shape, v.shape[3]
    blocks = pl.cdiv(time, WARPGROUPS * QUERIES)
    shared = dict(
        q_smem=swizzled((WARPGROUPS, QUERIES, features), q.dtype),
        k_smem=swizzled((STAGES, KEYS, features), k.dtype),
        v_smem=swizzled((STAGES, KEYS, value_features), v.dtype),
        o_smem=swizzled((WARPGROUPS, QUERIES, value_features), q.dtype),
        lse_smem=plgpu.SMEM((WARPGROUPS, QUERIES), jnp.float32),
        q_full=plgpu.Barrier(num_barriers=WARPGROUPS),
        k_full=plgpu.Barrier(num_barriers=STAGES),
        v_full=plgpu.Barrier(num_barriers=STAGES),
        k_empty=plgpu.Barrier(num_arrivals=WARPGROUPS, num_barriers=STAGES),
        v_empty=plgpu.Barrier(num_arrivals=WARPGROUPS, num_barriers=STAGES),
    )
    if interpret is not None:
        shared["p_smem"] = swizzled((WARPGROUPS, QUERIES, KEYS), v.dtype)
    return plgpu.kernel(
        functools.partial(_kernel, plan=plan),
        out_type=(
            jax.ShapeDtypeStruct((batch, time, heads, value_features), q.dtype),
            # Up to a whole block: the TMA wants rows of a multiple of 16 bytes.
            jax.ShapeDtypeStruct((batch, heads, blocks * WARPGROUPS * QUERIES), jnp.float32),
        ),
        # The last axis runs fastest, so blocks that run at the same time share keys and values.
        grid=(batch, heads, blocks),
        grid_names=("batch", "head", "block"),
        num_threads=WARPGROUPS + 1,  # Mosaic's threads are warpgroups
        thread_name="warpgroup",
        scratch_types=shared,
        compiler_params=compiler_params(),
        interpret=interpret,
        kernel_name="attention_hopper",
    )(q, k, v)


def refusal(q: Any, k: Any, v: Any, extras: tuple[str, ...] = ()) -> str | None:
    """Why this kernel cannot do q, k and v (anything with shape and dtype), in one sentence, or None.

    extras: the further operands that are given, of "mask", "bias" and "kv_len".
    """
    given = ", ".join(f"{name} {x.dtype}{list(x.shape)}" for name, x in zip("qkv", (q, k, v)))
    if extras:
        return f"attention's Hopper kernel takes no {' and no '.join(extras)}: use implementation='xla'."
    if not q.dtype == k.dtype == v.dtype or q.dtype not in (jnp.float16, jnp.bfloat16):
        return f"attention's Hopper kernel expects q, k and v all in float16 or all in bfloat16, got {given}."
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4 or not (
        q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3] and k.shape[:3] == v.shape[:3]
    ):
        return (
            "attention's Hopper kernel expects q (batch, time, heads, features), k (batch, source, kv_heads, "
            f"features) and v (batch, source, kv_heads, value features), got {given}."
        )
    if 0 in (*q.shape, *k.shape, *v.shape):
        return f"attention's Hopper kernel expects at least one element in each operand, got {given}."
    if q.shape[2] % k.shape[2]:
        return f"attention's Hopper kernel expects heads to be a multiple of kv_heads, got {given}."
    if max(q.shape[3], v.shape[3]) > WIDEST:
        return f"attention's Hopper kernel has registers for {WIDEST} features of a head, got {given}."
    if max(q.shape[0], q.shape[2]) > GRID_LIMIT:
        return f"attention's Hopper kernel takes batches and heads up to {GRID_LIMIT}, got {given}."
    return not_here("attention's Hopper kernel")
