"""walk.export: files that Model Explorer and Perfetto read, with every id pointing at something."""

import json

import jax
import jax.numpy as jnp
import pytest

import oplab
from oplab.export import export, graphs, sync, trace

x, W, b = jnp.ones((16, 8)), jnp.ones((8, 4)), jnp.ones(4)


def layer(x, W, b):
    return jax.nn.relu(x @ W + b)


def looped(x):
    def body(carry, _):
        return jnp.sin(carry) + 1, carry.sum()

    carry, sums = jax.lax.scan(body, x, None, length=3)
    return jax.lax.cond(sums[0] > 0, jnp.cos, lambda y: y * 2, carry)


PROGRAMS = {"layer": (layer, (x, W, b)), "looped": (looped, (x,)),
            "gradient": (jax.grad(lambda x, W, b: layer(x, W, b).sum(), argnums=1), (x, W, b))}


@pytest.fixture(scope="module", params=PROGRAMS)
def document(request):
    f, args = PROGRAMS[request.param]
    return oplab.walk(f, *args).to_json()


@pytest.fixture(scope="module")
def ran():
    return oplab.walk(layer, x, W, b).execute(3).to_json()


def test_every_edge_comes_from_a_node_of_its_graph(document):
    collection = graphs(document)
    assert collection["label"] and [g["id"] for g in collection["graphs"]] == ["jaxpr", "stablehlo", "hlo"]
    for graph in collection["graphs"]:
        ids = [n["id"] for n in graph["nodes"]]
        assert len(ids) == len(set(ids)) and len(ids) > 2
        sources = {e["sourceNodeId"] for n in graph["nodes"] for e in n["incomingEdges"]}
        assert sources and sources <= set(ids)
        for n in graph["nodes"]:  # the types that Model Explorer declares
            assert all(isinstance(n[key], str) for key in ("id", "label", "namespace"))
            assert all(set(a) == {"key", "value"} and isinstance(a["value"], str) for a in n["attrs"])
            assert all(isinstance(v, str) for e in n["incomingEdges"] for v in e.values())


def test_graphs_have_no_circle(document):
    for graph in graphs(document)["graphs"]:
        todo = {n["id"]: {e["sourceNodeId"] for e in n["incomingEdges"]} - {n["id"]} for n in graph["nodes"]}
        while ready := [name for name, sources in todo.items() if not sources & todo.keys()]:
            for name in ready:
                del todo[name]
        assert not todo, (graph["id"], todo)


def test_arguments_of_inner_functions_bear_the_function_in_their_id(ran):
    nodes = graphs(ran)["graphs"][1]["nodes"]
    inner = [n["id"] for n in nodes if n["id"].startswith("argument") and n["namespace"] != "arguments"]
    assert inner and all(n.startswith("argument %arg") and " of op" in n for n in inner)
    assert "argument %arg0" in {n["id"] for n in nodes}  # main's own keeps its short name


def test_the_layer_is_joined_as_it_was_written(ran):
    by_id = {n["id"]: n for n in graphs(ran)["graphs"][0]["nodes"]}
    sources = {name: [e["sourceNodeId"] for e in n["incomingEdges"]] for name, n in by_id.items()}
    assert sources["e0"] == ["argument a", "argument b"] and sources["e2"] == ["e0", "e1"]
    assert sources["e3"] == ["e2"] and sources["e3.call_jaxpr.e0"] == ["e3"]
    assert by_id["e3.call_jaxpr.e0.jaxpr.e0"]["namespace"] == "custom_jvp_call e3/jit e3.call_jaxpr.e0"


def test_a_fusion_is_a_box_that_edges_pass_through(ran):
    nodes = graphs(ran)["graphs"][2]["nodes"]
    fusions = {row[0] for row in ran["stages"]["hlo"]["table"]["rows"] if row[1] == "fusion"}
    assert fusions and not fusions & {n["id"] for n in nodes}
    assert fusions <= {n["namespace"] for n in nodes}
    maximum = next(n for n in nodes if n["label"] == "maximum")
    seen, todo = set(), [maximum["id"]]
    while todo:  # from the last operation back to the arguments, through every wall
        name = todo.pop()
        seen.add(name)
        todo += [e["sourceNodeId"] for n in nodes if n["id"] == name for e in n["incomingEdges"]]
    assert {n["label"] for n in nodes if n["id"] in seen} >= {"dot", "parameter", "maximum"}


@pytest.mark.parametrize("left, right", [("jaxpr", "stablehlo"), ("stablehlo", "hlo"), ("jaxpr", "hlo")])
def test_the_map_covers_what_is_linked_and_names_each_node_once(document, left, right):
    known = {g["id"]: {n["id"] for n in g["nodes"]} for g in graphs(document)["graphs"]}
    entries = sync(document, left, right)["mappingEntries"]
    columns = document["links"]["columns"]
    links = [dict(zip(columns, row, strict=True)) for row in document["links"]["rows"]]
    linked = {(k["from_id"], k["to_id"]) for k in links
              if (k["from_stage"], k["to_stage"]) == (left, right)
              and k["from_id"] in known[left] and k["to_id"] in known[right]}
    mapped = {(a, b) for e in entries for a in e["leftNodeIds"] for b in e["rightNodeIds"]}
    assert linked and linked <= mapped
    for side, stage in (("leftNodeIds", left), ("rightNodeIds", right)):
        ids = [name for e in entries for name in e[side]]
        assert len(ids) == len(set(ids)) and set(ids) <= known[stage]


def test_the_timeline_holds_every_executed_kernel(ran):
    events = trace(ran)["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    kernels = [e for e in slices if e["cat"] == "kernel"]
    assert len(kernels) == len(ran["stages"]["execution"]["table"]["rows"])
    assert all(e["dur"] >= 0 and e["ts"] >= 0 and {"pid", "tid", "args"} <= set(e) for e in slices)
    names = {e["name"] for e in kernels}
    assert "dot_general" in names and any({"add", "max"} <= set(name.split(", ")) for name in names)
    assert all("test_export.py:" in e["args"]["lines"] for e in kernels)
    runs = [e for e in slices if e["cat"] == "run"]
    assert len(runs) == 3 and all(a["ts"] + a["dur"] < b["ts"] for a, b in zip(runs, runs[1:], strict=False))
    ends = [(run["ts"], run["ts"] + run["dur"] + 0.01) for run in runs]
    for k in kernels:  # each within one run
        assert any(start <= k["ts"] and k["ts"] + k["dur"] <= end for start, end in ends)


def test_slices_of_one_lane_never_overlap():
    table = {"columns": ["run", "instruction", "start_us", "duration_us"],
             "rows": [[0, "a", 0.0, 10.0], [0, "b", 5.0, 2.0], [0, "a", 7.0, 9.0]]}
    document = {"function": "f", "versions": {}, "summary": {"columns": ["instruction"], "rows": []},
                "stages": {"execution": {"table": table},
                           "jaxpr": {"table": {"columns": ["equation", "primitive"], "rows": []}}}}
    lanes = [(e["name"], e["tid"]) for e in trace(document)["traceEvents"] if e.get("cat") == "kernel"]
    assert lanes == [("a", 1), ("b", 2), ("a", 2)]


def test_files_are_written_and_a_loaded_walk_gives_the_same(tmp_path):
    w = oplab.walk(layer, x, W, b)
    paths = w.export("model_explorer", tmp_path / "layer.json")
    assert [p.rsplit("/", 1)[1] for p in paths] == [
        "layer.json", "layer.jaxpr-stablehlo.sync.json", "layer.jaxpr-hlo.sync.json",
        "layer.stablehlo-hlo.sync.json"]
    again = oplab.load_walk(w.save(tmp_path / "w.json")).export("model_explorer", tmp_path / "again.json")
    for one, other in zip(paths, again, strict=True):
        assert open(one).read() == open(other).read() and json.load(open(one))


def test_hostile_names_stay_text(ran):
    document = json.loads(json.dumps(ran))
    document["function"] = name = '"}]<script>\u202e\x00;a/b'
    place = document["stages"]["jaxpr"]["table"]["columns"].index("primitive")
    document["stages"]["jaxpr"]["table"]["rows"][3][place] = name  # the one that holds others
    nodes = graphs(document)["graphs"][0]["nodes"]
    assert json.loads(json.dumps(nodes)) == nodes and name in {n["label"] for n in nodes}
    deepest = next(n for n in nodes if n["id"] == "e3.call_jaxpr.e0.jaxpr.e0")
    assert deepest["namespace"].count("/") == 1 and ";" not in deepest["namespace"]  # its boxes are ours
    assert json.loads(json.dumps(trace(document)))["traceEvents"][0]["args"]["name"] == name


def test_mistakes_are_one_sentence(tmp_path):
    w = oplab.walk(layer, x, W, b)
    for kind, path, word in (("excel", "a.json", "one of model_explorer"), ("perfetto", "a.txt", ".json"),
                             ("perfetto", "a.json", "execute")):
        with pytest.raises(ValueError, match=word):
            export(w.to_json(), kind, tmp_path / path)
    assert not list(tmp_path.iterdir())
