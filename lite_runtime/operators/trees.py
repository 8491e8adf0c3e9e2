"""Trees, linear models and encoders of ai.onnx.ml."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import MANY, Operator

__all__ = ["RECORDS"]

_op = partial(Operator, domain="ai.onnx.ml", reference="trees")

RECORDS: tuple[Operator, ...] = (
    _op("Binarizer", since=1, attrs="threshold:f"),
    _op("CastMap", since=1, attrs="cast_to:s map_form:s max_map:i"),
    _op("CategoryMapper", since=1, attrs="cats_int64s:I cats_strings:S default_int64:i default_string:s"),
    _op("DictVectorizer", since=1, attrs="int64_vocabulary:I string_vocabulary:S"),
    _op("FeatureVectorizer", since=1, inputs=(1, MANY), attrs="inputdimensions:I"),
    _op(
        "Imputer",
        since=1,
        attrs="imputed_value_floats:F imputed_value_int64s:I replaced_value_float:f replaced_value_int64:i",
    ),
    _op(
        "LabelEncoder",
        since=1,
        attrs=(
            "default_float:f default_int64:i default_string:s default_tensor:T keys_floats:F keys_int64s:I "
            "keys_strings:S keys_tensor:T values_floats:F values_int64s:I values_strings:S values_tensor:T"
        ),
    ),
    _op(
        "LinearClassifier",
        since=1,
        outputs=(2, 2),
        attrs=("classlabels_ints:I classlabels_strings:S coefficients:F! intercepts:F multi_class:i post_transform:s"),
    ),
    _op("LinearRegressor", since=1, attrs="coefficients:F intercepts:F post_transform:s targets:i"),
    _op("Normalizer", since=1, attrs="norm:s"),
    _op("OneHotEncoder", since=1, attrs="cats_int64s:I cats_strings:S zeros:i"),
    _op(
        "SVMClassifier",
        since=1,
        outputs=(2, 2),
        attrs=(
            "classlabels_ints:I classlabels_strings:S coefficients:F kernel_params:F kernel_type:s "
            "post_transform:s prob_a:F prob_b:F rho:F support_vectors:F vectors_per_class:I"
        ),
    ),
    _op(
        "SVMRegressor",
        since=1,
        attrs=(
            "coefficients:F kernel_params:F kernel_type:s n_supports:i one_class:i post_transform:s rho:F "
            "support_vectors:F"
        ),
    ),
    _op("Scaler", since=1, attrs="offset:F scale:F"),
    _op(
        "TreeEnsemble",
        since=5,
        attrs=(
            "aggregate_function:i leaf_targetids:I! leaf_weights:T! membership_values:T n_targets:i "
            "nodes_falseleafs:I! nodes_falsenodeids:I! nodes_featureids:I! nodes_hitrates:T "
            "nodes_missing_value_tracks_true:I nodes_modes:T! nodes_splits:T! nodes_trueleafs:I! "
            "nodes_truenodeids:I! post_transform:i tree_roots:I!"
        ),
    ),
    _op(
        "TreeEnsembleClassifier",
        since=1,
        outputs=(2, 2),
        attrs=(
            "base_values:F base_values_as_tensor:T class_ids:I class_nodeids:I class_treeids:I class_weights:F "
            "class_weights_as_tensor:T classlabels_int64s:I classlabels_strings:S nodes_falsenodeids:I "
            "nodes_featureids:I nodes_hitrates:F nodes_hitrates_as_tensor:T nodes_missing_value_tracks_true:I "
            "nodes_modes:S nodes_nodeids:I nodes_treeids:I nodes_truenodeids:I nodes_values:F "
            "nodes_values_as_tensor:T post_transform:s"
        ),
    ),
    _op(
        "TreeEnsembleRegressor",
        since=1,
        attrs=(
            "aggregate_function:s base_values:F base_values_as_tensor:T n_targets:i nodes_falsenodeids:I "
            "nodes_featureids:I nodes_hitrates:F nodes_hitrates_as_tensor:T nodes_missing_value_tracks_true:I "
            "nodes_modes:S nodes_nodeids:I nodes_treeids:I nodes_truenodeids:I nodes_values:F "
            "nodes_values_as_tensor:T post_transform:s target_ids:I target_nodeids:I target_treeids:I "
            "target_weights:F target_weights_as_tensor:T"
        ),
    ),
    _op("ZipMap", since=1, attrs="classlabels_int64s:I classlabels_strings:S"),
)
