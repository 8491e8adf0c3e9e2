"""Depthwise convolution, float32, channels last: each channel has its own window, vectors run over channels.

Weights are packed [taps][channels rounded up to LANES]. Taps are added column by column of the window, as in XNNPACK:
results that depend on the last bit, such as those quantised at run time, are then the same as LiteRT's. Two kinds of
tile compute the sums: one for any window, which goes through a list of taps for pixels in a row or a column; and one
for the windows of SHAPES with all taps unrolled, whose pixels form a rectangle and share their loads.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._math import activate
from lite_runtime.kernels._memory import emit_opaque
from lite_runtime.native.simd import (
    FMA,
    LANES,
    SHAPE,
    declare,
    device,
    emit_load,
    emit_mask,
    emit_max,
    emit_splat,
    emit_store,
    f32p,
    i64p,
    kernel,
    num,
    ptr,
    real,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.depthwise import F32Depthwise

DEPTHWISE = named(F32Depthwise)

PIXELS = 2 if SHAPE.small else 8
"""Neighbouring pixels that share a load of the weights: 9 loads for 8 multiply-adds."""
SHAPES = {3: (4, 4), 5: (1, 8)} if SHAPE.vectors == 32 else {3: (2, 2), 5: (1, 4)}
"""Rows and columns of the rectangle of pixels, by window size. 3x3 at stride 1: 36 loads of the image for 144
multiply-adds, and the 9 weights stay in registers; 5x5: 60 for 200. Measured in docs/performance.md."""
_I64, _F32 = ir.IntType(64), ir.FloatType()


def _tile(count: int, masked: bool):
    """`count` pixels by LANES channels, or by fewer if `masked`."""

    @intrinsic
    def tile(typing, first, step, taps_at, taps, w, w_step, out, stride, bias, residual, bounds, live, channels):
        """first: address of the first pixel's window; the windows of the other pixels are `step` bytes apart; unused
        ones repeat the last live one. taps_at: byte offsets of the taps from there; taps: (runs, taps per run, taps
        from one run to the next) in that list and, with w_step bytes per tap, in the weights. bounds: lowest and
        highest result."""
        triple, pair = types.UniTuple(types.int64, 3), types.UniTuple(types.float32, 2)
        words = types.CPointer(types.int64)
        address, number = types.int64, types.int64
        sig = types.void(
            *(address, number, words, triple, address, number, address, number, address, address, pair, number, number)
        )

        def lower(context, builder, sig, args):
            first, step, taps_at, taps, w, w_step, out, stride, bias, residual, bounds, live, channels = args
            vector = ir.VectorType(_F32, LANES)
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", vector, vector, vector, vector)
            mask = emit_mask(builder, channels) if masked else None

            def load(where):
                return emit_load(builder, builder.inttoptr(where, _F32.as_pointer()), mask)

            start = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * LANES))
            with builder.if_then(builder.icmp_signed("!=", bias, _I64(0))):
                builder.store(load(bias), start)
            sums = [cgutils.alloca_once(builder, vector) for _ in range(count)]
            pixels = []
            for i, one in enumerate(sums):
                builder.store(builder.load(start), one)
                inside = builder.icmp_signed("<", _I64(i), live)
                pixel = builder.select(inside, _I64(i), builder.sub(live, _I64(1)))
                pixels.append(builder.add(first, builder.mul(pixel, step)))
            runs, length, apart = (builder.extract_value(taps, i) for i in range(3))
            with cgutils.for_range(builder, runs, intp=_I64) as run:
                begin = builder.mul(run.index, apart)
                with cgutils.for_range(builder, length, intp=_I64) as one_tap:
                    tap = builder.add(begin, one_tap.index)
                    offset = builder.load(builder.gep(taps_at, [tap]))
                    weight = load(builder.add(w, builder.mul(tap, w_step)))
                    for pixel, one in zip(pixels, sums, strict=True):
                        value = load(builder.add(pixel, offset))
                        builder.store(builder.call(fma, [value, weight, builder.load(one)]), one)
            with builder.if_then(builder.icmp_signed("!=", residual, _I64(0))):
                for i, one in enumerate(sums):
                    with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                        more = load(builder.add(residual, builder.mul(stride, _I64(i))))
                        builder.store(builder.fadd(builder.load(one), more), one)
            low, high = (emit_splat(builder, builder.extract_value(bounds, i)) for i in range(2))
            for i, one in enumerate(sums):
                with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                    value = emit_max(builder, high, emit_max(builder, low, builder.load(one)), "<")
                    to = builder.inttoptr(builder.add(out, builder.mul(stride, _I64(i))), _F32.as_pointer())
                    emit_store(builder, value, to, mask)
            return context.get_dummy_value()

        return sig, lower

    return tile


_whole, _part = _tile(PIXELS, False), _tile(PIXELS, True)
_one, _one_part = _tile(1, False), _tile(1, True)


def _times(builder, value, factor: int):
    """value * factor as a shifted odd multiple, which x86 folds into an address."""
    shift = (factor & -factor).bit_length() - 1 if factor else 0
    return builder.shl(builder.mul(value, _I64(factor >> shift)), _I64(shift))


def _rectangle(size: int, stride: int, rows: int, columns: int, masked: bool):
    """rows x columns pixels by LANES channels (fewer if `masked`) of a size x size window, all taps inside the
    image."""

    @intrinsic
    def rectangle(typing, first, x_row, x_pixel, w, w_step, out, y_row, y_pixel, bias, bounds, channels):
        """first: address of the first pixel's window; x_row, x_pixel, y_row, y_pixel: bytes between rows and between
        pixels of the image and of the result; w_step: bytes between taps."""
        number = types.int64
        sig = types.void(*[number] * 9, types.UniTuple(types.float32, 2), number)

        def lower(context, builder, sig, args):
            first, x_row, x_pixel, w, w_step, out, y_row, y_pixel, bias, bounds, channels = args
            vector = ir.VectorType(_F32, LANES)
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", vector, vector, vector, vector)
            mask = emit_mask(builder, channels) if masked else None

            def load(where):
                return emit_load(builder, builder.inttoptr(where, _F32.as_pointer()), mask)

            start = load(bias)
            sums = {(r, p): start for r in range(rows) for p in range(columns)}
            across = [_times(builder, x_pixel, i) for i in range((columns - 1) * stride + size)]
            lines = [builder.add(first, builder.mul(x_row, _I64(i))) for i in range((rows - 1) * stride + size)]
            lines = [emit_opaque(builder, line) for line in lines]
            weights = {}
            for column, right in enumerate(across):
                for row, line in enumerate(lines):
                    value = load(builder.add(line, right))
                    for r, p in sums:
                        i, j = row - r * stride, column - p * stride
                        if 0 <= i < size and 0 <= j < size:
                            tap = j * size + i
                            if tap not in weights:
                                weights[tap] = load(builder.add(w, builder.mul(w_step, _I64(tap))))
                            sums[r, p] = builder.call(fma, [value, weights[tap], sums[r, p]])
            low, high = (emit_splat(builder, builder.extract_value(bounds, i)) for i in range(2))
            tops = [builder.mul(y_row, _I64(r)) for r in range(rows)]
            outs = [emit_opaque(builder, builder.add(out, top)) for top in tops]
            for (r, p), value in sums.items():
                to = builder.add(outs[r], _times(builder, y_pixel, p))
                value = emit_max(builder, high, emit_max(builder, low, value), "<")
                emit_store(builder, value, builder.inttoptr(to, _F32.as_pointer()), mask)
            return context.get_dummy_value()

        return sig, lower

    return rectangle


@device
def inside(start, step, count, size):
    """The taps [first, end) of `count` whose positions are in 0..size-1; the first is at `start`, the others `step`
    apart."""
    low = 0
    if start < 0:
        low = min(count, (step - 1 - start) // step)
    high = count
    if start + (count - 1) * step >= size:
        high = max(low, (size - start + step - 1) // step) if size > start else low
    return low, high


@device
def _row(x, w, taps_at, bias, residual, y, sizes, window, bounds, image, line, column, end):
    """Pixels [column, end) of one line of the result; their windows may lie partly outside the image."""
    height, width, channels, high, wide = sizes
    kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, top, left = window
    pixel = 4 * channels
    apart = stride_w * pixel
    w_step = (channels + LANES - 1) // LANES * LANES * 4
    # Columns [whole, narrow) have all taps of a line and are computed together; the others one by one.
    whole, narrow = _seen(width, wide, kernel_w, stride_w, dilation_w, left)
    row = (line - image * height) * stride_h - top
    i, i_end = inside(row, dilation_h, kernel_h, high)
    source = x + (image * high + row) * wide * pixel
    while column < end:
        across = column * stride_w - left
        if whole <= column < narrow:
            live = min(PIXELS, narrow - column, end - column)
            j, j_end = 0, kernel_w
        else:
            live = 1
            j, j_end = inside(across, dilation_w, kernel_w, wide)
        start = j * kernel_h + i
        merged = i_end - i == kernel_h  # columns follow each other
        taps = (1, (j_end - j) * kernel_h, 0) if merged else (j_end - j, i_end - i, kernel_h)
        here, there, to = source + across * pixel, w + start * w_step, (line * width + column) * pixel
        _pixels(
            here, apart, taps_at + 8 * start, taps, there, w_step, y, to, pixel, bias, residual, bounds, live, channels
        )
        column += live


@device
def _column(x, w, taps_at, bias, residual, y, sizes, window, bounds, image, line, end, column):
    """Pixels of one column in lines [line, end), for which every row of the window is inside the image."""
    height, width, channels, high, wide = sizes
    kernel_h, kernel_w, stride_h, stride_w, _, dilation_w, top, left = window
    pixel = 4 * channels
    w_step = (channels + LANES - 1) // LANES * LANES * 4
    across = column * stride_w - left
    j, j_end = inside(across, dilation_w, kernel_w, wide)
    start = j * kernel_h
    taps = (1, (j_end - j) * kernel_h, 0)
    apart, stride = stride_h * wide * pixel, width * pixel
    while line < end:
        live = min(PIXELS, end - line)
        row = (line - image * height) * stride_h - top
        here = x + ((image * high + row) * wide + across) * pixel
        there, to = w + start * w_step, (line * width + column) * pixel
        _pixels(
            here, apart, taps_at + 8 * start, taps, there, w_step, y, to, stride, bias, residual, bounds, live, channels
        )
        line += live


@device
def _pixels(first, apart, list_at, taps, w, w_step, y, place, stride, bias, residual, bounds, live, channels):
    """All channels of `live` pixels, the first at byte `place` of the result."""
    list_at = i64p(list_at)
    for channel in range(0, channels, LANES):
        at = 4 * channel
        here, there, to = first + at, w + at, y + place + at
        shift = bias + at if bias != 0 else 0
        more = residual + place + at if residual != 0 else 0
        rest = channels - channel
        if rest < LANES and live == 1:
            _one_part(here, apart, list_at, taps, there, w_step, to, stride, shift, more, bounds, live, rest)
        elif rest < LANES:
            _part(here, apart, list_at, taps, there, w_step, to, stride, shift, more, bounds, live, rest)
        elif live == 1:
            _one(here, apart, list_at, taps, there, w_step, to, stride, shift, more, bounds, live, rest)
        else:
            _whole(here, apart, list_at, taps, there, w_step, to, stride, shift, more, bounds, live, rest)


@device
def _seen(count, size, window, stride, dilation, before):
    """Along an axis: the results [first, end) of `count` whose windows lie inside the image."""
    low = min(count, (before + stride - 1) // stride)
    room = size - 1 - (window - 1) * dilation + before
    return low, (max(low, min(count, room // stride + 1)) if room >= 0 else low)


def _driver(size: int, stride: int):
    """The kernel for windows of size x size with this stride, or with size 0 for any window."""
    if size:
        rows, columns = SHAPES[size]
        tall, tall_part = (_rectangle(size, stride, rows, columns, masked) for masked in (False, True))
        flat, flat_part = (_rectangle(size, stride, 1, columns, masked) for masked in (False, True))

        @device
        def middle(x, w, bias, y, sizes, window, bounds, image, line, end, column, end_column):
            """Lines [line, end) and columns [column, end_column), at least one rectangle wide, all windows inside."""
            height, width, channels, high, wide = sizes
            top, left = window[6], window[7]
            pixel = 4 * channels
            w_step = (channels + LANES - 1) // LANES * LANES * 4
            x_row, y_row = wide * pixel, width * pixel
            while line < end:
                pair = line + rows <= end
                row = (line - image * height) * stride - top
                at = column
                while at < end_column:
                    at = min(at, end_column - columns)  # the last rectangle overlaps the one before it
                    here = x + (image * high + row) * x_row + (at * stride - left) * pixel
                    place = line * y_row + at * pixel
                    for channel in range(0, channels, LANES):
                        c = 4 * channel
                        a, b, to, rest = here + c, w + c, y + place + c, channels - channel
                        if rest < LANES and pair:
                            tall_part(a, x_row, pixel, b, w_step, to, y_row, pixel, bias + c, bounds, rest)
                        elif rest < LANES:
                            flat_part(a, x_row, pixel, b, w_step, to, y_row, pixel, bias + c, bounds, rest)
                        elif pair:
                            tall(a, x_row, pixel, b, w_step, to, y_row, pixel, bias + c, bounds, rest)
                        else:
                            flat(a, x_row, pixel, b, w_step, to, y_row, pixel, bias + c, bounds, rest)
                    at += columns
                line += rows if pair else 1

    else:
        columns = 1 << 40

        @device
        def middle(x, w, bias, y, sizes, window, bounds, image, line, end, column, end_column):
            pass

    def drive(step, bases, worker, workers):
        x, w, taps_at = (
            ptr(step, bases, DEPTHWISE.x),
            ptr(step, bases, DEPTHWISE.w),
            ptr(step, bases, DEPTHWISE.taps_at),
        )
        bias, residual, y = (
            ptr(step, bases, DEPTHWISE.bias),
            ptr(step, bases, DEPTHWISE.residual),
            ptr(step, bases, DEPTHWISE.y),
        )
        images, height, width, channels = (
            num(step, DEPTHWISE.images),
            num(step, DEPTHWISE.height),
            num(step, DEPTHWISE.width),
            num(step, DEPTHWISE.channels),
        )
        kernel_h, kernel_w, high, wide = (
            num(step, DEPTHWISE.kernel_h),
            num(step, DEPTHWISE.kernel_w),
            num(step, DEPTHWISE.x_height),
            num(step, DEPTHWISE.x_width),
        )
        stride_h, stride_w = num(step, DEPTHWISE.stride_h), num(step, DEPTHWISE.stride_w)
        dilation_h, dilation_w = num(step, DEPTHWISE.dilation_h), num(step, DEPTHWISE.dilation_w)
        top, left = num(step, DEPTHWISE.top), num(step, DEPTHWISE.left)
        bounds = (real(step, DEPTHWISE.low), real(step, DEPTHWISE.high))
        activation, alpha, beta = (
            num(step, DEPTHWISE.activation),
            real(step, DEPTHWISE.alpha),
            real(step, DEPTHWISE.beta),
        )
        sizes = (height, width, channels, high, wide)
        window = (kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, top, left)
        above, below = _seen(height, high, kernel_h, stride_h, dilation_h, top)
        whole, narrow = _seen(width, wide, kernel_w, stride_w, dilation_w, left)
        inner = narrow - whole if narrow - whole >= columns else 0
        line, last = images * height * worker // workers, images * height * (worker + 1) // workers
        while line < last:
            image = line // height
            row = line - image * height
            end = line + 1
            if row < above or row >= below or (inner == 0 and width > PIXELS):
                _row(x, w, taps_at, bias, residual, y, sizes, window, bounds, image, line, 0, width)
            else:
                end = min(last, line + PIXELS, image * height + below)
                if inner > 0:
                    middle(x, w, bias, y, sizes, window, bounds, image, line, end, whole, narrow)
                for border in range(width - inner):
                    column = border if border < whole else border + inner
                    _column(x, w, taps_at, bias, residual, y, sizes, window, bounds, image, line, end, column)
            # Not in the loop above, where its constants would use up registers that the tile needs.
            if activation > 2:
                start, count = line * width * channels, (end - line) * width * channels
                activate(activation, alpha, beta, f32p(y + 4 * start), count)
            line = end

    return drive


f32_depthwise = kernel(F32Depthwise)(_driver(0, 0))
f32_depthwise__3x3s1, f32_depthwise__3x3s2 = (kernel(F32Depthwise)(_driver(3, n)) for n in (1, 2))
f32_depthwise__5x5s1, f32_depthwise__5x5s2 = (kernel(F32Depthwise)(_driver(5, n)) for n in (1, 2))
