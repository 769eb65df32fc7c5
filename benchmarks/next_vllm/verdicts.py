"""What became of a use in another version of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks.next_vllm import signatures
from benchmarks.next_vllm.source_tree import Function, SourceTree, Symbol
from benchmarks.next_vllm.uses import Address, Use

Status = Literal[
    "same", "body changed", "moved", "changed signature", "not used there", "new abstract method", "gone"
]


@dataclass(frozen=True, slots=True)
class Verdict:
    use: Use
    status: Status
    detail: str = ""
    breaks: bool = True


def judge(
    uses: Iterable[Use], old: SourceTree, new: SourceTree, elsewhere: Mapping[Address, Address] | None = None
) -> list[Verdict]:
    """The worst verdict about each address that the old version has; what even that does not show, cannot be told.

    `elsewhere` has the addresses at which our code looks before it looks at others.
    """
    found: dict[tuple[Address, str], Verdict] = {}
    for use in uses:
        if (stock := old.find(use.module, use.path)) is None or not _says(old, use):
            continue
        verdict = _Judge(use, stock, old, new, elsewhere or {}).verdict()
        key = (use.module, use.path), use.text
        if key not in found or _rank(verdict) > _rank(found[key]):
            found[key] = verdict
    return list(found.values())


def _rank(verdict: Verdict) -> tuple[bool, bool, bool]:
    return verdict.breaks, verdict.status != "same", verdict.use.kind == "hook"


def _says(tree: SourceTree, use: Use) -> bool:
    """Whether the module's log lines still begin so."""
    path = tree.file(use.module)
    return path is not None and use.text in path.read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Judge:
    use: Use
    stock: Symbol
    old: SourceTree
    new: SourceTree
    elsewhere: Mapping[Address, Address]

    def verdict(self) -> Verdict:
        use = self.use
        for module, path in self._addresses():
            if (found := self.new.find(module, path)) is not None:
                verdict = self._compared(found, module)
                if verdict.status == "same" and module != use.module:
                    return Verdict(use, "moved", f"{module}, where it is looked for, too", breaks=False)
                return verdict
        return self._lost()

    def _addresses(self) -> Iterable[Address]:
        """Where our code looks, in its order."""
        module, path = self.use.module, self.use.path
        for length in range(len(path), -1, -1):
            if (other := self.elsewhere.get((module, path[:length]))) is not None:
                yield other[0], other[1] + path[length:]
        yield module, path

    def _compared(self, found: Symbol, module: str) -> Verdict:
        use, stock = self.use, self.stock
        if use.kind == "text" and not _says(self.new, use):
            return Verdict(use, "gone", f"no line {use.text!r}", breaks=False)
        if use.kind in ("hook", "store") and len(use.path) == 1:
            name = use.path[0]
            if loads(self.old, use.module, name) and not loads(self.new, module, name):
                return Verdict(use, "not used there", f"it stands in {found.module}")
        if (changed := self._signature(found)) is not None:
            return changed
        if use.kind == "subclass" and (
            more := _abstract(self.new, found) - _abstract(self.old, stock) - use.defines
        ):
            return Verdict(use, "new abstract method", ", ".join(sorted(more)))
        if use.kind in ("hook", "override"):
            before, after = signatures.fingerprint(stock.node), signatures.fingerprint(found.node)
            if before != after:
                return Verdict(use, "body changed", f"{before} -> {after} in {found.module}", breaks=False)
        return Verdict(use, "same", breaks=False)

    def _signature(self, found: Symbol) -> Verdict | None:
        use, stock = self.use, self.stock
        if use.kind in ("hook", "override") and isinstance(found.node, Function) and use.ours is not None:
            assert isinstance(stock.node, Function)
            before, after = signatures.parameters(stock.node), signatures.parameters(found.node)
            if use.kind == "hook":
                agrees = signatures.hooked(use.ours, use.parameters, found.node)
            else:
                told = signatures.replaces(use.ours, signatures.of_function(stock.node))
                agrees = not told or signatures.replaces(use.ours, signatures.of_function(found.node))
            if not agrees:
                return Verdict(use, "changed signature", differences(before, after))
            if before != after:
                return Verdict(
                    use, "changed signature", f"{differences(before, after)}, served", breaks=False
                )
        if use.call is not None:
            then, now = signatures.of_symbol(self.old, stock), signatures.of_symbol(self.new, found)
            if then is not None and now is not None and _fits(use, then) and not _fits(use, now):
                return Verdict(use, "changed signature", differences(then.names, now.names))
        return None

    def _lost(self) -> Verdict:
        """Of something that is not at its address any more: where else it may be."""
        use, new = self.use, self.new
        if use.optional or use.kind == "text":
            return Verdict(
                use, "gone", "and not needed" if use.optional else f"no line {use.text!r}", breaks=False
            )
        if len(use.path) > 1 and new.find(use.module, use.path[:-1]) is not None:
            return Verdict(use, "gone", f"{use.path[-2]} has no {use.path[-1]}")
        last = use.module.rpartition(".")[2]
        modules = (module for module, _ in new.modules() if module.rpartition(".")[2] == last)
        found = new.search(use.path[0]) if use.path else list(modules)
        return Verdict(use, "moved", ", ".join(found[:3])) if found else Verdict(use, "gone")


def _fits(use: Use, signature: signatures.Signature) -> bool:
    assert use.call is not None
    return (signature.without_first() if use.bound else signature).takes(use.call)


def _abstract(tree: SourceTree, owner: Symbol) -> set[str]:
    """Methods that a class leaves to its subclasses."""
    seen: set[str] = set()
    found = set()
    for one in tree.lineage(owner):
        assert isinstance(one.node, ast.ClassDef)
        methods = [each for each in one.node.body if isinstance(each, Function)]
        marked = {m.name for m in methods if signatures.decorators(m) & {"abstractmethod"}}
        found |= marked - seen
        seen |= {m.name for m in methods}
    return found


def loads(tree: SourceTree, module: str, name: str) -> bool:
    """Whether a module's own code reads the name. Replacing what it only passes on would change nothing there."""
    parsed = tree.parse(module)
    nodes = [] if parsed is None else ast.walk(parsed)
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in nodes)


def differences(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    """Parameters that came and went, or their new order."""
    changes = [f"-{name}" for name in before if name not in after]
    changes += [f"+{name}" for name in after if name not in before]
    return " ".join(changes) or f"order: {', '.join(after)}"
