"""Select the next images to label with a model, a pool and a small trusted set. Run: python examples/01_select.py"""

import torch

import rarefish
from rarefish.data.digits import load_digits
from rarefish.models.networks import LeNet
from rarefish.training.config import Training
from rarefish.training.loop import fit

digits = load_digits()
torch.manual_seed(0)
model = LeNet()
labeled = list(range(200))  # indices of the pool images that are already labeled
images, labels = digits.pool[labeled]
fit(model, images, labels, Training(epochs=20), torch.Generator().manual_seed(0))

selection = rarefish.select(model, digits.pool, digits.validation, budget=40, exclude=labeled)

print(f"The model gets {selection.num_failures} of {len(digits.validation)} validation images wrong.")
print(selection.to_frame().head())
selection.save("picks.csv")
selection.contact_sheet("picks.png")
is_rare = digits.pool.tensors[1][selection.indices] >= 5
print(
    f"{int(is_rare.sum())} of the 40 chosen images are rare digits; a random choice has {40 * 60 / 6060:.1f} on average"
)
