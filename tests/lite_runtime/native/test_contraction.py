"""Products and sums that are rounded together are decided in one place, by one rule."""

from __future__ import annotations

import re

import pytest

from lite_runtime.native.codegen.contraction import contracted
from lite_runtime.native.codegen.retarget import llvm

HEAD = "define float @f(float %a, float %b, float %c, float %d) {\n"


def body(*lines: str) -> str:
    return HEAD + "".join(f"  {line}\n" for line in lines) + "}\n"


def fused(*lines: str) -> list[str]:
    """The instructions of a function after the rule, which LLVM accepts."""
    text = contracted(body(*lines), fused=True)
    llvm().parse_assembly(text).verify()
    assert "contract" not in text
    inside = text[text.index("{") + 1 : text.index("}")]
    return [line.strip() for line in inside.splitlines() if line.strip()]


def test_a_sum_and_a_difference_take_their_product_in() -> None:
    product = "%p = fmul contract float %a, %b"
    assert fused(product, "%s = fadd contract float %p, %c", "ret float %s")[1:] == [
        "%s = call float @llvm.fma.f32(float %a, float %b, float %c)",
        "ret float %s",
    ]
    assert fused(product, "%s = fadd contract float %c, %p", "ret float %s")[1] == (
        "%s = call float @llvm.fma.f32(float %a, float %b, float %c)"
    )
    assert fused(product, "%s = fsub contract float %p, %c", "ret float %s")[1:3] == [
        '%"s.negated" = fneg float %c',
        '%s = call float @llvm.fma.f32(float %a, float %b, float %"s.negated")',
    ]
    assert fused(product, "%s = fsub contract float %c, %p", "ret float %s")[1:3] == [
        '%"s.negated" = fneg float %a',
        '%s = call float @llvm.fma.f32(float %"s.negated", float %b, float %c)',
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ("%p = fmul contract float %a, %b", "%s = fadd float %p, %c", "ret float %s"),
        ("%p = fmul float %a, %b", "%s = fadd contract float %p, %c", "ret float %s"),
        ("%p = fmul contract float %a, %b", "%s = fadd contract float %p, %p", "ret float %s"),
        (
            "%p = fmul contract float %a, %b",
            "%s = fadd contract float %p, %c",
            "%t = fadd contract float %p, %s",
            "ret float %t",
        ),
        ("%s = fadd contract float %a, %c", "ret float %s"),
    ],
    ids=["sum without the flag", "product without it", "both sides", "two uses", "no product"],
)
def test_what_must_be_rounded_by_itself_is(lines: tuple[str, ...]) -> None:
    assert not any("fma" in line for line in fused(*lines))


def test_of_two_products_the_first_is_fused() -> None:
    lines = "%p = fmul contract float %a, %b", "%q = fmul contract float %c, %d", "%s = fadd contract float %p, %q"
    assert fused(*lines, "ret float %s")[2] == "%s = call float @llvm.fma.f32(float %a, float %b, float %q)"


def test_a_chain_is_fused_across_blocks_and_quoted_names() -> None:
    lines = (
        '%"p q" = fmul contract float %a, %b',
        "br label %next",
        "next:",
        '%s = fadd contract float %"p q", %c',
        "%r = fmul contract float %s, %d",
        "%t = fadd contract float %r, 1.000000e+00",
        "ret float %t",
    )
    found = fused(*lines)
    assert sum("llvm.fma" in line for line in found) == 2
    assert "%t = call float @llvm.fma.f32(float %s, float %d, float 1.000000e+00)" in found


def test_vectors_doubles_and_constants_of_several_numbers() -> None:
    text = (
        "define <2 x double> @f(<2 x double> %a, <2 x double> %b) {\n"
        "  %p = fmul nnan contract <2 x double> %a, <double 1.000000e+00, double 2.000000e+00>\n"
        "  %s = fadd contract <2 x double> <double 3.000000e+00, double 4.000000e+00>, %p\n"
        "  ret <2 x double> %s\n}\n"
    )
    found = contracted(text, fused=True)
    llvm().parse_assembly(found).verify()
    assert found.count("declare <2 x double> @llvm.fma.v2f64(") == 1
    assert (
        "call <2 x double> @llvm.fma.v2f64(<2 x double> %a, <2 x double> <double 1.000000e+00, double 2.000000e+00>, "
        "<2 x double> <double 3.000000e+00, double 4.000000e+00>)" in found
    )


def test_names_of_one_function_say_nothing_of_another() -> None:
    text = body("%p = fmul contract float %a, %b", "ret float %p") + (
        "define float @g(float %p, float %c) {\n  %s = fadd contract float %p, %c\n  ret float %s\n}\n"
    )
    found = contracted(text, fused=True)
    llvm().parse_assembly(found).verify()
    assert "fma" not in found


def test_an_existing_declaration_is_not_repeated() -> None:
    text = body("%p = fmul contract float %a, %b", "%s = fadd contract float %p, %c", "ret float %s")
    text += "declare float @llvm.fma.f32(float, float, float)\n"
    llvm().parse_assembly(contracted(text, fused=True)).verify()


def test_without_the_instruction_nothing_is_fused() -> None:
    """`fmuladd`, which a back end may fuse or not, is two instructions."""
    lines = (
        "%p = fmul contract float %a, %b",
        "%s = fadd contract float %p, %c",
        "%t = call contract float @llvm.fmuladd.f32(float %s, float 2.000000e+00, float %d)",
        "ret float %t",
    )
    found = contracted(body(*lines) + "declare float @llvm.fmuladd.f32(float, float, float)\n", fused=False)
    llvm().parse_assembly(found).verify()
    assert not re.search("contract|call", found)
    assert '%"t.product" = fmul float %s, 2.000000e+00' in found and '%t = fadd float %"t.product", %d' in found
