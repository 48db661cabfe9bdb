"""Defects to put into the code on purpose, each named by the function that it changes and never by the text of it.

Owns: the edits from which guarantees are made (`guarantees/`). An edit takes the function itself, as
``module.function`` or ``Class.method``, and what it is about as an object too: another function, a class, or an
attribute as ``lambda it: it.attribute``. So a rename by a tool carries them along, reformatting does not touch them,
and a function that is gone is an error of the import that names it.

Edits exchange the code of the function object: every module that imported it sees the defect. They last until the
process ends, so that a process has one defect at most (`zygote.py` forks one for each).
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

_NUMBERS = itertools.count()


class DoesNotFit(Exception):
    """The code has changed so that a defect cannot be put into it; says which, and what is missing."""


@dataclass(frozen=True)
class Defect:
    """What is changed; nothing is changed before `apply`."""

    symbol: str
    words: str
    apply: Callable[[], None]


# ---- whole functions


def replace(function: Any, by: Callable[..., Any]) -> Defect:
    """Let `by` run instead; it gets the original function and then the arguments."""

    def apply() -> None:
        target = _function_of(function)
        _check_parameters(target, by)
        _redirect(target, by)

    return Defect(_shown(function), "does something else", apply)


def returns(function: Any, value: Any) -> Defect:
    """Let the function do nothing but give a value."""
    return Defect(
        _shown(function),
        f"gives {value!r} and does nothing",
        lambda: _redirect(_function_of(function), lambda original, *args, **kwargs: value),
    )


def change_result(function: Any, change: Callable[[Any], Any]) -> Defect:
    """Let the function run, and change what it gives."""
    return Defect(
        _shown(function),
        "gives another result",
        lambda: _redirect(_function_of(function), lambda original, *args, **kwargs: change(original(*args, **kwargs))),
    )


def change_arguments(function: Any, **values: Any) -> Defect:
    """Let the function run with other arguments than it is called with."""

    def apply() -> None:
        target = _function_of(function)
        signature = inspect.signature(target)
        if missing := values.keys() - signature.parameters.keys():
            raise DoesNotFit(f"{_shown(function)} has no parameter {', '.join(sorted(missing))}")

        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.arguments.update(values)
            return original(*bound.args, **bound.kwargs)

        _redirect(target, call)

    return Defect(_shown(function), f"runs with {_listed(values)}", apply)


def set_value(owner: Any, what: Any, value: Any) -> Defect:
    """Give an attribute of a module or a class, as ``lambda it: it.NAME``, another value."""

    def apply() -> None:
        name = _name_of(what)
        if not hasattr(owner, name):
            raise DoesNotFit(f"{owner.__name__} has no {name}")
        setattr(owner, name, value)

    return Defect(f"{owner.__name__}.{_name_of(what)}", f"is {value!r}", apply)


def several(*defects: Defect) -> Defect:
    """Put several edits in at once."""

    def apply() -> None:
        for defect in defects:
            defect.apply()

    return Defect(
        ", ".join(dict.fromkeys(defect.symbol for defect in defects)),
        "; ".join(defect.words for defect in defects),
        apply,
    )


# ---- parts of functions


def raise_nothing(function: Any) -> Defect:
    """Leave every ``raise`` of the function out: what it refuses goes through."""

    class Edit(_Edit):
        def visit_Raise(self, node: ast.Raise) -> ast.AST:
            return self.changed(ast.Pass())

    return _part(function, Edit(), "refuses nothing", "raises nothing")


def skip(function: Any, called: Any) -> Defect:
    """Leave the statements of the function out that call something and do nothing else."""
    name = _name_of(called)

    class Edit(_Edit):
        def visit_Expr(self, node: ast.Expr) -> ast.AST:
            if isinstance(node.value, ast.Call) and _last_name(node.value.func) == name:
                return self.changed(ast.Pass())
            return self.generic_visit(node)

    return _part(function, Edit(), f"does not call {name}", f"does not call {name} for its effect")


def forget(function: Any, attribute: Any) -> Defect:
    """Leave the statements of the function out that assign to an attribute."""
    name = _name_of(attribute)

    class Edit(_Edit):
        def visit_Assign(self, node: ast.Assign) -> ast.AST:
            if any(_last_name(target) == name for target in node.targets):
                return self.changed(ast.Pass())
            return node

        def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
            return self.changed(ast.Pass()) if _last_name(node.target) == name else node

    return _part(function, Edit(), f"does not note {name}", f"does not assign to {name}")


def answer(function: Any, called: Any, by: Callable[..., Any]) -> Defect:
    """Let `by` run where the function calls something; it gets what was called and then the arguments."""
    name, answering = _name_of(called), _global_name()

    class Edit(_Edit):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            if _last_name(node.func) != name:
                return node
            return self.changed(ast.Call(ast.Name(answering, ast.Load()), [node.func, *node.args], node.keywords))

    edit = _part(function, Edit(), f"gets another answer of {name}", f"does not call {name}")
    return _with_global(edit, function, answering, by)


def pass_on(function: Any, called: Any, **values: Any) -> Defect:
    """Let the function pass other values of keyword arguments on to what it calls."""
    edit = answer(function, called, lambda original, *args, **kwargs: original(*args, **{**kwargs, **values}))
    return Defect(edit.symbol, f"passes {_listed(values)} on to {_name_of(called)}", edit.apply)


def see(function: Any, what: Any, as_: Any) -> Defect:
    """Let the function read something, as an attribute, as another value; also an error that it catches."""
    name, seen = _name_of(what), _global_name()

    class Edit(_Edit):
        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            self.generic_visit(node)
            return self.of(node) if node.attr == name and isinstance(node.ctx, ast.Load) else node

        def visit_Name(self, node: ast.Name) -> ast.AST:
            return self.of(node) if node.id == name and isinstance(node.ctx, ast.Load) else node

        def of(self, node: ast.expr) -> ast.AST:
            return self.changed(ast.Name(seen, ast.Load()))

    words = getattr(as_, "__name__", None) or repr(as_)
    edit = _part(function, Edit(), f"takes {name} for {words}", f"does not read {name}")
    return _with_global(edit, function, seen, as_)


def never(function: Any, what: Any) -> Defect:
    """Let each condition of the function that mentions something be false."""
    return _condition(function, what, value=False)


def always(function: Any, what: Any) -> Defect:
    """Let each condition of the function that mentions something be true."""
    return _condition(function, what, value=True)


def _condition(function: Any, what: Any, *, value: bool) -> Defect:
    name = _name_of(what)

    class Edit(_Edit):
        def condition(self, node: ast.expr) -> ast.expr:
            if isinstance(node, ast.BoolOp):
                node.values = [self.condition(part) for part in node.values]
            elif any(_last_name(part) == name for part in ast.walk(node)):
                return self.changed(ast.Constant(value))  # type: ignore[return-value]
            return node

        def visit_If(self, node: ast.If) -> ast.AST:
            node.test = self.condition(node.test)
            return self.generic_visit(node)

        def visit_While(self, node: ast.While) -> ast.AST:
            node.test = self.condition(node.test)
            return self.generic_visit(node)

        def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
            node.test = self.condition(node.test)
            return self.generic_visit(node)

        def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
            return self.generic_visit(self.condition(node))

        def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
            node.ifs = [self.condition(part) for part in node.ifs]
            return self.generic_visit(node)

    says = "always" if value else "never"
    return _part(function, Edit(), f"{says} takes the condition with {name}", f"has no condition with {name}")


# ---- how


class _Edit(ast.NodeTransformer):
    """An edit of a function's tree that counts what it has changed."""

    count = 0

    def changed(self, node: ast.AST) -> ast.AST:
        """Note one more change."""
        self.count += 1
        return node


def _part(function: Any, edit: _Edit, words: str, misfit: str) -> Defect:
    def apply() -> None:
        target = _function_of(function)
        tree = ast.parse(textwrap.dedent(inspect.getsource(target))).body[0]
        assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef), (
            f"{_shown(function)} is not a function with a name"
        )
        tree.decorator_list = []
        tree.body = [edit.visit(statement) for statement in tree.body]
        if not edit.count:
            raise DoesNotFit(f"{_shown(function)} {misfit}")
        target.__code__ = _compile(tree, target)

    return Defect(_shown(function), words, apply)


def _with_global(defect: Defect, function: Any, name: str, value: Any) -> Defect:
    def apply() -> None:
        _function_of(function).__globals__[name] = value
        defect.apply()

    return Defect(defect.symbol, defect.words, apply)


def _redirect(target: FunctionType, by: Callable[..., Any]) -> None:
    """Let a function object call `by` with itself as it was."""
    original = FunctionType(
        target.__code__, target.__globals__, target.__name__, target.__defaults__, target.__closure__
    )
    original.__kwdefaults__ = target.__kwdefaults__
    name = _global_name()
    target.__globals__[name] = functools.partial(by, original)
    answer = f"{name}(*args, **kwargs)"
    if inspect.isgeneratorfunction(target):  # it stays one: Python takes no code of another kind
        answer = f"(yield from {answer})"
    tree = ast.parse(f"def {target.__name__}(*args, **kwargs): return {answer}").body[0]
    assert isinstance(tree, ast.FunctionDef)
    target.__code__ = _compile(tree, target)


def _compile(tree: ast.FunctionDef | ast.AsyncFunctionDef, target: FunctionType) -> CodeType:
    """The code of a changed function that fits the variables around the old one."""
    free = target.__code__.co_freevars
    mention = ast.parse(f"if False: ({', '.join(free)},)").body if free else []  # else the code would lack the variable
    tree.body = [*mention, *tree.body]
    around = ast.parse(f"def around({', '.join(free)}): pass")
    around.body[0].body = [tree]  # type: ignore[attr-defined]
    ast.increment_lineno(tree, target.__code__.co_firstlineno - tree.lineno)
    ast.fix_missing_locations(around)
    flags = __future__.annotations.compiler_flag
    whole = compile(around, target.__code__.co_filename, "exec", flags=flags, dont_inherit=True)
    (outer,) = (part for part in whole.co_consts if isinstance(part, CodeType))
    (code,) = (part for part in outer.co_consts if isinstance(part, CodeType) and part.co_name == target.__name__)
    return code


def _function_of(symbol: Any) -> FunctionType:
    """The function below a property, a bound method or a decorator."""
    while not isinstance(symbol, FunctionType) or hasattr(symbol, "__wrapped__"):
        for attribute in ("__wrapped__", "__func__", "fget", "func"):
            if (inner := getattr(symbol, attribute, None)) is not None:
                symbol = inner
                break
        else:
            raise DoesNotFit(f"{symbol!r} is no function")
    return symbol


def _check_parameters(target: FunctionType, by: Callable[..., Any]) -> None:
    """Refuse a replacement that cannot be called as the function is: its failure would be none of a test."""
    kinds = inspect.Parameter
    wanted = list(inspect.signature(target).parameters.values())
    given = list(inspect.signature(by).parameters.values())[1:]
    takes_all = {parameter.kind for parameter in given} >= {kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD}
    if not takes_all:
        positional = [p for p in given if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.POSITIONAL_ONLY)]
        expected = [p for p in wanted if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.POSITIONAL_ONLY)]
        named = {p.name for p in given if p.kind is kinds.KEYWORD_ONLY}
        rest = {p.kind for p in given}
        fits = (len(positional) == len(expected) or kinds.VAR_POSITIONAL in rest) and (
            {p.name for p in wanted if p.kind is kinds.KEYWORD_ONLY} == named or kinds.VAR_KEYWORD in rest
        )
        if not fits:
            raise DoesNotFit(f"{_shown(target)} has other parameters than its replacement: {inspect.signature(target)}")


def _name_of(what: Any) -> str:
    """The name of a function, a class, or of the attribute that a lambda reads."""
    if isinstance(what, FunctionType) and what.__name__ == "<lambda>":
        return what.__code__.co_names[-1]
    if isinstance(what, property):
        return str(what.fget.__name__)  # type: ignore[union-attr]
    return str(what.__name__)


def _last_name(node: ast.AST) -> str | None:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _shown(symbol: Any) -> str:
    function = _function_of(symbol)
    return f"{function.__module__.removeprefix('lakebed.')}.{function.__qualname__}"


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _global_name() -> str:
    return f"_defect_{next(_NUMBERS)}"
