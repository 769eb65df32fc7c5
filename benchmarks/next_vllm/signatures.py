"""Signatures of functions and classes that are read as text, and how two of them agree."""

from __future__ import annotations

import ast
import hashlib
import inspect
from dataclasses import dataclass
from typing import Any

from benchmarks.next_vllm.source_tree import Function, SourceTree, Symbol, statements

DATA_CLASSES = ("dataclass", "config", "NamedTuple", "Struct")
"""Decorators and bases whose classes take their fields."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Names of the parameters that may be given by position, of those that may not, and of those with a default."""

    positional: tuple[str, ...]
    keyword_only: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    args: bool = False
    kwargs: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.positional + self.keyword_only

    def without_first(self) -> Signature:
        return Signature(self.positional[1:], self.keyword_only, self.optional, self.args, self.kwargs)

    def takes(self, call: Call) -> bool:
        """Whether such a call fits. What is unpacked in it may be anything that is missing."""
        if call.positional > len(self.positional) and not self.args:
            return False
        given = {*self.positional[: call.positional], *call.keywords}
        if not (self.kwargs or set(call.keywords) <= set(self.names)):
            return False
        return call.unpacks or set(self.names) - self.optional <= given


@dataclass(frozen=True, slots=True)
class Call:
    """So many arguments by position, those by name, and whether more are unpacked into it."""

    positional: int
    keywords: tuple[str, ...]
    unpacks: bool

    @classmethod
    def of(cls, node: ast.Call) -> Call:
        plain = [one for one in node.args if not isinstance(one, ast.Starred)]
        names = tuple(one.arg for one in node.keywords if one.arg is not None)
        return cls(len(plain), names, len(plain) < len(node.args) or len(names) < len(node.keywords))


def of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Signature:
    found = node.args
    positional = [arg.arg for arg in (*found.posonlyargs, *found.args)]
    keyword_only = [arg.arg for arg in found.kwonlyargs]
    optional = positional[len(positional) - len(found.defaults) :]
    optional += [n for n, default in zip(keyword_only, found.kw_defaults, strict=True) if default is not None]
    return Signature(
        tuple(positional), tuple(keyword_only), frozenset(optional), bool(found.vararg), bool(found.kwarg)
    )


def of_callable(function: Any) -> Signature:
    """Of a function that is at hand."""
    found = inspect.signature(function, follow_wrapped=False).parameters.values()
    kinds = {p.kind for p in found}
    named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return Signature(
        tuple(p.name for p in named if p.kind is not p.KEYWORD_ONLY),
        tuple(p.name for p in named if p.kind is p.KEYWORD_ONLY),
        frozenset(p.name for p in named if p.default is not p.empty),
        inspect.Parameter.VAR_POSITIONAL in kinds,
        inspect.Parameter.VAR_KEYWORD in kinds,
    )


def hooked(ours: Signature, asked: tuple[str, ...], stock: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether `plugin.vllm_hooks.hook.replace` takes the stock function: see there for what it may have more."""
    theirs, names = of_function(stock), parameters(stock)
    if decorators(stock) & {"classmethod"}:  # which is replaced as it arrives, bound
        theirs, names = theirs.without_first(), names[1:]
    more = set(names) - set(asked)
    return names == asked or (
        ours.kwargs
        and tuple(name for name in names if name in asked) == asked
        and names[: len(ours.positional)] == ours.positional
        and more <= theirs.optional
    )


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    """Names of all parameters in the order in which `inspect.signature` has them."""
    found = node.args
    between = [found.vararg] if found.vararg else []
    behind = [found.kwarg] if found.kwarg else []
    every = (*found.posonlyargs, *found.args, *between, *found.kwonlyargs, *behind)
    return tuple(arg.arg for arg in every)


def decorators(node: ast.AST) -> set[str]:
    """Last parts of their names."""
    found = [one.func if isinstance(one, ast.Call) else one for one in getattr(node, "decorator_list", [])]
    return {ast.unparse(one).rpartition(".")[2] for one in found}


def of_symbol(tree: SourceTree, symbol: Symbol) -> Signature | None:
    """What a function takes, or what makes an instance of a class; None where that is not to be seen."""
    node = symbol.node
    if isinstance(node, Function):
        return of_function(node)
    if not isinstance(node, ast.ClassDef):
        return None
    init = tree.attribute(symbol, "__init__")
    if init is not None and isinstance(init.node, Function):
        return of_function(init.node).without_first()
    marks = decorators(node) | {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    if not marks & set(DATA_CLASSES):
        return None
    fields: dict[str, bool] = {}
    for one in reversed(tree.lineage(symbol)):
        assert isinstance(one.node, ast.ClassDef)
        for statement in statements(one.node.body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                fields[statement.target.id] = statement.value is not None
    return Signature(tuple(fields), optional=frozenset(name for name, given in fields.items() if given))


def replaces(ours: Signature, stock: Signature) -> bool:
    """Whether an override takes what the stock method takes, under the same names and in the same order."""
    if ours.args and ours.kwargs:
        return True
    asked = len(stock.names)
    if ours.kwargs and len(ours.names) < asked and set(stock.names[len(ours.names) :]) <= stock.optional:
        asked = len(ours.names)  # what is new there has a default and arrives by name
    return ours.names[:asked] == stock.names[:asked] and set(ours.names[asked:]) <= ours.optional


def fingerprint(node: ast.AST) -> str:
    """Of a definition's code: comments, layout and the docstring do not count."""
    body = list(getattr(node, "body", []))
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    text = "\n".join(ast.dump(part) for part in (getattr(node, "args", ast.Pass()), *body))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
