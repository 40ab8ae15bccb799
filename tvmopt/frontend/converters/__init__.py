"""Converters of ONNX operators that TVM's importer lacks, or converts to something else.

A converter takes the block builder, the inputs and the attributes of a node, and returns an
expression; or None, where TVM's own converter is right.
"""

from __future__ import annotations

from tvmopt.frontend.converters.attention import multi_head_attention
from tvmopt.frontend.converters.clip import clip
from tvmopt.frontend.converters.conv_transpose import conv_transpose
from tvmopt.frontend.converters.detection import align_regions, non_maximum_suppression
from tvmopt.frontend.converters.elementwise import (
    bit_cast,
    cosh,
    is_inf,
    power,
    sinh,
    thresholded_relu,
)
from tvmopt.frontend.converters.encoders import label_encoder, one_hot_encoder
from tvmopt.frontend.converters.features import (
    array_feature_extractor,
    binarizer,
    feature_vectorizer,
    imputer,
    normalizer,
    scaler,
)
from tvmopt.frontend.converters.fourier import dft, stft
from tvmopt.frontend.converters.grouped_query import group_query_attention
from tvmopt.frontend.converters.integer import conv_integer
from tvmopt.frontend.converters.linear_models import linear_classifier, linear_regressor
from tvmopt.frontend.converters.node import Converter
from tvmopt.frontend.converters.normalization import (
    batch_normalization,
    dropout,
    layer_normalization,
    lp_normalization,
)
from tvmopt.frontend.converters.recurrent import gru, lstm, rnn
from tvmopt.frontend.converters.resize import resize
from tvmopt.frontend.converters.scan import cum_prod, reverse_sequence
from tvmopt.frontend.converters.segment import segment
from tvmopt.frontend.converters.support_vectors import svm_classifier, svm_regressor
from tvmopt.frontend.converters.trees import (
    tree_ensemble,
    tree_ensemble_classifier,
    tree_ensemble_regressor,
)
from tvmopt.frontend.converters.unsqueeze import unsqueeze
from tvmopt.frontend.converters.windows import col2im
from tvmopt.frontend.matmul_nbits import matmul_nbits
from tvmopt.frontend.response_norm import local_response_norm

CONVERTERS: dict[str, Converter] = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "BatchNormalization": batch_normalization,
    "Binarizer": binarizer,
    "BitCast": bit_cast,
    "Clip": clip,
    "Col2Im": col2im,
    "ConvInteger": conv_integer,
    "ConvTranspose": conv_transpose,
    "Cosh": cosh,
    "CumProd": cum_prod,
    "DFT": dft,
    "Dropout": dropout,
    "FeatureVectorizer": feature_vectorizer,
    "GroupQueryAttention": group_query_attention,
    "GRU": gru,
    "Imputer": imputer,
    "IsInf": is_inf,
    "LabelEncoder": label_encoder,
    "LayerNormalization": layer_normalization,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "LpNormalization": lp_normalization,
    "LRN": lambda builder, inputs, attributes: local_response_norm(builder, inputs[0], attributes),
    "LSTM": lstm,
    "MatMulNBits": matmul_nbits,
    "MultiHeadAttention": multi_head_attention,
    "NonMaxSuppression": non_maximum_suppression,
    "Normalizer": normalizer,
    "OneHotEncoder": one_hot_encoder,
    "OnnxRuntime": segment,
    "Pow": power,
    "Resize": resize,
    "ReverseSequence": reverse_sequence,
    "RNN": rnn,
    "RoiAlign": align_regions,
    "Scaler": scaler,
    "Sinh": sinh,
    "STFT": stft,
    "SVMClassifier": svm_classifier,
    "SVMRegressor": svm_regressor,
    "ThresholdedRelu": thresholded_relu,
    "TreeEnsemble": tree_ensemble,
    "TreeEnsembleClassifier": tree_ensemble_classifier,
    "TreeEnsembleRegressor": tree_ensemble_regressor,
    "Unsqueeze": unsqueeze,
}
"""By the name of the operator."""
