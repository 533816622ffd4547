"""A model as an ONNX graph: columns of a table or pixels go in as they are, predictions come out."""

from __future__ import annotations

import importlib.util
import warnings
from typing import TYPE_CHECKING

import torch

from common.errors import UserError
from common.learning.blueprint import Blueprint, Input, Predictor

if TYPE_CHECKING:  # which only some have installed
    from onnx import ModelProto, NodeProto, ValueInfoProto

ROWS = "rows"  # how the graph calls the number of examples
INSIDE = "model/"  # how all names begin that are neither an input's nor the output's
MACHINE_LEARNING = "ai.onnx.ml"  # the set of operators that has one for texts
MACHINE_LEARNING_VERSION = 2


def onnx_bytes(predictor: Predictor, blueprint: Blueprint, metadata: dict[str, str]) -> bytes:
    """Return the graph of a model, with its inputs by their names; categories are texts."""
    if not all(map(importlib.util.find_spec, ("onnx", "onnxscript"))):
        raise UserError("--to onnx needs onnx and onnxscript: pip install 'sparse-proxskip[export]'")
    from onnx import helper

    model = _bare_graph(predictor, blueprint)
    graph = model.graph
    doors = [_door(one, inner) for one, inner in zip(blueprint.inputs, graph.input, strict=True)]
    outputs = [_result_name(blueprint)]
    exit_node = helper.make_node("Identity", [graph.output[0].name], outputs)
    graph.output[0].name = outputs[0]
    nodes = [*doors, *graph.node, exit_node]
    del graph.node[:]
    graph.node.extend(nodes)
    model.opset_import.append(helper.make_opsetid(MACHINE_LEARNING, MACHINE_LEARNING_VERSION))
    helper.set_model_props(model, metadata)
    return bytes(model.SerializeToString())


def _bare_graph(predictor: Predictor, blueprint: Blueprint) -> ModelProto:
    """Return the graph as torch makes it, with names that no column of a user's has."""
    from onnx import compose

    examples = tuple(one.example for one in blueprint.inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about its own parts
        program = torch.onnx.export(
            predictor,
            examples,
            dynamic_shapes=(tuple({0: ROWS} for _ in examples),),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    graph = model.graph
    for part in (graph, *graph.node, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]  # which name files of this machine
    return compose.add_prefix(model, INSIDE)


def _door(given: Input, inner: ValueInfoProto) -> NodeProto:
    """Give an input its name, and return the node behind it: of texts it finds the places, -1 of unknown ones."""
    from onnx import TensorProto, helper

    behind, inner.name = inner.name, given.name
    if not given.values:
        return helper.make_node("Identity", [given.name], [behind])
    inner.CopyFrom(helper.make_tensor_value_info(given.name, TensorProto.STRING, [ROWS]))
    return helper.make_node(
        "LabelEncoder",
        [given.name],
        [behind],
        domain=MACHINE_LEARNING,
        keys_strings=list(given.values),
        values_int64s=list(range(len(given.values))),
        default_int64=-1,
    )


def _result_name(blueprint: Blueprint) -> str:
    """Return what the output is called, where no column is called so."""
    name = "probabilities" if blueprint.classes else "prediction"
    while name in {one.name for one in blueprint.inputs}:
        name += "_"
    return name
