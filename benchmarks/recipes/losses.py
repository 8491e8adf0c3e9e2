"""Losses of the recipes that no name stands for: (outputs, labels) -> [batch]."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

__all__ = ["covered", "found_cells", "matched", "paired", "rebuilt", "written"]

_STRIDE = 8
"""Pixels of the side of a cell (`cloud.zoo.yolo`) or of a patch (`cloud.zoo.yolos`)."""


def rebuilt(output: Any, labels: Any) -> Any:
    """The mean squared error of a reconstruction."""
    return jnp.mean(jnp.square(output - labels["x"]), axis=1)


def covered(output: Any, labels: Any) -> Any:
    """The binary cross-entropy of a mask's pixels, and Dice's loss (Milletari et al., "V-Net", 2016), for which the few
    pixels of an object count as much as all others."""
    each = optax.losses.sigmoid_binary_cross_entropy(output, labels).mean((1, 2, 3))
    chance = jax.nn.sigmoid(output)
    both = (chance * labels).sum((1, 2, 3))
    return each + 1 - (2 * both + 1) / ((chance + labels).sum((1, 2, 3)) + 1)


def written(output: Any, labels: Any) -> Any:
    """The mean cross-entropy of the tokens of a text [batch, length]; 0, behind its end, does not count."""
    each = optax.losses.softmax_cross_entropy_with_integer_labels(output, labels)
    return (each * (labels > 0)).sum(1) / jnp.maximum((labels > 0).sum(1), 1)


def paired(outputs: Any, labels: Any) -> Any:
    """Every query finds its own item among those of the batch (sampled softmax with a temperature of 0.1); other rows
    with the same label do not count against it."""
    scores = outputs["query_vector"] @ outputs["item_vector"].T / 0.1
    same = (labels[:, None] == labels[None]) & ~jnp.eye(len(labels), dtype=bool)
    return -jnp.diag(jax.nn.log_softmax(jnp.where(same, -1e9, scores), axis=1))


def found_cells(outputs: Any, labels: Any) -> Any:
    """`cloud.zoo.yolo`: the focal loss of class logits around the middles of objects, less of it in the cells near one
    (Zhou et al., "Objects as Points", 2019), and the generalised intersection over union (Rezatofighi et al., 2019) of
    the boxes in the cells of the middles."""
    cells, classes = outputs["logits"].shape[1:]
    across = round(cells**0.5)
    boxes, kinds = labels["boxes"], labels["classes"]
    there = (kinds >= 0).astype(jnp.float32)
    middle = (boxes[..., :2] + boxes[..., 2:]) / (2 * _STRIDE)
    at = jnp.clip(jnp.floor(middle).astype(jnp.int32), 0, across - 1)
    mine = at[..., 1] * across + at[..., 0]
    grid = jnp.stack(jnp.meshgrid(jnp.arange(across), jnp.arange(across)), -1).reshape(1, 1, -1, 2)
    far = jnp.sum(jnp.square(grid - at[:, :, None]), -1)
    spread = jnp.maximum((boxes[..., 2:] - boxes[..., :2]).min(-1) / _STRIDE / 6, 0.4)[..., None]
    heat = jnp.exp(-far / (2 * jnp.square(spread))) * there[..., None]
    wanted = jnp.max(heat[..., None] * jax.nn.one_hot(kinds, classes)[:, :, None], axis=1)
    lost = _focal(outputs["logits"], wanted).sum((1, 2))
    chosen = jnp.take_along_axis(outputs["boxes"], mine[..., None], axis=1)
    lost += 2 * jnp.sum((1 - _overlap(chosen, boxes)) * there, 1)
    return lost / jnp.maximum(there.sum(1), 1)


def _focal(logits: Any, wanted: Any) -> Any:
    yes, no = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
    chance = jnp.exp(yes)
    near = -jnp.square(chance) * no * (1 - wanted) ** 4
    return jnp.where(wanted > 0.999, -jnp.square(1 - chance) * yes, near)


def _area(box: Any) -> Any:
    return jnp.prod(jnp.maximum(box[..., 2:] - box[..., :2], 1e-6), -1)


def _overlap(one: Any, other: Any) -> Any:
    """The generalised intersection over union of boxes, [..., 4] each."""
    low, high = (pick(one, other) for pick in (jnp.minimum, jnp.maximum))
    shared = jnp.prod(jnp.maximum(low[..., 2:] - high[..., :2], 0), -1)
    around = jnp.prod(jnp.maximum(high[..., 2:] - low[..., :2], 1e-6), -1)
    union = _area(one) + _area(other) - shared
    return shared / union - (around - union) / around


def matched(outputs: Any, labels: Any) -> Any:
    """`cloud.zoo.yolos`: each object is matched with one token so that the sum of costs is least (Carion et al., 2020),
    then the cross-entropy of all tokens (a tenth of it for "none"), and the distances and overlaps of the boxes; where
    there is `patch_logits`, their cross-entropy too: a patch has the class of the box that its middle is in."""
    logits, found = outputs["logits"], outputs["boxes"]
    boxes, kinds = labels["boxes"], labels["classes"]
    there = (kinds >= 0).astype(jnp.float32)
    chance = jax.nn.softmax(logits, axis=-1)
    side = jnp.maximum(jnp.max(boxes), 1.0)
    apart = jnp.abs(found[:, None] - boxes[:, :, None]).sum(-1) / side
    shared = _overlap(found[:, None], boxes[:, :, None])
    likely = jnp.take_along_axis(chance[:, None], jnp.maximum(kinds, 0)[:, :, None, None], axis=3)[..., 0]
    cost = jnp.where(there[..., None] > 0, 5 * apart - 2 * shared - likely, 0)
    shape = jax.eval_shape(lambda: kinds.astype(jnp.int32))
    chosen = jax.pure_callback(_assigned, shape, jax.lax.stop_gradient(cost), vmap_method="sequential")
    none = logits.shape[-1] - 1
    rows = jnp.arange(len(kinds))[:, None]
    slot = jnp.where(there > 0, chosen, logits.shape[1])  # objects that are not there write outside
    wanted = jnp.full(logits.shape[:2], none).at[rows, slot].set(kinds, mode="drop")
    lost = _classified(logits, wanted)
    if "patch_logits" in outputs:
        lost += _classified(outputs["patch_logits"], _seen(outputs["patch_logits"].shape[1], boxes, kinds, none))
    price = 5 * apart + 2 * (1 - shared)
    mine = jnp.take_along_axis(price, chosen[..., None], axis=2)[..., 0]
    return lost + (mine * there).sum(1) / jnp.maximum(there.sum(1), 1)


def _classified(logits: Any, wanted: Any) -> Any:
    """The mean cross-entropy of tokens, where the last class, "none", weighs a tenth: [batch]."""
    weight = jnp.where(wanted == logits.shape[-1] - 1, 0.1, 1.0)
    each = optax.losses.softmax_cross_entropy_with_integer_labels(logits, wanted)
    return (each * weight).sum(1) / weight.sum(1)


def _seen(count: int, boxes: Any, kinds: Any, none: int) -> Any:
    """The class of the box that the middle of each patch is in, [batch, count], in rows of a square image."""
    across = round(count**0.5)
    middles = (jnp.arange(across) + 0.5) * _STRIDE
    places = jnp.stack(jnp.meshgrid(middles, middles), -1).reshape(1, 1, count, 2)
    inside = ((places > boxes[:, :, None, :2]) & (places < boxes[:, :, None, 2:])).all(-1) & (kinds >= 0)[..., None]
    return jnp.where(inside.any(1), jnp.take_along_axis(kinds, inside.argmax(1), axis=1), none)


def _assigned(cost: Any) -> Any:
    """The token of each object, [batch, objects] int32."""
    from scipy.optimize import linear_sum_assignment

    return np.stack([linear_sum_assignment(each)[1] for each in np.asarray(cost)]).astype(np.int32)
