"""The digits that come with the package."""

from rarefish.data.digits import load_digits


def test_the_bundled_pool_is_biased_and_the_rest_is_not() -> None:
    splits = load_digits()
    counts = [part.tensors[1].bincount(minlength=10).tolist() for part in (splits.pool, splits.validation, splits.test)]
    assert counts == [[1200] * 5 + [12] * 5, [50] * 10, [200] * 10]
    images = splits.pool.tensors[0]
    assert images.shape[1:] == (1, 28, 28) and abs(float(images.mean())) < 0.1 and abs(float(images.std()) - 1) < 0.1
    pool, validation = (
        {bytes(image.numpy().tobytes()) for image in part.tensors[0]} for part in (splits.pool, splits.validation)
    )
    assert not pool & validation
