"""Features of the datasets of the field test: what the network sees, and what is kept."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rarefish.data.arrays import Arrays
from rarefish.errors import DataError
from rarefish.experiments import feature_cache
from rarefish.experiments.feature_cache import first_of_random_order, load_features, preprocessed
from rarefish.models.efficientnet_lite import MEAN, STD, pretrained_backbone, weights_file
from tests.experiments.vectors import labels_in


@pytest.mark.parametrize(("pixels", "colors"), [(28, 1), (32, 3), (128, 3)])
def test_images_are_normalized_in_three_colors_and_then_resized(pixels: int, colors: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, pixels, pixels, colors)).astype(np.uint8)
    made = preprocessed(images)
    assert made.shape == (3, 3, 128, 128) and made.is_contiguous()
    for image, got in zip(images, made, strict=True):
        for color in range(3):
            values = torch.from_numpy(image[..., min(color, colors - 1)].astype(np.float32)) / 255
            values = (values - MEAN[color]) / STD[color]
            if pixels != 128:
                values = torch.nn.functional.interpolate(values[None, None], size=(128, 128), mode="bilinear")[0, 0]
            torch.testing.assert_close(got[color], values, atol=1e-5, rtol=0)


def test_large_datasets_are_reduced_to_the_first_images_of_a_random_order() -> None:
    images = Arrays(np.arange(50, dtype=np.uint8).reshape(50, 1, 1, 1), np.arange(50))
    assert first_of_random_order(images, None) is images and first_of_random_order(images, 50) is images
    some = first_of_random_order(images, 20)
    assert some.labels.tolist() == np.random.default_rng(0).permutation(50)[:20].tolist()
    assert some.images.ravel().tolist() == some.labels.tolist()


@pytest.mark.slow
@pytest.mark.xdist_group("onnx")
@pytest.mark.skipif(weights_file() is None, reason="needs the weights of rarefish[pretrained]")
def test_features_are_computed_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setitem(feature_cache.LARGEST, "digits", (5, 3))
    parts = load_features("digits", tmp_path)
    model = pretrained_backbone(2, 3, torch.Generator()).eval()
    for part, source in zip(parts, feature_cache.images_of("digits"), strict=True):
        assert part.values.dtype == np.float16 and np.array_equal(labels_in(part), source.labels)
        with torch.no_grad():
            maps = model.head(model.blocks(model.stem(preprocessed(source.images))))
        torch.testing.assert_close(torch.tensor(part.values).float(), maps.mean(dim=(2, 3)), atol=5e-3, rtol=1e-3)
    load_features.cache_clear()
    monkeypatch.setattr(feature_cache, "open_backbone", None)  # nothing is computed again
    for before, after in zip(parts, load_features("digits", tmp_path), strict=True):
        assert np.array_equal(before.values, after.values) and np.array_equal(labels_in(before), labels_in(after))
    load_features.cache_clear()


def test_a_file_without_the_arrays_is_rejected(tmp_path: Path) -> None:
    np.savez(tmp_path / "digits.npz", train_z=np.zeros((2, 3)), train_y=np.zeros(2))
    with pytest.raises(DataError, match="no arrays test_z, test_y"):
        load_features("digits", tmp_path)
