"""What LLVM's back ends call where a processor has no instruction: our own functions, since kernels call no library.

A back end decides to call them while it makes an object. `needed` then gives those that the object asks for; any other
symbol from outside is an error of `link.py`. They are functions of 32-bit Arm's run-time ABI (RTABI32, 4.1.2 and 4.2),
in which floats are passed and returned by their bits: division of 64-bit integers, and conversions between these and
floats; and C's `fma`. A divisor of 0 and numbers that do not fit give any result; kernels exclude both.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["FUNCTIONS", "needed"]

FUNCTIONS: dict[str, str] = {}
"""LLVM's text of each function, by its symbol. What it calls follows `@`."""

# Where both numbers have 32 bits, which is the case for sizes and positions: one instruction. Otherwise bit by bit.
FUNCTIONS["divide"] = """
define hidden { i64, i64 } @divide(i64 %n, i64 %d) noinline {
entry:
  %both = or i64 %n, %d
  %high = lshr i64 %both, 32
  %short = icmp eq i64 %high, 0
  br i1 %short, label %narrow, label %wide
narrow:
  %n32 = trunc i64 %n to i32
  %d32 = trunc i64 %d to i32
  %q32 = udiv i32 %n32, %d32
  %p32 = mul i32 %q32, %d32
  %r32 = sub i32 %n32, %p32
  %q0 = zext i32 %q32 to i64
  %r0 = zext i32 %r32 to i64
  %a0 = insertvalue { i64, i64 } poison, i64 %q0, 0
  %b0 = insertvalue { i64, i64 } %a0, i64 %r0, 1
  ret { i64, i64 } %b0
wide:
  %zn = call i64 @llvm.ctlz.i64(i64 %n, i1 false)
  %zd = call i64 @llvm.ctlz.i64(i64 %d, i1 false)
  %apart = sub i64 %zd, %zn
  %less = icmp slt i64 %apart, 0
  br i1 %less, label %small, label %loop
small:
  %a1 = insertvalue { i64, i64 } poison, i64 0, 0
  %b1 = insertvalue { i64, i64 } %a1, i64 %n, 1
  ret { i64, i64 } %b1
loop:
  %by = phi i64 [ %apart, %wide ], [ %next, %loop ]
  %r = phi i64 [ %n, %wide ], [ %rest, %loop ]
  %q = phi i64 [ 0, %wide ], [ %quotient, %loop ]
  %part = shl i64 %d, %by
  %fits = icmp uge i64 %r, %part
  %left = sub i64 %r, %part
  %rest = select i1 %fits, i64 %left, i64 %r
  %bit = zext i1 %fits to i64
  %double = shl i64 %q, 1
  %quotient = or i64 %double, %bit
  %next = sub i64 %by, 1
  %last = icmp eq i64 %by, 0
  br i1 %last, label %done, label %loop
done:
  %a2 = insertvalue { i64, i64 } poison, i64 %quotient, 0
  %b2 = insertvalue { i64, i64 } %a2, i64 %rest, 1
  ret { i64, i64 } %b2
}
declare i64 @llvm.ctlz.i64(i64, i1)
"""
FUNCTIONS["__aeabi_uldivmod"] = """
define hidden { i64, i64 } @__aeabi_uldivmod(i64 %n, i64 %d) {
  %r = call { i64, i64 } @divide(i64 %n, i64 %d)
  ret { i64, i64 } %r
}
"""
FUNCTIONS["__aeabi_ldivmod"] = """
define hidden { i64, i64 } @__aeabi_ldivmod(i64 %n, i64 %d) {
  %sn = ashr i64 %n, 63
  %xn = xor i64 %n, %sn
  %an = sub i64 %xn, %sn
  %sd = ashr i64 %d, 63
  %xd = xor i64 %d, %sd
  %ad = sub i64 %xd, %sd
  %both = call { i64, i64 } @divide(i64 %an, i64 %ad)
  %q = extractvalue { i64, i64 } %both, 0
  %r = extractvalue { i64, i64 } %both, 1
  %sq = xor i64 %sn, %sd
  %xq = xor i64 %q, %sq
  %yq = sub i64 %xq, %sq
  %xr = xor i64 %r, %sn
  %yr = sub i64 %xr, %sn
  %a = insertvalue { i64, i64 } poison, i64 %yq, 0
  %b = insertvalue { i64, i64 } %a, i64 %yr, 1
  ret { i64, i64 } %b
}
"""
# The highest 26 bits, the last of them set if any bit after it is: the conversion of an int32 then rounds as that of
# the whole number does.
FUNCTIONS["__aeabi_ul2f"] = """
define hidden i32 @__aeabi_ul2f(i64 %n) noinline {
  %z = call i64 @llvm.ctlz.i64(i64 %n, i1 false)
  %bits = sub i64 64, %z
  %over = sub i64 %bits, 26
  %some = icmp sgt i64 %over, 0
  %shift = select i1 %some, i64 %over, i64 0
  %top = lshr i64 %n, %shift
  %back = shl i64 %top, %shift
  %lost = icmp ne i64 %back, %n
  %t = trunc i64 %top to i32
  %sticky = zext i1 %lost to i32
  %m = or i32 %t, %sticky
  %f = uitofp i32 %m to float
  %s = trunc i64 %shift to i32
  %e = add i32 %s, 127
  %p = shl i32 %e, 23
  %scale = bitcast i32 %p to float
  %v = fmul float %f, %scale
  %r = bitcast float %v to i32
  ret i32 %r
}
declare i64 @llvm.ctlz.i64(i64, i1)
"""
FUNCTIONS["__aeabi_l2f"] = """
define hidden i32 @__aeabi_l2f(i64 %n) {
  %s = ashr i64 %n, 63
  %x = xor i64 %n, %s
  %a = sub i64 %x, %s
  %f = call i32 @__aeabi_ul2f(i64 %a)
  %t = trunc i64 %s to i32
  %sign = and i32 %t, -2147483648
  %r = or i32 %f, %sign
  ret i32 %r
}
"""
FUNCTIONS["__aeabi_f2ulz"] = """
define hidden i64 @__aeabi_f2ulz(i32 %bits) noinline {
  %e1 = lshr i32 %bits, 23
  %e2 = and i32 %e1, 255
  %e = sub i32 %e2, 150
  %m1 = and i32 %bits, 8388607
  %m2 = or i32 %m1, 8388608
  %m = zext i32 %m2 to i64
  %left = icmp sge i32 %e, 0
  %back = sub i32 0, %e
  %cut = icmp sgt i32 %back, 63
  %right = select i1 %cut, i32 63, i32 %back
  %l = zext i32 %e to i64
  %r = zext i32 %right to i64
  %up = shl i64 %m, %l
  %down = lshr i64 %m, %r
  %v = select i1 %left, i64 %up, i64 %down
  ret i64 %v
}
"""
FUNCTIONS["__aeabi_f2lz"] = """
define hidden i64 @__aeabi_f2lz(i32 %bits) {
  %a = call i64 @__aeabi_f2ulz(i32 %bits)
  %negative = icmp slt i32 %bits, 0
  %minus = sub i64 0, %a
  %r = select i1 %negative, i64 %minus, i64 %a
  ret i64 %r
}
"""
# Both halves are exact; their sum is rounded once.
FUNCTIONS["__aeabi_ul2d"] = """
define hidden i64 @__aeabi_ul2d(i64 %n) {
  %h64 = lshr i64 %n, 32
  %h = trunc i64 %h64 to i32
  %l = trunc i64 %n to i32
  %hf = uitofp i32 %h to double
  %lf = uitofp i32 %l to double
  %up = fmul double %hf, 0x41F0000000000000
  %v = fadd double %up, %lf
  %r = bitcast double %v to i64
  ret i64 %r
}
"""
FUNCTIONS["__aeabi_l2d"] = """
define hidden i64 @__aeabi_l2d(i64 %n) {
  %h64 = ashr i64 %n, 32
  %h = trunc i64 %h64 to i32
  %l = trunc i64 %n to i32
  %hf = sitofp i32 %h to double
  %lf = uitofp i32 %l to double
  %up = fmul double %hf, 0x41F0000000000000
  %v = fadd double %up, %lf
  %r = bitcast double %v to i64
  ret i64 %r
}
"""
FUNCTIONS["__aeabi_d2ulz"] = """
define hidden i64 @__aeabi_d2ulz(i64 %bits) noinline {
  %x = bitcast i64 %bits to double
  %a = call double @llvm.fabs.f64(double %x)
  %down = fmul double %a, 0x3DF0000000000000
  %h = fptoui double %down to i32
  %hf = uitofp i32 %h to double
  %up = fmul double %hf, 0x41F0000000000000
  %rest = fsub double %a, %up
  %l = fptoui double %rest to i32
  %h64 = zext i32 %h to i64
  %l64 = zext i32 %l to i64
  %top = shl i64 %h64, 32
  %r = or i64 %top, %l64
  ret i64 %r
}
declare double @llvm.fabs.f64(double)
"""
FUNCTIONS["__aeabi_d2lz"] = """
define hidden i64 @__aeabi_d2lz(i64 %bits) {
  %a = call i64 @__aeabi_d2ulz(i64 %bits)
  %negative = icmp slt i64 %bits, 0
  %minus = sub i64 0, %a
  %r = select i1 %negative, i64 %minus, i64 %a
  ret i64 %r
}
"""
# A fused multiply-add of float64, where the processor has none of that precision. The product of the fractions has 106
# bits; it and the addend are moved to the top of 126 bits, the smaller one down, whose last bit is set if it lost any.
# Their sum is rounded once. A product of zero, infinities and NaN need no more than a product and a sum.
FUNCTIONS["fma"] = """
define hidden double @fma(double %x, double %y, double %z) noinline {
entry:
  %plain = call i1 @fma_plain(double %x)
  %plain_y = call i1 @fma_plain(double %y)
  %bz = bitcast double %z to i64
  %size_z = and i64 %bz, 9223372036854775807
  %plain_z = icmp uge i64 %size_z, 9218868437227405312
  %some = or i1 %plain, %plain_y
  br i1 %some, label %simple, label %finite
simple:
  %product = fmul double %x, %y
  %sum = fadd double %product, %z
  ret double %sum
finite:
  br i1 %plain_z, label %addend, label %general
addend:
  %twice = fadd double %z, %z
  ret double %twice
general:
  %px = call { i64, i64 } @fma_parts(double %x)
  %py = call { i64, i64 } @fma_parts(double %y)
  %pz = call { i64, i64 } @fma_parts(double %z)
  %mx = extractvalue { i64, i64 } %px, 0
  %my = extractvalue { i64, i64 } %py, 0
  %mz = extractvalue { i64, i64 } %pz, 0
  %ex = extractvalue { i64, i64 } %px, 1
  %ey = extractvalue { i64, i64 } %py, 1
  %ez = extractvalue { i64, i64 } %pz, 1
  %wx = zext i64 %mx to i128
  %wy = zext i64 %my to i128
  %wz = zext i64 %mz to i128
  %p0 = mul i128 %wx, %wy
  %p1 = shl i128 %p0, 20
  %z1 = shl i128 %wz, 73
  %ep0 = add i64 %ex, %ey
  %ep = sub i64 %ep0, 20
  %ezz = sub i64 %ez, 73
  %apart = sub i64 %ep, %ezz
  %p_lower = icmp slt i64 %apart, 0
  %less = sub i64 0, %apart
  %down_p = select i1 %p_lower, i64 %less, i64 0
  %down_z = select i1 %p_lower, i64 0, i64 %apart
  %p = call i128 @fma_down(i128 %p1, i64 %down_p)
  %a = call i128 @fma_down(i128 %z1, i64 %down_z)
  %e = select i1 %p_lower, i64 %ezz, i64 %ep
  %bx = bitcast double %x to i64
  %by = bitcast double %y to i64
  %bp = xor i64 %bx, %by
  %between = xor i64 %bp, %bz
  %opposite = icmp slt i64 %between, 0
  %together = add i128 %p, %a
  %p_less = sub i128 %p, %a
  %a_less = sub i128 %a, %p
  %a_larger = icmp ugt i128 %a, %p
  %difference = select i1 %a_larger, i128 %a_less, i128 %p_less
  %s = select i1 %opposite, i128 %difference, i128 %together
  %sign_z = and i1 %opposite, %a_larger
  %bs = select i1 %sign_z, i64 %bz, i64 %bp
  %none = icmp eq i128 %s, 0
  br i1 %none, label %zero, label %round
zero:
  ret double 0.0
round:
  %lz = call i128 @llvm.ctlz.i128(i128 %s, i1 false)
  %up = shl i128 %s, %lz
  %lz64 = trunc i128 %lz to i64
  %e1 = add i64 %e, 127
  %exponent = sub i64 %e1, %lz64
  %under = sub i64 -1022, %exponent
  %tiny = icmp sgt i64 %under, 0
  %more = select i1 %tiny, i64 %under, i64 0
  %kept = call i128 @fma_down(i128 %up, i64 %more)
  %q0 = lshr i128 %kept, 75
  %q = trunc i128 %q0 to i64
  %rest = and i128 %kept, 37778931862957161709567
  %above = icmp ugt i128 %rest, 18889465931478580854784
  %tie = icmp eq i128 %rest, 18889465931478580854784
  %odd = trunc i64 %q to i1
  %tie_up = and i1 %tie, %odd
  %more_up = or i1 %above, %tie_up
  %add_one = zext i1 %more_up to i64
  %rounded = add i64 %q, %add_one
  %field = add i64 %exponent, 1022
  %biased = select i1 %tiny, i64 0, i64 %field
  %large = icmp sgt i64 %biased, 2045
  %high = shl i64 %biased, 52
  %size = add i64 %high, %rounded
  %bounded = select i1 %large, i64 9218868437227405312, i64 %size
  %sign = and i64 %bs, -9223372036854775808
  %bits = or i64 %bounded, %sign
  %result = bitcast i64 %bits to double
  ret double %result
}
define internal i1 @fma_plain(double %x) {
  %bits = bitcast double %x to i64
  %size = and i64 %bits, 9223372036854775807
  %before = sub i64 %size, 1
  %plain = icmp uge i64 %before, 9218868437227405311
  ret i1 %plain
}
define internal { i64, i64 } @fma_parts(double %x) {
  %bits = bitcast double %x to i64
  %fraction = and i64 %bits, 4503599627370495
  %high = lshr i64 %bits, 52
  %field = and i64 %high, 2047
  %small = icmp eq i64 %field, 0
  %with_one = or i64 %fraction, 4503599627370496
  %m = select i1 %small, i64 %fraction, i64 %with_one
  %f = select i1 %small, i64 1, i64 %field
  %zeros = call i64 @llvm.ctlz.i64(i64 %m, i1 false)
  %shift = sub i64 %zeros, 11
  %normal = shl i64 %m, %shift
  %e0 = sub i64 %f, 1075
  %e = sub i64 %e0, %shift
  %one = insertvalue { i64, i64 } poison, i64 %normal, 0
  %both = insertvalue { i64, i64 } %one, i64 %e, 1
  ret { i64, i64 } %both
}
define internal i128 @fma_down(i128 %x, i64 %by) {
  %far = icmp ugt i64 %by, 127
  %shift64 = select i1 %far, i64 127, i64 %by
  %shift = zext i64 %shift64 to i128
  %down = lshr i128 %x, %shift
  %back = shl i128 %down, %shift
  %lost = icmp ne i128 %back, %x
  %last = zext i1 %lost to i128
  %r = or i128 %down, %last
  ret i128 %r
}
declare i128 @llvm.ctlz.i128(i128, i1)
declare i64 @llvm.ctlz.i64(i64, i1)
"""


def needed(symbols: Iterable[str]) -> str:
    """LLVM's text of the functions among these symbols and of those that they call; "" for none."""
    found: dict[str, str] = {}
    wanted = [symbol for symbol in symbols if symbol in FUNCTIONS]
    while wanted:
        symbol = wanted.pop()
        if symbol not in found:
            found[symbol] = FUNCTIONS[symbol]
            wanted += [other for other in FUNCTIONS if f"@{other}(" in found[symbol]]
    lines = "".join(found.values()).splitlines()
    declared = sorted({line for line in lines if line.startswith("declare")})
    return "\n".join([line for line in lines if not line.startswith("declare")] + declared)
