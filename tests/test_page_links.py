"""Links written down by hand, clicked in the real browser: which lines light up, and which must not.

Written by operator and opcode, not by number, so that every supported JAX satisfies it. What is lit as merely
lying inside or around the line is left out.
"""

import re

import pytest
from browser import lit
from page_programs import attention, document, mlp_gradient, relu_layer, scan_layers

# program, pane, the first line of it that holds this, pane where these light up, and where these stay dark.
# Script lines are named by a piece of them, equations by their primitive, instructions by their opcode.
# A name in capitals at the head of `dark`: ALL means that nothing else lights up there.
ALL = "ALL"
LINKS = [
    (relu_layer, "script", "x @ w", "jaxpr", "dot_general", ALL),
    (relu_layer, "script", "x @ w", "hlo", "dot", "add maximum"),
    (relu_layer, "script", "product + b", "jaxpr", "broadcast_in_dim add", ALL),
    (relu_layer, "script", "product + b", "hlo", "add broadcast", "dot maximum"),
    (relu_layer, "script", "jnp.maximum", "jaxpr", "max", ALL),
    (relu_layer, "script", "jnp.maximum", "hlo", "maximum", "dot add"),
    (relu_layer, "jaxpr", "= dot_general", "script", "x @ w", ALL),
    (relu_layer, "jaxpr", "= broadcast_in_dim", "script", "product + b", ALL),
    (relu_layer, "jaxpr", "= max", "hlo", "maximum", "dot add"),
    (relu_layer, "hlo", " dot(", "jaxpr", "dot_general", ALL),
    (relu_layer, "hlo", " maximum(", "script", "jnp.maximum", ALL),
    (relu_layer, "time", "maximum", "jaxpr", "broadcast_in_dim add max", ALL),  # one kernel, three equations
    (attention, "script", "q @ k.T", "jaxpr", "transpose dot_general", ALL),
    (attention, "script", "q @ k.T", "hlo", "dot", "exponential reduce divide"),
    (attention, "script", "scores / 8.0", "jaxpr", "div", ALL),
    (attention, "script", "scores / 8.0", "hlo", "multiply", "dot exponential reduce divide"),
    (attention, "script", "scaled.max", "jaxpr", "reduce_max broadcast_in_dim", ALL),
    (attention, "script", "scaled.max", "hlo", "reduce maximum", "dot divide"),
    (attention, "script", "jnp.exp", "jaxpr", "sub exp", ALL),
    (attention, "script", "jnp.exp", "hlo", "subtract exponential", "dot reduce divide"),
    (attention, "script", "weights.sum", "jaxpr", "reduce_sum broadcast_in_dim", ALL),
    (attention, "script", "weights / total", "hlo", "divide multiply", "dot exponential"),
    (attention, "script", "normal_weights @ v", "jaxpr", "dot_general", ALL),
    (attention, "jaxpr", "= exp ", "script", "jnp.exp", ALL),
    (attention, "jaxpr", "= transpose", "script", "q @ k.T", ALL),
    (attention, "hlo", " exponential(", "script", "jnp.exp", ALL),
    (attention, "hlo", " exponential(", "jaxpr", "exp", ALL),
    (attention, "hlo", " divide(", "script", "weights / total|weights.sum", ALL),  # the sum's too
    (mlp_gradient, "script", "jnp.tanh", "jaxpr", "dot_general tanh mul", "integer_pow reduce_sum"),
    (mlp_gradient, "script", "jnp.tanh", "hlo", "dot tanh", "reduce"),
    (mlp_gradient, "script", "hidden @ w2", "jaxpr", "dot_general", "tanh integer_pow mul reduce_sum"),
    (mlp_gradient, "script", "output**2", "jaxpr", "integer_pow mul reduce_sum", "dot_general tanh"),
    (mlp_gradient, "jaxpr", "= tanh", "hlo", "tanh", "dot"),
    (mlp_gradient, "jaxpr", "= integer_pow", "hlo", "", ALL),  # dead: the gradient needs no loss
    (mlp_gradient, "jaxpr", "= reduce_sum", "hlo", "", ALL),
    (mlp_gradient, "hlo", " tanh(", "script", "jnp.tanh", ALL),
    (scan_layers, "script", "h @ w", "jaxpr", "dot_general", ALL),
    (scan_layers, "script", "h @ w", "hlo", "dot", "sine reduce while"),
    (scan_layers, "script", "jnp.sin", "hlo", "sine", "dot reduce while"),
    (scan_layers, "script", "moved.sum", "hlo", "reduce", "dot sine while"),
    (scan_layers, "script", "jax.lax.scan", "jaxpr", "scan", ALL),
    (scan_layers, "script", "jax.lax.scan", "hlo", "while dynamic-slice compare", "dot sine reduce"),
    (scan_layers, "hlo", " sine(", "jaxpr", "sin", ALL),
    (scan_layers, "hlo", " dot(", "script", "h @ w", ALL),
    (scan_layers, "hlo", " while(", "script", "jax.lax.scan", ALL),
    (scan_layers, "jaxpr", "= reduce_sum", "script", "moved.sum", ALL),
]
OPERATOR = {"jaxpr": r"= ([a-z_0-9]+)[ \[]", "hlo": r"= (?:\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\("}
# Opcodes that do no work of their own: they may light up beside the others.
PASSIVE = {"fusion", "broadcast", "constant", "copy", "bitcast", "tuple", "get-tuple-element"}


@pytest.fixture
def opened(page):
    """The page of a program, kept open from one link to the next."""
    def show(function):
        return page(document(function))

    return show


@pytest.mark.parametrize("function", [relu_layer, attention, mlp_gradient, scan_layers])
def test_links_written_by_hand_hold(opened, function):
    shown, wrong = opened(function), []
    for _, pane, holding, where, lights, dark in (link for link in LINKS if link[0] is function):
        click(shown, pane, holding)
        found = names(shown, where)
        wanted = set(lights.split("|") if where == "script" else lights.split())
        if where == "script":
            ok = len(found) == len(wanted) and all(any(w in line for line in found) for w in wanted)
        else:
            unwanted = found - PASSIVE - wanted if dark == ALL else set(dark.split())
            ok = wanted <= found and found.isdisjoint(unwanted)
        if not ok:
            wrong.append(f"{pane} {holding!r} lights up in {where}: {sorted(found)}, not {lights!r}")
    assert not wrong, "\n".join(wrong)


def test_there_are_forty_links_in_both_directions():
    assert len(LINKS) >= 40
    assert {link[1] for link in LINKS} >= {"script", "jaxpr", "hlo", "time"}


def click(shown, pane, holding):
    """Let go of what is selected, then click the first line that holds the text."""
    shown.press("Escape")
    place = shown.tab.locator(f"#view-{pane} .line.row").filter(has_text=re.compile(re.escape(holding))).first
    place.scroll_into_view_if_needed()
    place.click(position={"x": 60, "y": 8})


def names(shown, pane):
    """What is lit in a pane, itself and not merely inside or around: lines, primitives or opcodes."""
    own = f"[...document.querySelectorAll('#view-{pane} .line.lit:not(.inside)')]"
    lines = shown.run(f"{own}.map(l => l.textContent)")
    assert len(lines) <= len(lit(shown, pane))
    if pane == "script":
        return set(lines)
    return {found[1] for line in lines if (found := re.search(OPERATOR[pane], line))}
