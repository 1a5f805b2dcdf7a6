"""A posterior over classes from a cross-validated linear head on features that do not change.

Embeddings leave nothing else to train, so the head is the only candidate. Its ridge and temperature are those with the
lowest loss on held-out rows. It is fitted for uniform class proportions, and its prior is then set to that of the
validation set. The temperature at which expectation maximization estimates the class proportions of the pool is fitted
to the out-of-fold probabilities of validation rows only, since the labeled rows were chosen and are not typical.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rarefish.training.linear_head import fit_linear_head

SMALLEST = 1e-30
"""Smallest probability of which the logarithm is taken."""


@dataclass(frozen=True)
class HeadLogits:
    """A linear head whose softmax is the posterior for the class proportions of the validation set."""

    weight: Float[Tensor, "C D"]
    bias: Float[Tensor, " C"]

    def of(self, features_ND: Tensor) -> Float[Tensor, "N C"]:
        """Returns the logits."""
        return functional.linear(features_ND.to(self.weight), self.weight, self.bias)


@dataclass(frozen=True)
class FittedHead:
    """The head, with its predictions for validation rows on which it was not fitted."""

    logits: HeadLogits
    held_logits: Float[Tensor, "V C"]
    held_labels: Int[Tensor, " V"]
    held_rows: Int[Tensor, " V"]
    """Position of each of these rows in the validation set."""
    note: str


def fit_head_posterior(
    features: Float[Tensor, "T D"],
    labels: Int[Tensor, " T"],
    num_validation: int,
    prior: Float[Tensor, " C"],
    generator: torch.Generator,
) -> FittedHead:
    """Returns the head fitted to all rows, of which the first `num_validation` are the validation set."""
    seed = int(torch.randint(2**62, (), generator=generator))
    # In float32, as embeddings are stored, since the folds depend on the content of each row.
    head = fit_linear_head(features.float(), labels, len(prior), generator=torch.Generator().manual_seed(seed))
    log_prior_C = prior.clamp_min(SMALLEST).log().to(head.bias)
    held_VC = head.out_of_fold_probabilities[:num_validation]
    is_held_V = held_VC.isfinite().all(dim=1)
    logits_VC = (held_VC[is_held_V].clamp_min(SMALLEST).log() + log_prior_C).cpu().double()
    note = (
        f"Head on the features, out of fold: loss {head.out_of_fold_loss:.2f}, macro recall "
        f"{head.out_of_fold_recall:.1%}."
    )
    return FittedHead(
        HeadLogits(head.weight, head.bias + log_prior_C),
        logits_VC,
        labels[:num_validation][is_held_V.cpu()],
        is_held_V.nonzero()[:, 0].cpu(),
        note,
    )
