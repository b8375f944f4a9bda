"""The picture of a program: its nodes and lines are those of the text, and no two boxes overlap."""

import sys
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import pytest

import oplab
from oplab.document import SavedWalk
from oplab.tools.golden import attention_grad, golden, normal, transformer_args, transformer_grad
from oplab.tools.graph_figures import overlaps
from oplab.views.graph import Graph
from oplab.views.graph.collapse import MOST
from oplab.views.graph.layout import layered, place, ranks

STAGES = ("jaxpr", "stablehlo", "hlo")


def nested(x, weights):
    def layer(h, w):
        return jnp.tanh(h @ w), h.sum()

    h, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
    h = jax.lax.cond(h.sum() > 0, lambda a: a + 1, lambda a: -a * 2, h)
    return jax.nn.relu(jax.lax.while_loop(lambda a: a.max() > 1, lambda a: a / 2, h))


@pytest.fixture(scope="module")
def walks():
    inputs = normal(0, 8, 32), normal(1, 6, 32, 32, scale=0.2)
    programs = {
        "nested": (nested, inputs),
        "nested_grad": (
            jax.grad(
                lambda x, w: jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0].sum(), argnums=1
            ),
            inputs,
        ),
    }
    programs |= {name: golden()[name] for name in ("relu_chain", "attention", "attention_grad", "cumsum")}
    return {name: oplab.walk(function, *args) for name, (function, args) in programs.items()}


def test_the_lines_of_a_jaxpr_are_its_variables(walks):
    jaxpr, edges = walks["attention_grad"].traced.jaxpr, walks["attention_grad"].graph().edges
    made = {variable: f"e{n}" for n, eqn in enumerate(jaxpr.eqns) for variable in eqn.outvars}
    made |= {variable: f"in{n}" for n, variable in enumerate(jaxpr.jaxpr.invars)}
    wanted = {
        (made[v], f"e{n}") for n, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not hasattr(v, "val")
    }
    outer = edges[
        ~edges["source"].str.contains(".", regex=False) & ~edges["target"].str.contains(".", regex=False)
    ]
    assert set(zip(outer["source"], outer["target"], strict=True)) == wanted and len(wanted) > 40


def test_values_reach_the_equations_inside_a_loop_and_a_branch(walks):
    nodes = walks["nested"].graph().nodes
    matmul = nodes[nodes["label"] == "dot_general"].iloc[0]
    assert matmul["parent"].startswith("e0") and set(matmul["inputs"]) == {"in0", "in1"}
    assert matmul["operator"] == "matmul" and matmul["shape"] == "f32[8,32]"
    inside = nodes[nodes["node"].str.contains("branches")]
    assert len(inside) == 3 and all(inside["inputs"].map(len) > 0)
    assert {i for given in inside["inputs"] for i in given} - set(inside["node"]) == {"e0"}
    halving = nodes[nodes["node"].str.contains("body_jaxpr")].iloc[0]
    assert halving["inputs"] == (nodes[nodes["label"] == "cond"].iloc[0]["node"],)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "name", ("nested", "nested_grad", "relu_chain", "attention", "attention_grad", "cumsum")
)
def test_no_boxes_overlap_and_the_picture_is_the_same_again(walks, name, stage):
    first, again = walks[name].graph(stage), walks[name].graph(stage)
    assert overlaps(first) == [] and first.svg == again.svg
    root = ET.fromstring(first.svg)
    assert root.get("role") == "img" and root[0].text == first.title and "boxes" in root[1].text
    drawn = {group.get("data-node") for group in root.iter("{http://www.w3.org/2000/svg}g")} - {None}
    assert drawn == set(first.drawing.boxes)


@pytest.mark.parametrize("stage", STAGES)
def test_a_loaded_walk_gives_the_same_picture(walks, stage):
    live = walks["attention_grad"]
    assert SavedWalk(live.to_json()).graph(stage).svg == live.graph(stage).svg


def test_arguments_of_a_function_reach_what_reads_them():
    walk = oplab.walk(lambda x: jax.nn.relu(x) + 1, jnp.ones((8, 4)))
    graph = walk.graph("stablehlo")
    function = graph.nodes[graph.nodes["label"] == "func relu"]["node"].iloc[0]
    inside = graph.nodes[graph.nodes["parent"] == function].set_index("node")["label"]
    argument = inside.index[inside == "input"]
    assert list(argument) == [f"{function}.in0"]
    read = graph.edges[graph.edges["source"] == argument[0]]["target"]
    assert [inside[one] for one in read] == ["maximum"]


def test_a_fusion_holds_its_members(walks):
    nodes, rows = walks["attention"].graph("hlo").nodes, walks["attention"].hlo.table
    members = rows[rows["fusion"].notna() & (rows["opcode"] != "parameter")]
    parent = dict(zip(nodes["node"], nodes["parent"], strict=True))
    assert len(members) and all(
        parent[i] == f for i, f in zip(members["instruction"], members["fusion"], strict=True) if i in parent
    )


def test_backward_equations_stand_beside_the_line_that_they_came_from(walks):
    graph = walks["attention_grad"].graph()
    boxes, nodes = graph.drawing.boxes, graph.nodes.set_index("node")
    backward = nodes[nodes["half"] == "backward"]
    assert len(backward) > 15 and set(nodes["half"]) == {"forward", "backward", ""}
    for name, row in backward.iterrows():
        partner = row["partner"]
        assert nodes.loc[partner, "line"] == row["line"] and nodes.loc[partner, "half"] == "forward"
        band = next(b for b in graph.drawing.bands if b[0] <= boxes[name].y <= b[0] + b[1])
        assert band[0] <= boxes[partner].y <= band[0] + band[1]
        assert boxes[partner].x + boxes[partner].width < graph.drawing.middle < boxes[name].x


def test_residuals_and_their_bytes_are_seen(walks):
    graph = walks["attention_grad"].graph()
    kept = graph.edges[graph.edges["residual"]]
    assert set(kept["bytes"]) == {256, 2048, 4096} and f"{kept['source'].nunique()} residuals" in graph.note
    assert graph.svg.count('class="line keep"') > 2 and "4.0 KiB" in graph.svg
    assert not walks["attention"].graph().edges["residual"].any()


def test_a_layer_called_four_times_has_its_own_bands():
    graph = oplab.walk(transformer_grad, *transformer_args(4)).graph()
    line = graph.nodes.groupby("line").size().idxmax()
    boxes, nodes = graph.drawing.boxes, graph.nodes
    here = nodes[(nodes["line"] == line) & (nodes["parent"] == "")]
    bands = {
        n: next(at for at, b in enumerate(graph.drawing.bands) if b[0] <= boxes[n].y <= b[0] + b[1])
        for n in here["node"]
    }
    halves = [{bands[n] for n in here[here["half"] == half]["node"]} for half in ("forward", "backward")]
    assert len(halves[0]) >= 4 and halves[1] <= halves[0] and len(halves[1]) >= 4
    assert overlaps(graph) == []


def test_a_program_too_large_for_a_picture_says_so():
    nodes = [
        {
            "node": f"e{n}",
            "label": "add",
            "operator": "other",
            "shape": "f32[]",
            "parent": "",
            "line": n // 20,
            "scope": "",
            "half": "",
        }
        for n in range(MOST + 500)
    ]
    edges = [
        {"source": f"e{n}", "target": f"e{n + 1}", "shape": "f32[]", "bytes": 4} for n in range(MOST + 499)
    ]
    graph = Graph("long", nodes, edges)
    assert len(graph.drawing.boxes) == 175 and "more than a picture can show" in graph.note
    assert (
        "more than a picture can show" in graph.svg and "and 19 more" in graph.svg and overlaps(graph) == []
    )


def test_long_lines_are_cut_into_two_stubs():
    nodes = [
        {
            "node": f"e{n}",
            "label": "add",
            "operator": "other",
            "shape": "f32[]",
            "parent": "",
            "line": 1,
            "scope": "",
            "half": "",
        }
        for n in range(20)
    ]
    pairs = [(n, n + 1) for n in range(19)] + [(0, 19), (3, 8)]
    graph = Graph(
        "cut", nodes, [{"source": f"e{a}", "target": f"e{b}", "shape": "", "bytes": 0} for a, b in pairs]
    )
    assert graph.drawing.cut == 1 and list(graph.drawing.boxes["e0"].to) == ["e19"]
    assert (
        list(graph.drawing.boxes["e19"].from_) == ["e0"]
        and ">to e19<" in graph.svg
        and ">from e0<" in graph.svg
    )


def test_without_graphviz_the_plain_layout_is_used_and_said(walks, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    graph = walks["attention"].graph()
    assert graph.drawing.engines == {"plain"} and "plain Python" in graph.svg and overlaps(graph) == []


@pytest.mark.parametrize("layout", (place, layered))
def test_edges_point_down(layout):
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3), (4, 3)]
    placed = layout([(80, 40)] * 5, edges)
    assert all(placed.corners[a][1] + 40 < placed.corners[b][1] for a, b in edges)
    for (a, b), way in placed.routes.items():
        assert len(way) % 3 == 1
        assert abs(way[0][1] - placed.corners[a][1] - 40) < 2 and abs(way[-1][1] - placed.corners[b][1]) < 2


def test_a_source_stands_just_above_its_first_user():
    assert ranks(4, [(0, 1), (1, 2), (3, 2)]) == [0, 1, 2, 1]


def test_an_unknown_stage_is_refused(walks):
    with pytest.raises(ValueError, match="jaxpr, stablehlo, hlo, got 'passes'"):
        walks["attention"].graph("passes")
    with pytest.raises(ValueError, match=r"ending in .svg or .html"):
        walks["attention"].graph().save("picture.png")


def test_three_layers_for_a_notebook(walks, tmp_path):
    graph = oplab.walk(attention_grad, *golden()["attention_grad"][1]).graph()
    bundle = graph._repr_mimebundle_()
    assert bundle["image/svg+xml"].startswith("<svg") and 'sandbox=""' in bundle["text/html"]
    assert "dot_general" in bundle["text/plain"] and graph.note in bundle["text/plain"]
    path = graph.save(tmp_path / "graph.svg")
    assert open(path, encoding="utf-8").read() == graph.svg


def test_a_short_jaxpr_on_one_line_loses_no_value():
    w = oplab.walk(lambda x: jnp.sin(x) + x, jnp.ones(3))
    assert w.jaxpr.text.count("\n") == 0 and list(w.jaxpr.table["text_line"]) == [1, 1]
    edges = w.graph().edges
    found = set(zip(edges["source"], edges["target"], strict=True))
    assert found == {("in0", "e0"), ("e0", "e1"), ("in0", "e1")}
