"""Run by tests/ops/test_compiled.py in a process without checks of types, which Dynamo does not follow.

Prints, for each kind of model, what was said and how far features and scores are from those of plain code.
"""

import json
import warnings

import torch
from torch.utils.data import TensorDataset

from rarefish import describe
from tests.cases import CASES, Plain, images

torch.set_num_threads(1)
compile = torch.compile
# Traced and cut as always, without the C++ that takes many seconds a model.
torch.compile = lambda run, **how: compile(run, backend="aot_eager", **how)  # pyright: ignore
found = {}
for case in CASES:
    net, data = case.nets()[0], TensorDataset(images(11))  # the last batch has another size
    plain = describe(net, data, layers=case.layers, batch_size=4, compile=False, progress=False)
    torch.compiler.reset()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        quick = describe(net, data, layers=case.layers, batch_size=4, compile=True, progress=False)
    found[case.name] = {
        "said": [str(warning.message) for warning in said if issubclass(warning.category, UserWarning)],
        "features": float((quick.features - plain.features).abs().max() / plain.features.abs().max()),
        "scores": float((quick.scores - plain.scores).abs().max() / plain.scores.abs().max()),
        "same": torch.equal(quick.scores, plain.scores),
    }
flat = Plain()
torch.nn.init.zeros_(flat.fc.weight)  # as torchvision makes its transformers: no gradient at all
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    describe(flat, TensorDataset(images(8)), layers=("conv1",), batch_size=4, compile=True, progress=False)
found["a head of zeros"] = {"said": [str(warning.message) for warning in said]}
print(json.dumps(found))
