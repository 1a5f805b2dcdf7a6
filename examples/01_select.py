"""Your model, your pool, a few trusted images: which ones to label next. Run: python examples/01_select.py"""

import torch

import rarefish
from rarefish.data.digits import load_digits
from rarefish.models.networks import LeNet
from rarefish.training.loop import Training, fit

digits = load_digits()
torch.manual_seed(0)
model = LeNet()
labeled = list(range(200))  # what somebody labeled before
images, labels = digits.pool[labeled]
fit(model, images, labels, Training(epochs=20), torch.Generator().manual_seed(0))

selection = rarefish.select(model, digits.pool, digits.validation, budget=40, exclude=labeled)

print(f"The model gets {selection.num_failures} of {len(digits.validation)} validation images wrong.")
print(selection.to_frame().head())
selection.save("picks.csv")
selection.contact_sheet("picks.png")
truth = digits.pool.tensors[1][selection.indices]
print(f"{int((truth >= 5).sum())} of the 40 chosen are rare digits; by chance it would be {40 * 60 / 6060:.1f}.")
