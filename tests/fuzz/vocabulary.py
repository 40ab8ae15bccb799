"""Values that mutations insert: dimensions, numbers, names, operators, attributes."""

from __future__ import annotations

DIMS = (
    -(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 100, 2**16, 2**31 - 1, 2**31, 2**32, 10**12,
    2**63 - 1,
)  # fmt: skip
INTS = (*DIMS, 4, 5, 8, 10, 13)
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, -1e38, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
NAMES = (
    "", " ", "a\nb", "a\x1b[31mb", "a\x00b", "a\u202eb", "a,b", "a:b", "../x", "größe", "层",
    "x" * 5000, "%s%n{}", "'; drop table runs; --", "main", "None", "def", "a.b", "a/b",
    "0", "=1+1", "$x_{$",
    "gv", "lv", "tvm", "R.add", "\\", '"', "<b>", "|", "x", "y", "w", "folded/w", "input_0",
)  # fmt: skip
TEXTS = (*NAMES, "constant", "edge", "reflect", "linear", "cubic", "SAME_UPPER", "VALID", "NOTSET")
UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Ceil", "Cos", "Cosh", "Elu", "Erf",
    "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Hardmax", "Identity", "IsInf", "IsNaN",
    "LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg", "NonZero", "Not", "Reciprocal", "Relu",
    "Round", "Selu", "Shape", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Softmax",
    "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu", "Transpose", "Flatten",
    "GlobalAveragePool", "GlobalMaxPool", "MeanVarianceNormalization", "Dropout", "ReduceSum",
    "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare", "ArgMax", "ArgMin", "Squeeze", "Cast", "BitwiseNot",
    "DynamicQuantizeLinear", "EyeLike", "Det", "LpNormalization", "ConstantOfShape", "Unique",
    "Trilu", "Celu", "LRN", "Swish",
)  # fmt: skip
BINARY = (
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mod", "MatMul", "Gemm", "And", "Or", "Xor",
    "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "PRelu", "Gather", "GatherND",
    "GatherElements", "Expand", "Reshape", "Tile", "Concat", "Sum", "Mean", "BitShift",
    "BitwiseAnd", "CumSum", "Compress", "OneHot", "Conv", "ConvTranspose", "MatMulInteger",
    "ReverseSequence", "GridSample", "CastLike", "Unsqueeze", "Split", "Pad", "Where",
)  # fmt: skip
STRANGE = (
    "Loop", "Scan", "If", "SequenceEmpty", "SequenceConstruct", "SequenceAt", "SequenceLength",
    "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceMap", "StringNormalizer",
    "TfIdfVectorizer", "RandomNormal", "RandomNormalLike", "RandomUniformLike", "Multinomial",
    "Bernoulli", "LSTM", "GRU", "RNN", "ImageDecoder", "RegexFullMatch", "StringConcat",
    "NonMaxSuppression", "MaxUnpool", "RoiAlign", "STFT", "DFT", "MelWeightMatrix",
    "BlackmanWindow",
    "Constant", "NoSuchOperator", "", "ai.onnx::Relu", "QLinearConv", "QLinearMatMul",
    "ConvInteger", "Attention", "MaxRoiPool", "Upsample", "Scatter", "ATen", "Col2Im",
    "AffineGrid", "GroupNormalization", "RMSNormalization", "DeformConv",
)  # fmt: skip
DOMAINS = (
    "ai.onnx", "com.microsoft", "ai.onnx.ml", "ai.onnx.training", "com.example", "a\nb",
    "ai.onnx.preview.training", "com.microsoft.nchwc", "local", "org.pytorch.aten",
)  # fmt: skip
ATTRIBUTES = (
    "axis", "axes", "keepdims", "perm", "alpha", "beta", "mode", "pads", "strides", "dilations",
    "group", "kernel_shape", "auto_pad", "ceil_mode", "count_include_pad", "to", "epsilon",
    "transA", "transB", "exclusive", "reverse", "largest", "sorted", "select_last_index",
    "noop_with_empty_axes", "value", "value_ints", "storage_order", "body", "then_branch",
    "coordinate_transformation_mode", "nearest_mode", "blocksize", "equation", "direction",
    "fmod", "start", "end", "allowzero", "output_shape", "output_padding", "batch_dims",
    "reduction", "training_mode", "p", "cubic_coeff_a", "antialias", "keep_aspect_ratio_policy",
    "num_outputs", "split", "saturate", "stash_type", "spatial", "consumed_inputs", "is_test",
)  # fmt: skip
