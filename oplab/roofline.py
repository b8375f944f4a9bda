"""The roofline: how fast a kernel could be on a machine, from what it computes and what it moves.

    attainable FLOP/s = min(peak FLOP/s, bytes/s of the memory * FLOPs per byte of the kernel)

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", Communications of the
ACM 52(4), 2009, doi 10.1145/1498765.1498785. FLOPs per byte is the kernel's *arithmetic intensity*. Left of
the *ridge point* (peak FLOP/s over bytes/s) the memory is the limit, right of it the arithmetic.

    oplab.roofline(oplab.bench({"jit": jax.jit(f)}, x, cost=True))     this machine, whose peaks are measured
    oplab.roofline(walk, "NVIDIA H100 SXM", dtype="bfloat16")          a device of data/devices.csv

A share above 1 is no mistake of the clock: XLA fused what was counted as written, so fewer bytes moved, or
they came from a cache.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from oplab.bench import bench, ran_on
from oplab.display import DASH, stable
from oplab.machine import memory
from oplab.memory import settle

COLUMNS = ["flops", "bytes", "intensity", "flops_per_s", "attainable_flops_per_s", "share_of_limit", "bound"]
MATMUL_SIZES = (1024, 2048)  # of the square products; the faster one counts
# Of each of two arrays that are streamed, or a sixteenth of the memory if that is less: more than a laptop's
# caches hold, and little enough for a learner's share of a hub. On a server with a larger last cache it is
# that cache which is measured; small programs are served from it there as well.
STREAM_BYTES = 32 * 2**20


class Peaks(NamedTuple):
    """What a device can do at most, for one dtype."""

    device: str
    dtype: str
    flops_per_s: float
    bytes_per_s: float
    measured: bool
    source: str  # how it was measured, or the vendor's document
    noise: str = ""  # why not to trust a measurement

    @property
    def ridge(self) -> float:
        """FLOPs per byte from which on the arithmetic, and no longer the memory, is the limit."""
        return self.flops_per_s / self.bytes_per_s


class Roofline(pd.DataFrame):
    """The table that `roofline` returns. Under `OPLAB_STABLE=1` it shows what was measured as a dash."""

    @property
    def _constructor(self):
        return Roofline

    def _shown(self) -> pd.DataFrame:
        shown = pd.DataFrame(self).drop(columns="samples_us", errors="ignore")
        if not stable():
            return shown
        varies = ["flops_per_s", "share_of_limit", "noise"]
        if self.attrs.get("peaks", {}).get("measured", True):
            varies += ["attainable_flops_per_s", "bound"]
        return shown.assign(**{name: DASH for name in varies if name in shown})

    def __repr__(self) -> str:
        return self._shown().to_string()

    def _repr_html_(self) -> str:
        return self._shown().to_html()


def roofline(source: Any, peaks: Peaks | str | None = None, dtype: str = "float32") -> Roofline:
    """One row for each kernel or variant, with what it reaches and what it could reach at most.

    source: a walk (its kernels; run `.execute()` for times), a table of `oplab.bench(..., cost=True)`, or any
        table with columns `flops` and `bytes`, and `median_us` where something was timed.
    peaks: None or "measured" measures this machine (some seconds, once a process); or the name of a device
        in data/devices.csv; or what `measure_peaks` or `device_peaks` returned.
    dtype: whose peak is meant.

    Columns: the source's own that name its rows, then flops and bytes (counts), intensity (FLOPs per byte),
    flops_per_s (measured; empty without a time), attainable_flops_per_s, share_of_limit (the one over the
    other; for a kernel that only moves data, its bytes/s over the memory's), bound ("memory" or "compute"),
    and noise and samples_us as `oplab.bench` gives them. `attrs["peaks"]` holds the peaks. Raises TypeError
    or ValueError for what has no counts.
    """
    table = _counted(source)
    if isinstance(peaks, str) and peaks != "measured":
        peaks = device_peaks(peaks, dtype)
    elif not isinstance(peaks, Peaks):
        peaks = measure_peaks(dtype)
    flops, moved = (table[name].astype(float) for name in ("flops", "bytes"))
    found = table.assign(intensity=flops / moved.replace(0.0, np.nan))
    seconds = table["median_us"] * 1e-6 if "median_us" in table else np.nan
    found["flops_per_s"] = flops / seconds
    found["attainable_flops_per_s"] = (found["intensity"] * peaks.bytes_per_s).clip(upper=peaks.flops_per_s)
    # The same rule in seconds, so that a kernel that only moves data has a share of its limit as well.
    computing, moving = flops / peaks.flops_per_s, moved / peaks.bytes_per_s
    found["share_of_limit"] = np.maximum(computing, moving) / seconds
    found["bound"] = np.where(moving > computing, "memory", "compute")
    found.loc[flops.isna() | moved.isna(), "bound"] = ""
    names = [name for name in table if name not in (*COLUMNS, *TIMED)]
    result = Roofline(found[names + COLUMNS + [name for name in TIMED[1:] if name in table]])
    result.attrs = {**getattr(source, "attrs", {}), "peaks": peaks._asdict()}
    return result


NAMING = ("variant", "instruction", "kind", "equations", "lines", "heads", "dim", "causal", "backward",
          "dtype")
TIMED = ("median_us", "noise", "samples_us")  # the last two stay: plots say whether a time can be trusted


def _counted(source: Any) -> pd.DataFrame:
    """The columns that name a row, its counts, and its time where there is one."""
    table = source.summary() if hasattr(source, "summary") else source
    if not isinstance(table, pd.DataFrame):
        raise TypeError("roofline expects a walk, or a table such as oplab.bench returns with cost=True, got "
                        f"{type(source).__name__}.")
    lacking = [name for name in ("flops", "bytes") if name not in table]
    if lacking:
        raise ValueError(f"roofline expects the columns flops and bytes, and this table has no "
                         f"{' and no '.join(lacking)}: call oplab.bench with cost=True.")
    first = [table.columns[0]] if table.columns[0] not in (*COLUMNS, *TIMED) else []
    kept = [*dict.fromkeys([*first, *(name for name in NAMING if name in table)]), "flops", "bytes"]
    return pd.DataFrame(table)[kept + [name for name in TIMED if name in table]]


# Peaks from the vendors' documents --------------------------------------------------------------------------


@cache
def devices() -> pd.DataFrame:
    """data/devices.csv: device, kind, year, the peak of each dtype, bytes/s, and the document they are from.

    Dense arithmetic throughout: vendors also print twice as much for matrices half of which is zero.
    """
    with resources.files("oplab").joinpath("devices.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)


def device_peaks(device: str, dtype: str = "float32") -> Peaks:
    """The peaks of a device of data/devices.csv. Raises ValueError for one, or a dtype, that is not there."""
    table = devices()
    rows = table[table["device"].str.lower() == device.strip().lower()]
    if rows.empty:
        raise ValueError(f"no device is called {device!r}; there are {', '.join(table['device'])}, or "
                         "'measured' for this machine.")
    row, column = rows.iloc[0], f"{dtype}_flops_per_s"
    if column not in table or pd.isna(row[column]):
        given = [c for c in table if c.endswith("_flops_per_s") and pd.notna(row[c])]
        known = [c.removesuffix("_flops_per_s") for c in given]
        raise ValueError(f"data/devices.csv has no peak of {row['device']} for {dtype}: use dtype="
                         f"{' or '.join(map(repr, known))}.")
    flops_per_s, bytes_per_s = float(row[column]), float(row["memory_bytes_per_s"])
    return Peaks(row["device"], dtype, flops_per_s, bytes_per_s, False, row["source"])


# Peaks measured here ----------------------------------------------------------------------------------------


def measure_peaks(dtype: str = "float32") -> Peaks:
    """What this machine reaches with the threads that this process has: a square matrix product's FLOP/s, and
    the bytes/s of a + 3 b, written into a (as in STREAM's triad, McCalpin 1995, but that no third array need
    be read before it is overwritten). Medians; measured once a process, some seconds.

    Measured, and so a little under what the chip could do, and noisy where the machine is busy: see `noise`.
    """
    return _measured(dtype)


@cache
def _measured(dtype: str) -> Peaks:
    sizes = MATMUL_SIZES if jax.default_backend() == "cpu" else (8192,)
    settle()  # a learner's kernel is small, and these arrays come on top of what it holds
    random = np.random.default_rng(0)
    square = lambda n: jnp.asarray(random.standard_normal((n, n), np.float32), dtype)
    products = bench({"product": jax.jit(jnp.matmul)}, cases={n: (square(n), square(n)) for n in sizes},
                     label="n", memory=False, budget_s=2.0, progress=False)
    rates = 2 * products["n"] ** 3 / (products["median_us"] * 1e-6)
    streamed = _stream()
    settle()
    about = ran_on()
    n = int(products.loc[rates.idxmax(), "n"])
    how = (f"measured here on {about['threads']} threads with JAX {about['jax']}: product of {n} x {n}; "
           f"a + 3 b over arrays of {streamed.attrs['array_bytes'] / 2**20:.0f} MiB")
    noisy = {"product": products.loc[rates.idxmax(), "noise"], "a + 3 b": streamed["noise"].iloc[0]}
    noise = "; ".join(f"{name}: {why}" for name, why in noisy.items() if why)
    bytes_per_s = 3 * streamed.attrs["array_bytes"] / (float(streamed["median_us"].iloc[0]) * 1e-6)
    return Peaks(about["device"], dtype, float(rates.max()), bytes_per_s, True, how, noise)


def _stream() -> pd.DataFrame:
    """Time of a = a + 3 b, in place: every page is there already, so no page fault is taken for bandwidth.

    In float32 for every dtype: the memory does not care, and a CPU may have no fast sum of the others.
    """
    size = int(min(STREAM_BYTES, memory()[2] / 16)) // 4
    a, b = jnp.zeros(size, jnp.float32), jnp.ones(size, jnp.float32)
    add = jax.jit(lambda a, b: a + 3 * b, donate_argnums=0)
    held = [a]

    def step(b):
        held[0] = add(held[0], b)
        return held[0]

    table = bench({"a + 3 b": step}, b, memory=False, budget_s=2.0, progress=False)
    table.attrs["array_bytes"] = 4 * size
    return table
