"""What an expression is an instance of, as far as annotations and constructors tell."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.next_vllm.signatures import decorators
from benchmarks.next_vllm.source_tree import Function, SourceTree, Symbol

DEEPEST = 12
"""Steps from an expression to its type that are followed."""


@dataclass(frozen=True, slots=True)
class Value:
    """A module, class or function itself, or an instance of the class."""

    symbol: Symbol
    instance: bool = False


Scope = Mapping[str, Value | None]


class Types:
    """Values of expressions in a tree; None where they cannot be told."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree

    def evaluate(
        self, expression: ast.AST | None, module: str, scope: Scope, depth: int = DEEPEST
    ) -> Value | None:
        """What an expression in `module` holds, where `scope` has the values of local names."""
        if depth == 0:
            return None
        if isinstance(expression, ast.Name):
            if expression.id in scope:
                return scope[expression.id]
            symbol = self.tree.name(module, expression.id)
            return None if symbol is None else self.held(symbol, depth - 1)
        if isinstance(expression, ast.Attribute):
            owner = self.evaluate(expression.value, module, scope, depth - 1)
            found = None if owner is None else self.tree.attribute(owner.symbol, expression.attr)
            return None if found is None else self.held(found, depth - 1)
        if isinstance(expression, ast.Call):
            made = self.evaluate(expression.func, module, scope, depth - 1)
            if made is None or made.instance:
                return None
            if isinstance(made.symbol.node, ast.ClassDef):
                return Value(made.symbol, instance=True)
            if isinstance(made.symbol.node, Function):
                return self.annotated(made.symbol.module, made.symbol.node.returns)
        return None

    def held(self, symbol: Symbol, depth: int = DEEPEST) -> Value | None:
        """What a name or an attribute holds: itself where it is a definition, else by annotation or first value."""
        node = symbol.node
        if isinstance(node, Function) and decorators(node) & {"property", "cached_property"}:
            return self.annotated(symbol.module, node.returns)
        if isinstance(node, (*Function, ast.ClassDef)) or not symbol.path:
            return Value(symbol)
        if isinstance(node, ast.AnnAssign):
            return self.annotated(symbol.module, node.annotation)
        if isinstance(node, ast.Assign):
            return self.evaluate(node.value, symbol.module, self._around(symbol), depth - 1)
        return None

    def _around(self, symbol: Symbol) -> Scope:
        """The parameters of the method in which `self.x = ...` stands."""
        owner = self.tree.find(symbol.module, symbol.path[:-1])
        for method in [] if owner is None else ast.walk(owner.node):
            if isinstance(method, Function) and any(node is symbol.node for node in ast.walk(method)):
                return self.parameters(symbol.module, method, owner)
        return {}

    def parameters(
        self, module: str, function: ast.FunctionDef | ast.AsyncFunctionDef, owner: Symbol | None
    ) -> dict[str, Value | None]:
        """A function's parameters by their annotations, and `self` of a method of `owner`."""
        every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        found = {arg.arg: self.annotated(module, arg.annotation) for arg in every}
        if owner is not None and "self" in found:
            found["self"] = Value(owner, instance=True)
        return found

    def annotated(self, module: str, annotation: ast.AST | None) -> Value | None:
        """An instance of what an annotation names; of a union, of its first class."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except SyntaxError:
                return None
        if isinstance(annotation, ast.BinOp):
            return self.annotated(module, annotation.left) or self.annotated(module, annotation.right)
        if isinstance(annotation, ast.Subscript):
            if ast.unparse(annotation.value).rpartition(".")[2] not in ("Optional", "ClassVar", "Final"):
                return None
            return self.annotated(module, annotation.slice)
        if annotation is None:
            return None
        symbol = self.tree.resolve(module, annotation)
        named = symbol is not None and isinstance(symbol.node, ast.ClassDef)
        return Value(symbol, instance=True) if named and symbol is not None else None
