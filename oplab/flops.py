"""FLOPs of one equation that holds no jaxpr: a rule for each primitive, and at the foot one table of all.

A rule takes the equation and returns FLOPs, or a Cost where there is more to say. The conventions stand in
`oplab.cost`, the rules of matrix factorisations and solvers in `oplab.linear_algebra`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .linear_algebra import LINEAR_ALGEBRA
from .operator_flops import OPERATORS
from .quantities import Cost, is_complex, nbytes, size, size_in, size_out


def _each(real: int, of_complex: int) -> Callable:
    return lambda eqn: size_out(eqn) * (of_complex if is_complex(eqn) else real)


def _operand(index: int) -> Callable:
    return lambda eqn: size_in(eqn, index)


def _transcendental(eqn: Any) -> Cost:
    return Cost(0, size_out(eqn))


def _series(eqn: Any) -> Cost:
    return Cost(0, size_out(eqn), notes=(f"`{eqn.primitive.name}`: a series, counted as one operation",))


def _magnitude(eqn: Any) -> Cost:
    n = size_out(eqn)
    return Cost(3 * n, n) if is_complex(eqn) else Cost(n)  # sqrt(re^2 + im^2)


def _integer_pow(eqn: Any) -> int:
    """By repeated squaring; a negative power divides once more."""
    y = abs(eqn.params["y"])
    products = max(0, y.bit_length() - 1 + y.bit_count() - 1)
    return products * _each(1, 6)(eqn) + (_each(1, 11)(eqn) if eqn.params["y"] < 0 else 0)


def _polynomial(eqn: Any) -> int:
    """Horner's rule; the operands are x and the coefficients."""
    return (len(eqn.invars) - 2) * _each(2, 8)(eqn)


def _reduction(real: int, of_complex: int) -> Callable:
    return lambda eqn: max(0, size_in(eqn) - size_out(eqn)) * (of_complex if is_complex(eqn) else real)


def _cumulative(real: int, of_complex: int) -> Callable:
    """One element after the other; a parallel scan does more."""

    def rule(eqn: Any) -> int:
        joins = size_in(eqn) - size_in(eqn) // max(1, eqn.invars[0].aval.shape[eqn.params["axis"]])
        return joins * (of_complex if is_complex(eqn) else real)

    return rule


def _cumlogsumexp(eqn: Any) -> Cost:
    joins = _cumulative(1, 1)(eqn)
    return Cost(4 * joins, 2 * joins)  # max(a, b) + log1p(exp(-|a - b|))


def _window(eqn: Any) -> int:
    return (math.prod(eqn.params["window_dimensions"]) - 1) * _each(1, 2)(eqn)


def _select_and_scatter_add(eqn: Any) -> int:
    """For each source element: all but one comparison in its window, and one addition."""
    return size_in(eqn) * math.prod(eqn.params["window_dimensions"])


def _collective(eqn: Any) -> int:
    """Joining over a named axis: one operation an element of the operand, on every shard (XLA: the same)."""
    return sum(size(v.aval) for v in eqn.invars)


def _psum(eqn: Any) -> int:
    """The same; where `vmap` made the named axis a dimension of the array, a plain reduction."""
    named = any(isinstance(axis, str) for axis in eqn.params["axes"])
    return sum(size(a.aval) - (0 if named else size(b.aval)) for a, b in zip(eqn.invars, eqn.outvars))


def _multiply_add(eqn: Any) -> int:
    return 8 if is_complex(eqn) else 2


def _dot(eqn: Any) -> int:
    """2 * elements of the result * length of what is contracted. Batch dimensions are in the result."""
    (contract, _), _ = eqn.params["dimension_numbers"]
    return _multiply_add(eqn) * size_out(eqn) * math.prod(eqn.invars[0].aval.shape[d] for d in contract)


def _ragged_dot(eqn: Any) -> int:
    """As if the groups filled their dimension; when it is contracted, each group contracts its own part."""
    dims, lhs, groups = eqn.params["ragged_dot_dimension_numbers"], eqn.invars[0].aval, eqn.invars[2].aval
    (contract, _), _ = dims.dot_dimension_numbers
    work = _multiply_add(eqn) * size_out(eqn) * math.prod(lhs.shape[d] for d in contract)
    return work // max(1, groups.shape[-1]) if set(dims.lhs_ragged_dimensions) <= set(contract) else work


def _bcoo_dot(eqn: Any) -> int:
    """A multiply-add for each stored element and each free column of the dense side."""
    (_, contract), (_, batch) = eqn.params["dimension_numbers"]
    free = (n for d, n in enumerate(eqn.invars[-1].aval.shape) if d not in (*contract, *batch))
    return _multiply_add(eqn) * size_in(eqn) * math.prod(free)


def _convolution(eqn: Any) -> int:
    """2 * elements of the result * elements of the kernel * input channels of a group, padding and all.

    Zeros that dilate the input (a transposed convolution) are no work, as XLA sees it too.
    """
    kernel, out, p = eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape, eqn.params
    _, in_channels, *kernel_dims = p["dimension_numbers"].rhs_spec
    batch, out_channels, *out_dims = p["dimension_numbers"].out_spec
    taps = map(
        _taps,
        (out[d] for d in out_dims),
        (kernel[d] for d in kernel_dims),
        p["window_strides"],
        (low for low, _ in p["padding"]),
        p["lhs_dilation"],
        p["rhs_dilation"],
    )
    return _multiply_add(eqn) * out[batch] * out[out_channels] * kernel[in_channels] * math.prod(taps)


def _taps(out: int, kernel: int, stride: int, low: int, input_dilation: int, kernel_dilation: int) -> int:
    """Pairs of an output and a kernel element, along one dimension, that meet an element of the input."""
    if input_dilation == 1:
        return out * kernel
    starts = np.bincount((np.arange(out) * stride - low) % input_dilation, minlength=input_dilation)
    needed = np.bincount(-np.arange(kernel) * kernel_dilation % input_dilation, minlength=input_dilation)
    return int(starts @ needed)


def _sort(eqn: Any) -> int:
    """n log2 n comparisons for each line of n."""
    return math.ceil(size_in(eqn) * math.log2(max(1, eqn.invars[0].aval.shape[eqn.params["dimension"]])))


def _top_k(eqn: Any) -> int:
    """n log2 k comparisons, with a heap of the k best; at least n."""
    return math.ceil(size_in(eqn) * max(1.0, math.log2(max(1, eqn.params["k"]))))


def _fft(eqn: Any) -> int:
    """5 n log2 n for n complex points, half of it when one side is real: the convention of fftw.org/speed."""
    points = max(size_in(eqn), size_out(eqn)) * math.log2(max(1, math.prod(eqn.params["fft_lengths"])))
    return round((2.5 if int(eqn.params["fft_type"]) >= 2 else 5) * points)


# Random bits are integer operations. A block of Threefry-2x32 with 20 rounds makes two 32-bit words from 117:
# add, rotate (3) and xor in each round, and keys at the start and every fourth round (2 + 5 * 3). Philox with
# 10 rounds makes a word from 25. (XLA: one transcendental a word.)


def _block(operations: int) -> Callable:
    return lambda eqn: operations * size_out(eqn)


def _words(aval: Any) -> int:
    return -(-nbytes(aval) // 4)


def _threefry(words: int) -> int:
    return -(-117 * words // 2)


def _random_bits(eqn: Any) -> int:
    """JAX's threefry spends a block on each number and joins its two words; others use every word."""
    threefry = "fry" in str(eqn.invars[0].aval.dtype)
    return 118 * size_out(eqn) if threefry else 25 * _words(eqn.outvars[0].aval)


def _new_keys(eqn: Any) -> int:
    return _threefry(_words(eqn.outvars[0].aval))


def _rng_bit_generator(eqn: Any) -> int:
    words = _words(eqn.outvars[1].aval)
    return _threefry(words) if "THREE_FRY" in str(eqn.params["algorithm"]) else 25 * words


# The table --------------------------------------------------------------------------------------------------

# Remarks to the compiler: nothing is computed and nothing moves.
ANNOTATIONS = frozenset(
    """
    stop_gradient optimization_barrier name sharding_constraint layout_constraint with_memory_space_constraint
    pvary pcast preduced vary_unreduced_cast vary_unreduced_cast_p reduced_vary_cast reduced_vary_cast_p
    create_token after_all add_dependency tie create_linear xla_metadata_value inspect_sharding mesh_cast
    multiple_of has_memory_space remove_memory_space shape_assertion pin unpin freeze free_ref unreachable
    delay dce_sink trace_value
    """.split()
)

# Data is moved or made: bytes, no FLOPs.
MOVES = """
    reshape squeeze expand_dims transpose rev broadcast_in_dim broadcast_to concatenate stack unstack split
    pad tile roll slice dynamic_slice dynamic_update_slice gather scatter iota iota_2x32_shape empty empty2
    zeros_like copy copy_p device_put reshard convert_element_type bitcast_convert_type bitcast real imag
    complex to_edtype from_edtype pack_dtype unpack_dtype pack_elementwise unpack_elementwise einshape_lo
    relayout dim_as_value dimension_size platform_index lu_pivots_to_permutation random_wrap random_unwrap
    random_clone all_gather all_gather_start all_gather_done all_gather_invariant all_gather_reduced psend
    all_gather_reduced_start all_to_all all_to_all_start all_to_all_done ragged_all_to_all pbroadcast pgather
    ppermute ppermute_start ppermute_done psum_done reduce_scatter_done precv axis_index
    get swap new_ref empty_ref get_global masked_load masked_swap program_id num_programs dma_start dma_wait
    semaphore_read semaphore_signal semaphore_wait get_barrier_semaphore
    debug_callback debug_print check bcoo_fromdense bcoo_extract bcoo_transpose bcsr_fromdense bcsr_extract
    """.split()

TRANSCENDENTALS = """
    exp exp2 expm1 log log1p log2 logistic sqrt rsqrt cbrt pow sin cos tan asin acos atan atan2 sinh cosh tanh
    asinh acosh atanh erf erfc erf_inv lgamma digamma polygamma zeta bessel_i0e bessel_i1e
    """.split()

SERIES = "igamma igammac igamma_grad_a random_gamma_grad regularized_incomplete_beta".split()

# Operations for each element of the result: of a real one, of a complex one.
ARITHMETIC = {
    **dict.fromkeys("add sub add_any neg".split(), (1, 2)),
    "mul": (1, 6),
    "square": (1, 6),
    "div": (1, 11),
    "reciprocal": (1, 11),
    "one_minus_square": (2, 8),
    "eq": (1, 3),
    "ne": (1, 3),
    "sign": (1, 6),
    "conj": (0, 1),
    "clamp": (2, 2),  # a minimum and a maximum (XLA: 1)
    **dict.fromkeys(
        """
        max min rem lt le gt ge lt_to le_to eq_to select_n and or xor not shift_left shift_right_logical
        shift_right_arithmetic mulhi population_count clz floor ceil round is_finite nextafter
        reduce_precision stochastic_round
        """.split(),
        (1, 1),
    ),
}

RULES: dict[str, Callable[[Any], int | Cost]] = {
    **dict.fromkeys((*ANNOTATIONS, *MOVES), lambda eqn: 0),
    **{name: _each(*operations) for name, operations in ARITHMETIC.items()},
    **dict.fromkeys(TRANSCENDENTALS, _transcendental),
    **dict.fromkeys(SERIES, _series),
    "abs": _magnitude,
    "integer_pow": _integer_pow,
    "polynomial": _polynomial,
    # elements joined
    **dict.fromkeys("reduce_sum reduce_and reduce_or reduce_xor".split(), _reduction(1, 2)),
    **dict.fromkeys("reduce_max reduce_min argmax argmin".split(), _reduction(1, 1)),
    "reduce_prod": _reduction(1, 6),
    "cumsum": _cumulative(1, 2),
    "cumprod": _cumulative(1, 6),
    "cummax": _cumulative(1, 1),
    "cummin": _cumulative(1, 1),
    "cumlogsumexp": _cumlogsumexp,
    **dict.fromkeys("reduce_window_sum reduce_window_max reduce_window_min".split(), _window),
    "select_and_gather_add": _window,
    "select_and_scatter_add": _select_and_scatter_add,
    **dict.fromkeys("scatter-add scatter-sub scatter-mul scatter-min scatter-max".split(), _operand(2)),
    "addupdate": _operand(1),
    "accum_grad_in_ref": _operand(1),
    "bcoo_todense": _operand(0),
    "sort": _sort,
    "top_k": _top_k,
    "approx_top_k": _top_k,
    **dict.fromkeys("psum psum_invariant pmax pmin".split(), _psum),
    **dict.fromkeys(
        """
        reduce_scatter reduce_scatter_start psum_start psum_invariant_start unreduced_psum unreduced_pmax
        unreduced_pmin unreduced_reduce_scatter
        """.split(),
        _collective,
    ),
    # products
    "dot_general": _dot,
    "scaled_dot": _dot,
    "ragged_dot_general": _ragged_dot,
    "bcoo_dot_general": _bcoo_dot,
    "conv_general_dilated": _convolution,
    "fft": _fft,
    **LINEAR_ALGEBRA,
    **OPERATORS,
    # random bits
    "threefry2x32": _block(117),
    "threefry4x32": _block(229),
    "philox2x32": _block(50),
    "philox4x32": _block(100),
    "random_bits": _random_bits,
    "random_split": _new_keys,
    "random_fold_in": _new_keys,
    "random_seed": _block(2),
    "rng_bit_generator": _rng_bit_generator,
    "rng_uniform": _block(25),
}
