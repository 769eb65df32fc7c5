"""Python packages read as text: what a dotted name stands for, without importing anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
DEEPEST = 20
"""Re-exports that are followed, one after the other."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A module (`path` is empty) or what stands in it at `path`, where it is defined rather than re-exported."""

    module: str
    path: tuple[str, ...] = ()
    node: ast.AST = field(default_factory=ast.Pass, compare=False)

    def __str__(self) -> str:
        return ".".join((self.module, *self.path))


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a body and of the branches in it, not those of its functions and classes."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            if not isinstance(statement, (*Function, ast.ClassDef)):
                yield from statements(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from statements(handler.body)


def bound(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement itself binds, imports apart."""
    if isinstance(statement, (*Function, ast.ClassDef)):
        yield statement.name
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    for target in targets:
        for node in getattr(target, "elts", [target]):
            if isinstance(node, ast.Name):
                yield node.id


def local(alias: ast.alias) -> str:
    """The name that an import binds."""
    return alias.asname or alias.name.partition(".")[0]


class SourceTree:
    """Some packages, each below its folder. Modules are parsed when they are first asked for."""

    def __init__(self, packages: Mapping[str, Path]) -> None:
        """The folder that holds each package, by the package's name."""
        self.packages = packages
        self._files: dict[str, Path | None] = {}
        self._parsed: dict[str, ast.Module | None] = {}
        self._names: dict[str, dict[str, list[ast.stmt]]] = {}
        self._members: dict[Symbol, dict[str, Symbol]] = {}

    def file(self, module: str) -> Path | None:
        if module not in self._files:
            parts = module.split(".")
            folder = self.packages.get(parts[0])
            base = None if folder is None else folder.joinpath(*parts)
            found = [] if base is None else [base / "__init__.py", base.with_name(f"{base.name}.py")]
            self._files[module] = next((path for path in found if path.is_file()), None)
        return self._files[module]

    def parse(self, module: str) -> ast.Module | None:
        if module not in self._parsed:
            path = self.file(module)
            self._parsed[module] = None if path is None else ast.parse(path.read_text(encoding="utf-8"))
        return self._parsed[module]

    def names(self, module: str) -> dict[str, list[ast.stmt]]:
        """The statements of a module that bind a name, by name: definitions first, then imports."""
        if module not in self._names:
            found = self._names[module] = {}
            tree = self.parse(module)
            every = [] if tree is None else list(statements(tree.body))
            for statement in every:
                for name in bound(statement):
                    found.setdefault(name, []).append(statement)
            for statement in every:
                if isinstance(statement, ast.ImportFrom | ast.Import):
                    for alias in statement.names:
                        found.setdefault(local(alias), []).append(statement)
        return self._names[module]

    def find(self, module: str, path: Sequence[str], depth: int = DEEPEST) -> Symbol | None:
        """What `path` in a module stands for; None where no such thing is to be seen."""
        if self.file(module) is None or depth == 0:
            return None
        if not path:
            return Symbol(module)
        symbol = self.name(module, path[0], depth)
        for part in path[1:]:
            symbol = None if symbol is None else self.attribute(symbol, part, depth)
        return symbol

    def name(self, module: str, name: str, depth: int = DEEPEST) -> Symbol | None:
        """What a name at the top of a module stands for."""
        for statement in self.names(module).get(name, ()):
            if not isinstance(statement, ast.ImportFrom | ast.Import):
                return Symbol(module, (name,), statement)
            alias = next(alias for alias in statement.names if local(alias) == name)
            if (found := self.imported(module, statement, alias, depth)) is not None:
                return found
        if self.file(f"{module}.{name}") is not None:
            return Symbol(f"{module}.{name}")
        for statement in self.names(module).get("*", ()):
            if isinstance(statement, ast.ImportFrom):
                origin = self.origin(module, statement)
                if origin != module and (found := self.find(origin, (name,), depth - 1)) is not None:
                    return found
        return None

    def origin(self, module: str, statement: ast.ImportFrom) -> str:
        """The module that a `from ... import` in `module` names, also a relative one."""
        if not statement.level:
            return statement.module or ""
        path = self.file(module)
        parts = module.split(".")
        up = statement.level - (path is not None and path.name == "__init__.py")
        base = parts[: len(parts) - up] if up else parts
        return ".".join([*base, *([statement.module] if statement.module else [])])

    def imported(
        self, module: str, statement: ast.ImportFrom | ast.Import, alias: ast.alias, depth: int = DEEPEST
    ) -> Symbol | None:
        """What an import binds. Of a module that is not in this tree None is known."""
        if isinstance(statement, ast.Import):
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            return self.find(name, (), depth)
        origin = self.origin(module, statement)
        if origin == module and self.file(f"{module}.{alias.name}") is not None:
            return Symbol(f"{module}.{alias.name}")
        return self.find(origin, (alias.name,), depth - 1)

    def attribute(self, owner: Symbol, name: str, depth: int = DEEPEST) -> Symbol | None:
        """`owner.name`, of a module, or of a class: its own, what its methods set on `self`, then its bases'."""
        if not owner.path:
            return self.name(owner.module, name, depth)
        for one in self.lineage(owner):
            if (found := self.members(one).get(name)) is not None:
                return found
        return None

    def members(self, owner: Symbol) -> dict[str, Symbol]:
        """What a class's own body binds and its methods set on `self`."""
        if owner not in self._members:
            assert isinstance(owner.node, ast.ClassDef)
            found = self._members[owner] = {}
            for statement in statements(owner.node.body):
                for name in bound(statement):
                    found.setdefault(name, Symbol(owner.module, (*owner.path, name), statement))
            for node in ast.walk(owner.node):
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                for target in targets:
                    for each in getattr(target, "elts", [target]):
                        if isinstance(each, ast.Attribute) and is_name(each.value, "self"):
                            found.setdefault(each.attr, Symbol(owner.module, (*owner.path, each.attr), node))
        return self._members[owner]

    def lineage(self, owner: Symbol) -> list[Symbol]:
        """A class and its bases, as far as they stand in this tree, nearest first."""
        found: list[Symbol] = []
        left = [owner]
        while left:
            one = left.pop(0)
            if isinstance(one.node, ast.ClassDef) and one not in found:
                found.append(one)
                for base in one.node.bases:
                    named = self.resolve(one.module, base)
                    left += [] if named is None else [named]
        return found

    def resolve(self, module: str, expression: ast.AST) -> Symbol | None:
        """A name, a dotted name or a subscripted one (`Base[T]`), as it is read at the top of a module."""
        if isinstance(expression, ast.Subscript):
            return self.resolve(module, expression.value)
        if isinstance(expression, ast.Name):
            return self.name(module, expression.id)
        if isinstance(expression, ast.Attribute):
            owner = self.resolve(module, expression.value)
            return None if owner is None else self.attribute(owner, expression.attr)
        return None

    def search(self, name: str) -> list[str]:
        """Modules that define a function, a class or a name of that spelling."""
        pattern = re.compile(
            rf"^\s*(?:(?:async )?def|class) {re.escape(name)}\b|^{re.escape(name)}\s*[:=]", re.M
        )
        return [m for m, path in self.modules() if pattern.search(path.read_text(encoding="utf-8"))]

    def modules(self) -> Iterator[tuple[str, Path]]:
        """Every module's dotted name and file."""
        for package, folder in self.packages.items():
            for path in sorted((folder / package).rglob("*.py")):
                parts = path.relative_to(folder).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def is_name(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
