"""JSON arrays of numbers to float64 or int64, in one pass, with the bits that Python's `float` and `int` give.

`numbers` is an entry point, not a kernel of a program; its table of powers is that of `_decimal.py`. It reports in
int64 words: [KIND] 0 not such an array, 1 integers, 2 reals; [STOP] where it stopped, which is after the array if it is
one; [COUNT] number of elements; [DEPTH] of nesting; [LEFT] number of elements left to the caller; [EXTENTS] sizes from
the outermost to the innermost; [OPEN] for internal use; [LEFTOVERS] (element, from, to) of the elements left to the
caller, as positions in the text.
"""

from llvmlite import ir
from numba import types

from lite_runtime.kernels._decimal import (
    EXACT,
    REALS,
    TENS,
    bits_of,
    byte_at,
    digit_at,
    digits_at,
    last_digits,
    nearest,
    on_words,
    ones,
    real,
    real_of,
    trailing,
    zeros_at,
)
from lite_runtime.native.simd import address, emit_splat, entry, exact, f64p, i32p, i64p, stack_words, u8p

KIND, STOP, COUNT, DEPTH, LEFT, EXTENTS, OPEN, LEFTOVERS = 0, 1, 2, 3, 4, 8, 16, 24
DEEPEST = 8
"""Maximum depth of nested arrays."""
PATIENCE = 64
"""Maximum number of elements left to the caller; with more, the whole array is left to it."""
INTEGER, REAL, HARD = 1, 2, 3
"""Kinds of a number's text; 0: not a number. HARD: needs arithmetic of more than 128 bits, or is not a normal one."""
AHEAD = 4096
"""Bytes that are searched for commas at a time: a multiple of BLOCK."""
BLOCK = 64
SCRATCH = AHEAD // 2 + 4
"""Words that hold one position for each of these bytes, and eight more."""
_I8, _I64 = ir.IntType(8), ir.IntType(64)
_BYTES = ir.VectorType(_I8, BLOCK)


def _emit_ends(builder, a):
    found = builder.load(builder.inttoptr(a, _BYTES.as_pointer()), align=1, typ=_BYTES)
    comma, bracket = (builder.icmp_unsigned("==", found, emit_splat(builder, _I8(c), _BYTES)) for c in b",]")
    return builder.bitcast(builder.or_(comma, bracket), _I64)


ends_of = on_words(_emit_ends, 1)
"""Which of the BLOCK bytes at an address are commas or closing brackets: one bit per byte, the first one lowest."""


@exact
def _past_space(at, end):
    byte = byte_at(at, end)
    while byte == 32 or byte == 10 or byte == 13 or byte == 9:
        at += 1
        byte = byte_at(at, end)
    return at


@exact
def _number(at, end, powers):
    """JSON's number at an address: where it ends, its kind, and an integer's value or a real's bits."""
    begin = at
    negative = byte_at(at, end) == 45
    at += negative
    mantissa = digit_at(at, end)
    if mantissa > 9:
        return begin, 0, 0
    whole = at
    at += 1
    if digit_at(at, end) <= 9:
        if mantissa == 0:
            return begin, 0, 0
        mantissa, at = digits_at(at, end, mantissa, powers)
    count, q, kind = at - whole, 0, INTEGER
    if byte_at(at, end) == 46:
        point = at
        mantissa, at = digits_at(at + 1, end, mantissa, powers)
        q = point + 1 - at
        if q == 0:
            return begin, 0, 0
        count, kind = count - q, REAL
    if byte_at(at, end) | 32 == 101:
        at += 1
        sign = byte_at(at, end)
        at += sign == 43 or sign == 45
        power, from_ = 0, at
        while digit_at(at, end) <= 9:
            power = min(power * 10 + digit_at(at, end), 1 << 20)
            at += 1
        if at == from_:
            return begin, 0, 0
        q += -power if sign == 45 else power
        kind = REAL
    if count > 19 and count - zeros_at(whole, end) > 19:  # 10^19 < 2^64: up to 19 digits nothing is lost
        return at, HARD if kind == REAL else 0, 0
    if kind == INTEGER:
        fits = mantissa >= 0 or (negative and mantissa == -mantissa)
        return at, INTEGER if fits else 0, -mantissa if negative else mantissa
    bits = real(mantissa, q, powers)
    return at, HARD if bits == -1 else REAL, bits | (negative << 63)


@exact
def _ends(at, end, places):
    """Positions, from `at`, of commas and closing brackets in the whole blocks of the next AHEAD bytes; their number.

    Eight positions are always written, even if there are fewer, so that no branch depends on the length of numbers.
    """
    found = begun = 0
    while begun < AHEAD and at + begun + BLOCK <= end:
        bits = ends_of(at + begun)
        count = ones(bits)
        to = found
        found += count
        while True:
            for i in range(8):
                places[to + i] = begun + trailing(bits)
                bits &= bits - 1
            to += 8
            if to >= found:
                break
        begun += BLOCK
    return found


@exact
def _reals(at, known, places, seen, ends, into, powers):
    """Read consecutive reals with one digit before the point to into[seen] and following; return where the first other
    number begins, and its index among the ends.

    The end of each number is known before it is read, so the processor can read several in parallel. The last one of an
    array is not read. Nothing is refused here: text of any other form is read again by _number. The 24 bytes before
    `at` belong to the text.
    """
    while seen + 1 < ends:
        stop = known + places[seen]
        negative = u8p(at)[0] == 45
        start = at + negative
        length = stop - start - 2
        whole = (u8p(start)[0] - 48) & 255
        if u8p(stop)[0] != 44 or u8p(start + 1)[0] != 46 or whole > 9 or length < 1 or length > 18:
            break
        mantissa, wrong = last_digits(stop, length)
        mantissa += whole * i64p(powers + 8 * TENS)[length]
        if wrong or mantissa == 0:
            break
        if length <= 8:
            bits = bits_of(float(mantissa) / real_of(i64p(powers + 8 * REALS)[length]))
        else:
            bits = nearest(mantissa, -length, powers)
            if bits == -1:
                break
        i64p(into)[seen] = bits | (negative << 63)
        seen += 1
        at = stop + 1
        at += u8p(at)[0] == 32
    return at, seen


@exact
def _integers(at, known, places, seen, ends, into):
    """Like _reals, for integers of up to 18 digits."""
    while seen + 1 < ends:
        stop = known + places[seen]
        negative = u8p(at)[0] == 45
        start = at + negative
        length = stop - start
        if u8p(stop)[0] != 44 or length < 1 or length > 18 or (u8p(start)[0] == 48 and length > 1):
            break
        value, wrong = last_digits(stop, length)
        if wrong:
            break
        i64p(into)[seen] = -value if negative else value
        seen += 1
        at = stop + 1
        at += u8p(at)[0] == 32
    return at, seen


@exact
def _to_reals(values, count):
    """Convert the integers found so far to float64 if all can be converted exactly; return whether they can."""
    for i in range(count):
        whole = i64p(values)[i]
        if whole > EXACT or whole < -EXACT:
            return False
        f64p(values)[i] = float(whole)
    return True


@exact
def _closed(at, end, said, depth):
    """Skip the closing brackets here; return the position after them and the depth; -1 as depth: sizes differ."""
    extents, counts = i64p(said + 8 * EXTENTS), i64p(said + 8 * OPEN)
    while depth > 0 and byte_at(at, end) == 93:
        at += 1
        depth -= 1
        if extents[depth] == 0:
            extents[depth] = counts[depth]
        if extents[depth] != counts[depth]:
            return at, -1
        if depth > 0:
            counts[depth - 1] += 1
            at = _past_space(at, end)
    return at, depth


@exact
def _array(text, at, end, values, powers, said):
    """Read the array at an address; return its kind, where reading stopped, the number of elements, their depth."""
    counts, leftovers = i64p(said + 8 * OPEN), i64p(said + 8 * LEFTOVERS)
    places = i32p(address(stack_words(SCRATCH)))
    known, seen, ends = at, 0, 0
    depth = leaf = count = inner = 0
    reals = False
    while True:
        at = _past_space(at, end)
        while byte_at(at, end) == 91 and depth < DEEPEST:
            counts[depth] = 0
            depth += 1
            at = _past_space(at + 1, end)
        if leaf == 0:
            leaf = depth
        while seen < ends and known + places[seen] < at:
            seen += 1
        if seen + 1 >= ends:
            known, seen, ends = at, 0, _ends(at, end, places)
        if depth == leaf and at >= text + 24:
            before, into = seen, values + 8 * (count - seen)
            if reals:
                at, seen = _reals(at, known, places, seen, ends, into, powers)
            else:
                at, seen = _integers(at, known, places, seen, ends, into)
            count += seen - before
            inner += seen - before
        begin = _past_space(at, end)
        at, kind, bits = _number(begin, end, powers)
        if kind == 0 or depth == 0 or depth != leaf:
            return 0, at, count, leaf
        if kind != INTEGER and not reals:
            reals = _to_reals(values, count)
            if not reals:
                return 0, at, count, leaf
        if kind == HARD:
            left = i64p(said)[LEFT]
            if left == PATIENCE:
                return 0, at, count, leaf
            leftovers[3 * left], leftovers[3 * left + 1], leftovers[3 * left + 2] = count, begin - text, at - text
            i64p(said)[LEFT] = left + 1
        elif kind == INTEGER and reals:
            if bits > EXACT or bits < -EXACT:
                return 0, at, count, leaf
            bits = bits_of(float(bits))
        i64p(values)[count] = bits
        count += 1
        inner += 1
        at = _past_space(at, end)
        if byte_at(at, end) == 93:
            counts[depth - 1], inner = inner, 0
            at, depth = _closed(at, end, said, depth)
            if depth == 0:
                return REAL if reals else INTEGER, at, count, leaf
        if depth < 0 or byte_at(at, end) != 44:
            return 0, at, count, leaf
        at += 1


@entry(types.void(*[types.int64] * 6), fastmath=set())
def numbers(text, at, end, values, powers, said):
    """Read the array that begins at text[at]; nothing from text[end] on is read.

    values: address of at least (end - at) // 2 words, which is enough since an element and its separator take at least
    two bytes; one word per element is written. Only regular arrays of numbers are read, strictly by RFC 8259, with a
    depth of up to DEEPEST. Integers must fit int64, or [-2^53, 2^53] if there are reals too. Elements left to the
    caller are reals.
    """
    words = i64p(said)
    words[LEFT] = 0
    for i in range(DEEPEST):
        i64p(said + 8 * EXTENTS)[i] = 0
    kind, stop, count, depth = _array(text, text + at, text + end, values, powers, said)
    words[KIND], words[STOP], words[COUNT], words[DEPTH] = kind, stop - text, count, depth
