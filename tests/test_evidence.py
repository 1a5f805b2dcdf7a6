"""Evidence: every trusted image with its label and its features, and a sample of what is left."""

import torch

from rarefish import describe
from rarefish.evidence import gather
from rarefish.reading import Reader
from tests.cases import Plain, labeled


def test_evidence_is_the_validation_set_and_what_was_bought() -> None:
    torch.manual_seed(0)
    model, validation, pool = Plain(), labeled(12, 2), labeled(30, 1)
    bought = {4: 2, 9: 0}
    left = [i for i in range(30) if i not in bought]
    reader, generator = Reader(batch_size=5, progress=False), torch.Generator().manual_seed(0)
    evidence = gather(model, ["conv1"], validation, pool, left, bought, reader, generator)
    assert torch.equal(evidence.trusted.images, torch.cat([validation.tensors[0], pool.tensors[0][[4, 9]]]))
    assert evidence.labels.tolist() == [*validation.tensors[1].tolist(), 2, 0]
    assert torch.equal(evidence.sample.images, pool.tensors[0][left])
    assert abs(float(evidence.prior.sum()) - 1) < 1e-6
    features = [
        describe(model, data, layers=["conv1"], labels=None, progress=False).features for data in (validation, pool)
    ]
    torch.testing.assert_close(evidence.trusted.features, torch.cat([features[0], features[1][[4, 9]]]))
    torch.testing.assert_close(evidence.sample.features, features[1][left])
    assert model.training
