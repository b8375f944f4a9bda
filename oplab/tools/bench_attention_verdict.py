"""What was promised of the native attention kernel, held against what the benchmark measured.

Each figure is one row: what was asked, what was measured, over how many shapes, reached or not. A figure for
which nothing was measured says which option of the benchmark measures it; it is never counted as reached.
"""

import numpy as np
import pandas as pd

from oplab.tools.bench_attention_rounds import DISAGREES

PEERS = ("torch", "onnxruntime", "jax.nn", "jit naive", "jit with barriers", "eager", "chunked lax")
MEMORY_VARIANTS = {"native": 1.0, "eager": 2.0, "jit with barriers": 2.0}
EXPONENT_WITHIN = 0.1
COLUMNS = ["figure", "asked", "measured", "shapes", "reached"]


def verdict(times: pd.DataFrame, memory: pd.DataFrame, errors: pd.DataFrame) -> pd.DataFrame:
    """figure, asked, measured, shapes (how many it rests on), reached ("yes", "NO" or "not measured")."""
    rows = [agreement(times), never_slower(times)]
    for causal, least in ((False, 1.4), (True, 1.8)):
        rows.append(mean_ratio(times, "torch", causal, least))
    for causal in (False, True):
        rows += [mean_ratio(times, "eager", causal, 6.0), mean_ratio(times, "jit with barriers", causal, 3.0)]
    for causal in (False, True):
        rows += [mean_ratio(times, "torch", causal, 1.2, backward=True),
                 mean_ratio(times, "jit naive", causal, 2.5, backward=True)]
    rows += [share_of_limit(times, causal) for causal in (False, True)]
    rows.append(mean_ratio(times, "torch", None, 1.0, dtype="bfloat16"))
    rows += [growth(memory, variant, exponent) for variant, exponent in MEMORY_VARIANTS.items()]
    rows += [error_bound(errors), error_against(errors, "torch")]
    return pd.DataFrame(rows, columns=COLUMNS)


# Times ------------------------------------------------------------------------------------------------------


def chosen(times: pd.DataFrame, variant: str | None = None, causal: bool | None = None,
           backward: bool = False, dtype: str = "float32") -> pd.DataFrame:
    """The rows that were timed together with the native kernel: its own and its peers'."""
    if "ratio" not in times:
        return times.iloc[:0]
    rows = times[times["ratio"].notna() & (times["backward"] == backward) & (times["dtype"] == dtype)]
    rows = rows if variant is None else rows[rows["variant"] == variant]
    return rows if causal is None else rows[rows["causal"] == causal]


def agreement(times: pd.DataFrame) -> list:
    figure, asked = "variants that disagree with the others", "0"
    if times.empty:
        return unmeasured(figure, asked, "no shape was timed")
    wrong = times[times["note"].str.startswith(DISAGREES)]
    names = ", ".join(sorted(set(wrong["variant"])))
    return [figure, asked, f"{len(wrong)} {names}".strip(), len(times), yes(wrong.empty)]


def never_slower(times: pd.DataFrame) -> list:
    figure, asked = "forward, against the best peer, at every shape", ">= 1.00 times as fast"
    rows = chosen(times)
    rows = rows[rows["variant"].isin(PEERS)] if len(rows) else rows
    if rows.empty:
        return unmeasured(figure, asked, "run with the native kernel built")
    best = rows.loc[rows.groupby(["S", "heads", "dim", "causal"])["ratio"].idxmin()]
    worst = best.loc[best["ratio"].idxmin()]
    slower = int((best["ratio"] < 1).sum())
    where = f"{worst['variant']} at S = {worst['S']}, {worst['heads']} heads, D = {worst['dim']}"
    where += ", causal" if worst["causal"] else ""
    measured = f"{worst['ratio']:.2f} ({where}); slower at {slower}"
    return [figure, asked, measured, len(best), yes(slower == 0)]


def mean_ratio(times: pd.DataFrame, peer: str, causal: bool | None, least: float, backward: bool = False,
               dtype: str = "float32") -> list:
    """Geometric mean over the shapes with S from 1024 to 4096."""
    words = ["forward + backward" if backward else "forward", f"against {peer}"]
    words += [] if causal is None else ["causal" if causal else "every key"]
    words += [dtype] * (dtype != "float32")
    figure, asked = ", ".join(words), f">= {least:.1f} times as fast"
    rows = chosen(times, peer, causal, backward, dtype)
    rows = rows[rows["S"].between(1024, 4096)] if len(rows) else rows
    if rows.empty:
        option = " --backward" if backward else f" --dtype {dtype}" if dtype != "float32" else ""
        return unmeasured(figure, asked, f"needs native, {peer}, S from 1024 to 4096{option}")
    mean = float(np.exp(np.log(rows["ratio"]).mean()))
    return [figure, asked, f"{mean:.2f} (least {rows['ratio'].min():.2f})", len(rows), yes(mean >= least)]


def share_of_limit(times: pd.DataFrame, causal: bool) -> list:
    keys = "causal" if causal else "every key"
    figure = f"share of the matrix product's FLOP/s, S >= 2048, D = 64, {keys}"
    rows = chosen(times, "native", causal)
    if "share_of_limit" in rows:
        rows = rows[rows["share_of_limit"].notna() & (rows["S"] >= 2048) & (rows["dim"] == 64)]
    else:
        rows = rows.iloc[:0]
    if rows.empty:
        return unmeasured(figure, ">= 85%", "run with --limit, S >= 2048 and D = 64")
    least = float(rows["share_of_limit"].min())
    middle = float(rows["share_of_limit"].median())
    return [figure, ">= 85%", f"{100 * least:.0f}% at least (median {100 * middle:.0f}%)", len(rows),
            yes(least >= 0.85)]


# Memory and error -------------------------------------------------------------------------------------------


def exponent(lengths: np.ndarray, peaks: np.ndarray) -> float:
    """n of peak = a S^n + c, from lengths that each are the same multiple of the one before.

    Taking each peak from the next removes c (a thread pool, a page rounded up); the rest grows as S^n too.
    """
    steps = np.diff(peaks)
    kept = steps > 0
    if kept.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(lengths[1:][kept]), np.log(steps[kept]), 1)[0])


def growth(memory: pd.DataFrame, variant: str, wanted: float) -> list:
    figure = f"memory of {variant} grows as S to the power"
    asked = f"{wanted:.1f} +- {EXPONENT_WITHIN}"
    rows = memory
    if "peak_bytes" in memory:
        rows = memory[(memory["variant"] == variant) & memory["peak_bytes"].notna()]
    found = []
    for _, group in rows.groupby(["causal", "dim", "backward", "dtype"]) if "peak_bytes" in rows else ():
        group = group.sort_values("S")
        found.append(exponent(group["S"].to_numpy(float), group["peak_bytes"].to_numpy(float)))
    found = [n for n in found if np.isfinite(n)]
    if not found:
        return unmeasured(figure, asked, f"run with --memory and {variant}, four lengths or more")
    measured = ", ".join(f"{n:.2f}" for n in found)
    return [figure, asked, measured, len(rows), yes(all(abs(n - wanted) <= EXPONENT_WITHIN for n in found))]


def error_bound(errors: pd.DataFrame) -> list:
    figure, asked = "error of native against float64, forward", "<= 1e-5"
    rows = errors_of(errors, "native")
    if rows.empty:
        return unmeasured(figure, asked, "run with --error and the native kernel built")
    most = float(rows["error"].max())
    return [figure, asked, f"{most:.1e}", len(rows), yes(most <= 1e-5)]


def error_against(errors: pd.DataFrame, peer: str) -> list:
    figure, asked = f"error of native over {peer}'s, forward", "<= 1.0"
    keys = ["S", "heads", "dim", "causal"]
    ours, theirs = errors_of(errors, "native"), errors_of(errors, peer)
    if ours.empty or theirs.empty:
        return unmeasured(figure, asked, f"run with --error, native and {peer}")
    both = ours.merge(theirs, on=keys, suffixes=("", "_peer"))
    most = float((both["error"] / both["error_peer"]).max())
    return [figure, asked, f"{most:.2f} at most", len(both), yes(most <= 1)]


def errors_of(errors: pd.DataFrame, variant: str) -> pd.DataFrame:
    if "error" not in errors:
        return errors.iloc[:0]
    ours = (errors["variant"] == variant) & errors["error"].notna() & (errors["dtype"] == "float32")
    return errors[ours & ~errors["backward"]]


# Words ------------------------------------------------------------------------------------------------------


def yes(reached: bool) -> str:
    return "yes" if reached else "NO"


def unmeasured(figure: str, asked: str, how: str) -> list:
    return [figure, asked, how, 0, "not measured"]
