"""Features of one layer on a CPU, with ONNX Runtime, which is faster, or with torch if it cannot be used."""

import inspect
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from warnings import warn

import jaxtyping
import torch
from jaxtyping import Float
from torch import Tensor, nn

from rarefish.data.hashing import digest_file
from rarefish.errors import ArgumentError, DataError, ModelError, nearest
from rarefish.features import INPUT, Taps, spatial_mean, tapped, tapped_input
from rarefish.io import replace_whole
from rarefish.models.layer_selection import check_logits, check_maps, device_of, dtype_of, evaluating, setting

BACKENDS = ("auto", "onnx", "torch")
PACKAGES = ("onnxruntime", "onnx", "onnxscript")
TOLERANCE = 1e-4
"""Maximum difference from torch's features, as a fraction of the largest feature."""
KEPT = 8
"""Number of exported models that are kept in the folder."""


class FeaturesOf(nn.Module):
    """The module that is exported: computes the spatial means of a tapped layer's output."""

    def __init__(self, model: nn.Module, layer: str, taps: Taps) -> None:
        super().__init__()
        self.model, self.layer, self.taps = model, layer, taps

    def forward(self, images: Tensor) -> Tensor:
        self.taps.maps.clear()
        output = self.model(images.clone())  # copy, since some models normalize in place
        return spatial_mean(self.taps.maps[self.layer] if self.layer else output)

    def check(self, images: Tensor) -> int:
        """Returns the number of features; raises LayerError if the layer does not return one map per image."""
        output = self.model(images.clone())
        maps = self.taps.maps if self.layer else {"": check_logits(output, len(images))}
        check_maps(maps, [self.layer], len(images))
        return spatial_mean(maps[self.layer]).shape[1]


@contextmanager
def extracting(model: nn.Module, layer: str) -> Iterator[FeaturesOf]:
    """Yields a module that computes the features in evaluation mode, and restores the model's state afterward."""
    with ExitStack() as around:
        around.enter_context(torch.no_grad())
        around.enter_context(evaluating(model))
        taps = Taps()
        if layer.endswith(INPUT):
            taps = around.enter_context(tapped_input(model, layer.removesuffix(INPUT)))
        elif layer:
            taps = around.enter_context(tapped(model, [layer]))
        yield FeaturesOf(model, layer, taps).eval()


class OnnxBackbone:
    """Computes the features of images: the spatial means of one layer's output, (images, channels), in float32.

    With ONNX Runtime, the model is exported once, compared with torch, and kept in a folder, so that only the
    comparison is needed the next time. If the weights or the code change, the model is exported again.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str,
        example: Float[Tensor, "N ..."],
        *,
        backend: str = "auto",
        num_threads: int | None = None,
        folder: Path | None = None,
    ) -> None:
        """Prepares the model, with ONNX Runtime if possible.

        Args:
            model: The model, whose weights must not change while this object is in use.
            layer: The name of the layer; with the suffix `:input`, its input is used instead of its output. An empty
                string means the model's output.
            example: Some example images; all later images must have the same shape.
            backend: `onnx`, `torch`, or `auto` for ONNX Runtime if it can be used and torch otherwise.
            num_threads: Number of threads of ONNX Runtime. None means as many as torch uses.
            folder: Folder for exported models. None means `rarefish/onnx` in the user's cache folder.
        """
        if backend not in BACKENDS:
            raise ArgumentError(f"There is no backend {backend!r}. {nearest(backend, BACKENDS)}")
        self.model, self.layer, self.shape = model, layer, tuple(example.shape[1:])
        self.session: Any = None
        """The model in ONNX Runtime, or None if torch runs it."""
        self.note = ""
        """Why torch runs the model although ONNX Runtime was allowed, or empty."""
        self.difference = 0.0
        """The largest difference from torch's features on the example, as a fraction of the largest feature."""
        with extracting(model, layer) as features:
            self.width = features.check(example[:2].to(device_of(model), dtype_of(model)))
        if backend == "torch" or (backend == "auto" and device_of(model).type != "cpu"):
            return
        missing = [name for name in PACKAGES if find_spec(name) is None]
        if missing and backend == "onnx":
            raise ArgumentError(
                f"ONNX Runtime needs additional packages ({', '.join(missing)}): pip install 'rarefish[onnx]'."
            )
        if missing:
            self.note = "ONNX Runtime computes features faster on a CPU: pip install 'rarefish[onnx]'."
            return
        try:
            self.session, self.difference = _open(
                model, layer, example, num_threads or torch.get_num_threads(), folder or cache_folder()
            )
        except Exception as error:  # exporters can raise any exception for unsupported models
            why = _reason(error)
            if backend == "onnx":
                raise ModelError(f"ONNX Runtime cannot run the model: {why}. Use backend='torch'.") from error
            self.note = f"ONNX Runtime cannot run the model, so torch does: {why}"
            warn(self.note, stacklevel=2)

    @property
    def backend(self) -> str:
        """The backend that runs the model: `onnx` or `torch`."""
        return "torch" if self.session is None else "onnx"

    def __call__(self, images: Tensor) -> Float[Tensor, "N D"]:
        """Returns the features of a batch, on the model's device."""
        if tuple(images.shape[1:]) != self.shape:
            given, wanted = ("×".join(map(str, shape)) for shape in (images.shape[1:], self.shape))
            raise DataError(f"The images have {given}, but the model was prepared for {wanted}. Resize them.")
        if self.session is not None:
            return run_session(self.session, images)
        with extracting(self.model, self.layer) as features:
            return features(images.to(device_of(self.model), dtype_of(self.model))).float()


def run_session(session: Any, images: Tensor) -> Tensor:
    """Returns the output of the exported model for the images."""
    values = images.detach().to("cpu", torch.float32).contiguous().numpy()
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: values})[0])


def cache_folder() -> Path:
    """Returns the folder for exported models in the user's cache."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "rarefish" / "onnx"


def _open(model: nn.Module, layer: str, example: Tensor, num_threads: int, folder: Path) -> tuple[Any, float]:
    """Returns a session of the exported model, and its difference from torch."""
    if device_of(model).type != "cpu" or dtype_of(model) != torch.float32:
        raise ModelError(f"it has the type {dtype_of(model)} on {device_of(model)}, not float32 on the CPU")
    file = folder / f"{_key(model, layer, tuple(example.shape[1:]))}.onnx"
    if file.is_file():
        try:
            session = _session(file, num_threads)
            difference = _difference(session, model, layer, example)
            os.utime(file)
            return session, difference
        except Exception:  # the file is damaged or belongs to other code, so export again
            pass
    content = export(model, layer, example)
    session = _session(content, num_threads)
    difference = _difference(session, model, layer, example)
    _keep(file, content)
    return session, difference


def export(model: nn.Module, layer: str, example: Tensor) -> bytes:
    """Returns the function from images to features in ONNX format, for any number of images."""
    two = example[:1].repeat(2, *[1] * (example.ndim - 1)).to("cpu", torch.float32)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with ExitStack() as around:
            # Runtime checks of shapes, if enabled, would fix the number of images.
            around.enter_context(setting(jaxtyping.config, "jaxtyping_disable", True))
            around.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            features = around.enter_context(extracting(model, layer))
            program = torch.onnx.export(
                features,
                (two,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                verbose=False,
            )
            assert program is not None
            return program.model_proto.SerializeToString()
    finally:
        logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """Returns the first line of the message of the original error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")


def _session(model: Path | bytes, num_threads: int) -> Any:
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 3  # errors only
    content = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _difference(session: Any, model: nn.Module, layer: str, example: Tensor) -> float:
    """Returns the largest difference from torch on the example and on noise, as a fraction of the largest feature.

    Raises ModelError if it exceeds the tolerance.
    """
    noise = torch.randn((3, *example.shape[1:]), generator=torch.Generator().manual_seed(0))
    images = torch.cat([example[:5].to("cpu", torch.float32), noise])
    with extracting(model, layer) as features:
        expected = features(images)
    found = run_session(session, images)
    if found.shape != expected.shape:
        raise ModelError(f"its features have the shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
    difference = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not difference <= TOLERANCE:
        raise ModelError(f"its features differ from torch's by {difference:.1e} of the largest")
    return difference


def _key(model: nn.Module, layer: str, shape: tuple[int, ...]) -> str:
    """Returns a hash of the model's weights and code, and of everything else that the exported file depends on."""
    whole = sha256(repr([shape, layer, str(model), torch.__version__, version("onnxscript")]).encode())
    for file in sorted({file for module in model.modules() if (file := _source_of(type(module)))}):
        whole.update(digest_file(file).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        whole.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
        whole.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return whole.hexdigest()[:32]


def _source_of(kind: type) -> str | None:
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:  # a class from a notebook or from C code
        return None
    return file if file and Path(file).is_file() else None


def _keep(file: Path, content: bytes) -> None:
    """Writes the file and removes the least recently used ones; ignores errors such as a full disk."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(file, lambda opened: opened.write(content))
        for old in sorted(file.parent.glob("*.onnx"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        pass
