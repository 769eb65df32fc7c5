"""What code of ours uses of a package of others: names, attributes, calls, overrides. Found by reading, not running."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.next_vllm import signatures
from benchmarks.next_vllm.signatures import Call, Signature
from benchmarks.next_vllm.source_tree import Function, SourceTree, Symbol, is_name, local
from benchmarks.next_vllm.value_types import Types, Value

Kind = Literal["name", "call", "override", "subclass", "hook", "store", "text"]
OWN_SIGNATURES = {"__init__", "forward"}
"""Constructors and modules' forwards have signatures of their own, by design."""


@dataclass(frozen=True, slots=True)
class Use:
    """One use of `path` in a module of the package.

    `call` fits it; `ours` is the signature of our override or replacement; `defines` are the methods of a subclass;
    `parameters` those that a hook asks for, and an `optional` one may find nothing; `text` begins a line of the
    module's log.
    """

    kind: Kind
    module: str
    path: tuple[str, ...]
    where: str = field(compare=False, default="")
    call: Call | None = None
    bound: bool = False
    ours: Signature | None = None
    defines: frozenset[str] = frozenset()
    parameters: tuple[str, ...] = ()
    optional: bool = False
    text: str = ""


Address = tuple[str, tuple[str, ...]]
"""A module of the package and a path in it."""


class Reader(ast.NodeVisitor):
    """Collects the uses in one module of `tree`, which holds the package, too.

    `elsewhere` has, for what an `except ImportError` imports, the address that was tried before.
    """

    def __init__(self, tree: SourceTree, module: str, package: str) -> None:
        self.tree, self.module, self.package = tree, module, package
        self.types = Types(tree)
        self.uses: dict[Use, None] = {}
        self.elsewhere: dict[Address, Address] = {}
        self._scopes: list[dict[str, Value | None]] = []
        self._classes: list[Symbol] = []
        self._path: list[str] = []
        self._makers: dict[str, Symbol] = {}
        self._hooked: list[Symbol] = []

    def read(self) -> Reader:
        tree = self.tree.parse(self.module)
        assert tree is not None, self.module
        self.visit(tree)
        return self

    def _theirs(self, module: str) -> bool:
        return module == self.package or module.startswith(f"{self.package}.")

    def _add(self, kind: Kind, node: ast.AST, module: str, path: Iterable[str], **more: object) -> None:
        where = f"{self.module}:{getattr(node, 'lineno', 0)}"
        self.uses.setdefault(Use(kind, module, tuple(path), where, **more))  # type: ignore[arg-type]

    def _value(self, node: ast.AST) -> Value | None:
        scope = {name: value for one in self._scopes for name, value in one.items()}
        return self.types.evaluate(node, self.module, scope)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            symbol = self.tree.imported(self.module, node, alias)
            if self._scopes:
                self._scopes[-1][local(alias)] = None if symbol is None else self.types.held(symbol)
            module, path = self._imported(node, alias, self._names_module(node, alias))
            if self._theirs(module) and symbol is not None:
                self._add("name", node, module, path)

    def _names_module(self, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
        origin = self.tree.origin(self.module, node) if isinstance(node, ast.ImportFrom) else ""
        return self.tree.file(f"{origin}.{alias.name}") is not None

    def _imported(self, node: ast.Import | ast.ImportFrom, alias: ast.alias, is_module: bool) -> Address:
        if isinstance(node, ast.Import):
            return alias.name, ()
        origin = self.tree.origin(self.module, node)
        return (f"{origin}.{alias.name}", ()) if is_module else (origin, (alias.name,))

    def visit_Try(self, node: ast.Try) -> None:
        first = {local(alias): (one, alias) for one, alias in _imports(node.body)}
        for handler in node.handlers:
            for one, alias in _imports(handler.body):
                if local(alias) in first:
                    is_module = self._names_module(
                        one, alias
                    )  # and then so is what this version may not have
                    tried = self._imported(*first[local(alias)], is_module)
                    self.elsewhere[self._imported(one, alias, is_module)] = tried
        self.generic_visit(node)

    visit_Import = visit_ImportFrom = _import  # noqa: N815

    def visit_Constant(self, node: ast.Constant) -> None:
        name = node.value
        if isinstance(name, str) and re.fullmatch(rf"{self.package}(\.\w+)+", name) and self.tree.file(name):
            self._add("name", node, name, ())

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        owner = self._value(node.value)
        if owner is not None and (address := self._address(owner.symbol, node.attr)) is not None:
            kind: Kind = "store" if isinstance(node.ctx, ast.Store) and not owner.instance else "name"
            self._add(kind, node, *address)

    def _address(self, owner: Symbol, name: str) -> Address | None:
        """Where the package has `owner.name`; of a class of ours, at the nearest base that is theirs."""
        found = self.tree.attribute(owner, name)
        if found is None or (not self._theirs(found.module) and not self._theirs(owner.module)):
            return None
        if self._theirs(owner.module):
            return owner.module, (*owner.path, name)
        base = next(one for one in self.tree.lineage(owner) if self._theirs(one.module))
        if self.tree.attribute(base, name) is None:
            base = Symbol(found.module, found.path[:-1])
        return base.module, (*base.path, name)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and _is_super(node.func.value) and self._classes:
            self._call_of_base(node, node.func.attr)
            return
        made = self._value(node.func)
        if made is None or made.instance or not made.symbol.path or not self._theirs(made.symbol.module):
            return
        bound = isinstance(made.symbol.node, Function) and self._is_bound(node.func, made.symbol.node)
        self._add("call", node, made.symbol.module, made.symbol.path, call=Call.of(node), bound=bound)

    def _call_of_base(self, node: ast.Call, name: str) -> None:
        for base in self.tree.lineage(self._classes[-1])[1:]:
            if self._theirs(base.module) and self.tree.attribute(base, name) is not None:
                self._add("call", node, base.module, (*base.path, name), call=Call.of(node), bound=True)
                return

    def _is_bound(self, function: ast.expr, node: ast.AST) -> bool:
        """Whether the call leaves out the first parameter."""
        marks = signatures.decorators(node)
        owner = self._value(function.value) if isinstance(function, ast.Attribute) else None
        of_class = owner is not None and isinstance(owner.symbol.node, ast.ClassDef)
        return of_class and "staticmethod" not in marks and (owner.instance or "classmethod" in marks)  # type: ignore[union-attr]

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name) and self._scopes:
                self._scopes[-1][target.id] = self._value(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._path.append(node.name)
        symbol = Symbol(self.module, tuple(self._path), node)
        bases = [one for one in self.tree.lineage(symbol)[1:] if self._theirs(one.module)]
        for statement in node.body:
            if isinstance(statement, Function) and statement.name not in OWN_SIGNATURES:
                self._override(statement, bases)
        own = [one for one in self.tree.lineage(symbol) if not self._theirs(one.module)]
        defines = frozenset(name for one in own for name in self.tree.members(one))
        for base in bases[:1]:
            self._add("subclass", node, base.module, base.path, defines=defines)
        self._classes.append(symbol)
        self.generic_visit(node)
        self._classes.pop()
        self._path.pop()

    def _override(self, node: ast.FunctionDef | ast.AsyncFunctionDef, bases: list[Symbol]) -> None:
        for base in bases:
            stock = self.tree.attribute(base, node.name)
            if stock is not None and isinstance(stock.node, Function):
                self._add(
                    "override", node, base.module, (*base.path, node.name), ours=signatures.of_function(node)
                )
                return

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        owner = self._classes[-1] if self._classes and len(self._path) == len(self._classes) else None
        scope = self.types.parameters(self.module, node, owner)
        stock = self._hooked[-1] if self._hooked else None
        if owner is not None:
            bases = [one for one in self.tree.lineage(owner)[1:] if self._theirs(one.module)]
            stock = next((s for b in bases if (s := self.tree.attribute(b, node.name)) is not None), None)
        if stock is not None and isinstance(stock.node, Function):
            above = self.tree.find(stock.module, stock.path[:-1]) if len(stock.path) > 1 else None
            theirs = self.types.parameters(stock.module, stock.node, above)
            scope = {name: value or theirs.get(name) for name, value in scope.items()}
        self._scopes.append(scope)
        for statement in node.body:  # hooks name what they replace behind the function that does it
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._import(statement)
        makers = dict(self._replacements(node))
        hooked = self._makers.get(node.name)
        outer, self._makers = self._makers, {**self._makers, **makers}
        if hooked is not None:
            self._hooked.append(hooked)
        self.generic_visit(node)
        if hooked is not None:
            self._hooked.pop()
        self._makers = outer
        self._scopes.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815

    def _replacements(self, node: ast.AST) -> Iterable[tuple[str, Symbol]]:
        """Of each `replace(owner, "name", parameters, maker)` in a function: the maker's name and what is replaced."""
        for call in ast.walk(node):
            if not (isinstance(call, ast.Call) and is_name(call.func, "replace") and len(call.args) == 4):
                continue
            owner, name, maker = self._value(call.args[0]), call.args[1], call.args[3]
            if owner is not None and isinstance(name, ast.Constant) and isinstance(maker, ast.Name):
                symbol = self.tree.attribute(owner.symbol, str(name.value))
                yield from [] if symbol is None else [(maker.id, symbol)]


def _imports(body: list[ast.stmt]) -> Iterator[tuple[ast.ImportFrom, ast.alias]]:
    for statement in body:
        if isinstance(statement, ast.ImportFrom):
            yield from ((statement, alias) for alias in statement.names)


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and is_name(node.func, "super")
