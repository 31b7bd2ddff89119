"""Lay out a directed graph's boxes in layers from top to bottom, with few crossings and straight lanes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

__all__ = ["Layout", "Point", "layered"]

Point = tuple[float, float]

# Pixels: between the boxes of a layer, between layers, the width of a lane that passes a layer.
_BESIDE, _BELOW, _LANE = 22.0, 30.0, 10.0
# Most sweeps that order the layers, and the number of sweeps without improvement after which ordering stops.
_ORDERINGS, _PATIENCE = 24, 4


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Positions in pixels, from the upper left corner.

    Attributes:
        corners: The upper left corner of each box.
        lanes: The part of edges that passes other layers, shared by all readers of a box: the points of each piece.
        ends: The last piece of each edge, which ends at a box.
        width: Total width.
        height: Total height.
    """

    corners: tuple[Point, ...]
    lanes: tuple[tuple[Point, ...], ...]
    ends: tuple[tuple[Point, ...], ...]
    width: float
    height: float


class _Graph:
    """Boxes, followed by the points where lanes pass layers; links lead from one layer to the next."""

    def __init__(self, sizes: Sequence[Point], edges: Iterable[tuple[int, int]]) -> None:
        self.boxes = len(sizes)
        self.edges = list(dict.fromkeys(edges))
        self.rank = _ranks(self.boxes, self.edges)
        self.widths = [width for width, _ in sizes]
        self.above: list[list[int]] = [[] for _ in sizes]
        self.below: list[list[int]] = [[] for _ in sizes]
        readers: dict[int, list[int]] = {}
        for source, reader in self.edges:
            readers.setdefault(source, []).append(reader)
        for source, own in readers.items():
            self._lead(source, own)
        self.layers: list[list[int]] = [[] for _ in range(max(self.rank, default=-1) + 1)]
        for item, rank in enumerate(self.rank):
            self.layers[rank].append(item)

    def _lead(self, source: int, readers: list[int]) -> None:
        """Link a box to its readers by one lane to the farthest reader, from which the others branch off."""
        lane = [source]
        for rank in range(self.rank[source] + 1, max(self.rank[reader] for reader in readers)):
            self.rank.append(rank)
            self.widths.append(_LANE)
            self.above.append([])
            self.below.append([])
            lane.append(len(self.rank) - 1)
            self._link(lane[-2], lane[-1])
        for reader in readers:
            self._link(lane[self.rank[reader] - self.rank[source] - 1], reader)

    def _link(self, upper: int, lower: int) -> None:
        self.below[upper].append(lower)
        self.above[lower].append(upper)

    def distance(self, one: int, other: int) -> float:
        """Distance between the centers of two neighbors."""
        lanes = one >= self.boxes and other >= self.boxes
        return (self.widths[one] + self.widths[other]) / 2 + (_LANE / 2 if lanes else _BESIDE)


def layered(sizes: Sequence[Point], edges: Iterable[tuple[int, int]]) -> Layout:
    """A layered drawing: edges lead downwards, boxes do not overlap, and no edge crosses a box.

    Layers follow the longest path from above. Each layer is ordered by the barycenters of its neighbors above and
    below, alternately, and the order with the fewest crossings is kept. Chains and lanes are straight if the order
    allows it.

    Args:
        sizes: Width and height of each box, in pixels.
        edges: Source and reader, as indices into `sizes`; the source has the smaller index.

    References:
        Sugiyama, Tagawa and Toda, Methods for visual understanding of hierarchical system structures, IEEE Trans. SMC
        11(2), 1981; Brandes and Köpf, Fast and simple horizontal coordinate assignment, Graph Drawing 2001.

    >>> drawn = layered([(40, 20), (40, 20), (40, 20)], [(0, 1), (0, 2)])
    >>> [y for _, y in drawn.corners], drawn.height
    ([0.0, 50.0, 50.0], 70.0)
    """
    graph = _Graph(sizes, edges)
    _order(graph)
    centres = _centres(graph)
    tops, heights = [], []
    top = 0.0
    for layer in graph.layers:
        tops.append(top)
        heights.append(max((sizes[item][1] for item in layer if item < graph.boxes), default=0.0))
        top += heights[-1] + _BELOW
    left = min((x - graph.widths[item] / 2 for item, x in enumerate(centres)), default=0.0)
    right = max((x + graph.widths[item] / 2 for item, x in enumerate(centres)), default=0.0)
    centres = [x - left for x in centres]

    def ends_of(item: int) -> tuple[float, float]:
        rank = graph.rank[item]
        if item >= graph.boxes:
            return tops[rank], tops[rank] + heights[rank]
        begin = tops[rank] + (heights[rank] - sizes[item][1]) / 2
        return begin, begin + sizes[item][1]

    def piece(upper: int, lower: int) -> tuple[Point, ...]:
        """Down to the end of the layer, over to the other box, down to that box; a lane extends to its own end."""
        bottom = tops[graph.rank[upper]] + heights[graph.rank[upper]]
        points = [(centres[upper], ends_of(upper)[1]), (centres[upper], bottom)]
        points += [(centres[lower], tops[graph.rank[lower]]), (centres[lower], ends_of(lower)[lower >= graph.boxes])]
        return tuple(points)

    links = [(upper, lower) for upper, lowers in enumerate(graph.below) for lower in lowers]
    return Layout(
        corners=tuple((centres[item] - graph.widths[item] / 2, ends_of(item)[0]) for item in range(graph.boxes)),
        lanes=tuple(piece(*link) for link in links if link[1] >= graph.boxes),
        ends=tuple(piece(*link) for link in links if link[1] < graph.boxes),
        width=right - left,
        height=max(0.0, top - _BELOW),
    )


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each box; a box without sources is right above its first reader."""
    ranks = [0] * count
    for source, reader in sorted(edges, key=lambda edge: edge[1]):
        ranks[reader] = max(ranks[reader], ranks[source] + 1)
    led_to = {reader for _, reader in edges}
    first: dict[int, int] = {}
    for source, reader in edges:
        if source not in led_to:
            first[source] = min(first.get(source, ranks[reader]), ranks[reader])
    for source, rank in first.items():
        ranks[source] = rank - 1
    return ranks


def _order(graph: _Graph) -> None:
    best, fewest, since = [list(layer) for layer in graph.layers], _crossings(graph), 0
    for turn in range(_ORDERINGS):
        if not fewest or since == _PATIENCE:
            break
        since += 1
        down = turn % 2 == 0
        neighbours = graph.above if down else graph.below
        place = {item: at for layer in graph.layers for at, item in enumerate(layer)}
        for layer in graph.layers if down else reversed(graph.layers):
            middle = {
                item: sum(place[one] for one in neighbours[item]) / len(neighbours[item])
                if neighbours[item]
                else place[item]
                for item in layer
            }
            layer.sort(key=lambda item: middle[item])
            place.update((item, at) for at, item in enumerate(layer))
        crossings = _crossings(graph)
        if crossings < fewest:
            best, fewest, since = [list(layer) for layer in graph.layers], crossings, 0
    graph.layers = best


def _crossings(graph: _Graph) -> int:
    """The number of crossings of links."""
    place = {item: at for layer in graph.layers for at, item in enumerate(layer)}
    count = 0
    for layer in graph.layers:
        passed: list[int] = []
        for item in layer:
            own = [place[one] for one in graph.below[item]]
            count += sum(len(passed) - bisect_right(passed, at) for at in own)
            for at in own:
                insort(passed, at)
    return count


def _centres(graph: _Graph) -> list[float]:
    """The x coordinate of each center: the mean of the middle two of four placements, each aligned to one side."""
    crossed = _crossed(graph)
    found = []
    for down in (True, False):
        ordered = graph.layers if down else graph.layers[::-1]
        for left in (True, False):
            layers = ordered if left else [layer[::-1] for layer in ordered]
            roots = _blocks(layers, graph.above if down else graph.below, crossed)
            places = _compacted(graph, layers, roots)
            found.append(places if left else [-x for x in places])
    spans = [(min(places, default=0.0), max(places, default=0.0)) for places in found]
    narrow = min(range(4), key=lambda one: spans[one][1] - spans[one][0])
    for one, places in enumerate(found):
        # Left-aligned placements share their left end with the narrowest, the others their right end.
        shift = spans[narrow][one % 2] - spans[one][one % 2]
        found[one] = [x + shift for x in places]
    return [sum(sorted(four)[1:3]) / 2 for four in zip(*found, strict=True)]


def _crossed(graph: _Graph) -> set[tuple[int, int]]:
    """Links that cross a lane; the lane stays straight."""
    place = {item: at for layer in graph.layers for at, item in enumerate(layer)}
    found = set()
    for layer in graph.layers:
        # Lanes to the next layer, from left to right; per side of a link, the lane that leads farthest over.
        lanes = [
            (place[item], place[one]) for item in layer for one in graph.below[item] if min(item, one) >= graph.boxes
        ]
        uppers = [upper for upper, _ in lanes]
        least, most = _running(min, [lower for _, lower in lanes][::-1])[::-1], _running(max, [low for _, low in lanes])
        for item in layer:
            for one in graph.below[item]:
                if min(item, one) >= graph.boxes:
                    continue
                before, behind = bisect_left(uppers, place[item]), bisect_right(uppers, place[item])
                if (before and most[before - 1] > place[one]) or (behind < len(lanes) and least[behind] < place[one]):
                    found.add((item, one))
    return found


def _running(choose: Callable[[int, int], int], numbers: Sequence[int]) -> list[int]:
    return list(accumulate(numbers, choose))


def _blocks(layers: Sequence[Sequence[int]], near: Sequence[Sequence[int]], crossed: set[tuple[int, int]]) -> list[int]:
    """For each item the root of its vertical line: follow the middle neighbor repeatedly."""
    roots = list(range(len(near)))
    place = {item: at for layer in layers for at, item in enumerate(layer)}
    for layer in layers:
        taken = -1
        for item in layer:
            own = sorted(near[item], key=place.__getitem__)
            for one in own[(len(own) - 1) // 2 : len(own) // 2 + 1]:
                free = place[one] > taken and (one, item) not in crossed and (item, one) not in crossed
                if free:
                    roots[item], taken = roots[one], place[one]
                    break
    return roots


def _compacted(graph: _Graph, layers: Sequence[Sequence[int]], roots: Sequence[int]) -> list[float]:
    """Coordinates of blocks: as far left as their distances allow, then right up to the next block."""
    right: dict[int, dict[int, float]] = {root: {} for root in roots}
    waits = dict.fromkeys(right, 0)
    for layer in layers:
        for one, other in pairwise(layer):
            own = right[roots[one]]
            waits[roots[other]] += roots[other] not in own
            own[roots[other]] = max(own.get(roots[other], 0.0), graph.distance(one, other))
    ready = [root for root, count in waits.items() if not count]
    places = dict.fromkeys(right, 0.0)
    for root in ready:  # the list grows during the loop
        for other, distance in right[root].items():
            places[other] = max(places[other], places[root] + distance)
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    for root in reversed(ready):
        if right[root]:
            places[root] = max(places[root], min(places[other] - far for other, far in right[root].items()))
    return [places[root] for root in roots]
