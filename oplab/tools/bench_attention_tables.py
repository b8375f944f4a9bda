"""The attention benchmark's tables: what is printed, saved, read back, and drawn by oplab.views.plots."""

import json
import math
from pathlib import Path

import pandas as pd

# Printed ----------------------------------------------------------------------------------------------------


def readable(rows: list[dict]) -> str:
    lines = [f"  {'variant':18}{'ms':>10}{'spread':>9}{'user':>10}{'system':>9}{'x native':>9}{'GFLOP/s':>9}"
             f"{'of limit':>9}  form"]
    for r in rows:
        if r["note"]:
            lines.append(f"  {r['variant']:18}{r['note']}")
            continue
        cells = [f"{r[name] / 1e3:.3f}" for name in ("median_us", "spread_us", "user_us", "system_us")]
        cells += [f"{r['ratio']:.2f}" if "ratio" in r else "", f"{r['flops_per_s'] / 1e9:.1f}",
                  f"{100 * r['share_of_limit']:.0f}%" if "share_of_limit" in r else ""]
        widths = (10, 9, 10, 9, 9, 9, 9)
        lines.append(f"  {r['variant']:18}" + "".join(f"{c:>{w}}" for c, w in zip(cells, widths))
                     + f"  {r['form']}" + (f"; {r['noise']}" if r["noise"] else ""))
    limit = next((r["limit_flops_per_s"] for r in rows if "limit_flops_per_s" in r), None)
    lines += [f"  the limit: a matrix product at {limit / 1e9:.1f} GFLOP/s"] if limit else []
    return "\n".join(lines)


def readable_memory(rows: list[dict]) -> str:
    table = pd.DataFrame([r | {"MiB": r["peak_bytes"] / 2**20} for r in rows if "peak_bytes" in r])
    if table.empty:
        return "  nothing could be read"
    names = ["backward", "dtype", "causal", "dim", "variant"]
    grid = table.pivot_table(index=names, columns="S", values="MiB")
    return grid.to_string(float_format=lambda x: f"{x:,.1f}", na_rep="")


def readable_errors(rows: list[dict]) -> str:
    table = pd.DataFrame([r for r in rows if "error" in r])
    if table.empty:
        return "  nothing could be compared"
    grid = table.pivot_table(index="variant", columns=["backward", "dtype", "causal", "dim"], values="error")
    return grid.to_string(float_format=lambda x: f"{x:.1e}", na_rep="")


def plain(table: pd.DataFrame) -> list[dict]:
    """Rows without what they do not have: JSON knows no NaN."""
    return [{name: x for name, x in r.items() if not (isinstance(x, float) and math.isnan(x))}
            for r in table.to_dict("records")]


# Saved, and read back ---------------------------------------------------------------------------------------


def load(file: str) -> dict[str, pd.DataFrame]:
    """The tables in a file that `--json` wrote: times, memory, errors."""
    saved = json.loads(Path(file).read_text())
    tables = {name: pd.DataFrame(saved[name]) for name in ("times", "memory", "errors")}
    for table in tables.values():
        table.attrs = {"jax": saved["about"]["JAX"], "threads": saved["about"]["threads"],
                       "device": saved["about"]["processor"]}
    return tables


def for_plots(tables: dict[str, pd.DataFrame], heads: int, dim: int, backward: bool = False,
              dtype: str = "float32", key: str = "times") -> dict[str, pd.DataFrame]:
    """{"every key": table, "causal": table} of one kind of shape, as oplab.views.plots takes them."""
    whole = tables[key]
    chosen = (whole["heads"] == heads) & (whole["dim"] == dim) & (whole["backward"] == backward)
    chosen &= (whole["dtype"] == dtype) & (whole["note"] == "")
    if key == "memory":
        chosen &= whole["peak_bytes"] > 0
    whole = whole.assign(**{"temp_bytes": math.nan, "noise": ""} if key == "memory" else {})
    named = {"every key": whole[chosen & ~whole["causal"]], "causal": whole[chosen & whole["causal"]]}
    return {name: table for name, table in named.items() if len(table)}
