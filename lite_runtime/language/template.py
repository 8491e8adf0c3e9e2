"""Templates of chats: messages to the text that a model reads.

A template is a program in Jinja, from a model's file, which nobody has read. It runs in Jinja's sandbox with less than
that offers: filters, tests and methods of a list; no attribute of an object but these methods; and bounds on steps
(turns of loops, calls, values looked at), on characters written, joined or compared, and on numbers. Recursive loops,
inclusion of other templates and imports are refused. Only this needs Jinja (`pip install jinja2`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, NoReturn

from lite_runtime.errors import MissingExtraError, TemplateError

if TYPE_CHECKING:
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["ChatTemplate"]

MAX_SOURCE, MAX_STEPS, MAX_CHARACTERS, MAX_BITS = 1 << 17, 200_000, 1 << 24, 1024
"""Characters of a template; steps and characters of one rendering; bits of a number."""
FILTERS = frozenset(
    "abs capitalize count d default dictsort e escape first float groupby int items join last length list lower "
    "map max min reject rejectattr reverse safe select selectattr sort string sum title trim unique upper "
    "wordcount".split()
)
DEEP = frozenset("dictsort groupby max min sort string sum unique".split())
"""Filters that look at everything inside what they are given."""
TESTS = frozenset(
    "boolean defined divisibleby even false float integer iterable lower mapping none number odd sequence string true "
    "undefined upper".split()
)
METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        "capitalize count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace "
        "isupper join lower lstrip removeprefix removesuffix replace rfind rsplit rstrip split splitlines startswith "
        "strip title upper".split()
    ),
    dict: frozenset("get items keys values".split()),
    list: frozenset("count index".split()),
    tuple: frozenset("count index".split()),
}
_REFUSED = ("Include", "Import", "FromImport", "Extends", "Block")


class Budget:
    """What one rendering may still use."""

    def __init__(self) -> None:
        self.steps, self.characters = MAX_STEPS, MAX_CHARACTERS

    def step(self, number: int = 1) -> None:
        """Count steps; raises TemplateError when there are none left."""
        self.steps -= number
        if self.steps < 0:
            raise TemplateError(f"the chat's template takes more than {MAX_STEPS} steps; it is not meant for a chat")

    def write(self, number: int) -> None:
        """Count characters; raises TemplateError when there are none left."""
        self.characters -= number
        if self.characters < 0:
            raise TemplateError(f"the chat's template makes more than {MAX_CHARACTERS} characters of text")


_budget: ContextVar[Budget] = ContextVar("budget")


class ChatTemplate:
    """A compiled template.

    source: Jinja, as in `tokenizer_config.json` and in GGUF's `tokenizer.chat_template`. Raises TemplateError for what
    is no template and for what a template may not contain, MissingExtraError without Jinja.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"expected a chat's template of at most {MAX_SOURCE} characters, got {len(source)}")
        environment = _environment()
        import jinja2

        try:
            self._template = environment.from_string(_guarded(environment.parse(source)))
        except jinja2.TemplateError as error:
            where = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise TemplateError(f"the chat's template is no template{where}: {error.message}") from None
        except (RecursionError, SyntaxError, MemoryError, ValueError) as error:
            raise TemplateError(f"the chat's template is no template: {type(error).__name__}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text of a chat.

        messages: objects with `role` and `content`, and what else the template reads; plain values, lists and
        dictionaries. tools: functions that the model may call, as JSON schemas. add_generation_prompt: whether the text
        ends with the begin of the model's answer. variables: bos_token, eos_token and others. Raises TemplateError for
        messages that the template refuses, and for a template that asks for what it may not have or takes too long.
        """
        import jinja2

        values = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt, **variables}
        token = _budget.set(Budget())
        try:
            return self._template.render({name: _plain(value, name) for name, value in values.items()})
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat's template cannot be used: {error.message}") from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise TemplateError(f"the chat's template cannot be used: {type(error).__name__}: {error}") from None
        finally:
            _budget.reset(token)


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of plain values; raises TemplateError for others, whose attributes a template could reach."""
    _budget.get().step()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if depth < 32 and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): _plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if depth < 32 and isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise TemplateError(f"{where}: expected text, numbers, lists and dictionaries of these, got {type(value).__name__}")


# ------------------------------------------------------------------------------------------------------------- guards


def _size(value: Any) -> int:
    """Characters or items of a value, nested ones counted; each item counts as a step."""
    budget = _budget.get()
    total, rest = 0, [value]
    while rest:
        budget.step()
        item = rest.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            rest += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            rest += item
        else:
            total += 24
    return total


def _counted(value: Any) -> Any:
    """A value that is written or kept, its size counted."""
    _budget.get().write(_size(value))
    return value


def _turns(values: Iterable[Any]) -> list[Any]:
    """What a loop runs over, its turns counted."""
    found = []
    for value in values:
        _budget.get().step()
        found.append(value)
    return found


def _joined(values: Sequence[Any]) -> str:
    """The operator ~."""
    _counted(values)
    return "".join(map(str, values))


def _operator(name: str, left: Any, right: Any) -> Any:
    """An arithmetic operator, refused where its result would be large."""
    _budget.get().step()
    if name == "*":
        for one, other in ((left, right), (right, left)):
            if isinstance(one, str | list | tuple) and isinstance(other, int):
                _budget.get().write(max(other, 0) * max(_size(one), 1))
    if name == "+" and isinstance(left, str | list | tuple):
        _weighed(left)
        _weighed(right)
    if name == "%" and isinstance(left, str):
        raise TemplateError("the chat's template asks for formatting with %, which is not supported; use ~")
    if name == "**" and not (isinstance(right, int | float) and abs(right) <= 64):
        raise TemplateError("the chat's template asks for a large power")
    result = _OPERATORS[name](left, right)
    if isinstance(result, int) and result.bit_length() > MAX_BITS:
        raise TemplateError(f"the chat's template computes numbers of more than {MAX_BITS} bits")
    return result


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
    "**": lambda left, right: left**right,
}


def _replace_in(text: Any, old: Any, new: Any, count: int = -1) -> str:
    whole, before, after = str(text), str(old), str(new)
    times = whole.count(before) if count < 0 else min(count, whole.count(before))
    _budget.get().write(len(whole) + times * len(after))
    return whole.replace(before, after, count)


def _join(values: Iterable[Any], separator: str = "", attribute: Any = None) -> str:
    items = [item if attribute is None else item[attribute] for item in _turns(values)]
    _counted(items)
    _budget.get().write(len(str(separator)) * len(items))
    return str(separator).join(map(str, items))


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
             sort_keys: bool = False) -> str:  # fmt: skip
    """JSON as transformers writes it for templates: nothing is escaped for HTML."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= 16):
        raise TemplateError("the chat's template asks for JSON with an indent that is no number up to 16")
    _counted(value)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return str(_counted(text))


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    space = width if isinstance(width, str) else " " * min(width, 64)
    lines = str(text).split("\n")
    _budget.get().write(len(text) + len(lines) * len(space))
    made = [line if not (line or blank) or (not i and not first) else space + line for i, line in enumerate(lines)]
    return "\n".join(made)


def _range(*bounds: int) -> range:
    found = range(*bounds)
    _budget.get().step(len(found))
    return found


def _raise(message: str) -> NoReturn:
    raise TemplateError(f"the chat's template refuses these messages: {message}")


def _now(form: str) -> str:
    from datetime import datetime

    if len(form) > 100:
        raise TemplateError("the chat's template asks for a date of more than 100 characters")
    return datetime.now().strftime(form)


def _bounded(call: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of Jinja's, with its result counted."""

    look = _counted if call.__name__.removeprefix("do_") in DEEP else _weighed

    @wraps(call)
    def bounded(*args: Any, **named: Any) -> Any:
        _budget.get().step()
        for value in args:
            if isinstance(value, str | list | tuple | dict):
                look(value)
        return _weighed(call(*args, **named))

    return bounded


def _joined_by(separator: str, values: Iterable[Any]) -> str:
    return _join(values, separator)


def _weighed(value: Any) -> Any:
    """A value, its length counted if it is text or a list, but not what is inside a list."""
    if isinstance(value, str | list | tuple | dict):
        _budget.get().write(len(value))
    return value


def _compared(value: Any) -> Any:
    """An operand of a comparison, everything in it counted."""
    return _weighed(value) if isinstance(value, str) or value is None else _counted(value)


def _equal(left: Any, right: Any) -> bool:
    return bool(_compared(left) == _compared(right))


def _contains(value: Any, held: Any) -> bool:
    return _compared(value) in _compared(held)


def _round(value: float, precision: int = 0) -> float:
    return round(value, max(-16, min(precision, 16)))


# -------------------------------------------------------------------------------------------------------------- Jinja


def _guarded(tree: nodes.Template) -> nodes.Template:
    """The program with turns of loops, texts joined by ~, constant text and literals counted."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    def through(name: str, node: Any) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    class Guards(NodeTransformer):
        def generic_visit(self, node: nodes.Node, *args: Any, **named: Any) -> nodes.Node:
            kind = type(node).__name__
            if kind in _REFUSED or (isinstance(node, nodes.For) and node.recursive):
                what = "a recursive loop" if isinstance(node, nodes.For) else kind.lower()
                raise TemplateError(
                    f"the chat's template asks for {what} in line {node.lineno}, which is not available"
                )
            made = super().generic_visit(node, *args, **named)
            if isinstance(made, nodes.TemplateData):
                return nodes.Const(made.data, lineno=made.lineno)
            if isinstance(made, nodes.Compare | nodes.Operand):
                made.expr = through("compared", made.expr)
            elif isinstance(made, nodes.Getitem) and isinstance(made.arg, nodes.Slice):
                return through("weighed", made)
            elif isinstance(made, nodes.For):
                made.iter = through("turns", made.iter)
            elif isinstance(made, nodes.Concat):
                return through("joined", nodes.List(made.nodes, lineno=made.lineno))
            elif isinstance(made, nodes.List | nodes.Dict) or (isinstance(made, nodes.Tuple) and made.ctx == "load"):
                return through("counted", made)
            return made

    made: nodes.Template = Guards().visit(tree)
    return made


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    """The sandbox."""
    try:
        from jinja2 import Undefined, pass_context
        from jinja2.ext import Extension
        from jinja2.runtime import LoopContext, Macro
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from jinja2.utils import Namespace
    except ModuleNotFoundError:
        raise MissingExtraError("jinja2", "language", "it renders the templates of chats", ["jinja2"]) from None

    class Generation(Extension):
        """`{% generation %}` marks what an assistant wrote, for training; here it changes nothing."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(_OPERATORS)

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            if isinstance(obj, LoopContext | Namespace):
                return not attr.startswith("_")
            return attr in METHODS.get(type(obj), ())

        def is_safe_callable(self, obj: Any) -> bool:
            owner = getattr(obj, "__self__", None)
            return obj is Namespace or isinstance(obj, Macro) or isinstance(owner, LoopContext) \
                or type(owner) in METHODS or obj in (_range, _raise, _now)  # fmt: skip

        def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
            raise TemplateError(
                f"the chat's template asks for {attribute[:40]!r} of a {type(obj).__name__}, which is not available"
            )

        def call(self, context: Any, obj: Any, /, *args: Any, **named: Any) -> Any:
            _budget.get().step()
            owner = _weighed(getattr(obj, "__self__", None))
            if isinstance(owner, str) and obj.__name__ in ("replace", "join"):
                return (_replace_in if obj.__name__ == "replace" else _joined_by)(owner, *args, **named)
            return _weighed(super().call(context, obj, *args, **named))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            return _operator(operator, left, right)

    @pass_context
    def written(context: Any, value: Any) -> Any:
        return _counted(value)

    made = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation], finalize=written
    )
    made.filters = {name: _bounded(made.filters[name]) for name in FILTERS}
    made.filters |= {"tojson": _to_json, "replace": _replace_in, "join": _join, "indent": _indent, "round": _round}
    made.filters |= {name: _at_run(call) for name, call in _GUARDS.items()}
    made.tests = {name: made.tests[name] for name in TESTS}
    made.tests |= {**dict.fromkeys(("eq", "equalto", "=="), _equal), "in": _contains}
    made.tests |= dict.fromkeys(("ne", "!="), lambda left, right: not _equal(left, right))
    made.globals = {"range": _range, "namespace": Namespace, "raise_exception": _raise, "strftime_now": _now}
    return made


_GUARDS: Mapping[str, Callable[[Any], Any]] = {
    "turns": _turns,
    "joined": _joined,
    "counted": _counted,
    "compared": _compared,
    "weighed": _weighed,
}
"""What `_guarded` puts around expressions."""


def _at_run(call: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """A filter that Jinja does not compute when it compiles."""
    from jinja2 import pass_context

    @pass_context
    def filtered(context: Any, value: Any) -> Any:
        return call(value)

    return filtered
