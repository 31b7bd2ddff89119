"""A contract of import-linter: no import cycle between modules, imports inside functions and for types included.

The graph of the linter has imports for types only with `exclude_type_checking_imports = false`; the
contract refuses to check without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output

__all__ = ["Acyclic"]


class Acyclic(Contract):
    """No module imports itself by way of others, nor by way of the packages that Python loads on the way to one."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Look for cycles."""
        if self.session_options.get("exclude_type_checking_imports", False) not in (False, "False", "false"):
            raise ValueError("an acyclic contract needs exclude_type_checking_imports = false")
        loaded = deepcopy(graph)
        _add_packages(loaded)
        broken = [_shortest_cycle(loaded, modules) for modules in _cycles(loaded)]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each cycle."""
        for cycle in check.metadata["broken"]:
            output.print_error("An import cycle:")
            for importer, imported in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
                output.print_error(f"  {importer} -> {imported}", bold=False)
            output.new_line()


def _add_packages(graph: ImportGraph) -> None:
    """Importing `a.b.c` also runs `a/__init__.py` and `a/b/__init__.py`: an import from elsewhere is one of these."""
    for importer in sorted(graph.modules):
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            package = imported.rpartition(".")[0]
            while package and not f"{importer}.".startswith(f"{package}."):
                graph.add_import(importer=importer, imported=package)
                package = package.rpartition(".")[0]


def _cycles(graph: ImportGraph) -> Iterator[list[str]]:
    """The strongly connected components of more than one module, each sorted.

    References:
        Tarjan, Depth-first search and linear graph algorithms, SIAM J. Comput. 1(2), 1972, section 4.
    """
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    for root in sorted(graph.modules):
        if root in number:
            continue
        # Python's stack is not deep enough for a recursion over all modules.
        calls: list[tuple[str, Iterator[str]]] = [(root, _enter(graph, root, number, low, path, on_path))]
        while calls:
            module, imported = calls[-1]
            for each in imported:
                if each not in number:
                    calls.append((each, _enter(graph, each, number, low, path, on_path)))
                    break
                if each in on_path:
                    low[module] = min(low[module], number[each])
            else:
                calls.pop()
                if calls:
                    low[calls[-1][0]] = min(low[calls[-1][0]], low[module])
                if low[module] == number[module]:
                    place = path.index(module)
                    component, path[place:] = path[place:], []
                    on_path.difference_update(component)
                    if len(component) > 1:
                        yield sorted(component)


def _enter(
    graph: ImportGraph, module: str, number: dict[str, int], low: dict[str, int], path: list[str], on_path: set[str]
) -> Iterator[str]:
    number[module] = low[module] = len(number)
    path.append(module)
    on_path.add(module)
    return iter(sorted(graph.find_modules_directly_imported_by(module)))


def _shortest_cycle(graph: ImportGraph, modules: Iterable[str]) -> list[str]:
    """The shortest chain of imports from a module back to itself, each module once."""
    chains: list[Any] = []
    for module in modules:
        for imported in graph.find_modules_directly_imported_by(module):
            if (back := graph.find_shortest_chain(importer=imported, imported=module)) is not None:
                chains.append((len(back), [module, *back[:-1]]))
    cycle: list[str] = min(chains)[1]
    return cycle
