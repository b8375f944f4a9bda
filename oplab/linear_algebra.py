"""FLOPs of dense linear algebra: factorisations, eigenvalues, solvers.

Leading terms, from Golub and Van Loan, "Matrix Computations", and LAPACK Working Note 41. m counts rows, n
columns, k the smaller of the two or the number of reflectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .quantities import Cost, is_complex, size_in


def _times(eqn: Any) -> int:
    """A complex multiply-add is four real ones."""
    return 4 if is_complex(eqn) else 1


def _matrix(formula: Callable[[int, int, dict], float]) -> Callable:
    """A rule from a formula in rows, columns and params; for a batch, and four times that when complex."""

    def rule(eqn: Any) -> Cost:
        *batch, rows, columns = eqn.invars[0].aval.shape
        work = math.prod(batch) * formula(rows, columns, eqn.params) * _times(eqn)
        return Cost(round(work), notes=(f"`{eqn.primitive.name}`: leading terms only",))

    return rule


def _lu(m: int, n: int, params: dict) -> float:
    k = min(m, n)
    return 2 * m * n * k - (m + n) * k**2 + 2 / 3 * k**3


def _reflect(m: int, n: int, params: dict) -> float:
    """To find the Householder reflectors that make a matrix triangular."""
    return 2 * max(m, n) * min(m, n) ** 2 - 2 / 3 * min(m, n) ** 3


def _unroll(m: int, n: int, k: int) -> float:
    """To form an m by n matrix from k reflectors."""
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 / 3 * k**3


def _qr(m: int, n: int, params: dict) -> float:
    k = min(m, n)
    return _reflect(m, n, params) + _unroll(m, m if params["full_matrices"] else k, k)


def _svd(m: int, n: int, params: dict) -> float:
    m, n = max(m, n), min(m, n)
    if not params["compute_uv"]:
        return 4 * m * n**2 - 4 / 3 * n**3
    return 4 * m**2 * n + 8 * m * n**2 + 9 * n**3 if params["full_matrices"] else 14 * m * n**2 + 8 * n**3


def _eig(m: int, n: int, params: dict) -> float:
    return (25 if any(value is True for key, value in params.items() if "vectors" in key) else 10) * n**3


def _householder_product(eqn: Any) -> Cost:
    return _matrix(lambda m, n, params: _unroll(m, n, eqn.invars[1].aval.shape[-1]))(eqn)


def _ormqr(eqn: Any) -> Cost:
    """Product of Q, kept as k reflectors, and another matrix."""
    m, n = eqn.invars[2].aval.shape[-2:]
    k, other = eqn.invars[1].aval.shape[-1], n if eqn.params["left"] else m
    return _matrix(lambda *_: 4 * m * n * k - 2 * other * k**2)(eqn)


def _triangular_solve(eqn: Any) -> int:
    """n^2 for each right-hand side (XLA: twice that)."""
    return _times(eqn) * size_in(eqn, 1) * eqn.invars[0].aval.shape[-1]


def _tridiagonal_solve(eqn: Any) -> int:
    """Thomas' algorithm: 8 for each unknown."""
    return 8 * _times(eqn) * size_in(eqn, 3)


LINEAR_ALGEBRA: dict[str, Callable[[Any], int | Cost]] = {
    "cholesky": _matrix(lambda m, n, params: n**3 / 3),
    "lu": _matrix(_lu),
    "qr": _matrix(_qr),
    "geqrf": _matrix(_reflect),
    "geqp3": _matrix(_reflect),
    "householder_product": _householder_product,
    "ormqr": _ormqr,
    "svd": _matrix(_svd),
    "eig": _matrix(_eig),
    "schur": _matrix(_eig),
    "eigh": _matrix(lambda m, n, params: 9 * n**3),
    "hessenberg": _matrix(lambda m, n, params: 10 / 3 * n**3),
    "tridiagonal": _matrix(lambda m, n, params: 4 / 3 * n**3),
    "cholesky_update": _matrix(lambda m, n, params: 3 * n**2),
    "symmetric_product": _matrix(lambda m, n, params: 2 * m**2 * n),
    "triangular_solve": _triangular_solve,
    "tridiagonal_solve": _tridiagonal_solve,
}
