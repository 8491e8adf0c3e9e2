"""Matrix products and convolutions, including grouped ones and those in gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from cloud.parallel.tracing.rules.nest import Nest, elements, shapes, weave
from cloud.parallel.tracing.rules.sliding import Cut, slide_of

__all__ = ["batched", "convolution", "dot"]


def dot(eqn: Any) -> Nest:
    """`dot_general`: batch, row and column loops, which the result has too; contracted loops add."""
    left, right = shapes(eqn.invars)
    (summed_left, summed_right), (batch_left, batch_right) = eqn.params["dimension_numbers"]
    rows = [("row", d) for d in range(len(left)) if d not in (*summed_left, *batch_left)]
    columns = [("column", d) for d in range(len(right)) if d not in (*summed_right, *batch_right)]
    batches = [("batch", i) for i in range(len(batch_left))]

    def labels(free: str, rank: int, summed: Any, batch: Any) -> list[tuple[str, int]]:
        known = {d: ("sum", i) for i, d in enumerate(summed)} | {d: ("batch", i) for i, d in enumerate(batch)}
        return [known.get(d, (free, d)) for d in range(rank)]

    reads = [labels("row", len(left), summed_left, batch_left), labels("column", len(right), summed_right, batch_right)]
    sums = {("sum", i): "add" for i in range(len(summed_left))}
    trips = math.prod(left) * math.prod(right[d] for d in range(len(right)) if ("column", d) in columns)
    return weave(eqn, reads, [[*batches, *rows, *columns]], reduces=sums, flops=2.0 * trips)


def convolution(eqn: Any) -> Nest:
    """`conv_general_dilated`: images and output features are loops, input features add. Of a grouped convolution the
    groups are the loop (the major factor of both feature dimensions). All dimensions are whole if groups have several
    input features each, because XLA then gathers images and kernel for any sharding. Spatial dimensions that the window
    does not reach beyond are loops; of the others only the largest one, where parts of image and result cover each
    other up to a halo: in the forward pass and the gradient of images a loop of the result, in the gradient of kernels,
    whose window is the result's gradient, one that adds."""
    images, kernel = shapes(eqn.invars)
    (result,) = shapes(eqn.outvars)
    numbers = eqn.params["dimension_numbers"]
    groups, image_groups = eqn.params["feature_group_count"], eqn.params["batch_group_count"]
    image, channel, *space = numbers.lhs_spec
    output, inner, *window = numbers.rhs_spec
    made, feature, *place = numbers.out_spec
    reads: list[list[str | None]] = [[None] * len(images), [None] * len(kernel)]
    writes: list[str | None] = [None] * len(result)
    sizes = {}
    if groups > 1 and kernel[inner] > 1:
        pass
    elif groups > 1:
        reads[0][channel] = reads[1][output] = writes[feature] = "group"
        reads[0][image] = writes[made] = "image"
        sizes["group"] = groups
    elif image_groups > 1:
        reads[0][image] = reads[1][output] = writes[feature] = "group"
        reads[0][channel] = reads[1][inner] = "channel"
        sizes["group"] = image_groups
    else:
        reads[0][image] = writes[made] = "image"
        reads[0][channel] = reads[1][inner] = "channel"
        reads[1][output] = writes[feature] = "feature"
    hits, sliding = 1, list[tuple[Cut, int]]()
    for i, (from_, over, to) in enumerate(zip(space, window, place, strict=True)):
        hits *= _hits(eqn.params, i, images[from_], kernel[over], result[to])
        slide = slide_of(eqn.params, i, images[from_], kernel[over], result[to])
        if groups > 1 or image_groups > 1:
            continue
        if slide.still:
            reads[0][from_] = writes[to] = f"place {i}"
        else:
            sliding += [(cut, i) for cut in itertools.islice(slide.cuts(), 1)]
    reduces, edges = {"channel": "add"}, (0, 0)
    if sliding:
        cut, i = max(sliding, key=lambda one: one[0].parts)
        reads[0][space[i]], sizes["slides"], edges = "slides", cut.parts, cut.edges
        if cut.within:
            writes[place[i]] = "slides"
        else:
            reads[1][window[i]], reduces["slides"] = "slides", "add"
    flops = 2.0 * result[made] * result[feature] * kernel[inner] * hits
    return weave(eqn, reads, [writes], sizes=sizes, reduces=reduces, flops=flops, slides="slides", edges=edges)


def _hits(params: Any, i: int, size: int, window: int, made: int) -> int:
    """The number of pairs (result position, window position) that read an element, not padding or a dilation gap."""
    stride, apart, gaps = params["window_strides"][i], params["rhs_dilation"][i], params["lhs_dilation"][i]
    at = np.arange(made)[:, None] * stride + np.arange(window) * apart - params["padding"][i][0]
    return int(np.count_nonzero((at >= 0) & (at <= (size - 1) * gaps) & (at % gaps == 0)))


def batched(eqn: Any) -> Nest:
    """Factorisations and solutions of many matrices: the leading dimensions are loops, matrices are whole."""
    size = shapes(eqn.invars)[0][-1]
    batch = len(shapes(eqn.invars)[0]) - 2

    def labels(own: tuple[int, ...]) -> list[int | None]:
        return [d if d < batch else None for d in range(len(own))]

    reads, writes = map(labels, shapes(eqn.invars)), map(labels, shapes(eqn.outvars))
    return weave(eqn, list(reads), list(writes), flops=float(size * elements(eqn.outvars)))
